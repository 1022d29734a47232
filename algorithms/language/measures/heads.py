"""Numbers that are read off a language model's features, and how they are fitted."""

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from algorithms.language.learner import trainable
from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.models.passes import filled, passes, together
from algorithms.language.sampling.rollouts import Rollouts
from mbrl.networks import adam
from mbrl.policy_gradient.groups import first_steps, segment
from mbrl.policy_gradient.scans import following
from mbrl.training import Metrics
from mbrl.types import Trajectories


class Heads(nn.Module):
    """`count` numbers [B, N, count] after every token of [B, N]: a linear function of the features
    of a copy of `model`, which is trained with it. They begin at 0, or with a `generator` at random
    weights of deviation 0.02, so that several of them differ."""

    def __init__(
        self, model: Any, count: int = 1, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.trunk = copy.deepcopy(model)
        like = next(self.trunk.parameters())
        with torch.no_grad():
            one = torch.zeros(1, 1, dtype=torch.int64, device=like.device)
            width = self.trunk.features(one).shape[-1]
            self.head = nn.Linear(width, count).to(like)
            self.head.bias.zero_()
            self.head.weight.zero_()
            if generator is not None:
                self.head.weight.normal_(0.0, 0.02, generator=generator)

    def begin(self, model: Any) -> None:
        """Take over the weights of `model`."""
        self.trunk.load_state_dict(model.state_dict())

    def forward(self, tokens: Tensor) -> Tensor:
        numbers: Tensor = self.head(self.trunk.features(tokens))
        return numbers


def optimiser_of(heads: Heads, config: Any) -> torch.optim.Optimizer:
    return adam(trainable(heads), config.part_rate)


@torch.no_grad()
def read(heads: Heads, rollouts: Rollouts, config: Any) -> Tensor:
    """[B, T + 1, count]: the numbers after every token, without gradients. Those before the choice
    of step t are at t, those after it at t + 1."""
    todo, columns = passes(rollouts.data.mask, config.rows_at_once), rollouts.tokens.shape[1]
    pieces = [heads(rollouts.tokens[rows, : steps + 1]) for rows, steps in todo]
    return together(pieces, todo, columns)


def fit(
    heads: Heads,
    optimiser: torch.optim.Optimizer,
    rollouts: Rollouts,
    config: Any,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """One step on the sum of `loss`, (numbers [b, T + 1, count], 0 after what is in the mask; the
    rows [b] they are of) to a scalar, over passes; returns that sum."""
    optimiser.zero_grad()
    total, columns = rollouts.data.reward.new_zeros(()), rollouts.tokens.shape[1]
    for one in passes(rollouts.data.mask, config.rows_at_once):
        numbers = heads(rollouts.tokens[one.rows, : one.steps + 1])
        value = loss(filled(numbers, columns), one.rows)
        value.backward()
        total = total + value.detach()
    norm = nn.utils.clip_grad_norm_(trainable(heads), config.clip_norm)
    if bool(torch.isfinite(norm)):
        optimiser.step()
    return total


class Learned(LanguageMeasure):
    """A part with `count` numbers of its own, `heads` on a copy of the model, under the name
    `label`."""

    label: ClassVar[str]
    count: ClassVar[int] = 1

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.heads = Heads(agent.model, self.count)
        self.modules = {self.label: self.heads}
        self.optimisers = {self.label: optimiser_of(self.heads, agent.config)}

    def begin(self) -> None:
        self.heads.begin(self.agent.model)

    def fitted(self, rollouts: Rollouts, loss: Callable[[Tensor, Tensor], Tensor]) -> Metrics:
        """One step of `fit`."""
        optimiser = self.optimisers[self.label]
        return {f"{self.label}/loss": fit(self.heads, optimiser, rollouts, self.agent.config, loss)}


def turn_starts(t: Trajectories) -> Tensor:
    """[B, T] bool: the first step of every turn."""
    return first_steps(segment(t, "turn"))


def turn_ends(t: Trajectories) -> Tensor:
    """[B, T] bool: the last step of every turn."""
    turn = t.segments["turn"].to(t.reward.dtype)
    return t.mask & (following(turn + 1, t.mask) != turn + 1)


def over_turns(value: Tensor, where: Tensor, t: Trajectories) -> Tensor:
    """[B, T]: `value` at the one step of the turn that is in `where`, alike at all its steps."""
    return segment(t, "turn").sum(torch.where(where, value, torch.zeros_like(value)))
