"""Internal reinforcement learning (arXiv 2512.20605): a policy of codes that acts only where the
metacontroller's gate opens, learned from the reward of whole episodes; and, beside it, the same
policy gradient on the actions of the pre-trained model.

Both are GRPO's clipped objective with one group an update (arXiv 2402.03300), without a divergence
from the model before. Differences from the paper's noted equations: none that is known beyond those
of the metacontroller.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Generator, Tensor, nn

from algorithms.language.adapters import loss
from algorithms.temporal.metacontroller import Metacontroller
from algorithms.temporal.sequence_model import SequenceModel, States, drawn, previous_actions
from mbrl.config import Count, Fraction, Positive, Settings
from mbrl.native.adam import Adam
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.axes.gate import Clip


class World(Protocol):
    """Where sequences of actions are paid."""

    def reset(self, count: int) -> Any: ...
    def observe(self, state: Any) -> Tensor: ...
    def step(self, state: Any, action: Tensor) -> tuple[Any, Tensor, Tensor]:
        """The state, rewards [B] and which episodes are over [B] bool."""
        ...


@dataclass(frozen=True)
class InternalConfig(Settings):
    """Settings of the policy gradient, of codes or of actions."""

    iterations: Count = 80  # rollouts
    episodes: Count = 128  # of a rollout: one group
    epochs: Count = 4  # updates on each rollout
    clip: Fraction = 0.2  # of the ratio of probabilities
    learning_rate: Positive = 1e-3  # Adam, of the policy of codes
    token_rate: Positive = 3e-4  # Adam, of the whole sequence model where actions are learned
    steps: Count = 32  # of an episode

    @property
    def total(self) -> int:
        """Episodes of all rollouts."""
        return self.iterations * self.episodes


class Rollout(NamedTuple):
    """Observations [B, T, O], actions, whether a step was made [B, T], whether the code changed
    there, codes [B, T, Z] (None where actions are learned), log-probabilities of what was drawn
    [B, T], and returns [B]."""

    obs: Tensor
    action: Tensor
    made: Tensor
    switch: Tensor
    code: Tensor | None
    log_prob: Tensor
    returns: Tensor


class CodePolicy(nn.Module):
    """pi(z | e_1..t) = N(mean, std^2), with a memory; a standard normal at first."""

    def __init__(self, width: int, code: int, generator: Generator) -> None:
        super().__init__()
        self.memory = nn.GRU(width, 64, batch_first=True)
        self.mean = nn.Linear(64, code)
        drawn(self, generator)
        nn.init.zeros_(self.mean.weight)
        nn.init.zeros_(self.mean.bias)
        self.log_std = nn.Parameter(torch.zeros(code))

    def forward(self, e: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Means [B, T, Z] and the memory after them."""
        out, state = self.memory(e, state)
        return self.mean(out), state

    def log_prob(self, mean: Tensor, code: Tensor) -> Tensor:
        """log N [...] without its constant."""
        scaled = (code - mean) / self.log_std.exp()
        return (-0.5 * scaled.square() - self.log_std).sum(-1)


@torch.no_grad()
def rollout(
    base: SequenceModel,
    world: World,
    config: InternalConfig,
    generator: Generator,
    controller: Metacontroller | None = None,
    policy: CodePolicy | None = None,
) -> Rollout:
    """One group of episodes: of the base's own actions, or with a controller of actions that codes
    steer, which change where the gate is above a half: drawn from `policy`, or without one from
    N(0, 1)."""
    count = config.episodes
    state = world.reset(count)
    over, returns = torch.zeros(count, dtype=torch.bool), torch.zeros(count)
    previous = torch.full((count, 1), -1)
    lower: States | None = None
    upper: States | None = None
    memory = code = held = None
    rows: list[tuple[Tensor, ...]] = []
    for t in range(config.steps):
        obs = world.observe(state)
        e, lower = base.stream(obs[:, None], previous, lower)
        switch, log_prob = torch.ones(count, dtype=torch.bool), torch.zeros(count)
        if controller is not None:
            now = e[:, 0]
            if memory is None or code is None:
                memory, code = controller.gate.start(now, controller.config.code)
            switch = controller.gate(now, memory, code, t == 0) > 0.5
            new = torch.randn(code.shape, generator=generator)
            if policy is not None:
                mean, held = policy(e, held)
                new = mean[:, 0] + policy.log_std.exp() * new
                log_prob = policy.log_prob(mean[:, 0], new)
            code = torch.where(switch[:, None], new, code)
            memory = controller.gate.remember(now, code, memory)
            e = controller.steer(now, code)[:, None]
        logits, upper = base.logits(e, upper)
        probabilities = logits[:, 0].softmax(-1)
        action = torch.multinomial(probabilities, 1, generator=generator)
        if controller is None:
            log_prob = probabilities.gather(1, action)[:, 0].log()
        made = ~over
        state, reward, ended = world.step(state, action[:, 0])
        returns = returns + torch.where(made, reward, 0.0)
        kept = code if code is not None else obs[:, :0]
        rows.append((obs, action[:, 0], made, switch & made, kept, log_prob))
        over, previous = over | ended, action
    obs, action, made, switch, code, log_prob = (torch.stack(x, 1) for x in zip(*rows, strict=True))
    return Rollout(
        obs, action, made, switch, code if controller is not None else None, log_prob, returns
    )


def group_advantage(returns: Tensor) -> Tensor:
    """(R - mean) / deviation [B] within the group; 0 where all are equal."""
    spread = returns.std(correction=0)
    differ = (returns != returns[:1]).any()  # their mean may be rounded
    return torch.where(differ, (returns - returns.mean()) / spread.clamp_min(1e-8), 0.0)


def clipped_loss(
    log_prob: Tensor, before: Tensor, mask: Tensor, advantage: Tensor, clip: float
) -> Tensor:
    """-mean over the terms of `mask` [B, T] of min(rho A, clipped rho A), rho the ratio of the
    probabilities of a term; `log_prob` and `before` [B, T], `advantage` [B]."""
    recipe = Recipe("clipped", "GRPO without a divergence", "2402.03300", gate=Clip(clip, clip))
    return loss(recipe, log_prob, advantage, mask, old=before)[0]


def learn_codes(
    base: SequenceModel,
    controller: Metacontroller,
    world: World,
    config: InternalConfig,
    generator: Generator,
    report: Callable[[Rollout], None],
) -> CodePolicy:
    """A policy of codes; base and controller stay as they are. Log-probabilities are those of codes
    at the steps where they changed, and of nothing else."""
    policy = CodePolicy(base.head.in_features, controller.config.code, generator)
    optimiser = Adam(policy.parameters(), lr=config.learning_rate)
    for _ in range(config.iterations):
        seen = rollout(base, world, config, generator, controller, policy)
        report(seen)
        advantage = group_advantage(seen.returns)
        if not bool(advantage.any()):
            continue
        assert seen.code is not None
        with torch.no_grad():
            e, _ = base.stream(seen.obs, previous_actions(seen.action))
        for _ in range(config.epochs):
            log_prob = policy.log_prob(policy(e)[0], seen.code)
            value = clipped_loss(log_prob, seen.log_prob, seen.switch, advantage, config.clip)
            _descend(optimiser, policy, value)
    return policy


def learn_actions(
    base: SequenceModel,
    world: World,
    config: InternalConfig,
    generator: Generator,
    report: Callable[[Rollout], None],
) -> SequenceModel:
    """The same policy gradient on the actions of `base`, all of whose weights learn."""
    base.requires_grad_(True)
    optimiser = Adam(base.parameters(), lr=config.token_rate)
    for _ in range(config.iterations):
        seen = rollout(base, world, config, generator)
        report(seen)
        advantage = group_advantage(seen.returns)
        if not bool(advantage.any()):
            continue
        for _ in range(config.epochs):
            e, _ = base.stream(seen.obs, previous_actions(seen.action))
            chosen = base.logits(e)[0].log_softmax(-1).gather(2, seen.action[..., None])[..., 0]
            value = clipped_loss(chosen, seen.log_prob, seen.made, advantage, config.clip)
            _descend(optimiser, base, value)
    return base


def _descend(optimiser: torch.optim.Optimizer, module: nn.Module, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimiser.step()
