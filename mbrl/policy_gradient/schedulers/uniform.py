"""Schedulers that look at no outcome: uniform groups, wide groups, and which template a group
gets."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.config import Count, Probability, Settings
from mbrl.errors import ConfigError
from mbrl.policy_gradient.schedulers.allocation import in_groups
from mbrl.policy_gradient.schedulers.scheduler import Pool, Request, Scheduler


@dataclass(frozen=True)
class UniformConfig(Settings):
    """Nothing to set."""


class Epochs:
    """Ids 0 to size - 1 in a new random order every time all were taken. A round of at most `size`
    has none twice: what is left of a pass comes last in the next."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.order = torch.zeros(0, dtype=torch.int64)

    def take(self, count: int, generator: torch.Generator) -> Tensor:
        """int64 [count]: the next ids."""
        while len(self.order) < count:
            fresh = torch.randperm(self.size, generator=generator)
            last = torch.isin(fresh, self.order)
            self.order = torch.cat([self.order, fresh[~last], fresh[last]])
        taken, self.order = self.order[:count], self.order[count:]
        return taken

    def state_dict(self) -> dict[str, Tensor]:
        return {"order": self.order.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.order = state["order"].clone()


class Uniform(Scheduler):
    """The same number of rollouts for prompts in shuffled passes over the pool: what trainers do
    without a scheduler."""

    beliefs = ("epochs",)

    def __init__(
        self, pool: Pool, budget: int, group: int, config: UniformConfig = UniformConfig()
    ) -> None:
        super().__init__(pool, budget, group)
        self.epochs = Epochs(pool.size)

    def request(self, generator: torch.Generator) -> Request:
        return in_groups(self.epochs.take(self.places, generator), self.places, self.group)


@dataclass(frozen=True)
class BroRLConfig(Settings):
    factor: Count = 4  # rollouts of a prompt, in usual groups
    power: Probability = 0.5  # of the factor, for the learning rate


class BroRL(Scheduler):
    """Groups `factor` times the usual size for as many prompts fewer, the number of rollouts the
    same; the trainer multiplies its learning rate by `rate_scale`.

    "BroRL: Scaling Reinforcement Learning via Broadened Exploration".
    """

    beliefs = ("epochs",)

    def __init__(
        self, pool: Pool, budget: int, group: int, config: BroRLConfig = BroRLConfig()
    ) -> None:
        super().__init__(pool, budget, group)
        if config.factor < 1 or config.factor * group > budget:
            raise ConfigError(
                f"factor {config.factor} makes groups of {config.factor * group} rollouts, the "
                f"budget is {budget}; give a factor from 1 to {budget // group}"
            )
        self.wide = config.factor * group
        self.rate_scale = float(config.factor) ** config.power
        self.epochs = Epochs(pool.size)

    def request(self, generator: torch.Generator) -> Request:
        places = self.budget // self.wide
        return in_groups(self.epochs.take(places, generator), places, self.wide)


def mass_balance(
    probs: Tensor, right: Tensor, sampled: Tensor, *, reward: float = 1.0, penalty: float = -1.0
) -> tuple[Tensor, Tensor]:
    """How much probability right answers gain in one step on a softmax bandit, in units of the
    learning rate over the number of samples, to first order: (the part of the sampled answers, that
    of the others), each [...].

    `probs` [..., V], `right` and `sampled` bool [..., V]. The objective is the sum of probability
    times reward over the answers that were sampled, which earn `reward` >= 0 or `penalty` <= 0; so
    logits move by p (R - S) with S the sum of p R and R = 0 for an answer that was not sampled. The
    first part is never negative; the second has any sign and fades as more are sampled. BroRL's
    mass balance (arXiv 2510.01180), derived here from the bandit.
    """
    if not probs.shape == right.shape == sampled.shape:
        raise ValueError(
            f"shapes {tuple(probs.shape)}, {tuple(right.shape)}, {tuple(sampled.shape)}; give "
            "three alike [..., V]"
        )
    value = torch.where(right, reward, penalty).to(probs.dtype) * sampled
    signal = (probs * value).sum(-1)
    mass = (probs * right).sum(-1)

    def squares(where: Tensor) -> Tensor:
        return (probs**2 * where).sum(-1)

    inside = (reward - signal) * (1 - mass) * squares(right & sampled) + (
        signal - penalty
    ) * mass * squares(~right & sampled)
    outside = signal * (mass * squares(~right & ~sampled) - (1 - mass) * squares(right & ~sampled))
    return inside, outside


def templates(
    groups: int, count: int, generator: torch.Generator, *, rollouts: int | None = None
) -> Tensor:
    """int64 [groups], or [groups, rollouts]: one of `count` templates, drawn evenly, for every
    group or (given `rollouts`) for every rollout in it. "Prompt Augmentation Scales up GRPO
    Training on Mathematical Reasoning"."""
    if count < 1:
        raise ConfigError(f"{count} templates; give at least 1")
    shape = (groups,) if rollouts is None else (groups, rollouts)
    return torch.randint(count, shape, generator=generator)
