"""Which part of a joint task the next problem is of: by fixed shares, by shares that hold of what
was learned from, or one part after the other, in stages."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algorithms.language.tasks import parts_of
from algorithms.language.tasks.base import TextTask
from algorithms.language.tasks.joint import APART
from mbrl.errors import ConfigError, unknown_name

LEAST = 0.01  # of the weight of a part that has more than its share, to that of its share; ours


@dataclass(frozen=True)
class Stage:
    """A part of a joint task that is trained on alone, until `tokens` more were sampled, on its
    `levels` (none: those of the run), at a `learning_rate` and with turns of at most `turn_tokens`
    (None: those of the run)."""

    part: int
    tokens: int
    levels: tuple[int, ...] = ()
    learning_rate: float | None = None
    turn_tokens: int | None = None


SETTINGS = ("tokens", "levels", "learning_rate", "turn_tokens")


def stage(text: str, task: TextTask, tokens: int) -> Stage:
    """What "sorting" or "sorting:levels=3/4,learning_rate=1e-4,turn_tokens=9,tokens=5000" writes;
    levels are those of the part. Raises `ConfigError` for what it cannot be."""
    name, _, rest = text.partition(":")
    names = [part.name for part in parts_of(task)]
    if name not in names:
        raise unknown_name(f"part of {task.name}", name, names)
    number = names.index(name)
    values: dict[str, Any] = {"tokens": tokens}
    for setting in filter(None, rest.split(",")):
        key, _, value = setting.partition("=")
        if key not in SETTINGS:
            raise unknown_name("setting of a stage", key, SETTINGS)
        try:
            if key == "levels":
                values[key] = tuple(int(x) for x in value.split("/"))
            else:
                values[key] = float(value) if key == "learning_rate" else int(value)
                if values[key] <= 0:
                    raise ValueError
        except ValueError:
            raise ConfigError(
                f"stages has {text!r}: {key} is {value!r}; give a number above 0, and levels as 3/4"
            ) from None
    known = parts_of(task)[number].levels
    if unknown := [x for x in values.get("levels", ()) if x not in known]:
        raise ConfigError(
            f"stages has {text!r}: {name} has no level {unknown[0]}, it has "
            f"{', '.join(map(str, known))}"
        )
    return Stage(number, **values)


def check(config: Any, task: TextTask) -> None:
    """Raises `ConfigError` for shares or stages that the task cannot have."""
    parts = parts_of(task)
    if config.shares and (len(parts) < 2 or len(config.shares) != len(parts)):
        raise ConfigError(
            f"shares is {config.shares} and {task.name} has {len(parts)} parts; give each part of "
            "a joint task, such as addition+sorting, a share"
        )
    levels = config.levels or task.trained
    if lacking := [p.name for p, own in zip(parts, by_part(task, levels), strict=True) if not own]:
        raise ConfigError(f"levels has none of {' and '.join(lacking)}; give each part a level")


def check_rounds(config: Any, task: TextTask) -> None:
    """Raises `ConfigError` for settings of a policy gradient's parts that cannot be."""
    for text in config.stages:
        stage(text, task, config.stage_tokens)
    if config.stages and config.shares:
        raise ConfigError("a stage is of one part alone; leave shares out, or stages")
    if config.shares_of == "learned" and (len(parts_of(task)) < 2 or config.stages):
        raise ConfigError(
            f"shares_of is learned: {task.name} has to be a joint task, such as addition+sorting, "
            "and stages empty"
        )
    if (config.stages or config.shares_of == "learned") and (config.pool or config.pivots):
        raise ConfigError(
            "with stages or shares_of learned, problems depend on what was learned so far; leave "
            "pool and pivots at 0"
        )
    if config.stage_reset and not config.stages:
        raise ConfigError("stage_reset is on, and there are no stages; give stages")


def by_part(task: TextTask, levels: Sequence[int]) -> list[list[int]]:
    """The `levels`, part by part."""
    return [[x for x in levels if x // APART == k] for k in range(len(parts_of(task)))]


def trained_levels(config: Any, task: TextTask) -> tuple[int, ...]:
    """The levels that a run with this config trains on: those of its stages where a part has any,
    else those of the run, which a part without a stage is judged by."""
    usual: tuple[int, ...] = config.levels or task.trained
    stages = [stage(text, task, 1) for text in getattr(config, "stages", ())]
    if not any(s.levels for s in stages):
        return usual
    parts = by_part(task, usual)
    known = {x for k, own in enumerate(parts) if k not in {s.part for s in stages} for x in own}
    for s in stages:
        known |= {APART * s.part + x for x in s.levels} or set(parts[s.part])
    return tuple(x for x in task.levels if x in known)


class Domains:
    """Of which part and level a problem is.

    Parts have their `shares` of what is drawn. With `learned` they have them of the groups that
    something was learned from: a part is drawn with a weight of its deficit, its share of all of
    these groups less those that it had, and no less than a hundredth of its share. In a stage
    problems are of its part alone. The counts and the stage are its state."""

    def __init__(
        self,
        task: TextTask,
        levels: Sequence[int],
        shares: Sequence[float] = (),
        *,
        learned: bool = False,
        stages: Sequence[Stage] = (),
    ) -> None:
        self.all, self.levels = list(levels), by_part(task, levels)
        count = len(self.levels)
        total = sum(shares)
        self.shares = [s / total for s in shares] if shares else [1 / count] * count
        self.learned, self.stages = learned, list(stages)
        self.even = not shares and not learned and not stages  # over levels, whatever their part
        self.counts = [0] * count  # groups learned from
        self.at, self.since = -1, 0  # the stage, and the tokens sampled when it began

    def weights(self) -> list[float]:
        """The probability of each part."""
        if self.stage is not None:
            return [float(k == self.stage.part) for k in range(len(self.levels))]
        if not self.learned:
            return list(self.shares)
        total = sum(self.counts)
        lacking = [s * total - n for s, n in zip(self.shares, self.counts, strict=True)]
        raw = [max(x, LEAST * s) for x, s in zip(lacking, self.shares, strict=True)]
        return [x / sum(raw) for x in raw] if total else list(self.shares)

    def draw(self, rng: random.Random) -> int:
        """The level of the next problem."""
        if self.even:
            return rng.choice(self.all)
        (k,) = rng.choices(range(len(self.levels)), self.weights())
        own = self.stage.levels if self.stage is not None else ()
        return rng.choice([APART * k + x for x in own] or self.levels[k])

    def count(self, parts: Sequence[int]) -> None:
        """Groups of these parts were learned from."""
        for k in parts:
            self.counts[k] += 1

    @property
    def stage(self) -> Stage | None:
        return self.stages[self.at] if self.at >= 0 else None

    def over(self, sampled: int) -> bool:
        """Whether the stage has had its tokens, of the `sampled` ones of the run, and another one
        follows."""
        follows = 0 <= self.at < len(self.stages) - 1
        return follows and sampled - self.since >= self.stages[self.at].tokens

    def advance(self, sampled: int) -> bool:
        """Go on to the stage that a round after `sampled` tokens is of; whether it is another one.
        The last stage stays."""
        if not self.stages or (self.at >= 0 and not self.over(sampled)):
            return False
        self.at, self.since = self.at + 1, sampled
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"counts": list(self.counts), "stage": self.at, "since": self.since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts = list(state["counts"])
        self.at, self.since = state["stage"], state["since"]


def domains_of(config: Any, task: TextTask) -> Domains:
    """As the settings of a policy gradient say."""
    return Domains(
        task,
        config.levels or task.trained,
        config.shares,
        learned=config.shares_of == "learned",
        stages=[stage(text, task, config.stage_tokens) for text in config.stages],
    )


def learned_groups(prompts: Tensor, worth: Tensor, levels: Sequence[int]) -> list[int]:
    """The part of every group, equal numbers in `prompts` [B], that has a row with `worth` [B] of
    its advantages other than 0."""
    parts: dict[int, int] = {}
    for prompt, some, level in zip(prompts.tolist(), (worth != 0).tolist(), levels, strict=True):
        if some:
            parts[prompt] = level // APART
    return list(parts.values())


def forgetting(scores: Tensor) -> Tensor:
    """[D]: of `scores` [N, D] of D parts after each of N stages, by how much the best before the
    last lies above the last: what later stages cost. Below 0 for a part that is best at the end.
    "Nemotron-Cascade: Scaling Cascaded Reinforcement Learning for General-Purpose Reasoning Models"
    says that it is small. NaN with fewer than two rows."""
    if len(scores) < 2:
        return torch.full(scores.shape[1:], torch.nan, dtype=scores.dtype)
    return scores[:-1].max(0).values - scores[-1]
