"""The learner of the bandit: dueling double deep Q-learning on whole episodes, with a memory of
linear recurrent units, as in NEUBAY (arXiv 2512.04341)."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.studies.bandit_world import ARMS, Act, Pulls
from mbrl.config import Count, Discount, Positive, Probability, Rate, Settings
from mbrl.networks import adam, polyak_update, target_copy
from mbrl.networks.recurrent import MemoryEncoder, NormedLayer

INPUTS = 1 + ARMS + 1  # a dummy observation, the arm before, its reward


@dataclass(frozen=True)
class AgentConfig(Settings):
    """Settings of the learner, from the authors' configuration."""

    updates: Count = 20_000  # gradient steps of the whole run; the schedule of exploration needs it
    pulls: Count = 100  # T, of an episode
    width: Count = 256  # of the encoder and of the head's hidden layers
    states: Count = 128  # complex states of each recurrent layer
    layers: Count = 2  # recurrent ones, and hidden ones of the head
    encoder_lr: Positive = 3e-6  # the authors tune it for each penalty
    head_lr: Positive = 1e-4  # of the dueling head
    clip: Positive = 1.0  # norm of the gradient, encoder and head each
    gamma: Discount = 0.99  # episodes are truncated, never terminated: it discounts every target
    tau: Rate = 0.005  # of the target network
    tape: Count = 1000  # steps of a batch
    capacity: Count = 1_000_000  # steps of the replay
    ratio: Positive = 0.02  # updates for each imagined pull
    epsilon_first: Probability = 1.0  # share of random pulls at the start
    epsilon_last: Probability = 0.1  # and from a tenth of the updates on
    epsilon_share: Probability = 0.1  # that tenth


def epsilon(config: AgentConfig, step: int) -> float:
    """Share of random pulls after `step` updates: linear, then constant."""
    progress = min(1.0, step / (config.updates * config.epsilon_share))
    return config.epsilon_first + (config.epsilon_last - config.epsilon_first) * progress


class QNetwork(nn.Module):
    """An encoder of the history, and a head of two hidden layers: q(arm) = v + a(arm) - mean a
    (Dueling Network Architectures, arXiv 1511.06581, eq. 9).

    Linear layers start uniform within 1 / sqrt(fan_in), biases too, as the authors' library has
    them; the last two within 0.1 / sqrt(fan_in), without biases.
    """

    def __init__(self, config: AgentConfig, generator: torch.Generator) -> None:
        super().__init__()
        width = config.width
        self.encoder = MemoryEncoder(
            INPUTS, width, layers=config.layers, states=config.states, generator=generator
        )
        hidden = [NormedLayer(width, width, generator) for _ in range(config.layers)]
        self.value, self.advantage = nn.Linear(width, 1), nn.Linear(width, ARMS)
        self.hidden = nn.Sequential(*hidden)
        for layer in (self.value, self.advantage):
            bound = 0.1 / math.sqrt(layer.in_features)
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            nn.init.zeros_(layer.bias)

    def head_parameters(self) -> list[nn.Parameter]:
        return [p for m in (self.hidden, self.value, self.advantage) for p in m.parameters()]

    def head(self, features: Tensor) -> Tensor:
        """q [..., 2] from features [..., width]."""
        h = self.hidden(features)
        advantage = self.advantage(h)
        q: Tensor = self.value(h) + advantage - advantage.mean(-1, keepdim=True)
        return q

    def forward(self, inputs: Tensor, first: Tensor) -> Tensor:
        """q [T, ..., 2] along tapes [T, ..., 4] on which episodes begin where `first` [T] is
        True."""
        return self.head(self.encoder(inputs, first))


class Batch(NamedTuple):
    """Episodes side by side: `inputs` [T + 1, B, 4], `arm`, `paid` and whether the pull is learned
    from, `pulled`, [T, B]."""

    inputs: Tensor
    arm: Tensor
    paid: Tensor
    pulled: Tensor


def double_q_loss(q: Tensor, q_target: Tensor, batch: Batch, gamma: float) -> Tensor:
    """Huber loss of the pulls: the target of step t is paid_t + gamma q_target of step t + 1 at the
    arm that q, held fixed, prefers there. `q`, `q_target` [T + 1, B, 2].

    Deep Reinforcement Learning with Double Q-learning (arXiv 1509.06461).
    """
    best = q.detach().argmax(-1, keepdim=True)
    goal = batch.paid + gamma * q_target.detach().gather(-1, best)[1:, :, 0]
    chosen = q[:-1].gather(-1, batch.arm[..., None])[..., 0]
    loss = F.smooth_l1_loss(chosen, goal, reduction="none") * batch.pulled
    return loss.sum() / batch.pulled.sum()


class Replay:
    """Whole episodes of one length, oldest replaced first. Row t of an episode holds the input
    before pull t, its arm and its reward; row T, after the last pull, holds only the input."""

    def __init__(self, capacity: int, pulls: int) -> None:
        self.count, self.length = max(1, capacity // (pulls + 1)), pulls + 1
        shape = (self.count, self.length)
        self.inputs = torch.zeros(*shape, INPUTS)
        self.arm, self.paid = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
        self.size, self.at = 0, 0

    def add(self, played: Pulls) -> None:
        rows = (self.at + torch.arange(played.arm.shape[1])) % self.count
        self.inputs[rows] = played.inputs.transpose(0, 1)
        self.arm[rows, :-1], self.paid[rows, :-1] = played.arm.T, played.paid.T
        self.size = min(self.count, self.size + len(rows))
        self.at = (self.at + len(rows)) % self.count

    def sample(self, steps: int, generator: torch.Generator) -> Batch:
        """Uniformly drawn episodes. Of their rows, one episode after the other, the first `steps`
        are learned from: of the last episode what is beyond is not, nor its last pull before."""
        count = -(-steps // self.length)
        rows = torch.randint(self.size, (count,), generator=generator)
        place = torch.arange(count * self.length).view(count, -1)
        pulled = place[:, 1:] < steps  # of every pull the row after it
        fields = (self.inputs[rows], self.arm[rows, :-1], self.paid[rows, :-1], pulled)
        return Batch(*(field.transpose(0, 1).contiguous() for field in fields))

    def state_dict(self) -> dict[str, Any]:
        fields = {name: getattr(self, name)[: self.size].clone() for name in FIELDS}
        return {**fields, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.size, self.at = len(state["arm"]), state["at"]
        for name in FIELDS:
            getattr(self, name)[: self.size] = state[name]


FIELDS = ("inputs", "arm", "paid")


class Learner:
    """The agent with its networks, replay and optimiser; it draws random numbers from
    `generator`."""

    def __init__(self, config: AgentConfig, seed: int) -> None:
        self.config, self.step = config, 0
        self.generator = torch.Generator().manual_seed(seed + 1)
        self.q = QNetwork(config, self.generator)
        self.target = target_copy(self.q)
        self.parts = (list(self.q.encoder.parameters()), self.q.head_parameters())
        rates = (config.encoder_lr, config.head_lr)
        self.optimisers = [adam(p, lr) for p, lr in zip(self.parts, rates, strict=True)]
        self.replay = Replay(config.capacity, config.pulls)

    @torch.no_grad()
    def act(
        self,
        inputs: Tensor,
        memory: Tensor | None,
        generator: torch.Generator,
        random_share: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Greedy arms [B] but for `random_share` of them, and the memory after `inputs` [B, 4]."""
        if memory is None:
            memory = inputs.new_zeros(len(inputs), self.q.encoder.state_size)
        features, memory = self.q.encoder.step(inputs, memory)
        arm = self.q.head(features).argmax(-1)
        if random_share > 0:
            other = torch.randint(ARMS, arm.shape, generator=generator)
            arm = torch.where(torch.rand(len(arm), generator=generator) < random_share, other, arm)
        return arm, memory

    def exploring(self) -> Act:
        """`act` with the share of random pulls at the present step."""
        return partial(self.act, random_share=epsilon(self.config, self.step))

    def update(self) -> Tensor:
        """One gradient step on a sampled tape; its loss."""
        batch = self.replay.sample(self.config.tape, self.generator)
        first = torch.arange(len(batch.inputs)) == 0
        with torch.no_grad():
            q_target = self.target(batch.inputs, first)
        q = self.q(batch.inputs, first)
        loss = double_q_loss(q, q_target, batch, self.config.gamma)
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        loss.backward()
        for part, optimiser in zip(self.parts, self.optimisers, strict=True):
            nn.utils.clip_grad_norm_(part, self.config.clip)
            optimiser.step()
        polyak_update(self.target, self.q, self.config.tau)
        self.step += 1
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "q": self.q.state_dict(),
            "target": self.target.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
            "replay": self.replay.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.q.load_state_dict(state["q"])
        self.target.load_state_dict(state["target"])
        for optimiser, values in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(values)
        self.replay.load_state_dict(state["replay"])
        self.generator.set_state(state["generator"])
