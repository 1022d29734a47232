"""FQL: Flow Q-Learning (arXiv 2502.02538): a flow clones the data, and a policy of one step is
drawn to the flow's actions and up the critics' value. The formulas were read in the authors' code
(github.com/seohongpark/fql, agents/fql.py).

Differences from the authors' code: SiLU and ReLU in the place of GELU; networks start as
`torch.nn.Linear` does; LayerNorm stands before the activation; the greedy action is that of a
noise which is kept, theirs draws it at every step of an evaluation too (here `--eval-stochastic`;
with one action dimension the kept noise is 1 or -1, so that greedy actions lie on one side of what
the policy samples); the target critics follow the critics after their step (theirs: before it).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from algorithms.learners.critics import CriticRegression, critics, q_values
from algorithms.learners.generative import Drawn, Flow, GenerativePolicy, drawn, kept_noise
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, Discount, NonNegative, Positive, Rate, Settings, Widths
from mbrl.networks import (
    MLP,
    ActionScale,
    Normaliser,
    adam,
    descend,
    polyak_update,
    target_copy,
)
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class FQLConfig(Settings):
    """Settings of FQL; the defaults are the authors'. They choose `alpha` for each task."""

    alpha: NonNegative = 10.0  # weight of the distance to the flow's actions
    normalise_q: bool = False  # divide the value term by mean |Q|
    target_value: Literal["mean", "min"] = "mean"  # of the two critics
    flow: Flow = field(default_factory=Flow)
    hidden: Widths = (512, 512, 512, 512)  # widths of all networks
    layer_norm: bool = True  # in the critics
    learning_rate: Positive = 3e-4  # Adam, all networks
    gamma: Discount = 0.99  # discount factor
    tau: Rate = 0.005  # rate of the target average
    batch_size: Count = 256  # rows an update
    normalise_obs: bool = False  # standardise observations with the data's statistics


def actor_loss(
    q: Tensor, action: Tensor, taught: Tensor, alpha: float, normalise: bool
) -> tuple[Tensor, Metrics]:
    """alpha mean (mu(s, z) - a_flow(s, z))^2 - lambda mean Q, lambda = 1 / mean |Q| with
    `normalise`, else 1; `q` [B], actions [B, A]."""
    check_shapes(q=(q, "B"), action=(action, "B A"), taught=(taught, "B A"))
    scale = 1.0 / q.detach().abs().mean().clamp_min(1e-8) if normalise else 1.0
    distance = (action - taught).square().mean()
    loss = alpha * distance - scale * q.mean()
    return loss, {"actor/loss": loss.detach(), "actor/distance": distance.detach()}


class OneStepPolicy(nn.Module):
    """mu(s, z): an action from noise in one pass. The greedy one is that of the kept `noise`
    [1, A]."""

    noise: Tensor

    def __init__(self, spec: Spec, hidden: Sequence[int], generator: Generator) -> None:
        super().__init__()
        self.normaliser, self.scale = Normaliser(spec.obs_dim), ActionScale(spec)
        width = spec.obs_dim + spec.action_dim
        self.net = MLP(width, hidden, spec.action_dim, activation="silu", generator=generator)
        self.register_buffer("noise", kept_noise(1, spec.action_dim, generator))

    def raw(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions [B, A], not yet within [-1, 1], at raw `obs` [B, S] from `noise` [B, A]."""
        return self.net(torch.cat([self.normaliser(obs), noise], -1))

    def forward(self, obs: Tensor) -> Tensor:
        """The greedy action in the task's units."""
        noise = self.noise.expand(obs.shape[0], -1)
        return self.scale.to_task(self.raw(obs, noise).clamp(-1, 1))

    def explore(self, obs: Tensor, generator: Generator | None) -> Tensor:
        """A sampled action in the task's units."""
        shape = (obs.shape[0], self.noise.shape[1])
        noise = torch.randn(shape, generator=generator, device=obs.device)
        return self.scale.to_task(self.raw(obs, noise).clamp(-1, 1))


class FlowQLearner:
    """A flow that clones, critics, and the policy of one step."""

    def __init__(
        self, spec: Spec, config: FQLConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config = config
        hidden, rate = config.hidden, config.learning_rate
        self.base = GenerativePolicy(spec, config.flow, hidden, generator=generator).to(device)
        self.policy = OneStepPolicy(spec, hidden, generator).to(device)
        critic = critics(spec, 2, hidden, generator, layer_norm=config.layer_norm)
        self.critic = critic.to(device)
        self.critic_target = target_copy(self.critic)
        learned: dict[str, nn.Module] = {
            "policy": self.policy,
            "base": self.base,
            "critic": self.critic,
        }
        self.modules = learned | {"critic_target": self.critic_target}
        self.optimisers = {name: adam(m.parameters(), rate) for name, m in learned.items()}
        self.regression = CriticRegression(
            spec, self.critic, self.optimisers["critic"], self.policy.normaliser, scale=0.5
        )

    def draw(self, batch: Batch, generator: Generator) -> Drawn:
        """The batch with noise of the next action, of the policy's and of the flow's fit."""
        return drawn(batch, self.config.flow, generator, more=2)

    def update(self, batch: Drawn, count: int = 0) -> Metrics:
        """One step of all networks from the weights before the update, as one joint loss has it;
        then the target average."""
        rows = batch.batch
        assert rows.noise is not None
        target, taught = self.targets(rows, rows.noise[0], rows.noise[1])
        metrics = self.update_policy(rows, rows.noise[1], taught)
        loss = self.base.loss(batch)
        descend(self.optimisers["base"], loss)
        metrics |= self.regression.step(rows, target)
        polyak_update(self.critic_target, self.critic, self.config.tau)
        return metrics | {"actor/bc": loss.detach()}

    @torch.no_grad()
    def targets(self, rows: Batch, next_noise: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """What the critics [B] and the policy [B, A] are drawn to."""
        action = self.policy.raw(rows.next_obs, next_noise).clamp(-1, 1)
        next_q = q_values(self.critic_target, self.policy.normaliser(rows.next_obs), action)
        value = next_q.mean(0) if self.config.target_value == "mean" else next_q.min(0).values
        return rows.reward + rows.discount * value, self.base.sample(rows.obs, noise)

    def update_policy(self, rows: Batch, noise: Tensor, taught: Tensor) -> Metrics:
        action = self.policy.raw(rows.obs, noise)
        obs = self.policy.normaliser(rows.obs)
        q = q_values(self.critic, obs, action.clamp(-1, 1)).mean(0)
        loss, metrics = actor_loss(q, action, taught, self.config.alpha, self.config.normalise_q)
        descend(self.optimisers["policy"], loss)
        return metrics


class FQL(Agent[Drawn]):
    """Flow Q-learning.

    Formula:

        flow         L = mean (v(s, x_t, t) - (a - x_0))^2, x_t = (1 - t) x_0 + t a
        policy       L = alpha mean (mu(s, z) - a_flow(s, z))^2 - mean Q(s, mu(s, z)), z ~ N(0, 1)
        critics      y = r + gamma mean_n Q'_n(s', mu(s', z))
                     L = mean_n mean (Q_n(s, a) - y)^2

    When not to use it: with `alpha` as it is and rewards of another size: the value term is not
    divided by the size of the values unless `normalise_q` is set, and the authors choose `alpha`
    between 3 and 1000 for each task.
    """

    version = 1
    config: FQLConfig

    def build(self, generator: Generator) -> tuple[FlowQLearner, LoggedRows]:
        c = self.config
        learner = FlowQLearner(self.spec, c, self.device, generator)
        return learner, LoggedRows.of(self.spec, c, self.device)
