"""What slow implementations of recipes share: small pieces written with loops over Python lists,
from the formulas, without any of the library's functions."""

import math
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from tests.mbrl.policy_gradient.cases import Sequence, Step

# From the sequences of a batch to the loss.
Slow = Callable[[list[Sequence]], Tensor]
# From a step's ratio (with gradient), its advantage and the step to its gain.
Gain = Callable[[Tensor, float, Step], Tensor]


def prompts(batch: list[Sequence]) -> list[list[Sequence]]:
    """The groups of sequences that answer one prompt."""
    ids = sorted({s.prompt for s in batch})
    return [[s for s in batch if s.prompt == i] for i in ids]


def spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def give(sequence: Sequence, advantage: float) -> None:
    """The same advantage at all steps."""
    sequence.advantage = [advantage] * len(sequence)


def z_scores(batch: list[Sequence], eps: float = 1e-4) -> None:
    """GRPO's advantage."""
    for group in prompts(batch):
        totals = [s.total for s in group]
        for s in group:
            give(s, (s.total - statistics.fmean(totals)) / (spread(totals) + eps))


def centred(batch: list[Sequence]) -> None:
    for group in prompts(batch):
        mean = statistics.fmean(s.total for s in group)
        for s in group:
            give(s, s.total - mean)


def ratio(step: Step, below: str = "old") -> Tensor:
    return torch.exp(step.log_prob - step.log_probs[below])


def clipped(r: Tensor, a: float, low: float = 0.2, high: float = 0.2) -> Tensor:
    """PPO's min(r A, clip(r) A)."""
    inside = torch.clamp(r, 1 - low, 1 + high)
    return torch.minimum(r * a, inside * a)


def gains(batch: list[Sequence], gain: Gain, below: str = "old") -> list[list[Tensor]]:
    """Of every step of every sequence."""
    return [
        [gain(ratio(step, below), a, step) for step, a in zip(s.steps, s.advantage, strict=True)]
        for s in batch
    ]


def token_mean(values: list[list[Tensor]]) -> Tensor:
    flat = [v for row in values for v in row]
    return torch.stack(flat).sum() / len(flat)


def sequence_mean(values: list[list[Tensor]]) -> Tensor:
    return torch.stack([torch.stack(row).mean() for row in values]).mean()


def sequence_sum(values: list[list[Tensor]]) -> Tensor:
    return torch.stack([torch.stack(row).sum() for row in values]).mean()


def geometric(s: Sequence, below: str = "old") -> Tensor:
    """exp of the mean log-ratio over the sequence."""
    return torch.exp(torch.stack([x.log_prob - x.log_probs[below] for x in s.steps]).mean())


def product(s: Sequence, below: str = "old") -> Tensor:
    return torch.exp(torch.stack([x.log_prob - x.log_probs[below] for x in s.steps]).sum())


def k3(step: Step, below: str = "reference") -> Tensor:
    d = step.log_prob - step.log_probs[below]
    return torch.exp(-d) + d - 1


def returns(s: Sequence, gamma: float = 1.0) -> list[float]:
    """Discounted rewards from every step on."""
    found = []
    for i in range(len(s)):
        found.append(sum(gamma ** (j - i) * s.steps[j].reward for j in range(i, len(s))))
    return found


def log_likelihood(batch: list[Sequence]) -> list[list[Tensor]]:
    """A log pi of every step."""
    return gains(batch, lambda r, a, step: a * step.log_prob)


def recorded(s: Sequence, above: str = "old", below: str = "behaviour") -> list[float]:
    """Log-ratios between two recorded policies."""
    return [x.log_probs[above] - x.log_probs[below] for x in s.steps]


def weigh(rows: list[list[Tensor]], weights: list[list[float]]) -> list[list[Tensor]]:
    return [
        [w * v for w, v in zip(ws, vs, strict=True)] for ws, vs in zip(weights, rows, strict=True)
    ]


def alike(batch: list[Sequence], weights: list[float]) -> list[list[float]]:
    """One weight for all steps of a sequence."""
    return [[w] * len(s) for w, s in zip(weights, batch, strict=True)]


def share_of(count: int, share: float) -> int:
    return math.ceil(share * count - 1e-9)
