"""Rounds of a recipe, whatever acts: anchors, estimates once a round, minibatches for its updates.

An agent makes the sequences of a round, with log-probs of the old policy, and takes the steps."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from mbrl.errors import CheckpointError, ConfigError
from mbrl.networks import target_copy
from mbrl.policy_gradient.measure import Measure
from mbrl.policy_gradient.objective import Estimate, estimate, shuffled
from mbrl.policy_gradient.recipe import Recipe
from mbrl.training import Metrics
from mbrl.types import Trajectories

ANCHORS = ("reference", "previous")  # the first policy, the one before the last round's updates


class Sequences(Protocol):
    """A round, a dataclass with a field `data` and whatever else its agent and measures read."""

    @property
    def data(self) -> Trajectories: ...

    def select(self, rows: Tensor) -> Self:
        """These sequences, in this order."""
        ...

    def compact(self) -> Self:
        """The same with ids, and padding, no larger than they have to be."""
        ...


R = TypeVar("R", bound=Sequences)


class Minibatch(NamedTuple, Generic[R]):
    """Sequences with their estimates, and targets [B, T] of what is learned beside the policy."""

    rollouts: R
    estimate: Estimate
    targets: dict[str, Tensor]

    @property
    def data(self) -> Trajectories:
        return self.rollouts.data

    def select(self, rows: Tensor, compact: bool = False) -> "Minibatch[R]":
        """These sequences, in this order."""
        rollouts = self.rollouts.select(rows)
        rollouts = rollouts.compact() if compact else rollouts
        steps = rollouts.data.mask.shape[1]
        own = self.estimate
        estimate = Estimate(own.advantage[rows, :steps], own.weight[rows, :steps])
        targets = {name: value[rows, :steps] for name, value in self.targets.items()}
        return Minibatch(rollouts, estimate, targets)


class Trainer(Generic[R]):
    """The rounds of one agent. `log_probs` gives those of a policy [B, T] for the actions of a
    round; a pass over it is `minibatches` updates, or as many as there are sequences."""

    def __init__(
        self,
        recipe: Recipe,
        policy: nn.Module,
        measures: Sequence[Measure[R]],
        log_probs: Callable[[nn.Module, R], Tensor],
        generator: torch.Generator,
        *,
        epochs: int,
        minibatches: int,
    ) -> None:
        self.recipe, self.policy, self.measures = recipe, policy, measures
        self.log_probs, self.generator = log_probs, generator
        self.epochs, self.minibatches = epochs, minibatches
        self.anchors: dict[str, nn.Module] = {
            name: target_copy(policy) for name in ANCHORS if f"log_probs.{name}" in recipe.needs
        }
        self.data: Minibatch[R] | None = None  # the stage that is learned from
        self.stages: list[Minibatch[R]] = []  # of the round, those that come after it
        self.left = self.stage_left = 0  # updates
        self.order = torch.empty(0, dtype=torch.int64)
        signals = [n.removeprefix("signals.") for n in recipe.needs if n.startswith("signals.")]
        # What the run learns from, with the one value it has had so far; None: it has varied.
        # A recipe that only imitates a teacher has no advantages.
        advantages = any(term.weight for term in recipe.terms) or bool(recipe.modulation)
        self.constants: dict[str, float | None] = {"advantage": 0.0} if advantages else {}
        self.signals = [name for name in signals if name != "uniform"]

    @torch.no_grad()
    def estimated(self, rollouts: R) -> Minibatch[R]:
        """Everything that stays as it is during the updates of a round."""
        anchored = {name: self.log_probs(anchor, rollouts) for name, anchor in self.anchors.items()}
        rollouts = with_fields(rollouts, "log_probs", **anchored)
        if "signals.uniform" in self.recipe.needs:
            t, device = rollouts.data, self.generator.device
            drawn = torch.rand(t.mask.shape, generator=self.generator, device=device)
            rollouts = with_fields(rollouts, "signals", uniform=drawn.to(t.reward.dtype))
        for measure in self.measures:
            rollouts = measure.measure(rollouts)
        estimates = estimate(self.recipe, rollouts.data)
        self.watch(rollouts.data, estimates.advantage)
        targets: dict[str, Tensor] = {}
        for measure in self.measures:
            targets |= measure.targets(rollouts)
        if "previous" in self.anchors:
            self.anchors["previous"].load_state_dict(self.policy.state_dict())
        return Minibatch(rollouts, estimates, targets)

    def watch(self, t: Trajectories, advantage: Tensor) -> None:
        """Note which of the advantages and the recipe's signals have varied so far, and whether a
        mechanism has done anything."""
        acts = [measure.acts for measure in self.measures if measure.acts is not None]
        if acts and self.constants.setdefault("mechanism", 0.0) is not None and min(acts):
            self.constants["mechanism"] = None
        for name in (*(n for n in ("advantage",) if n in self.constants), *self.signals):
            value = advantage if name == "advantage" else t.signals.get(name)
            if value is None or not bool(t.mask.any()):
                continue
            values = value[t.mask]
            first = self.constants.setdefault(name, float(values[0]))
            if first is not None and bool((values != first).any()):
                self.constants[name] = None

    @property
    def silent(self) -> list[str]:
        """What has never varied: advantages that were all 0, signals with one value, a mechanism
        that did nothing in any round. A run with any of them says nothing about its recipe."""
        return sorted(name for name, first in self.constants.items() if first is not None)

    def begin_round(self, batch: Minibatch[R]) -> int:
        """Learn from `batch`, but for sequences that a scheduler wanted for their statistics alone;
        returns how many updates follow."""
        trained = batch.data.signals.get("trained")
        if trained is not None:
            batch = batch.select(trained[:, 0].nonzero().flatten())
        self.stages = [batch]
        for measure in self.measures:
            self.stages = [stage for whole in self.stages for stage in measure.stages(whole)]
        self.left = sum(self.epochs * self.splits(stage) for stage in self.stages)
        self.begin_stage()
        return self.left

    def begin_stage(self) -> None:
        """Go on with the part of the round whose turn it is."""
        self.data = self.stages.pop(0)
        for measure in self.measures:
            self.data = measure.on_stage(self.data)
        self.stage_left = self.epochs * self.splits(self.data)

    def splits(self, batch: Minibatch[R]) -> int:
        """Updates of a pass over it."""
        return min(self.minibatches, len(batch.data.mask))

    def next_batch(self) -> Minibatch[R]:
        """Sequences of the round, each once a pass. Raises `ConfigError` before a round is over."""
        if self.data is None or self.left == 0:
            raise ConfigError("there is no round to learn from; let the agent act to its end")
        if self.stage_left == 0:
            self.begin_stage()
        count = self.splits(self.data)
        place = (self.epochs * count - self.stage_left) % count
        if place == 0:
            self.order = shuffled(self.recipe, self.data.data, self.generator)
        return self.data.select(self.order.tensor_split(count)[place], compact=True)

    def updated(self) -> Metrics:
        """An update of the round is over; whether the run has had no signal so far."""
        self.left -= 1
        self.stage_left -= 1
        return {"rollout/no_signal": torch.tensor(float(bool(self.silent)))}

    def state_dict(self) -> dict[str, Any]:
        """What lasts from round to round."""
        return {"recipe_version": self.recipe.version, "constants": dict(self.constants)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises `CheckpointError` where `state` is of a run under an earlier formula."""
        check_version(self.recipe, state)
        self.constants = dict(state.get("constants", self.constants))


def with_fields(rollouts: R, field: str, **values: Tensor) -> R:
    """With more tensors [B, T], or numbers [B] for all steps of a sequence, in the dictionary
    `field` of `data` ("signals", "groups", "log_probs")."""
    data, steps = rollouts.data, rollouts.data.mask.shape[1]
    round_: Any = rollouts  # a dataclass
    each = {n: v if v.ndim == 2 else v[:, None].expand(-1, steps) for n, v in values.items()}
    known = getattr(data, field)
    result: R = dataclasses.replace(round_, data=dataclasses.replace(data, **{field: known | each}))
    return result


def check_version(recipe: Recipe, state: dict[str, Any]) -> None:
    """Raises `CheckpointError` where `state` is of a run under an earlier formula."""
    before = state.get("recipe_version", 1)
    if before != recipe.version:
        raise CheckpointError(
            f"the checkpoint is of version {before} of recipe {recipe.name}, this library has "
            f"version {recipe.version}, another formula; begin the run anew"
        )
