"""Training until an offline criterion stops rising: the value of the policy on held-out episodes in
a model that ends where the data end (`algorithms.evaluation.halted`). The task is never asked."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.evaluation.halted import Halted, HaltingModel, rise
from experiments.runs.halting import ENDS, can_imagine, ends_of
from experiments.settings import RunSettings, UntilFlatSettings
from mbrl import checkpoint
from mbrl.data.split import hold_out
from mbrl.errors import ConfigError
from mbrl.training import Metrics, Trainable
from mbrl.types import Dataset

FILE = "halting_model.pt"
WHY = {
    "flat": "the offline criterion has not risen beyond its standard error",
    "time": "the processor time was over",
    "updates": "all updates were done",
}


def check(settings: RunSettings) -> None:
    """Raise `ConfigError` for settings with which a run cannot be stopped by the criterion."""
    wanted = settings.until_flat
    if wanted.every == 0:
        if wanted.minutes > 0:
            raise ConfigError(
                f"until_flat.minutes is {wanted.minutes:g} and until_flat.every 0; the time is "
                "looked at where the criterion is asked for: --until-flat.every 1000"
            )
        return
    if settings.online:
        raise ConfigError(
            f"{settings.data} is a task; --until-flat asks for the value of a policy on logged "
            "episodes, give a dataset"
        )
    if settings.holdout == 0:
        raise ConfigError(
            "--until-flat values the policy on episodes that taught it nothing, and holdout is 0; "
            "give --holdout 0.2"
        )
    if settings.algorithm in ("neubay", "pets"):
        what = "has a memory" if settings.algorithm == "neubay" else "is a planner"
        raise ConfigError(
            f"the policy of {settings.algorithm} {what}, and --until-flat needs one that is a "
            "function of the observation; leave until_flat.every at 0"
        )


def halting_model(
    settings: RunSettings, train: Dataset, logged: Dataset, folder: Path
) -> HaltingModel:
    """The model of the run in `folder`, fitted to `train` where no earlier session did, for the
    episodes of `logged` that the run holds out. Raises `ConfigError` where there is none."""
    name, spec = train.provenance.card, train.spec
    if spec.discrete or not can_imagine(train):
        reason = "has discrete actions" if spec.discrete else (
            "has steps of several lengths, or belongs to no task and has fewer episodes that "
            f"terminate than ends are learned from ({ENDS})"
        )  # fmt: skip
        raise ConfigError(
            f"{name} {reason}, so that no halting model can be made of it; leave until_flat.every "
            "at 0 and compare kept policies with --fqe-steps"
        )
    held = hold_out(logged, settings.holdout)[1]
    total = len(logged.transitions.episodes())
    if len(held.transitions.episodes()) < 2:
        raise ConfigError(
            f"holdout is {settings.holdout:g}, one of {total} episodes of {name}; the standard "
            f"error needs two at least: --holdout {min(2.0 / total + 0.005, 0.9):.2f}"
        )
    file = folder / FILE
    state = checkpoint.load(file)["model"] if file.exists() else None
    model = HaltingModel(train, held, ends_of(train), state=state)
    if state is None:
        checkpoint.save(file, {"model": model.state_dict()})
    return model


class UntilFlat:
    """A callback that values the policy every `settings.every` updates and ends the training once
    `settings.patience` values in a row are not above the highest before them by more than the
    standard error of the difference over held-out episodes, or the processor time is over, or the
    step is `last`. `on_stop` gets the step at which it does, `keep` the agent at each rise; `best`
    is the step of the last rise.

    `checks` holds a row for each value: the step, the mean over episodes, its rise over the highest
    before, the standard error of that, the share of windows inside the data.
    """

    def __init__(
        self,
        settings: UntilFlatSettings,
        model: HaltingModel,
        last: int,
        on_stop: Callable[[int], None] = lambda step: None,
        keep: Callable[[Trainable], None] = lambda agent: None,
    ) -> None:
        self.settings, self.model, self.last = settings, model, last
        self.on_stop, self.keep = on_stop, keep
        self.why: str | None = None
        self.best: int | None = None  # None in checkpoints of earlier versions, too
        self.checks: list[list[float]] = []
        self.highest: Halted | None = None
        self.waited = 0  # values since the highest
        self._before, self._began = 0.0, time.process_time()

    @property
    def seconds(self) -> float:
        """Processor time of training in all sessions, the fit of a world model
        included, as far as their checkpoints know it."""
        return self._before + time.process_time() - self._began

    def __call__(self, event: str, agent: Trainable, metrics: Metrics) -> bool:
        if event != "step":
            return False
        if agent.step % self.settings.every == 0 or agent.step == self.last:
            self.check(agent)
        if self.why is None and agent.step == self.last:
            self.why = "updates"
        if self.why is None and self.settings.minutes and self.seconds > 60 * self.settings.minutes:
            self.why = "time"
        if self.why is not None:
            self.on_stop(agent.step)
        return self.why is not None

    def check(self, agent: Trainable) -> None:
        """Value the policy, and see whether that is a rise."""
        now = self.model.value(agent.policy)
        difference, error = (np.inf, 0.0) if self.highest is None else rise(now, self.highest)
        risen = bool(difference > error)
        if risen:
            self.highest, self.waited, self.best = now, 0, agent.step
            self.keep(agent)
        else:
            self.waited += 1
        row = (agent.step, now.value.mean(), difference, error, now.inside)
        self.checks.append([float(f"{number:.5g}") for number in row])
        if self.waited >= self.settings.patience:
            self.why = "flat"

    def outcome(self) -> dict[str, Any]:
        """For result.json; infinite is the rise of the first value, which has none before it."""
        return {
            "why": self.why,
            "processor_seconds": round(self.seconds, 1),
            "checks": [[None if np.isinf(n) else n for n in row] for row in self.checks],
        }

    def state_dict(self) -> dict[str, Any]:
        best = None if self.highest is None else self.highest.value.tolist()
        return {
            "why": self.why,
            "checks": [list(row) for row in self.checks],
            "highest": best,
            "best": self.best,
            "waited": self.waited,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.why, self.waited, self.best = state["why"], state["waited"], state.get("best")
        self.checks = [list(row) for row in state["checks"]]
        self._before, self._began = state["seconds"], time.process_time()
        if state["highest"] is not None:
            value = np.array(state["highest"])
            self.highest = Halted(value, 0.0, 0.0, 0.0, self.model.horizon)


def sentence(stopped: dict[str, Any], step: int) -> str:
    """Why a run ended at `step`, for a person."""
    minutes = stopped["processor_seconds"] / 60
    return (
        f"stopped after {step} updates and {minutes:.1f} processor minutes: {WHY[stopped['why']]}"
    )
