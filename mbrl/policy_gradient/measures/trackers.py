"""What is kept from batch to batch beside the policy: quantiles of scores, success rates of
prompts, and when a prior's word is worth more than a few answers. Plain arithmetic."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mbrl.errors import ConfigError


class QuantileTracker:
    """Quantiles of a stream of batches by stochastic gradient descent on the pinball loss:
    q += rate (level - share of scores below q). The first batch's own quantiles are the start.
    RiskPO, as in the authors' code."""

    def __init__(self, levels: tuple[float, ...] = (0.2, 0.8), rate: float = 0.1) -> None:
        if not levels or not all(0 < level < 1 for level in levels):
            raise ConfigError(f"levels {levels}: quantiles are at levels between 0 and 1")
        self.levels, self.rate = levels, rate
        self.quantiles: np.ndarray | None = None

    def update(self, scores: np.ndarray) -> np.ndarray:
        """`scores` [n] of a batch; returns the quantiles [levels] after it."""
        scores, levels = np.asarray(scores, dtype=np.float64), np.asarray(self.levels)
        if self.quantiles is None:
            self.quantiles = np.quantile(scores, levels)
        else:
            below = (scores[None] < self.quantiles[:, None]).mean(1)
            self.quantiles = self.quantiles + self.rate * (levels - below)
        return self.quantiles

    def state_dict(self) -> dict[str, Any]:
        kept = None if self.quantiles is None else self.quantiles.tolist()
        return {"levels": self.levels, "quantiles": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if tuple(state["levels"]) != self.levels:
            raise ConfigError(
                f"the state has quantiles at {tuple(state['levels'])}, the tracker at "
                f"{self.levels}; make a tracker with the levels of the state"
            )
        kept = state["quantiles"]
        self.quantiles = None if kept is None else np.array(kept, dtype=np.float64)


class SuccessTracker:
    """For every prompt a Beta posterior of its success rate that forgets: before a new answer both
    counts are multiplied by `discount`, so that what was seen k answers ago counts discount^k.
    The value `prior` counts as `strength` answers at the start."""

    def __init__(self, discount: float = 0.9, prior: float = 0.5, strength: float = 2.0) -> None:
        if not 0 < discount <= 1 or not 0 < prior < 1 or strength <= 0:
            raise ConfigError(
                f"discount {discount} (in (0, 1]), prior {prior} (in (0, 1)), strength {strength} "
                "(above 0): one of them is out of its range"
            )
        self.discount = discount
        self.start = (prior * strength, (1 - prior) * strength)
        self.counts: dict[int, tuple[float, float]] = {}

    def value(self, prompt: int) -> float:
        """The posterior's mean."""
        right, wrong = self.counts.get(prompt, self.start)
        return right / (right + wrong)

    def update(self, prompt: int, reward: float) -> None:
        """`reward` in [0, 1] of one answer."""
        right, wrong = self.counts.get(prompt, self.start)
        self.counts[prompt] = (
            self.discount * right + reward,
            self.discount * wrong + 1 - reward,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts = {int(k): (float(a), float(b)) for k, (a, b) in state["counts"].items()}


class EntropyWeight:
    """The weight of an entropy bonus that holds a batch's mean entropy at `target`: it grows by
    `step` after a batch below it, to `most` at most, and shrinks by as much after one above, from
    0 on; a batch above the target gets no bonus. "Skywork Open Reasoner 1 Technical Report", arXiv
    2505.22312."""

    def __init__(self, target: float = 0.2, step: float = 1e-4, most: float = 0.005) -> None:
        if not target > 0 or not step > 0 or not most > 0:
            raise ConfigError(f"target {target}, step {step} and most {most} must all be above 0")
        self.target, self.step, self.most, self.weight = target, step, most, 0.0

    def update(self, entropy: float) -> float:
        """`entropy`, the mean over the batch's steps; returns the batch's own weight."""
        given = self.weight if entropy <= self.target else 0.0
        change = self.step if entropy < self.target else -self.step
        self.weight = min(max(self.weight + change, 0.0), self.most)
        return given

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight = float(state["weight"])


class RoundCounter:
    """Counts rounds."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        """The number of this round, from 0."""
        self.count += 1
        return self.count - 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = int(state["count"])


class EntropyHistory:
    """For every turn's number the mean over earlier batches of the mean entropy of all steps of
    such turns; in the first batch that has one, that batch's. EPO, arXiv 2509.22576, with batches
    for updates."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[float, int]] = {}  # sum of batches' means, batches

    def update(self, entropy: Tensor, turn: Tensor) -> list[float]:
        """`entropy` [n] of a batch's steps and the `turn` [n] each belongs to, from 0 without a
        gap; returns the history before it of turns 0 to the largest."""
        entropy = entropy.double()
        totals = entropy.new_zeros(int(turn.max()) + 1)
        counts = totals.index_add(0, turn, torch.ones_like(entropy))
        means = (totals.index_add(0, turn, entropy) / counts.clamp_min(1)).tolist()
        history = []
        for k, mean in enumerate(means):
            total, batches = self.seen.get(k, (0.0, 0))
            history.append(total / batches if batches else mean)
            self.seen[k] = (total + mean, batches + 1)
        return history

    def state_dict(self) -> dict[str, Any]:
        return {"seen": dict(self.seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = {int(k): (float(a), int(n)) for k, (a, n) in state["seen"].items()}


def shrinkage(prior: Tensor, mean: Tensor, size: Tensor) -> Tensor:
    """The weight of `prior` beside the `mean` of `size` answers worth 0 or 1, elementwise: v / (v +
    bias^2), which makes the squared error least, with v the largest variance that their mean can
    have, 1 / (4 size), and bias^2 as `squared_bias`. 1 where that is 0."""
    variance = 0.25 / size
    return variance / (variance + squared_bias(prior, mean, size))


def squared_bias(prior: Tensor, mean: Tensor, size: Tensor) -> Tensor:
    """What (mean - prior)^2 has beyond the largest variance of the `mean` of `size` answers worth 0
    or 1, and no less than 0: of the prior, estimated."""
    return ((mean - prior) ** 2 - 0.25 / size).clamp_min(0)


def one_more(prior: Tensor, mean: Tensor, size: Tensor) -> Tensor:
    """By how much one more answer lowers the squared error of both, mixed as `shrinkage` says, if
    the bias is what it seems: v b / (v + b) at `size` less that at `size` + 1."""
    bias = squared_bias(prior, mean, size)
    now, then = 0.25 / size, 0.25 / (size + 1)
    return now * bias / (now + bias) - then * bias / (then + bias)
