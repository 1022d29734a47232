"""Objectives that tell right from wrong answers by their scores, with no ratio."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.policy_gradient.gates import Gate
from mbrl.policy_gradient.groups import first_steps, group, sequence
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Discriminative(Gate):
    """Of every prompt with right (A > 0) and wrong answers

        sum_right w s / sum_right w - tau log sum_wrong e^(s / tau),

    s the mean log-prob of an answer, w = e^((1 - steps / `longest`) / `length_scale`): shorter
    right answers count more, wrong ones by how likely they are, whatever their length. The gain is
    the prompt's, at each of its steps; 0 for prompts with answers of one kind. "DRPO: Efficient
    Reasoning via Decoupled Reward Policy Optimization"."""

    tau: float = 10.0
    length_scale: float = 0.1
    longest: float = 8192.0
    key: tuple[str, ...] = ("prompt",)

    def needs(self) -> tuple[str, ...]:
        return tuple(f"groups.{name}" for name in self.key)

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        answers = sequence(t)
        rows = group(t, self.key, first_steps(answers))
        score, right = answers.mean(log_prob), advantage > 0
        chosen, others = right.to(score.dtype), (~right).to(score.dtype)
        # Weights count by their shares alone, so the longest exponent is 0.
        log_weight = (1 - answers.size().to(score.dtype) / self.longest) / self.length_scale
        weight = chosen * (log_weight - finite(rows.max(masked(log_weight, right)))).exp()
        good = rows.sum(weight * score) / rows.sum(weight).clamp_min(1e-30)
        scaled = score / self.tau
        largest = finite(rows.max(masked(scaled.detach(), ~right)))
        excess = torch.where(right, torch.zeros_like(scaled), scaled - largest)
        total = rows.sum(others * excess.exp()).clamp_min(1e-30)
        gain = good - self.tau * (largest + total.log())
        both = (rows.sum(chosen) > 0) & (rows.sum(others) > 0)
        return torch.where(both, gain, torch.zeros_like(gain))


def masked(value: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, value, torch.full_like(value, -torch.inf))


def finite(value: Tensor) -> Tensor:
    """0 for the maximum of nothing."""
    return torch.where(value.isfinite(), value, torch.zeros_like(value))
