"""AGAIN: a new student is taught by the curriculum of the past one who was most like it and ended
best, beside a curriculum of its own. "Meta Automatic Curriculum Learning" (Portelas, Romac,
Hofmann, Oudeyer, arXiv 2011.08463). Formulas read in the authors' code (flowersteam/meta-acl).

Differences: the student goes on after the pre-test (theirs may begin anew); a stage of the expert
in which no task of a kept Gaussian was drawn is passed over at once by variant R, where theirs
compares with no number and stays.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from algorithms.curricula.alp_gmm import ALPGMM, ALPGMMConfig, Mixture, Sampled
from mbrl.config import Count, NonNegative, Probability
from mbrl.errors import ConfigError, DataError

RECENT = 50  # rewards of kept Gaussians whose mean a stage of an expert is known by
WINDOW = 100  # tasks of the last stage between two estimates of its Gaussians' progress


@dataclass(frozen=True)
class AGAINConfig(ALPGMMConfig):
    """Settings of AGAIN; `random_share` is that of the pre-test."""

    random_share: Probability = 0.1
    # pool: all of the expert's Gaussians at once; time: its mixtures in their times; reward: the
    # next one when the student earns what the expert did
    variant: Literal["pool", "time", "reward"] = "reward"
    neighbours: Count = 5  # past students among whom the best one is chosen
    least_progress: NonNegative = 0.2  # of an expert's Gaussians that are kept
    rewards: Count = 50  # of the student's last ones that the variant "reward" compares
    later_random: Probability = 0.02  # share of uniform tasks after the pre-test
    last_random: Probability = 0.1  # and after the expert's last mixture


class Stage(NamedTuple):
    """A mixture of an expert without its Gaussians of little progress, and the mean reward that the
    expert ended it with (minus infinity where none is known)."""

    mixture: Mixture
    reward: float


class PastStudent(NamedTuple):
    """Competences at the pre-test and at the end, [T] each, and the curriculum."""

    early: np.ndarray
    final: np.ndarray
    stages: list[Stage]


def curriculum(teacher: ALPGMM, least_progress: float) -> list[Stage]:
    """The stages of a student whom `teacher` taught; mixtures without progress are left out."""
    stages = []
    for mixture, begin in zip(teacher.mixtures, teacher.fitted_at, strict=True):
        kept = (mixture.means[:, -1] > least_progress).nonzero()[0]
        if len(kept) == 0:
            continue
        during = slice(begin, begin + teacher.config.fit_every)
        earned = [
            reward
            for reward, origin in zip(
                teacher.rewards[during], teacher.origins[during], strict=False
            )
            if origin in kept
        ][-RECENT:]
        known = float(np.mean(earned)) if earned else -np.inf
        stages.append(Stage(Mixture(mixture.means[kept], mixture.covariances[kept]), known))
    return stages


def expert_of(past: Sequence[PastStudent], tested: np.ndarray, neighbours: int) -> PastStudent:
    """Of the `neighbours` past students with competences nearest to `tested` [T], the one with the
    largest sum at the end."""
    distance = [float(np.linalg.norm(student.early - tested)) for student in past]
    nearest = np.argsort(distance, kind="stable")[:neighbours]
    return past[max(nearest, key=lambda k: (float(past[k].final.sum()), -distance[k]))]


class AGAIN:
    """A teacher of tasks in the box from `low` [D] to `high` [D]. Until `test` is called it is
    ALP-GMM; then it mixes an expert's Gaussians with its own, in proportion to their progress."""

    def __init__(
        self,
        low: Any,
        high: Any,
        past: Sequence[PastStudent],
        config: AGAINConfig | None = None,
        seed: int = 0,
    ) -> None:
        self.config, self.past = config or AGAINConfig(), list(past)
        if not any(student.stages for student in self.past):
            raise ConfigError(
                "no past student has a Gaussian with enough progress; lower least_progress "
                f"({self.config.least_progress}) or teach by ALPGMM"
            )
        self.own = ALPGMM(low, high, self.config, seed)
        for stage in (stage for student in self.past for stage in student.stages):
            size = stage.mixture.means.shape[1] - 1
            if size != len(self.own.low):
                raise ConfigError(
                    f"a past student's tasks have {size} numbers, those of this teacher "
                    f"{len(self.own.low)}; give students of the same tasks"
                )
        self.stages: list[Stage] = []  # of the expert, once it is chosen
        self.stage = -1
        self.mixture: Mixture | None = None  # of the expert, now
        self.from_expert = False  # whether the last task with a reward came from it
        self.gaussian = -1  # which of its Gaussians
        self.recent: deque[float] = deque(maxlen=self.config.rewards)
        self.windows: list[deque[float]] | None = None  # progress in the last stage's Gaussians
        self.added = 0

    def test(self, competences: np.ndarray, expert: PastStudent | None = None) -> None:
        """End the pre-test with the student's competences [T]; `expert` in the place of the choice
        by them. Raises `DataError` for competences of other tests than the past students', and
        for an expert without stages."""
        competences = np.asarray(competences, float)
        for student in self.past:
            if student.early.shape != competences.shape or not np.isfinite(competences).all():
                raise DataError(
                    f"competences are {competences}; give {student.early.shape[0]} finite numbers, "
                    "as the past students have"
                )
        known = [student for student in self.past if student.stages]
        if expert is not None and not expert.stages:
            raise DataError("expert has no stages: its training ended before the first mixture")
        chosen = expert or expert_of(known, competences, self.config.neighbours)
        self.stages = chosen.stages
        self._advance()

    def _advance(self) -> None:
        """The expert's next mixture."""
        if self.config.variant == "pool":
            mixtures = [stage.mixture for stage in self.stages]
            self.stage = len(self.stages) - 1
            self.mixture = joined(mixtures)
            return
        if self.config.variant == "time":
            self.stage = len(self.own.tasks) // self.config.fit_every
        else:
            self.stage += 1
        self.stage = min(self.stage, len(self.stages) - 1)
        self.mixture = self.stages[self.stage].mixture
        self.recent.clear()

    @property
    def at_the_end(self) -> bool:
        """Whether the expert's curriculum is over."""
        ordered = self.config.variant != "pool"
        return ordered and bool(self.stages) and self.stage == len(self.stages) - 1

    def sample(self) -> np.ndarray:
        """The next task [D]."""
        own, c = self.own, self.config
        if self.mixture is None:
            return own.sample()
        share = c.last_random if self.at_the_end else c.later_random
        if own.draws.random() < share:
            task = own.draws.uniform(own.low, own.high)
            own.remember(Sampled(task, -1, len(own.mixtures)))
            return task
        mixed = self.mixture if own.mixture is None else joined([self.mixture, own.mixture])
        task, index = mixed.sample(own.low, own.high, own.draws)
        theirs = len(self.mixture.means)
        origin, expert = (-1, index) if index < theirs else (index - theirs, -1)
        own.remember(Sampled(task, origin, len(own.mixtures), expert, self.stage))
        return task

    def update(self, task: np.ndarray, reward: float) -> bool:
        """Take in what `task` [D] earned; whether a new mixture of its own was fitted."""
        known = self.own.find(np.asarray(task, float))
        fitted = self.own.update(task, reward)
        self.from_expert = known is not None and known.expert >= 0 and known.stage == self.stage
        self.gaussian = known.expert if known is not None else -1
        if self.mixture is None or self.config.variant == "pool":
            return fitted
        if self.from_expert:
            self.recent.append(reward)
        if not self.at_the_end:
            if self._due():
                self._advance()
        elif self.from_expert:
            self._estimate(self.own.progress[-1])
        return fitted

    def _due(self) -> bool:
        if self.config.variant == "time":
            return len(self.own.tasks) % self.config.fit_every == 0
        if len(self.recent) < self.config.rewards:
            return self.stages[self.stage].reward == -np.inf
        return float(np.mean(self.recent)) >= self.stages[self.stage].reward

    def _estimate(self, progress: float) -> None:
        """The progress of the last stage's Gaussians anew, every `WINDOW` tasks of theirs."""
        assert self.mixture is not None
        if self.windows is None:
            self.windows = [deque(maxlen=WINDOW) for _ in self.mixture.means]
        self.windows[self.gaussian].append(progress)
        self.added += 1
        if self.added < WINDOW:
            return
        self.added = 0
        means = self.mixture.means.copy()
        means[:, -1] = [np.mean(window) if window else 0.0 for window in self.windows]
        self.mixture = Mixture(means, self.mixture.covariances)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a teacher needs to go on exactly, beside the past students."""
        names = ("stages", "stage", "mixture", "from_expert", "gaussian", "added")
        windows = None if self.windows is None else [list(w) for w in self.windows]
        return {name: getattr(self, name) for name in names} | {
            "own": self.own.state_dict(),
            "recent": list(self.recent),
            "windows": windows,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("stages", "stage", "mixture", "from_expert", "gaussian", "added"):
            setattr(self, name, state[name])
        self.own.load_state_dict(state["own"])
        self.recent = deque(state["recent"], maxlen=self.config.rewards)
        windows = state["windows"]
        self.windows = None if windows is None else [deque(w, maxlen=WINDOW) for w in windows]


def joined(mixtures: Sequence[Mixture]) -> Mixture:
    """All their Gaussians as one mixture."""
    means = np.concatenate([mixture.means for mixture in mixtures])
    return Mixture(means, np.concatenate([mixture.covariances for mixture in mixtures]))
