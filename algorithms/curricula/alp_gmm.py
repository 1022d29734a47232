"""ALP-GMM: tasks from where a learner's rewards change most. "Teacher algorithms for curriculum
learning of Deep RL in continuously parameterized environments" (Portelas, Colas, Hofmann, Oudeyer,
arXiv 1910.07224). Formulas and defaults read in the authors' code (flowersteam/meta-acl).

Differences: distances of tasks and fits are in widths of their box, so that no unit counts more.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mbrl.config import Probability, Settings, Several, require_same
from mbrl.errors import ConfigError, DataError, optional_packages

NEIGHBOURS = 5  # tasks that must be known before progress is measured
WAITING = 1000  # tasks without a reward that are remembered, the latest


@dataclass(frozen=True)
class ALPGMMConfig(Settings):
    """Settings of ALP-GMM."""

    fit_every: Several = 250  # tasks between two fits, and as many uniform ones at first
    components: tuple[Several, ...] = tuple(range(2, 11))  # numbers of Gaussians that are tried
    random_share: Probability = 0.2  # of tasks that are uniform

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.components or max(self.components) > self.fit_every:
            raise ConfigError(
                f"components are {self.components} and fit_every {self.fit_every}; a mixture of k "
                "Gaussians needs k tasks or more, and one number is tried at least"
            )


class Mixture(NamedTuple):
    """Gaussians over task and progress: `means` [K, D + 1], `covariances` [K, D + 1, D + 1]; the
    last component is the absolute learning progress."""

    means: np.ndarray
    covariances: np.ndarray

    def sample(
        self, low: np.ndarray, high: np.ndarray, draws: np.random.Generator
    ) -> tuple[np.ndarray, int]:
        """A task [D] of a Gaussian drawn in proportion to its mean progress, clipped to the bounds,
        and the number of the Gaussian; drawn uniformly where there is no progress at all."""
        progress = self.means[:, -1].clip(0.0)
        total = progress.sum()
        share = progress / total if total > 0 else None
        index = int(draws.choice(len(progress), p=share))
        width = _widths(low, high)
        mean, covariance = self.means[index], self.covariances[index] / np.outer(width, width)
        draw = width * draws.multivariate_normal(mean / width, covariance)
        return np.clip(draw[:-1], low, high), index


class Sampled(NamedTuple):
    """A task [D] that has no reward yet; the Gaussian that it is a draw of (-1: none of these) and
    how many mixtures there were; and, of AGAIN, the Gaussian of the expert and its stage."""

    task: np.ndarray
    origin: int
    fits: int
    expert: int = -1
    stage: int = -1


class ALPGMM:
    """A teacher of tasks in the box from `low` [D] to `high` [D].

    The absolute learning progress of a task is |r - r'|, r' the reward of the nearest earlier task,
    in widths of the box. Every `fit_every` tasks mixtures are fitted to the last `fit_every` tasks
    with their progress, and the one with the least AIC is taken. A task is a draw of a Gaussian
    that is chosen in proportion to its mean progress, or a uniform one. Rewards should lie in
    [0, 1]. Several tasks may be sampled before the first of them has its reward, and rewards may
    come in any order. Needs the extra `curricula` (scikit-learn).
    """

    def __init__(self, low: Any, high: Any, config: ALPGMMConfig | None = None, seed: int = 0):
        with optional_packages("curricula", "fits of Gaussian mixtures"):
            import sklearn.mixture  # noqa: F401
        self.low, self.high = box(low, high)
        self.config, self.seed = config or ALPGMMConfig(), seed
        self.draws = np.random.default_rng(seed)
        self.tasks: list[np.ndarray] = []
        self.rewards: list[float] = []
        self.progress: list[float] = []
        self.origins: list[int] = []  # Gaussian of every task; -1: none of the last mixture
        self.sampled: list[Sampled] = []
        self.mixtures: list[Mixture] = []
        self.fitted_at: list[int] = []  # tasks before each of them
        self._known = np.zeros((1024, len(self.low)))  # the tasks, with room for more

    @property
    def mixture(self) -> Mixture | None:
        """The last one fitted."""
        return self.mixtures[-1] if self.mixtures else None

    def sample(self) -> np.ndarray:
        """The next task [D]."""
        if self.mixture is None or self.draws.random() < self.config.random_share:
            task, origin = self.draws.uniform(self.low, self.high), -1
        else:
            task, origin = self.mixture.sample(self.low, self.high, self.draws)
        self.remember(Sampled(task, origin, len(self.mixtures)))
        return task

    def remember(self, sampled: Sampled) -> None:
        """A task that is learned in now."""
        self.sampled = [*self.sampled, sampled][-WAITING:]

    def find(self, task: np.ndarray) -> Sampled | None:
        """What `task` [D] was when it was sampled; None for one that was not, or has its reward."""
        width = self.high - self.low
        near = (s for s in self.sampled if (np.abs(s.task - task) < 1e-5 * width).all())
        return next(near, None)

    def update(self, task: np.ndarray, reward: float) -> bool:
        """Take in what `task` [D] earned; whether a new mixture was fitted. Raises `DataError` for
        a task of another size, and for numbers that are not finite."""
        task = np.asarray(task, float)
        if task.shape != self.low.shape:
            raise DataError(f"task has shape {task.shape}, those of this teacher {self.low.shape}")
        if not (np.isfinite(task).all() and np.isfinite(reward)):
            raise DataError(f"task {task} earned {reward}; both must be finite")
        count = len(self.tasks)
        progress = 0.0
        if count > NEIGHBOURS:
            apart = (self._known[:count] - task) / (self.high - self.low)
            nearest = np.square(apart).sum(1).argmin()
            progress = abs(reward - self.rewards[nearest])
        if count == len(self._known):
            self._known = np.concatenate([self._known, np.zeros_like(self._known)])
        self._known[count] = task
        self.tasks.append(task)
        self.rewards.append(float(reward))
        self.progress.append(progress)
        known = self.find(task)
        self.sampled = [s for s in self.sampled if s is not known]
        current = known is not None and known.fits == len(self.mixtures)
        self.origins.append(known.origin if known is not None and current else -1)
        if len(self.tasks) % self.config.fit_every:
            return False
        self.mixtures.append(self._fitted())
        self.fitted_at.append(len(self.tasks))
        return True

    def _fitted(self) -> Mixture:
        """The best mixture of the last tasks and their progress by AIC."""
        from sklearn.mixture import GaussianMixture

        last, width = self.config.fit_every, _widths(self.low, self.high)
        rows = np.column_stack([np.stack(self.tasks[-last:]), self.progress[-last:]]) / width
        seed = self.seed + len(self.mixtures)
        fits = [GaussianMixture(k, random_state=seed).fit(rows) for k in self.config.components]
        best = min(fits, key=lambda fit: fit.aic(rows))
        return Mixture(best.means_ * width, best.covariances_ * np.outer(width, width))

    def state_dict(self) -> dict[str, Any]:
        """Everything that a teacher needs to go on exactly."""
        names = ("tasks", "rewards", "progress", "origins", "mixtures", "fitted_at", "sampled")
        return {name: list(getattr(self, name)) for name in names} | {
            "draws": self.draws.bit_generator.state,
            "seed": self.seed,
            "box": [self.low.tolist(), self.high.tolist()],
            "config": dataclasses.asdict(self.config),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`. Raises `ConfigError` for one of another box or other
        settings."""
        own = [self.low.tolist(), self.high.tolist()]
        if (box := state.get("box", own)) != own:  # states of earlier versions have none
            raise ConfigError(
                f"the state is of tasks between {box[0]} and {box[1]}, this teacher's lie between "
                f"{own[0]} and {own[1]}; give the bounds that it was made with"
            )
        require_same(self.config, state.get("config", dataclasses.asdict(self.config)))
        self.seed = state.get("seed", self.seed)
        for name in ("tasks", "rewards", "progress", "origins", "mixtures", "fitted_at"):
            setattr(self, name, list(state[name]))
        del self.origins[len(self.tasks) :]  # in earlier versions with that of a task to come
        self.sampled = list(state.get("sampled", []))
        self.draws.bit_generator.state = state["draws"]
        size = max(1024, 2 * len(self.tasks))
        self._known = np.zeros((size, len(self.low)))
        if self.tasks:
            self._known[: len(self.tasks)] = np.stack(self.tasks)


def _widths(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Those of the box, and 1 for progress, [D + 1]."""
    return np.append(high - low, 1.0)


def box(low: Any, high: Any) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of tasks as arrays [D]; `ConfigError` where they are none."""
    lower, upper = np.asarray(low, float), np.asarray(high, float)
    if lower.ndim != 1 or lower.shape != upper.shape or not (lower < upper).all():
        raise ConfigError(
            f"tasks lie between low {low} and high {high}; both must be lists of equal length, "
            "and every low below its high"
        )
    return lower, upper
