"""The words every part shares: what a task looks like (`Spec`) and what was logged in it
(`Transitions`, `Dataset`). `terminated` means the task ended (no bootstrap), `truncated` that the
recording stopped (bootstrap); the two are never merged."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor

from mbrl.errors import ConfigError, DataError

EXACT = 2**24  # whole numbers up to here are float32 numbers
STEPS_APART = 100 / EXACT  # how wide an action's range must be, in sizes of its larger bound


@dataclass(frozen=True)
class Spec:
    """What an algorithm knows of a task; it never holds an environment.

    `action_dim` is the number of action components (1 for a discrete task); `num_actions` is the
    number of discrete actions, or None where actions are continuous in
    [`action_low`, `action_high`] (one bound per component, in the task's own units).
    `reference_returns` is (random, expert): the undiscounted returns that score 0 and 100.
    `task_options` are the keyword arguments that make the task match its data. `obs_names` name the
    entries of an observation and `action_names` those of an action (or, where actions are
    discrete, the actions); empty where nobody named them. `action_mask` says that the task tells at
    every step which of its discrete actions are allowed. `goal` are the entries of an observation
    that hold the goal of the episode, and `achieved` the entries that they are compared with, one
    for one; both empty in a task without goals.
    """

    task: str
    obs_dim: int
    action_dim: int = 1
    num_actions: int | None = None
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    max_episode_steps: int | None = None
    reference_returns: tuple[float, float] | None = None
    task_options: dict[str, Any] = field(default_factory=dict)
    obs_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    action_mask: bool = False
    goal: tuple[int, ...] = ()
    achieved: tuple[int, ...] = ()

    @staticmethod
    def from_spaces(
        observation_space: Any,
        action_space: Any,
        *,
        task: str,
        categories: Literal["one-hot", "number"] = "one-hot",
        **fields: Any,
    ) -> "Spec":
        """The spec of gymnasium's spaces, as `mbrl.spaces` flattens them, with a goal where they
        are those of a `GoalEnv` of gymnasium-robotics; `fields` are others of this class. Raises
        `ConfigError` for spaces that the algorithms do not take."""
        from mbrl.spaces import (
            Flattener,
            action_sizes,
            goal_entries,
        )  # gymnasium is not needed by all

        seen = Flattener(observation_space, task, categories)
        sizes = action_sizes(action_space, task)
        known = {"obs_names": seen.names, **goal_entries(seen.names), **sizes}
        return Spec(task=task, obs_dim=seen.dim, **{**known, **fields})

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.obs_dim < 1 or self.action_dim < 1:
            raise ConfigError(
                f"spec of {self.task!r}: obs_dim={self.obs_dim}, action_dim={self.action_dim}; "
                "both must be at least 1"
            )
        self._check_goals()
        self._check_names("obs_names", self.obs_dim)
        self._check_names("action_names", self.num_actions or self.action_dim)
        if self.action_mask and not self.discrete:
            raise ConfigError(
                f"spec of {self.task!r}: action_mask is for discrete actions; bounds limit "
                "continuous ones"
            )
        if self.discrete:
            if self.action_dim != 1 or (self.num_actions or 0) < 2:
                raise ConfigError(
                    f"spec of {self.task!r}: a discrete task has action_dim 1 and at least two "
                    f"actions, got action_dim={self.action_dim}, num_actions={self.num_actions}"
                )
            return
        for name in ("action_low", "action_high"):
            if not all(_is_finite(bound) for bound in getattr(self, name)):
                raise ConfigError(
                    f"spec of {self.task!r}: {name} is {getattr(self, name)}, every bound must be "
                    "finite; give the range that actions are taken from"
                )
            if len(getattr(self, name)) != self.action_dim:
                raise ConfigError(
                    f"spec of {self.task!r}: {name} has {len(getattr(self, name))} entries, "
                    f"action_dim is {self.action_dim}"
                )
        if any(not lo < hi for lo, hi in zip(self.action_low, self.action_high, strict=True)):
            raise ConfigError(
                f"spec of {self.task!r}: every action_low must lie below its action_high, got "
                f"{self.action_low} and {self.action_high}"
            )
        for low, high in zip(self.action_low, self.action_high, strict=True):
            if high - low < STEPS_APART * max(abs(low), abs(high)):
                raise ConfigError(
                    f"spec of {self.task!r}: actions lie between {low} and {high}, and 32 bits "
                    "hold too few numbers between them; give actions and their bounds as "
                    "distances from a usual value"
                )

    def _check_numbers(self) -> None:
        for name in ("obs_dim", "action_dim", "num_actions", "max_episode_steps"):
            value = getattr(self, name)
            optional = name in ("num_actions", "max_episode_steps")
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            if not (value is None and optional) and not whole:
                raise ConfigError(
                    f"spec of {self.task!r}: {name} is {value!r} ({type(value).__name__}), it must "
                    "be an integer"
                )
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise ConfigError(
                f"spec of {self.task!r}: max_episode_steps is {self.max_episode_steps}, it must be "
                "at least 1, or None for a task without a limit"
            )
        scores = self.reference_returns
        if scores is None:
            return
        if len(scores) != 2 or not all(map(_is_finite, scores)) or scores[0] == scores[1]:
            raise ConfigError(
                f"spec of {self.task!r}: reference_returns is {scores}; it must be two different "
                "finite numbers, (random, expert)"
            )

    def _check_goals(self) -> None:
        named = (*self.goal, *self.achieved)
        wrong = [k for k in named if not isinstance(k, Integral) or not 0 <= k < self.obs_dim]
        if wrong:
            raise ConfigError(
                f"spec of {self.task!r}: goal and achieved name the entries {wrong}; they must be "
                f"whole numbers from 0 to {self.obs_dim - 1}"
            )
        if len(self.goal) != len(self.achieved):
            raise ConfigError(
                f"spec of {self.task!r}: goal has {len(self.goal)} entries and achieved "
                f"{len(self.achieved)}; each entry of a goal is compared with one"
            )
        if len({*self.goal}) < len(self.goal) or {*self.goal} & {*self.achieved}:
            raise ConfigError(
                f"spec of {self.task!r}: goal is {self.goal} and achieved {self.achieved}; an "
                "entry can be in goal once, and not in achieved as well"
            )

    def _check_names(self, field_name: str, count: int) -> None:
        names: tuple[str, ...] = getattr(self, field_name)
        if not names:
            return
        if len(names) != count:
            raise ConfigError(
                f"spec of {self.task!r}: {field_name} has {len(names)} names, there are {count} "
                "entries; name each of them or none"
            )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"spec of {self.task!r}: {field_name} has {', '.join(map(repr, twice))} more than "
                "once; every entry needs a name of its own"
            )

    @property
    def discrete(self) -> bool:
        return self.num_actions is not None

    def score(self, returns: Any) -> Any:
        """Normalised score 100 (R - random) / (expert - random) of a return or an array."""
        if self.reference_returns is None:
            raise ConfigError(
                f"task {self.task!r} has no reference returns, so there is no normalised score; "
                "give Spec.reference_returns=(random, expert) or report raw returns"
            )
        low, high = self.reference_returns
        return 100.0 * (returns - low) / (high - low)

    def to_dict(self) -> dict[str, Any]:
        """All fields, tuples as lists; names, masks and goals only where there are any, so that
        files and keys of what has none are those of releases that did not know them."""
        later = ("obs_names", "action_names", "action_mask", "goal", "achieved")
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {k: v for k, v in values.items() if v or k not in later}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Spec":
        tuples = {
            k: tuple(values[k]) if values.get(k) is not None else None
            for k in ("action_low", "action_high", "reference_returns")
        }
        named = ("obs_names", "action_names", "goal", "achieved")
        names = {k: tuple(values.get(k) or ()) for k in named}
        return Spec(**{**values, **tuples, **names})


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


# Who acted, and why: the learned policy itself, a whole demonstration, and the two parts of an
# intervention, back to what the policy knows and on to the end of the sub-task.
SEGMENTS = ("policy", "demonstration", "recover", "correct")


@dataclass(frozen=True)
class Transitions:
    """Flat rows in time order, episode after episode.

    `obs`, `next_obs` [N, S] float; `action` [N, A] float, or [N] int64 where discrete; `reward`
    [N] float; `terminated`, `truncated` [N] bool. The last row of every episode carries one of the
    two flags (both may be set), so episode boundaries are `ends`.

    Columns that some data have, else None: `state` [N, K], the simulator state at `obs` (what
    MuJoCo needs beside the observation); `duration` [N] float, the time from a row to the next in
    steps, where steps differ in length: a row's discount is gamma ** duration; `next_known` [N]
    bool, False where the episode terminated and nobody recorded what it ended in (`next_obs`
    repeats `obs` there, and no dynamics are learned from the row); `behaviour_prob` [N] float, the
    probability (density, where continuous) with which the logged action was chosen; `expert` [N]
    bool, True where the row was recorded of an expert who is to be imitated; `segment` [N] int64,
    which part of a recording with interventions the row is of (an index of `SEGMENTS`); `weight`
    [N] float, 0 or more, how often the row is drawn beside the others (`mbrl.data.sources`; no file
    has it).
    `action_mask` and `next_action_mask` [N, n] bool, both or neither, say which of n discrete
    actions were allowed at `obs` and are at `next_obs`.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    terminated: Tensor
    truncated: Tensor
    state: Tensor | None = None
    duration: Tensor | None = None
    next_known: Tensor | None = None
    behaviour_prob: Tensor | None = None
    expert: Tensor | None = None
    segment: Tensor | None = None
    action_mask: Tensor | None = None
    next_action_mask: Tensor | None = None
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        n = self.obs.shape[0]
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is not None and value.shape[0] != n:
                raise DataError(f"{name} has {value.shape[0]} rows, obs has {n}")
        if self.obs.ndim != 2 or self.next_obs.shape != self.obs.shape:
            raise DataError(
                f"obs and next_obs must both be [N, S], got {tuple(self.obs.shape)} and "
                f"{tuple(self.next_obs.shape)}"
            )
        flags = ("terminated", "truncated", "next_known", "expert")
        for name in ("reward", *flags, "duration", "behaviour_prob", "segment", "weight"):
            value = getattr(self, name)
            if value is not None and value.ndim != 1:
                raise DataError(f"{name} must be [N], got {tuple(value.shape)}")
            if value is not None and name in flags and value.dtype != torch.bool:
                raise DataError(f"{name} must be bool, got {value.dtype}")
        self._check_masks()

    def _check_masks(self) -> None:
        masks = [m for m in (self.action_mask, self.next_action_mask) if m is not None]
        if len(masks) == 1:
            raise DataError("action_mask and next_action_mask come together; one is missing")
        if any(mask.ndim != 2 or mask.dtype != torch.bool for mask in masks):
            kinds = [f"{tuple(mask.shape)} {mask.dtype}" for mask in masks]
            raise DataError(f"action masks must be [N, n] bool, got {' and '.join(kinds)}")

    def __len__(self) -> int:
        return int(self.obs.shape[0])

    @property
    def ends(self) -> Tensor:
        """[N] bool: True on the last row of each episode."""
        return self.terminated | self.truncated

    def episodes(self) -> list[tuple[int, int]]:
        """Half-open row ranges, one per episode; a tail without an end flag is the last one."""
        stops = (torch.nonzero(self.ends).flatten() + 1).tolist()
        if len(self) and (not stops or stops[-1] != len(self)):
            stops.append(len(self))
        return list(zip([0, *stops[:-1]], stops, strict=True)) if stops else []

    def returns(self) -> Tensor:
        """Undiscounted return of each episode, [episodes], float64."""
        return torch.stack([self.reward[a:b].double().sum() for a, b in self.episodes()])

    def discounts(self, gamma: float) -> Tensor:
        """[N] float32: gamma ** duration, 0 where the task ended."""
        alive = 1.0 - self.terminated.float()
        if self.duration is None:
            return gamma * alive
        return alive * torch.as_tensor(gamma, dtype=torch.float32) ** self.duration.float()

    def with_known_next(self) -> "Transitions":
        """The rows whose next observation was recorded: those that dynamics can be learned from.
        Where the row behind one was not, the episode is cut after that one."""
        if self.next_known is None:
            return self
        unknown = torch.cat([~self.next_known[1:], self.next_known.new_zeros(1)])
        cut = self.truncated | (unknown & ~self.ends)
        return replace(self, truncated=cut).select(self.next_known)

    def select(self, index: Tensor | slice) -> "Transitions":
        """The rows at `index` (order kept); boundaries are those of the flags that remain."""
        return self._map(lambda value: value[index])

    def to(self, device: torch.device | str) -> "Transitions":
        return self._map(lambda value: value.to(device))

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Transitions":
        names = self.__dataclass_fields__
        values: dict[str, Any] = {k: getattr(self, k) for k in names}
        values = {k: None if v is None else function(v) for k, v in values.items()}
        return Transitions(**values)


@dataclass(frozen=True)
class Trajectories:
    """Padded sequences `[B, T, ...]`; rows where `mask` [B, T] is False hold nothing of meaning.

    `obs`, `next_obs` [B, T, S]; `action` [B, T, A] (or [B, T] int64); `reward`, `terminated`,
    `truncated` [B, T]. `log_probs` may hold `behaviour`, `old`, `proximal` and `reference`
    [B, T]; `groups` (which steps are compared: "prompt", "state") and `segments` (parts of one
    sequence, numbered from 0: "turn") hold integer ids [B, T] below B T; `signals` holds what other
    parts measured, numbers [B, T] (one of a whole sequence stands at each of its steps): "value",
    further rewards; `action_mask` [B, T, n] bool says which of n discrete actions were allowed
    (None: all). Control episodes and token sequences are the same class: a continuous action
    vector is one token.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    terminated: Tensor
    truncated: Tensor
    mask: Tensor
    log_probs: dict[str, Tensor] = field(default_factory=dict)
    groups: dict[str, Tensor] = field(default_factory=dict)
    segments: dict[str, Tensor] = field(default_factory=dict)
    signals: dict[str, Tensor] = field(default_factory=dict)
    entropy: Tensor | None = None
    sum_prob_squared: Tensor | None = None
    policy_version: Tensor | None = None
    disagreement: Tensor | None = None
    action_mask: Tensor | None = None

    @property
    def lengths(self) -> Tensor:
        """[B] int64: steps that happened."""
        return self.mask.sum(1)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Trajectories":
        """Every tensor changed by `function`."""
        values: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, dict):
                values[name] = {key: function(v) for key, v in value.items()}
            else:
                values[name] = None if value is None else function(value)
        return Trajectories(**values)

    def select(self, rows: Tensor) -> "Trajectories":
        """The sequences at `rows`."""
        return self.map(lambda value: value[rows])

    def transitions(self) -> Transitions:
        """The masked steps as flat rows, sequence after sequence."""
        names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
        return Transitions(**{name: getattr(self, name)[self.mask] for name in names})


def joined(parts: Sequence[Trajectories]) -> Trajectories:
    """All sequences of `parts`, which have the same fields, padded by 0 to the longest."""
    steps = max(part.mask.shape[1] for part in parts)

    def padded(value: Tensor) -> Tensor:
        size = (len(value), steps - value.shape[1], *value.shape[2:])
        return torch.cat([value, value.new_zeros(size)], 1)

    longer = [part.map(padded) for part in parts]
    values: dict[str, Any] = {}
    for name in Trajectories.__dataclass_fields__:
        fields = [getattr(part, name) for part in longer]
        if isinstance(fields[0], dict):
            values[name] = {key: torch.cat([f[key] for f in fields]) for key in fields[0]}
        else:
            values[name] = None if fields[0] is None else torch.cat(fields)
    return Trajectories(**values)


@dataclass(frozen=True)
class Provenance:
    """Where a dataset came from. `card` is the dataset's name (`family/tier`) or a file path; `log`
    says how the columns of a user's table became observations and actions (plain values, as
    `mbrl.data.logs` wrote them), None for other data."""

    card: str
    version: int = 1
    sha256: str | None = None
    licence: str | None = None
    recipe: str | None = None
    notes: tuple[str, ...] = ()
    log: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        return {k: v for k, v in values.items() if k != "log" or v is not None}


def require_entries(mine: Spec, theirs: Spec, whose: str, fix: str, who: str = "agent") -> None:
    """Raise `ConfigError` unless observations and actions of an agent's spec and of another are the
    same in number and, where both have names or goals, in these. `whose` ("task") the other is,
    the `fix` and `who` has the first one are in the message."""
    sizes = [(s.obs_dim, s.action_dim, s.num_actions) for s in (mine, theirs)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"{who} and {whose} differ in (obs_dim, action_dim, num_actions): {sizes[0]} of "
            f"{mine.task!r} against {sizes[1]} of {theirs.task!r}; {fix}"
        )
    for kind in ("obs_names", "action_names"):
        named, others = getattr(mine, kind), getattr(theirs, kind)
        if named and others and named != others:
            raise ConfigError(
                f"{who} and {whose} differ in {kind}: {list(named)} against {list(others)}; give "
                f"the {who}'s names in its order, or {fix}"
            )
    # By numbers alone a goal in another place is a valid observation, of something else.
    places = [(s.goal, s.achieved) for s in (mine, theirs)]
    if mine.goal and theirs.goal and places[0] != places[1]:
        raise ConfigError(
            f"{who} and {whose} differ in which entries are goals: (goal, achieved) are "
            f"{places[0]} of {mine.task!r} against {places[1]} of {theirs.task!r}; bring the "
            f"columns into one order, or {fix}"
        )


@dataclass(frozen=True)
class Dataset:
    """Logged transitions with the spec of their task and their provenance."""

    transitions: Transitions
    spec: Spec
    provenance: Provenance = field(default_factory=lambda: Provenance(card="arrays"))

    def __len__(self) -> int:
        return len(self.transitions)

    def with_transitions(self, transitions: Transitions) -> "Dataset":
        return replace(self, transitions=transitions)
