"""Leaving rollouts out: finished ones by class and quality (GRPO-RoC), running ones by predicted
success (ARRoL)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mbrl.config import Count, CountOrZero, NonNegative, Positive, Probability, Settings
from mbrl.errors import CheckpointError, ConfigError
from mbrl.policy_gradient.axes.selection import ResampleOnCorrect
from mbrl.policy_gradient.schedulers.allocation import in_groups
from mbrl.policy_gradient.schedulers.scheduler import Outcome, Pool, Request, Scheduler
from mbrl.policy_gradient.schedulers.uniform import Epochs
from mbrl.types import Trajectories


@dataclass(frozen=True)
class GRPORoCConfig(Settings):
    factor: Count = 2  # rollouts for each that is kept
    fewest: CountOrZero = 2  # of each kind that are kept, where there are


class GRPORoC(Scheduler):
    """`factor` groups of every prompt, of which one group is kept: right and wrong answers in their
    proportion, of the right ones those with the smallest signal "penalty". The choice is that of
    `mbrl.policy_gradient.axes.selection.ResampleOnCorrect`.

    "rStar2-Agent: Agentic Reasoning Technical Report", arXiv 2508.20722.
    """

    reads = ("penalty",)
    beliefs = ("epochs",)

    def __init__(
        self, pool: Pool, budget: int, group: int, config: GRPORoCConfig = GRPORoCConfig()
    ) -> None:
        super().__init__(pool, budget, group)
        if config.factor < 1 or config.factor * group > budget or config.fewest < 0:
            raise ConfigError(
                f"factor {config.factor}, fewest {config.fewest}; give a factor from 1 to "
                f"{budget // group} (the budget {budget} in groups of {group}) and fewest from 0"
            )
        self.config = config
        self.epochs = Epochs(pool.size)

    def request(self, generator: torch.Generator) -> Request:
        wide = self.config.factor * self.group
        places = min(self.budget // wide, self.pool.size)
        return in_groups(self.epochs.take(places, generator), places, wide)

    def keep(self, outcome: Outcome, generator: torch.Generator) -> Tensor:
        column = outcome.rewards[:, None].float()
        no = torch.zeros_like(column, dtype=torch.bool)
        _, ids = torch.unique(outcome.prompts, return_inverse=True)
        sequences = Trajectories(
            *(column[..., None], column[..., None], column, column[..., None], no, no, ~no),
            groups={"prompt": ids[:, None]},
            signals={"penalty": outcome.signal("penalty")[:, None].float()},
        )
        rule = ResampleOnCorrect(1 / self.config.factor, self.config.fewest)
        return rule(torch.zeros_like(column), sequences)[:, 0] > 0


@dataclass(frozen=True)
class ARRoLConfig(Settings):
    lr: Positive = 0.1  # of the logistic regression
    decay: NonNegative = 1e-3  # of its weights, relative to lr
    bins: Count = 10  # of the score, for calibration
    strength: NonNegative = 4.0  # answers that a bin's own score counts as
    discount: Probability = 0.99  # of a bin's counts in an update
    target: Probability = 0.5  # share of success wanted among survivors


class ARRoL:
    """Prunes rollouts that are half written: a logistic regression on `features` of the prefix
    predicts success, a Beta posterior in each bin of its score calibrates it, and `survivors` are
    those whose predicted successes come nearest to a share of `target`. Trained online on rollouts
    that went on to the end.

    "Prune as You Generate: Online Rollout Pruning for Faster and Better RLVR".
    """

    def __init__(self, features: int, config: ARRoLConfig = ARRoLConfig()) -> None:
        positive = (
            config.lr,
            config.strength,
            config.discount,
            float(config.bins),
            float(features),
        )
        if min(positive) <= 0 or config.decay < 0 or config.discount > 1:
            raise ConfigError(
                f"{features} features, {config}; give numbers above 0, a decay from 0 and a "
                "discount of at most 1"
            )
        self.config = config
        self.weight = torch.zeros(features + 1, dtype=torch.float64)
        self.squares = torch.zeros(features + 1, dtype=torch.float64)
        self.counts = torch.zeros(2, config.bins, dtype=torch.float64)

    def score(self, features: Tensor) -> Tensor:
        """float64 [R]: the regression's probability of success, for `features` [R, D]."""
        return torch.sigmoid(with_one(features) @ self.weight)

    def predict(self, features: Tensor) -> Tensor:
        """float64 [R]: the calibrated one, the mean of the posterior of the score's bin."""
        score = self.score(features)
        right, wrong = self.counts[:, self.bin_of(score)]
        strength = self.config.strength
        result: Tensor = (right + strength * score) / (right + wrong + strength)
        return result

    def bin_of(self, score: Tensor) -> Tensor:
        return (score * self.config.bins).long().clamp_max(self.config.bins - 1)

    def survivors(self, features: Tensor, keep: int) -> Tensor:
        """bool [R]: the `keep` rollouts of one group that go on."""
        return nearest_subset(self.predict(features), keep, self.config.target)

    def update(self, features: Tensor, rewards: Tensor) -> None:
        """Takes in `rewards` [R] in [0, 1] of finished rollouts with `features` [R, D]."""
        x, y = with_one(features), rewards.double()
        score = self.score(features)
        self.counts *= self.config.discount
        for row, value in zip(self.counts, (y, 1 - y), strict=True):
            row.index_add_(0, self.bin_of(score), value)
        gradient = x.T @ (score - y) / max(len(y), 1) + self.config.decay * self.weight
        self.squares = 0.99 * self.squares + 0.01 * gradient**2
        self.weight = self.weight - self.config.lr * gradient / (self.squares.sqrt() + 1e-2)

    def state_dict(self) -> dict[str, Any]:
        names = ("weight", "squares", "counts")
        return {name: getattr(self, name).clone() for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("weight", "squares", "counts"):
            if name not in state or state[name].shape != getattr(self, name).shape:
                raise CheckpointError(
                    f"{name} is missing from the state or of another size; load the state of a "
                    "pruner with the same features and bins"
                )
            setattr(self, name, state[name].clone())


def with_one(features: Tensor) -> Tensor:
    """float64 [R, D + 1]: `features` [R, D] and a constant."""
    return torch.cat([features.double(), features.new_ones(len(features), 1).double()], 1)


def nearest_subset(values: Tensor, keep: int, target: float, *, grid: int = 1024) -> Tensor:
    """bool [R]: `keep` of the `values` [R] in [0, 1] whose mean is as near to `target` as any,
    to 1 / `grid`. Values are rounded to the grid; then every sum of k of them is a bit, and sets of
    sums are whole numbers, which makes the search exact."""
    count = len(values)
    if not 0 < keep <= count:
        raise ConfigError(f"keep is {keep} of {count} rollouts; give from 1 to {count}")
    whole = (values.double() * grid).round().long().tolist()
    # reach[i][k]: the sums that k of the first i values can have, as bits.
    reach = [[1] + [0] * keep]
    for value in whole:
        last = reach[-1]
        reach.append([1] + [last[k] | last[k - 1] << value for k in range(1, keep + 1)])
    bits, wanted = reach[-1][keep], target * grid * keep
    sums = (s for s in range(bits.bit_length()) if bits >> s & 1)
    best = min(sums, key=lambda s: abs(s - wanted))
    chosen = torch.zeros(count, dtype=torch.bool)
    left = keep
    for i in range(count, 0, -1):
        if left and best >= whole[i - 1] and reach[i - 1][left - 1] >> (best - whole[i - 1]) & 1:
            chosen[i - 1] = True
            left, best = left - 1, best - whole[i - 1]
    return chosen
