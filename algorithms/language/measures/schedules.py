"""Parts of an objective that change as training goes on."""

import torch

from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.sampling.rollouts import Rollouts
from mbrl.policy_gradient.axes.regulariser import EntropyBand
from mbrl.policy_gradient.measures.schedules import faded, grown, phase_weight
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields


class GrowingShare(LanguageMeasure):
    """`signals.schedule`: min(1, round / `ramp_rounds`), rounds from 0. `acts`: 1 less that, how
    much is still left out. D3S, arXiv 2509.22115."""

    provides = ("signals.schedule",)
    fulfils = (Requirement.GROWING_SHARE,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        growth = grown(self.agent.step, self.agent.config.ramp_rounds)
        self.acts = 1 - growth
        value = torch.full_like(rollouts.data.reward, growth)
        return with_fields(rollouts, "signals", schedule=value)


class FadingContrast(LanguageMeasure):
    """`signals.contrast_weight`: from 1 to 0 by a half cosine over `ramp_rounds` rounds. Q-Hawkeye,
    arXiv 2601.22920."""

    provides = ("signals.contrast_weight",)
    fulfils = (Requirement.FADING_CONTRAST,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        weight = faded(self.agent.step, self.agent.config.ramp_rounds)
        value = torch.full_like(rollouts.data.reward, weight)
        return with_fields(rollouts, "signals", contrast_weight=value)


class EntropyPhase(LanguageMeasure):
    """`signals.entropy_phase`: `phase_weight` of the round where a conversation has at least half
    of the task's turns, else 0, and 0 in the first round, which has no history. `acts`: the share
    of steps whose entropy is outside the recipe's band, times that. EPO, arXiv 2509.22576."""

    provides = ("signals.entropy_phase",)
    fulfils = (Requirement.ENTROPY_PHASE,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        t, agent = rollouts.data, self.agent
        assert t.entropy is not None
        late = max(map(len, rollouts.turns)) >= agent.task.max_turns / 2
        weight = phase_weight(agent.step) if late and agent.step else 0.0
        (band,) = [r for r in agent.recipe.regularisers if isinstance(r, EntropyBand)]
        past, entropy = t.signals["entropy_history"][t.mask], t.entropy[t.mask]
        outside = (entropy < band.low * past) | (entropy > band.high * past)
        self.acts = weight * float(outside.double().mean())
        value = torch.full_like(t.reward, weight)
        return with_fields(rollouts, "signals", entropy_phase=value)
