"""What a text task is: problems without end, and a program that answers every turn."""

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from mbrl.distributed.elastic import Elastic
from mbrl.errors import ConfigError

HELD_OUT = 8  # one problem in so many is for evaluation alone
TRIES = 10_000  # draws after which a level counts as without such problems


@dataclass(frozen=True)
class Problem:
    """One problem. `prompt` is the text that is shown first, `level` its difficulty, `facts` what
    the grading needs, in values that JSON has. Problems of one `family` (if it is named) are
    paraphrases of each other. `state` names the state in which the first turn acts, `task` the part
    of a joint task that the problem is of ("": there is one task)."""

    prompt: str
    level: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    family: str = ""
    state: str = ""
    task: str = ""

    @property
    def asked(self) -> str:
        """What is asked, in whatever words and at whatever level: one text for problems that are
        the same."""
        what = [self.family] if self.family else [self.prompt, self.facts]
        return json.dumps(what, sort_keys=True, default=dict)

    @property
    def held_out(self) -> bool:
        """Whether the problem is for evaluation: a fixed property of what is asked, so that no seed
        brings it into training."""
        return int(hashlib.sha256(self.asked.encode()).hexdigest(), 16) % HELD_OUT == 0


@dataclass(frozen=True)
class Reply:
    """What a turn brings: its `reward`, whether the problem is `done` and ended in `success`, and
    else the `observation` that is shown next. `state` names the state in which the next turn acts:
    equal names are the same state. `signals` are further numbers of this turn, by the names that
    recipes read (`format_reward`, `length_reward`, `void`, `penalty`)."""

    reward: float = 0.0
    done: bool = True
    success: bool = False
    observation: str = ""
    state: str = ""
    signals: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A written step of a turn: it ends before character `end` of the turn, and is `right` or not
    given what stands before it."""

    end: int
    right: bool


@dataclass(frozen=True)
class Correction:
    """The first wrong step of a conversation: it begins at character `start` of turn number `turn`,
    and `text` in its place is right. `ends`: the turn is over with it, else it goes on."""

    turn: int
    start: int
    text: str
    ends: bool = True


@dataclass(frozen=True)
class Plan:
    """Whether a turn sets out for a `new` subgoal, and which of its characters, from and up to,
    say whether it does (`switch`) and which subgoal it is."""

    new: bool
    switch: tuple[int, int]
    subgoal: tuple[int, int]


class TextTask(ABC):
    """A family of problems with a program that checks them. All methods are pure functions of
    their arguments, so an episode is its problem and its turns, and can be branched or continued
    anywhere.

    Texts hold no characters outside `vocabulary.ALPHABET`, unless `open_text`. `levels` are all
    difficulties, easy first; `trained` those that a run trains on unless it says otherwise, the
    rest is held out.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    levels: ClassVar[tuple[int, ...]]
    trained: ClassVar[tuple[int, ...]]
    max_turns: ClassVar[int] = 1
    turn_length: ClassVar[int]  # characters that a turn may have
    prompt_length: ClassVar[int]  # characters that prompt or observation have at most
    signals: ClassVar[tuple[str, ...]] = ()  # names that `signals` of every reply has
    scores: ClassVar[tuple[float, float] | None] = None  # least and largest, where answers are such
    splits: ClassVar[bool] = True  # False: too few problems to hold any out
    # Texts of any characters with many right answers, for models with a tokenizer of their own.
    open_text: ClassVar[bool] = False
    elsewhere: Elastic | None = None  # who makes `replies`; None: this process, each once

    def problem(self, level: int, rng: random.Random, *, held_out: bool | None = None) -> Problem:
        """A problem of difficulty `level`, drawn with `rng`: one of those held out from training,
        or of the others; None: of all. Raises `ConfigError` for a level that the task does not
        have, or that has no such problem."""
        if level not in self.levels:
            raise ConfigError(
                f"{self.name} has no level {level}, it has {', '.join(map(str, self.levels))}"
            )
        for _ in range(TRIES):
            problem = self.draw(level, rng)
            if held_out is None or not self.splits or problem.held_out == held_out:
                return problem
        raise ConfigError(
            f"among {TRIES} problems of level {level} of {self.name} none is "
            f"{'held out' if held_out else 'to train on'}; a task with so few has splits = False"
        )

    @abstractmethod
    def draw(self, level: int, rng: random.Random) -> Problem: ...

    @abstractmethod
    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        """What comes back after the last of `turns`, none of which ended the problem before. After
        turn number `max_turns` it is always done."""

    def replies(self, calls: Sequence[tuple[Problem, Sequence[str]]]) -> list[Reply]:
        """`reply` to each of several conversations, (problem, turns) each. Raises `RuntimeError`
        for one that failed however often it was made, where it may be made `elsewhere`."""
        if self.elsewhere is None:
            return [self.reply(problem, turns) for problem, turns in calls]
        return self.elsewhere.map(calls)

    @abstractmethod
    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        """The next turn of one who can do it, after `turns` that may be anybody's."""

    def steps(self, problem: Problem, turns: Sequence[str]) -> list[Step]:
        """The steps written in the last of `turns`, where the task can tell them apart."""
        return []

    def first_error(self, problem: Problem, turns: Sequence[str]) -> Correction | None:
        """The first step of `turns` that is wrong, or where one is lacking, and what is right
        there; None where there is none, or the task does not know."""
        return None

    def hint(self, problem: Problem, turns: Sequence[str]) -> str:
        """What helps one who has said `turns` and does not hold the answer; "" for none."""
        return ""

    def diagnosis(self, problem: Problem, turns: Sequence[str]) -> str:
        """What somebody who understands the error in the last of `turns`, which did not end the
        problem, would show in place of the observation; "" where there is no error."""
        return ""

    def interval(self, problem: Problem, turn: str) -> tuple[float, float] | None:
        """The part of what is asked about that `turn` names, from and up to in [0, 1], where
        answers are such parts; None: it names none."""
        return None

    def posed(self, text: str) -> Problem | None:
        """The problem whose prompt `text` is, of a level that the task has; None where it is none,
        or the task does not read its own prompts."""
        return None

    def plan(self, turns: Sequence[str]) -> Plan:
        """What the last of `turns` says of its subgoal, where turns have subgoals; the first of a
        conversation always sets out for a new one."""
        return Plan(len(turns) == 1, (0, 0), (0, 0))

    def paraphrases(self, problem: Problem) -> list[Problem]:
        """The problem in all words that the task has for it, its own among them."""
        return [problem]


T = TypeVar("T", bound=TextTask)


def made_of(kind: type[T], once: TextTask, **values: Any) -> T:
    """A task of that kind about the task `once`, which it has as its attribute: levels and
    lengths are those of `once` but for the class attributes that `values` gives."""
    inherited = ("levels", "trained", "turn_length", "prompt_length", "splits")
    known: dict[str, Any] = {name: getattr(once, name) for name in inherited}
    known |= {"__doc__": kind.__doc__, "__module__": kind.__module__, "once": once}
    own: type[T] = type(kind.__name__, (kind,), known | values)
    return own()
