"""Do a run's values stay within what rewards allow? Mean value of the greedy policy at states of
the data, by the run's own critics, beside what was earned from the same states in the log and
beside the least and largest discounted return that the rewards could add up to."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from algorithms.evaluation.critic_values import critic_values
from algorithms.evaluation.fqe import return_range
from algorithms.evaluation.valuation import own_gamma
from mbrl.records import MetricsFile
from mbrl.returns import returns_at
from mbrl.training import Metrics, Trainable
from mbrl.types import Dataset

FILE = "values.csv"
STATES = 512  # of the data, spread evenly
SLACK = 0.02  # of the possible range, beyond which a value is impossible
CLAIM = 0.95  # share of the way from the logged return to the largest possible one: a caution


@dataclass(frozen=True)
class Values:
    """`mean`: of the policy's values; `logged`: of the discounted returns from the same rows on;
    `low`, `high`: what rewards allow."""

    mean: float
    logged: float
    low: float
    high: float

    @property
    def level(self) -> Literal["possible", "doubtful", "impossible"]:
        slack = SLACK * (self.high - self.low)
        if not self.low - slack <= self.mean <= self.high + slack:
            return "impossible"
        room = self.high - self.logged
        return "doubtful" if room > slack and self.mean - self.logged > CLAIM * room else "possible"

    @property
    def sentence(self) -> str:
        """For a person; empty where nothing is to be said."""
        if self.level == "impossible":
            return (
                f"values ran away: {self.mean:.4g} on average at states of the data, where rewards "
                f"allow {self.low:.4g} to {self.high:.4g} and the logged return is "
                f"{self.logged:.4g}"
            )
        if self.level == "doubtful":
            return (
                f"values claim nearly all that rewards allow, or have not settled: {self.mean:.4g} "
                f"on average at states of the data, where the logged return is {self.logged:.4g} "
                f"and {self.high:.4g} is the most; `value` says whether the log supports it"
            )
        return ""


class ValueWatch:
    """Measures the values ten times in a run of `steps` and at its end, into values.csv."""

    def __init__(self, folder: Path, dataset: Dataset, steps: int) -> None:
        self.file = MetricsFile(folder / FILE)
        self.every, self.last = max(1, steps // 10), steps
        self.dataset = dataset
        self.reference: Values | None = None
        rows = np.unique(np.linspace(0, len(dataset) - 1, STATES).astype(np.int64))
        self.rows, self.obs = rows, dataset.transitions.obs[rows]
        masks = dataset.transitions.action_mask
        self.mask = None if masks is None else masks[rows]

    def __call__(self, event: str, agent: Trainable, metrics: Metrics) -> None:
        if event == "step" and (agent.step % self.every == 0 or agent.step == self.last):
            values = self.measure(agent)
            if values is not None:
                self.file.append({"step": agent.step, **vars(values)})

    def measure(self, agent: Trainable) -> Values | None:
        """None for an agent without critics of states alone."""
        values = critic_values(agent, self.obs, self.mask)
        if values is None:
            return None
        if self.reference is None:
            data, gamma = self.dataset.transitions, own_gamma(agent)
            logged = float(returns_at(data, gamma, self.rows).mean())
            low, high = return_range(data.reward, data.terminated, gamma, data.duration)
            self.reference = Values(math.nan, logged, low, high)
        known = self.reference
        return Values(float(values.mean()), known.logged, known.low, known.high)


def last(folder: Path) -> Values | None:
    """The last measurement of a run; None without any."""
    rows = history(folder)
    return rows[-1][1] if rows else None


def history(folder: Path) -> list[tuple[int, Values]]:
    """Steps and measurements of a run, oldest first."""
    if not (folder / FILE).exists():
        return []
    rows: list[dict[str, Any]] = MetricsFile(folder / FILE).rows()
    names = ("mean", "logged", "low", "high")
    return [(int(row["step"]), Values(*(float(row[n]) for n in names))) for row in rows]
