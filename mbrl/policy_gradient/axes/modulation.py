"""Modulation: what happens to advantages after they were normalised."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from mbrl.config import Finite, NonNegative, Probability
from mbrl.config import Positive as AboveZero
from mbrl.policy_gradient.axes.credit import Credit
from mbrl.policy_gradient.axes.option import Option, ascending, shown
from mbrl.policy_gradient.axes.ratio import log_difference
from mbrl.policy_gradient.axes.reward import outcome
from mbrl.policy_gradient.groups import (
    BATCH,
    Group,
    by_sign,
    exp,
    first_steps,
    group,
    nodes,
    segment,
    sequence,
)
from mbrl.policy_gradient.scans import following, previous
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Modulation(Option):
    """(advantages [B, T], steps that stand for one advantage each [B, T], trajectories) to
    advantages [B, T]."""

    @abstractmethod
    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class Whiten(Modulation):
    """Over the batch: less the mean, over the sample standard deviation plus `eps`. Counted once a
    step if `steps`, else once a unit."""

    eps: AboveZero = 1e-4
    steps: bool = False

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        batch = group(t, BATCH, t.mask if self.steps else units)
        return (advantage - batch.mean(advantage)) / (batch.std(advantage) + self.eps)

    def formula(self) -> str:
        counted = "steps" if self.steps else "units"
        return f"(A - mean A) / (std A + {shown(self.eps)}) over the batch's {counted}"


@dataclass(frozen=True)
class SignWeights(Modulation):
    """Advantages above 0 times `positive`, below 0 times `negative`."""

    text: ClassVar[str] = "{positive} A if A > 0 else {negative} A"

    positive: Finite = 1.0
    negative: Finite = 1.0

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        return advantage * by_sign(advantage, self.positive, self.negative)


@dataclass(frozen=True)
class EntropyGrowth(Modulation):
    """Times 1 + `weight` of (H - mean H) / deviation of H over the batch, H the old policy's
    entropy."""

    text: ClassVar[str] = "A (1 + {weight} (H - mean H) / std H)"

    weight: Finite = 0.1

    def needs(self) -> tuple[str, ...]:
        return ("entropy",)

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        assert t.entropy is not None
        batch = group(t, BATCH, t.mask)
        level = (t.entropy - batch.mean(t.entropy)) / batch.std(t.entropy).clamp_min(1e-8)
        return advantage * (1 + self.weight * level)


@dataclass(frozen=True)
class SharedPrefix(Modulation):
    """Steps that several sequences share (one id in `groups.node`) get the mean advantage of these
    sequences: hard attribution of branches."""

    text: ClassVar[str] = "mean A of the sequences that share the step's {node}"

    node: str = "node"

    def needs(self) -> tuple[str, ...]:
        return (f"groups.{self.node}",)

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        each = first_steps(nodes(t, self.node))
        return group(t, (self.node,), each).mean(advantage)


@dataclass(frozen=True)
class Exponential(Modulation):
    """A e^(A / `temperature`): good samples weigh more, bad ones less."""

    text: ClassVar[str] = "A e^(A / {temperature})"

    temperature: AboveZero = 1.0
    verdict: ClassVar[bool] = True

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        return advantage * exp(advantage / self.temperature)


@dataclass(frozen=True)
class Positive(Modulation):
    """max(A, 0)."""

    text: ClassVar[str] = "max(A, 0)"

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        return advantage.clamp_min(0)


@dataclass(frozen=True)
class LongReasoning(Modulation):
    """Advantages of a prompt times `weight`, unless its longest right answer is longer than its
    wrong ones are on average, or none is right. "ADORA: Training Reasoning Models with Dynamic
    Advantage Estimation on Reinforcement Learning"."""

    text: ClassVar[str] = (
        "A if no answer that shares {key} is right or the longest right one is longer than "
        "wrong ones on average, else {weight} A"
    )

    weight: Finite = 0.1
    key: tuple[str, ...] = ("prompt",)
    verdict: ClassVar[bool] = True

    def needs(self) -> tuple[str, ...]:
        return tuple(f"groups.{name}" for name in self.key)

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        rows = group(t, self.key, first_steps(sequence(t)))
        right = outcome(t) > 0
        length = sequence(t).size().to(advantage.dtype)
        longest = rows.max(torch.where(right, length, torch.zeros_like(length)))
        wrong = (~right).to(length.dtype)
        usual = rows.sum(length * wrong) / rows.sum(wrong).clamp_min(1)
        kept = (longest > usual) | (rows.sum(right.to(length.dtype)) == 0)
        return torch.where(kept, advantage, self.weight * advantage)


@dataclass(frozen=True)
class Saturation(Modulation):
    """Advantages times 1 - `penalty` (1 - e^-n), n how many turns before this one had a `potential`
    above `threshold`: what is done after the answer is known earns less. "Step Potential Advantage
    Estimation", arXiv 2601.03823."""

    text: ClassVar[str] = (
        "A (1 - {penalty} (1 - e^-n)), n {segment}s before of potential above {threshold}"
    )

    threshold: Finite = 0.9
    penalty: Probability = 0.5
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return ("signals.accuracy", "signals.confidence", f"segments.{self.segment}")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        turns = segment(t, self.segment)
        high = potential(t.signals["accuracy"], t.signals["confidence"]) > self.threshold
        known = (first_steps(turns) & high).to(torch.int64)
        # Of the step's own turn nothing counts yet, so its start is taken out again.
        own = (turns.sum(known.to(advantage.dtype)) > 0).to(torch.int64)
        before = (known.cumsum(1) - own).to(advantage.dtype)
        return advantage * (1 - self.penalty * (1 - torch.exp(-before)))


@dataclass(frozen=True)
class PotentialShaping(Modulation):
    """Plus `weight` (e^x - mean e^x), x what the step's turn added to its `potential`, from 0 for
    the smallest gain of the batch to 1 for the largest; the first turn adds nothing. The mean is
    over the batch's turns. "Step Potential Advantage Estimation", arXiv 2601.03823."""

    text: ClassVar[str] = (
        "A + {weight} (e^x - mean e^x over {segment}s), x the gain in potential over the {segment} "
        "before, scaled to 0..1 over the batch"
    )

    weight: Finite = 0.5
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return ("signals.accuracy", "signals.confidence", f"segments.{self.segment}")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        turns = segment(t, self.segment)
        starts = first_steps(turns)
        here = potential(t.signals["accuracy"], t.signals["confidence"])
        gain = torch.where(first_steps(sequence(t)), 0.0, here - previous(here, starts))
        batch = group(t, BATCH, starts)
        low, high = batch.min(gain), batch.max(gain)
        width = torch.where(high > low, high - low, torch.ones_like(high))
        size = torch.exp((gain - low) / width)
        worth = torch.where(starts, size - batch.mean(size), torch.zeros_like(size))
        return advantage + self.weight * turns.sum(worth)


def potential(accuracy: Tensor, confidence: Tensor) -> Tensor:
    """1.5 a c + 0.5 a - c: 1 for a sure right answer, -1 for a sure wrong one. "Step Potential
    Advantage Estimation", arXiv 2601.03823."""
    return 1.5 * accuracy * confidence + 0.5 * accuracy - confidence


@dataclass(frozen=True)
class Elsewhere(Modulation):
    """Another estimate where `signals.<name>` is 1/2 or less: `credit` of the reward as it is."""

    text: ClassVar[str] = "A if {name} > 1/2 else {credit}"

    credit: Credit
    name: str = "vine_window"

    def needs(self) -> tuple[str, ...]:
        return (*self.credit.needs(), f"signals.{self.name}")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        return torch.where(t.signals[self.name] > 0.5, advantage, self.credit(t.reward, t))


@dataclass(frozen=True)
class SemanticEntropy(Modulation):
    """Advantages times 1 - `rate` H / log G, H = -(1/K) sum_k log p_k over the K clusters of
    meaning (`groups.cluster`) of a prompt's G answers, p_k the share of answers in the cluster.
    "SEED-GRPO", arXiv 2505.12346."""

    text: ClassVar[str] = (
        "A (1 - {rate} H_meaning / log G), H_meaning over the clusters of the prompt's G answers"
    )

    rate: Finite = 0.02

    def needs(self) -> tuple[str, ...]:
        return ("groups.prompt", "groups.cluster")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        first = first_steps(sequence(t))
        rows, kinds = group(t, ("prompt",), first), group(t, ("prompt", "cluster"), first)
        one = first_steps(kinds).to(advantage.dtype)
        size = rows.size().to(advantage.dtype)
        log_share = (kinds.size().to(advantage.dtype) / size).log()
        entropy = -rows.sum(one * log_share) / rows.sum(one).clamp_min(1)
        return advantage * (1 - self.rate * entropy / size.log().clamp_min(1e-6))


@dataclass(frozen=True)
class StepEntropy(Modulation):
    """A_t exp(-k H_t) / mean exp(-k H) + bonus exp(-k' H_t+1), less the batch's mean: H_t the mean
    entropy of turn t, from 0 to 1 in the batch; all means over turns. Nothing is added to a last
    turn. "Harnessing Uncertainty: Entropy-Modulated Policy Gradients for Long-Horizon LLM Agents",
    arXiv 2509.09265."""

    text: ClassVar[str] = (
        "A e^(-{rate} H) / mean e^(-{rate} H) + {bonus} e^(-{next_rate} H(next)), less its "
        "mean, H = mean entropy of the {segment} from 0 to 1 in the batch"
    )

    rate: Finite = 1.0
    next_rate: Finite = 1.0
    bonus: Finite = 0.1
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return ("entropy", f"segments.{self.segment}")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        assert t.entropy is not None
        parts = segment(t, self.segment)
        starts = first_steps(parts)
        turns = group(t, BATCH, starts)
        mean = parts.mean(t.entropy)
        low, high = turns.min(mean), turns.max(mean)
        entropy = (mean - low) / (high - low).clamp_min(1e-8)
        sure = (-self.rate * entropy).exp()
        clear = (-self.next_rate * entropy).exp()
        ahead = following(clear, starts)
        changed = advantage * sure / turns.mean(sure) + self.bonus * ahead
        return changed - turns.mean(changed)


@dataclass(frozen=True)
class AsymmetricConfidence(Modulation):
    """Advantages below 0 times 1 + `rate` softplus(c), c the sequence's mean of log old - log
    reference: the surer the policy became of an error, the more it costs. "Overconfident Errors
    Need Stronger Correction: Asymmetric Confidence Penalties for Reinforcement Learning"."""

    text: ClassVar[str] = (
        "A (1 + {rate} softplus(mean (log pi_old - log pi_reference))) if A < 0 else A"
    )

    rate: Finite = 1.0

    def needs(self) -> tuple[str, ...]:
        return ("log_probs.old", "log_probs.reference")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        rise = sequence(t).mean(t.log_probs["old"] - t.log_probs["reference"])
        return torch.where(advantage < 0, advantage * (1 + self.rate * softplus(rise)), advantage)


@dataclass(frozen=True)
class Novelty(Modulation):
    """For right answers A + min(max(`rate` (1 - e^(s - mean s)), 0), `most` A), s the mean log-prob
    of a sequence, its mean over the prompt's answers. "XRPO: Pushing the limits of GRPO with
    Targeted Exploration and Exploitation"."""

    text: ClassVar[str] = (
        "A + min(max({rate} (1 - e^(s - mean s)), 0), {most} A) if right else A, s = mean log "
        "pi_old"
    )

    rate: Finite = 2.5
    most: NonNegative = 0.5
    verdict: ClassVar[bool] = True

    def needs(self) -> tuple[str, ...]:
        return ("log_probs.old", "groups.prompt")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        rows = group(t, ("prompt",), first_steps(sequence(t)))
        score = sequence(t).mean(t.log_probs["old"])
        bonus = (self.rate * (1 - exp(score - rows.mean(score)))).clamp_min(0)
        bonus = torch.minimum(bonus, (self.most * advantage).clamp_min(0))
        return torch.where(outcome(t) > 0, advantage + bonus, advantage)


@dataclass(frozen=True)
class ConfidenceGap(Modulation):
    """A + `rate` (c(q) - c(o|q)) unless all answers to the prompt earned 0: c(o|q) the geometric
    mean of the answer's `share` least likely tokens, c(q) the prompt's confidence
    (`signals.prompt_confidence`). "Back to Basics: Revisiting Exploration in Reinforcement Learning
    for LLM Reasoning via Generative Probabilities", arXiv 2602.05281."""

    text: ClassVar[str] = (
        "A + {rate} (c(prompt) - c(answer)) unless all answers earned 0, c(answer) = geometric "
        "mean of its {share} least likely tokens"
    )

    rate: Finite = 0.3
    share: Probability = 0.2

    def needs(self) -> tuple[str, ...]:
        return ("log_probs.old", "groups.prompt", "signals.prompt_confidence")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        steps, log_prob = sequence(t), t.log_probs["old"]
        size = steps.size().double()
        least = steps.rank(log_prob) < torch.ceil(self.share * size - 1e-9)
        few = Group(steps.ids, steps.units & least)
        gap = t.signals["prompt_confidence"] - exp(few.mean(log_prob))
        rows = group(t, ("prompt",), first_steps(steps))
        earned = rows.sum(outcome(t)) != 0
        return torch.where(earned, advantage + self.rate * gap, advantage)


@dataclass(frozen=True)
class EntropyShaping(Modulation):
    """A + min(`rate` H, |A| / `most`) at every step, H the old policy's entropy: a bonus that never
    turns the sign of an advantage."""

    text: ClassVar[str] = "A + min({rate} H, |A| / {most})"

    rate: Finite = 0.4
    most: AboveZero = 2.0

    def needs(self) -> tuple[str, ...]:
        return ("entropy",)

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        assert t.entropy is not None
        return advantage + torch.minimum(self.rate * t.entropy, advantage.abs() / self.most)


@dataclass(frozen=True)
class ScoreVariance(Modulation):
    """Advantages times exp(-`rate` u), u the variance (over n) of `signals.<name>` over the
    prompt's answers that have one (others: NaN), scores from `low` to `high`, over the largest
    that can be. "Q-Hawkeye:
    Reliable Visual Policy Optimization for Image Quality Assessment", arXiv 2601.22920."""

    text: ClassVar[str] = (
        "A e^(-{rate} u), u = variance of {name} in the prompt / (({high} - {low})^2 / 4)"
    )

    rate: Finite = 0.2
    low: NonNegative = 1.0
    high: NonNegative = 5.0
    name: str = "predicted_score"

    def __post_init__(self) -> None:
        super().__post_init__()
        ascending(self.low, self.high)

    def needs(self) -> tuple[str, ...]:
        return ("groups.prompt", f"signals.{self.name}")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        given = ~t.signals[self.name].isnan()
        rows = group(t, ("prompt",), first_steps(sequence(t)) & given)
        score = t.signals[self.name].clamp(self.low, self.high)
        largest = (self.high - self.low) ** 2 / 4
        return advantage * (-self.rate * rows.variance(score, correction=0) / largest).exp()


@dataclass(frozen=True)
class ResponseEntropy(Modulation):
    """Advantages times 1 + (mean H - H) / mean H, H the sequence's mean entropy, its mean that of
    the prompt's answers: what was said with more certainty counts more. "ETTRL: Balancing
    Exploration and Exploitation in LLM Test-Time Reinforcement Learning Via Entropy Mechanism",
    arXiv 2508.11356."""

    text: ClassVar[str] = "A (2 - H / mean H of the prompt)"

    def needs(self) -> tuple[str, ...]:
        return ("entropy", "groups.prompt")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        assert t.entropy is not None
        mean = sequence(t).mean(t.entropy)
        rows = group(t, ("prompt",), first_steps(sequence(t)))
        return advantage * (2 - mean / rows.mean(mean).clamp_min(1e-8))


@dataclass(frozen=True)
class TeacherAdvantage(Modulation):
    """`own` times the advantage plus `weight` times log pi_teacher - log pi_old of the step that
    was taken, held in [-`limit`, `limit`]: on-policy distillation from samples."""

    text: ClassVar[str] = "{own} A + {weight} clip(log pi_teacher - log pi_old, -{limit}, {limit})"

    weight: Finite = 1.0
    own: Finite = 1.0
    limit: AboveZero = 5.0

    def needs(self) -> tuple[str, ...]:
        return ("log_probs.teacher", "log_probs.old")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        d = log_difference(t.log_probs["teacher"], t.log_probs["old"], t.mask)
        return self.own * advantage + self.weight * d.clamp(-self.limit, self.limit)


@dataclass(frozen=True)
class HintWeight(Modulation):
    """Advantages above 0 times w = `signals.<name>`, those below times 2 - w: of answers that were
    easier to get right (w < 1) right ones count less and wrong ones more. ADHint, arXiv
    2512.13095."""

    text: ClassVar[str] = "A times {name} if A > 0, times 2 - {name} else"

    name: str = "hint_weight"

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}",)

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        weight = t.signals[self.name]
        return advantage * torch.where(advantage > 0, weight, 2 - weight)


@dataclass(frozen=True)
class Assigned(Modulation):
    """`weight` times `signals.worth` in place of the advantage where `signals.apart` is above 1/2:
    sequences that are compared with something that is not in the batch."""

    text: ClassVar[str] = "{weight} worth if apart > 1/2 else A"

    weight: Finite = 1.0

    def needs(self) -> tuple[str, ...]:
        return ("signals.apart", "signals.worth")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        worth = self.weight * t.signals["worth"]
        return torch.where(t.signals["apart"] > 0.5, worth, advantage)
