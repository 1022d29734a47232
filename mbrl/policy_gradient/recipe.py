"""A recipe: one choice on every axis of the objective, with where it comes from."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mbrl.errors import ConfigError
from mbrl.policy_gradient.axes.aggregation import Aggregation, TokenMean
from mbrl.policy_gradient.axes.baseline import (
    Baseline,
    LeastVariance,
    LeaveOneOut,
    LengthWeighted,
    Mean,
    Median,
    SoftMean,
    TokenOptimal,
    VirtualMean,
    Zero,
)
from mbrl.policy_gradient.axes.credit import (
    BundleRisk,
    Credit,
    NestedGroups,
    Outcome,
    TokenWeighted,
)
from mbrl.policy_gradient.axes.credit_hierarchical import HierarchicalGAE
from mbrl.policy_gradient.axes.gate import (
    Clip,
    CovarianceClip,
    Gate,
    GradientPreservingClip,
    Hybrid,
    MaskedWeight,
)
from mbrl.policy_gradient.axes.gate_adaptive import EntropyClip, InformativeClip
from mbrl.policy_gradient.axes.modulation import Modulation, StepEntropy, Whiten
from mbrl.policy_gradient.axes.option import (
    CURRENT_ENTROPY,
    Option,
    check_key,
    check_shapes,
    missing,
)
from mbrl.policy_gradient.axes.ratio import GeometricRatio, Ratio, TokenRatio
from mbrl.policy_gradient.axes.regulariser import EntropyTarget, Regulariser
from mbrl.policy_gradient.axes.rejection import Rejection
from mbrl.policy_gradient.axes.reward import Reward, TaskReward
from mbrl.policy_gradient.axes.scale import One, Scale, Std, VirtualStd
from mbrl.policy_gradient.axes.selection import DropMedian, Outliers, Selection, ZeroVariance
from mbrl.policy_gradient.axes.step_size import StepSize
from mbrl.policy_gradient.measures.trackers import EntropyWeight
from mbrl.policy_gradient.requirements import Requirement
from mbrl.types import Trajectories

Mark = Literal["verified", "secondary", "reconstructed"]
COMPARED = (BundleRisk, HierarchicalGAE, NestedGroups, TokenWeighted)
CRITICS = {
    f"signals.{name}"
    for name in ("value", "value_high", "value_switch", "utterance_q", "utterance_v")
}
TOKEN_SCALE = 0.05  # a clip range above it is meant for ratios of single steps


@dataclass(frozen=True)
class Term:
    """One part of an advantage: `weight` (credit of the reward - baseline) / scale, in the groups
    of `key` (none: the whole batch)."""

    reward: Reward = TaskReward()
    credit: Credit = Outcome()
    baseline: Baseline = Mean()
    scale: Scale = Std()
    key: tuple[str, ...] = ("prompt",)
    weight: float = 1.0

    def options(self) -> tuple[Option, ...]:
        return (self.reward, self.credit, self.baseline, self.scale)


@dataclass(frozen=True)
class Recipe:
    """An objective. Its advantage is the sum of `terms`, then changed by `modulation`; `sampling`
    leaves sequences out before the terms are taken, `selection` after. The loss is what
    `aggregation` makes of minus the `gate`'s gains, weighted by `selection` and `rejection`, plus
    `regularisers`; `step_size` is a factor of the learning rate.

    `mark`: "verified" against the authors' code or page, "secondary" from another source, or
    "reconstructed" from the abstract with every assumption listed. `requirements`: what it needs
    that is learned or kept beside it (a critic, a tracker). Raises `ConfigError` where choices
    contradict each other.
    """

    name: str
    title: str
    arxiv: str | None = None
    mark: Mark = "verified"
    terms: tuple[Term, ...] = (Term(),)
    sampling: tuple[Selection, ...] = ()
    modulation: tuple[Modulation, ...] = ()
    selection: tuple[Selection, ...] = ()
    ratio: Ratio = TokenRatio()
    rejection: tuple[Rejection, ...] = ()
    gate: Gate = Clip()
    aggregation: Aggregation = TokenMean()
    regularisers: tuple[Regulariser, ...] = ()
    step_size: StepSize | None = None
    requirements: tuple[Requirement, ...] = ()
    assumptions: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    version: int = 1  # 2 and more: the formula under this name was another one before

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ConfigError(f"recipe name {self.name!r}: lower case, digits and _ only")
        if not self.terms:
            raise ConfigError(
                f"recipe {self.name}: terms is empty, an advantage needs at least one"
            )
        if self.mark == "reconstructed" and not self.assumptions:
            raise ConfigError(
                f"recipe {self.name}: a reconstructed recipe lists its assumptions; give "
                "`assumptions`"
            )
        for reason in contradictions(self):
            raise ConfigError(f"recipe {self.name}: {reason}")

    def options(self) -> Iterator[Option]:
        for term in self.terms:
            yield from term.options()
        yield from (*self.sampling, *self.modulation, *self.selection, self.ratio)
        yield from (*self.rejection, self.gate, self.aggregation, *self.regularisers)
        if self.step_size is not None:
            yield self.step_size

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields that its options read, each once, in order."""
        return tuple(dict.fromkeys(need for o in self.options() for need in o.needs()))

    @property
    def verdict(self) -> bool:
        """Whether it is made for answers that are right (1) or wrong (0)."""
        return any(option.verdict for option in self.options())

    @property
    def compares(self) -> bool:
        """Whether nothing is learned from a sequence that is alone with its prompt: the baseline of
        every term is then its own value. What has no advantages does not compare."""
        own = (Median, SoftMean, LengthWeighted)
        counted = [term for term in self.terms if term.weight]
        return bool(counted) and all(
            "prompt" in term.key
            and (
                isinstance(term.baseline, TokenOptimal)
                or (isinstance(term.credit, Outcome) and isinstance(term.baseline, own))
                or (isinstance(term.credit, Outcome) and term.baseline == Mean())
            )
            for term in counted
        )

    @property
    def whole_prompts(self) -> bool:
        """Whether its loss compares the answers to a prompt, which then belong in one minibatch."""
        options = (self.ratio, *self.rejection, self.gate, self.aggregation, *self.regularisers)
        return any("groups.prompt" in option.needs() for option in options)

    @property
    def removes(self) -> bool:
        """Whether what its selections leave out counts in no mean."""
        return any(option.removes for option in self.selection)

    @property
    def needs_entropy(self) -> bool:
        """Whether the current policy's entropy [B, T] is an argument of its loss."""
        return CURRENT_ENTROPY in self.needs

    def entropy_weight(self) -> EntropyWeight | None:
        """A new tracker of what its `EntropyTarget` reads, if it has one."""
        for option in self.regularisers:
            if isinstance(option, EntropyTarget):
                return EntropyWeight(option.target, option.step, option.most)
        return None

    def check(self, t: Trajectories) -> None:
        """Raises `ConfigError` that names what the recipe needs and `t` does not have, or has in
        another shape."""
        check_shapes(t)
        for term in self.terms:
            check_key(term.key, t)
        lacking = {need for option in self.options() for need in missing(option, t)}
        if lacking:
            suited = ", ".join(map(str, self.requirements)) or "data with these fields"
            raise ConfigError(
                f"recipe {self.name} needs {', '.join(sorted(lacking))}, which the trajectories do "
                f"not have; it is for: {suited}"
            )


def contradictions(recipe: Recipe) -> Iterator[str]:
    """Choices that undo each other, as sentences."""
    optimal = (LeastVariance, TokenOptimal)
    kinds = [term.baseline for term in recipe.terms]
    if any(isinstance(b, optimal) for b in kinds) and any(
        isinstance(m, (Whiten, StepEntropy)) for m in recipe.modulation
    ):
        yield (
            "a baseline of least variance loses that when a mean is subtracted later, as Whiten "
            "and StepEntropy do; drop it"
        )
    if any(isinstance(b, LeaveOneOut) for b in kinds) and any(
        isinstance(s, DropMedian) for s in recipe.selection
    ):
        yield "dropping the pivot belongs to the median, not to leave-one-out"
    yield from _term_contradictions(recipe)
    yield from _selection_contradictions(recipe)
    yield from _clip_contradictions(recipe)


def _term_contradictions(recipe: Recipe) -> Iterator[str]:
    for term in recipe.terms:
        if "state" in term.key and CRITICS & {n for o in term.options() for n in o.needs()}:
            yield "groups by state and a critic are two baselines for the same thing; choose one"
        if isinstance(term.credit, COMPARED) and not (
            isinstance(term.baseline, Zero) and isinstance(term.scale, One)
        ):
            yield (
                f"{type(term.credit).__name__} gives advantages that were compared already; take "
                "the baseline Zero and the scale One"
            )


def _selection_contradictions(recipe: Recipe) -> Iterator[str]:
    virtual = any(
        isinstance(term.baseline, VirtualMean) or isinstance(term.scale, VirtualStd)
        for term in recipe.terms
    )
    for s in (*recipe.sampling, *recipe.selection):
        if virtual and isinstance(s, ZeroVariance) and s.which != "right":
            yield (
                "a virtual best answer is there for groups of wrong answers, which "
                f'ZeroVariance("{s.which}") leaves out; take ZeroVariance("right")'
            )
    for s in recipe.sampling:
        if s.removes:
            yield f"{s} removes after the statistics were taken; put it into `selection`"
        if isinstance(s, Outliers):
            yield (
                f"{type(s).__name__} reads advantages, and there are none before the statistics "
                "are taken; put it into `selection`"
            )
        if s in recipe.selection:
            yield f"{s} is both in `sampling` and in `selection`; it counts once, in one of them"


def _clip_contradictions(recipe: Recipe) -> Iterator[str]:
    gate, ratio = recipe.gate, recipe.ratio
    if isinstance(gate, Hybrid):
        pairs: tuple[tuple[Ratio, Gate], ...] = (
            (ratio, gate.step),
            (GeometricRatio(), gate.whole),
        )
    elif isinstance(gate, (CovarianceClip, GradientPreservingClip)):
        pairs = ((ratio, gate.clip),)
    else:
        pairs = ((ratio, gate),)
    for of, inner in pairs:
        yield from _range_contradictions(of, inner)


def _range_contradictions(ratio: Ratio, gate: Gate) -> Iterator[str]:
    if not isinstance(gate, (Clip, MaskedWeight, EntropyClip, InformativeClip)):
        return
    whole = isinstance(ratio, GeometricRatio) and ratio.segment is None
    if whole and max(gate.low, gate.high) > TOKEN_SCALE:
        yield (
            f"the clip range ({gate.low}, {gate.high}) is for ratios of single steps; geometric "
            "means over sequences move by some 1e-4, as in 3e-4 and 4e-4"
        )
    if isinstance(ratio, TokenRatio) and 0 < max(gate.low, gate.high) < TOKEN_SCALE / 10:
        yield (
            f"the clip range ({gate.low}, {gate.high}) is for geometric means over sequences; "
            "ratios of single steps take some 0.2"
        )
