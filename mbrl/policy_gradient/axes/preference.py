"""Losses of preferences between whole answers to one prompt."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from mbrl.config import NonNegative, Positive
from mbrl.policy_gradient.axes.ratio import log_difference
from mbrl.policy_gradient.axes.regulariser import Regulariser
from mbrl.policy_gradient.groups import group, sequence
from mbrl.types import Trajectories


@dataclass(frozen=True)
class MixedPreference(Regulariser):
    """The loss of mixed preference optimisation, alike at all steps. Of every prompt with chosen
    answers (`signals.chosen` above 1/2) and others, c and r are `beta` times the mean of
    log pi - log pi_reference of whole answers over either; then
    `dpo` (-log s(c - r)) + `bco` (-log s(c - delta) - log s(delta - r)), mean over these prompts,
    s the logistic function and delta `signals.shift`, a running mean of c and r, plus `sft` times
    the mean -log pi over the chosen answers' steps. InternVL3.5, by the authors' code."""

    text: ClassVar[str] = (
        "{dpo} (-log s(c - r)) + {bco} (-log s(c - delta) - log s(delta - r)), mean over prompts, "
        "+ {sft} (mean -log pi over steps of chosen answers), s(x) = 1 / (1 + e^-x), c and r = "
        "{beta} log pi / pi_reference of chosen and other answers, delta their running mean"
    )

    dpo: NonNegative = 0.8
    bco: NonNegative = 0.2
    sft: NonNegative = 1.0
    beta: Positive = 0.1

    def needs(self) -> tuple[str, ...]:
        return ("log_probs.reference", "signals.chosen", "signals.shift", "groups.prompt")

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        first = t.mask & (t.mask.cumsum(1) == 1)
        chosen = t.mask & (t.signals["chosen"] > 0.5)
        whole = sequence(t).sum(log_difference(log_prob, t.log_probs["reference"], t.mask))
        yes, no = (group(t, ("prompt",), first & side) for side in (chosen, ~chosen))
        # In the precision of the log-probs: a group's own mean is without a gradient's rounding.
        c, r = (self.beta * g.sum(whole) / g.size().to(whole.dtype) for g in (yes, no))
        shift = torch.where(t.mask, t.signals["shift"], torch.zeros_like(whole))
        both = (yes.count(yes.units) > 0) & (no.count(no.units) > 0)
        pair = -self.dpo * logsigmoid(c - r)
        pair = pair - self.bco * (logsigmoid(c - shift) + logsigmoid(shift - r))
        every = group(t, ("prompt",), first)
        unit = first & both
        weight = unit.to(pair.dtype) / every.size().to(pair.dtype)  # 1 for each prompt
        prompts = torch.where(unit, pair * weight, torch.zeros_like(pair)).sum()
        value = prompts / weight.sum().clamp_min(1)
        shown = torch.where(chosen, -log_prob, torch.zeros_like(log_prob)).sum()
        value = value + self.sft * shown / chosen.sum().clamp_min(1)
        return value.expand_as(log_prob)
