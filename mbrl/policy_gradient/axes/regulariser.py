"""Regularisers: penalties of steps that are added to the loss with a coefficient."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from mbrl.config import CountOrZero, Finite, NonNegative, Positive
from mbrl.policy_gradient.axes.option import CURRENT_ENTROPY, Option, ascending, one_of, shown
from mbrl.policy_gradient.axes.ratio import log_difference
from mbrl.policy_gradient.axes.reward import outcome
from mbrl.policy_gradient.groups import by_sign, exp, sequence
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Regulariser(Option):
    """(current log-probs [B, T], current entropies [B, T] or None, advantages [B, T], trajectories)
    to penalties [B, T]."""

    @abstractmethod
    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor: ...


@dataclass(frozen=True)
class KL(Regulariser):
    """`weight` times an estimate of KL(pi || anchor) from one sample, with d = log pi - log anchor:
    k1 d, k2 d^2 / 2, k3 e^-d + d - 1 (Schulman, "Approximating KL Divergence"). "forward" is of the
    other direction, KL(anchor || pi), from samples of pi: 1 - e^-d (1 + d), not negative either. On
    data of the current policy the mean gradient of k2 is that of the divergence, those of the
    others (k1: 0) are not; `weighted` by the ratio to `old` those of k1, k3 and forward are, on
    data of the old policy."""

    weight: Finite = 0.04
    estimator: str = "k3"
    anchor: str = "reference"
    weighted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.estimator, tuple(ESTIMATORS), "estimator")

    def needs(self) -> tuple[str, ...]:
        names = (self.anchor, *(("old",) if self.weighted else ()))
        return tuple(f"log_probs.{name}" for name in names)

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        d = log_difference(log_prob, t.log_probs[self.anchor], t.mask)
        penalty = self.weight * ESTIMATORS[self.estimator](d)
        if self.weighted:
            penalty = penalty * exp(log_difference(log_prob, t.log_probs["old"], t.mask))
        return penalty

    def formula(self) -> str:
        estimate = {"k1": "d", "k2": "d^2 / 2", "k3": "e^-d + d - 1", "forward": "1 - e^-d (1 + d)"}
        weighted = " pi / pi_old" if self.weighted else ""
        return (
            f"{shown(self.weight)} ({estimate[self.estimator]}){weighted}, d = log pi - log "
            f"pi_{self.anchor}"
        )


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda d: d,
    "k2": lambda d: d**2 / 2,
    "k3": lambda d: exp(-d) + d - 1,
    "forward": lambda d: 1 - exp(-d) * (1 + d),
}


@dataclass(frozen=True)
class EntropyBonus(Regulariser):
    """Less `weight` times the entropy."""

    text: ClassVar[str] = "-{weight} H(pi)"

    weight: Finite = 0.01

    def needs(self) -> tuple[str, ...]:
        return (CURRENT_ENTROPY,)

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        assert entropy is not None
        return -self.weight * torch.where(t.mask, entropy, torch.zeros_like(entropy))


@dataclass(frozen=True)
class EntropyTarget(Regulariser):
    """Less `signals.entropy_weight` times the entropy: a weight that `trackers.EntropyWeight` moves
    by `step` a batch, up to `most`, so that the mean entropy stays at `target` or above. "Skywork
    Open Reasoner 1 Technical Report", arXiv 2505.22312."""

    text: ClassVar[str] = (
        "-entropy_weight H(pi), a weight up to {most} that moves by {step} a batch so that H stays "
        "at {target}"
    )

    target: Finite = 0.2
    step: NonNegative = 1e-4
    most: NonNegative = 0.005

    def needs(self) -> tuple[str, ...]:
        return (CURRENT_ENTROPY, "signals.entropy_weight")

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        assert entropy is not None
        held = torch.where(t.mask, entropy, torch.zeros_like(entropy))
        return -torch.where(t.mask, t.signals["entropy_weight"], 0.0) * held


@dataclass(frozen=True)
class Imitation(Regulariser):
    """Less `weight` log pi at the steps of a demonstration (`signals.<name>` above 1/2): supervised
    learning beside the policy gradient."""

    text: ClassVar[str] = "-{weight} log pi where {name} > 1/2"

    weight: Finite = 0.1
    name: str = "demonstration"

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}",)

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        shown = t.mask & (t.signals[self.name] > 0.5)
        return -self.weight * torch.where(shown, log_prob, torch.zeros_like(log_prob))


@dataclass(frozen=True)
class SquaredRatio(Regulariser):
    """`weight` / 2 (log pi - log old)^2 of the whole sequence, shared over its steps (so that a sum
    over steps gives it once)."""

    text: ClassVar[str] = "{weight} / 2 (log pi - log pi_old of the sequence)^2 / length"

    weight: Finite = 0.1

    def needs(self) -> tuple[str, ...]:
        return ("log_probs.old",)

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        rows = sequence(t)
        moved = rows.sum(log_difference(log_prob, t.log_probs["old"], t.mask))
        return self.weight / 2 * moved**2 / rows.size().to(moved.dtype)


@dataclass(frozen=True)
class ExpertMargin(Regulariser):
    """`weight` |A| leaky(-y (log pi - log expert)) with y 1 for right sequences and -1 for wrong
    ones: right answers are to become likelier than the expert makes them, wrong ones less likely,
    and what is on its side already is pushed by `slope` only. "Controllable Exploration in
    Hybrid-Policy RLVR for Multi-Modal Reasoning"."""

    text: ClassVar[str] = (
        "{weight} |A| leaky_relu(-y (log pi - log pi_expert), {slope}), y = 1 if right else -1"
    )

    weight: Finite = 1.0
    slope: Finite = 0.5
    verdict: ClassVar[bool] = True

    def needs(self) -> tuple[str, ...]:
        return ("log_probs.expert",)

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        right = by_sign(outcome(t), 1.0, -1.0)
        margin = -right * log_difference(log_prob, t.log_probs["expert"], t.mask)
        return self.weight * advantage.abs() * nn.functional.leaky_relu(margin, self.slope)


@dataclass(frozen=True)
class EntropyBand(Regulariser):
    """Less `weight` (H - beta P), where P is `kappa` for steps whose entropy lies outside `low` to
    `high` times the mean entropy of earlier updates at that turn, `signals.entropy_history`
    (`form` "count", which has no gradient), or how far outside it is ("hinge"). With `phase` P
    counts `signals.<phase>` times. "EPO: Entropy-regularized Policy Optimization for LLM Agents
    Reinforcement Learning"."""

    weight: Finite = 0.001
    beta: Finite = 1.0
    kappa: NonNegative = 0.1
    low: NonNegative = 0.8
    high: NonNegative = 1.2
    form: str = "count"
    phase: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.form, ("count", "hinge"), "form")
        ascending(self.low, self.high)

    def needs(self) -> tuple[str, ...]:
        phase = (f"signals.{self.phase}",) if self.phase else ()
        return (CURRENT_ENTROPY, "signals.entropy_history", *phase)

    def formula(self) -> str:
        band = f"{shown(self.low)} H' to {shown(self.high)} H'"
        amount = f"{shown(self.kappa)} if H(pi) is outside {band}, else 0"
        if self.form == "hinge":
            amount = f"how far H(pi) is outside {band}"
        phase = f" {self.phase}" if self.phase else ""
        return (
            f"-{shown(self.weight)} (H(pi) - {shown(self.beta)}{phase} P), P = {amount}, H' its "
            "history at that turn"
        )

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        assert entropy is not None
        past = torch.where(t.mask, t.signals["entropy_history"], torch.zeros_like(entropy))
        held = torch.where(t.mask, entropy, torch.zeros_like(entropy))
        if self.form == "hinge":
            penalty = (self.low * past - held).clamp_min(0) + (held - self.high * past).clamp_min(0)
        else:
            outside = (held < self.low * past) | (held > self.high * past)
            penalty = self.kappa * outside.to(entropy.dtype)
        if self.phase:
            phase = t.signals[self.phase]
            penalty = penalty * torch.where(t.mask, phase, torch.zeros_like(phase))
        return -self.weight * (held - self.beta * penalty)


@dataclass(frozen=True)
class HingeKL(Regulariser):
    """`weight` / 2 max(K - `limit`, 0)^2 with K the mean over all steps of r - 1 - log r, r the
    ratio to `anchor`: KL(anchor || pi) on its own data. Alike at all steps. Log-ratios count as no
    more than 20, so that the square fits float32."""

    text: ClassVar[str] = (
        "{weight} / 2 max(mean (q - 1 - log q) - {limit}, 0)^2, q = pi / pi_{anchor}"
    )

    weight: Finite = 1e3
    limit: Positive = 1e-4
    anchor: str = "old"

    def needs(self) -> tuple[str, ...]:
        return (f"log_probs.{self.anchor}",)

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        d = log_difference(log_prob, t.log_probs[self.anchor], t.mask).clamp_max(20)
        divergence = (exp(d) - 1 - d).sum() / t.mask.sum().clamp_min(1)
        return (self.weight / 2 * (divergence - self.limit).clamp_min(0) ** 2).expand_as(log_prob)


@dataclass(frozen=True)
class SegmentKL(KL):
    """`KL` at the steps of one segment alone: its number `index`."""

    segment: str = "turn"
    index: CountOrZero = 0

    def needs(self) -> tuple[str, ...]:
        return (*super().needs(), f"segments.{self.segment}")

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        penalty = super().__call__(log_prob, entropy, advantage, t)
        own = t.segments[self.segment] == self.index
        return torch.where(own, penalty, torch.zeros_like(penalty))

    def formula(self) -> str:
        return f"{super().formula()}, in {self.segment} {self.index} alone"


@dataclass(frozen=True)
class Contrast(Regulariser):
    """Less `weight` times `signals.<fading>` times the k3 estimate of KL(pi || `anchor`), at most
    `most` a step (log-ratios at most 20), the mean over all steps and alike at each: `anchor` is
    what the policy thinks of the same answer with its picture spoiled, and is to differ. Q-Hawkeye,
    arXiv 2601.22920."""

    text: ClassVar[str] = (
        "-{weight} {fading} mean over all steps of min(e^-d + d - 1, {most}), "
        "d = log pi - log pi_{anchor}"
    )

    weight: Finite = 1e-4
    anchor: str = "degraded"
    most: NonNegative = 10.0
    fading: str = "contrast_weight"

    def needs(self) -> tuple[str, ...]:
        return (f"log_probs.{self.anchor}", f"signals.{self.fading}")

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        d = log_difference(log_prob, t.log_probs[self.anchor], t.mask).clamp(-20, 20)
        apart = ESTIMATORS["k3"](d).clamp_max(self.most)
        apart = torch.where(t.mask, t.signals[self.fading] * apart, 0.0)
        mean = apart.sum() / t.mask.sum().clamp_min(1)
        return -self.weight * mean.expand_as(log_prob)


@dataclass(frozen=True)
class Divergence(Regulariser):
    """`weight` times the divergence of the current policy's whole distribution from its teacher's:
    "reverse" KL(pi || teacher), "forward" KL(teacher || pi), where `signals.<where>` is above 1/2
    ("": everywhere). The trainer puts the current one, with gradients, into `signals.reverse_kl`
    and `signals.forward_kl` before every loss. "On-Policy Distillation of Language Models", arXiv
    2306.13649."""

    weight: Finite = 1.0
    kind: str = "reverse"
    where: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.kind, ("reverse", "forward"), "kind")

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.kind}_kl", *((f"signals.{self.where}",) if self.where else ()))

    def __call__(
        self, log_prob: Tensor, entropy: Tensor | None, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        here = t.mask & (t.signals[self.where] > 0.5) if self.where else t.mask
        value = t.signals[f"{self.kind}_kl"]
        return self.weight * torch.where(here, value, torch.zeros_like(value))

    def formula(self) -> str:
        pair = {"reverse": "pi || pi_teacher", "forward": "pi_teacher || pi"}[self.kind]
        where = f" where {self.where} > 1/2" if self.where else ""
        return f"{shown(self.weight)} KL({pair}){where}"
