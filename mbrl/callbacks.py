"""Callbacks of the training loop: log, evaluate, save, watch for divergence, stop on a signal."""

import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mbrl import agent_files, checkpoint
from mbrl.errors import ConfigError, DivergenceError
from mbrl.evaluation import evaluate
from mbrl.progress import Progress
from mbrl.records import Evaluations, MetricsFile
from mbrl.sinks import Sink, TensorBoard
from mbrl.tasks import Task
from mbrl.training import Metrics, Trainable, check_state

SPARING = 20
LIMIT = 1e15  # a metric beyond this is as good as not finite


def read(metrics: Metrics) -> dict[str, float]:
    """All metrics as numbers, with one device transfer."""
    if not metrics:
        return {}
    scalars = [m.detach().reshape(()).double() for m in metrics.values()]
    # What the host counted lies there, and joins the others where they are.
    device = next((m.device for m in scalars if m.device.type != "cpu"), scalars[0].device)
    values = torch.stack([m.to(device) for m in scalars]).tolist()
    return dict(zip(metrics, values, strict=True))


def check_finite(values: dict[str, float], step: int, unit: str = "update") -> None:
    """Raise `DivergenceError` that names the quantity and the step."""
    for name, value in values.items():
        if not math.isfinite(value) or abs(value) > LIMIT:
            raise DivergenceError(
                f"training diverged: {name} is {value} at {unit} {step}. The last good checkpoint "
                "is untouched; a lower learning rate, more critics or shorter rollouts may help"
            )


class Recorder:
    """Writes the newest metrics to `metrics.csv` and, where it is installed, TensorBoard every
    `every` steps, and to further `sinks`, checked for divergence; the fit of a world model goes to
    `model.csv`. `close` closes the sinks."""

    def __init__(
        self,
        folder: str | Path,
        every: int = 100,
        tensorboard: bool = True,
        sinks: Sequence[Sink] = (),
    ) -> None:
        if every < 1:
            raise ConfigError(f"every is {every}, it must be at least 1 step")
        self.folder, self.every = Path(folder), every
        self.folder.mkdir(parents=True, exist_ok=True)
        self.metrics = MetricsFile(self.folder / "metrics.csv")
        self.model = MetricsFile(self.folder / "model.csv")
        self.latest: Metrics = {}
        self._board: TensorBoard | None = None
        if tensorboard and find_spec("tensorboard") is not None:
            self._board = TensorBoard(self.folder / "events")
        self.sinks: list[Sink] = [*([] if self._board is None else [self._board]), *sinks]
        self._began = time.perf_counter()
        self._mark = (0, self._began)

    def __call__(self, event: str, agent: Trainable, metrics: Metrics) -> None:
        if event == "prepare":
            values = read(metrics)
            epoch = int(values["model/epoch"])
            check_finite(values, epoch, "epoch")
            self.model.append({"epoch": epoch, **self._time(), **values})
            self._events(values, epoch)
        elif event == "start":
            self._require_own(agent)
            self._mark = (agent.step, time.perf_counter())
        elif event == "step":
            self.latest |= metrics
            if agent.step % self.every == 0 and self.latest:
                self.write(agent)
        elif event == "end" and self._board is not None:
            self._board.close()  # with its thread; a later event opens a new file

    def _require_own(self, agent: Trainable) -> None:
        """Raise `ConfigError` where the folder has the metrics of an agent that was further."""
        rows = self.metrics.rows()
        if rows and int(rows[-1]["step"]) > agent.step:
            raise ConfigError(
                f"{self.metrics.path} goes to step {rows[-1]['step']} and the agent is at "
                f"{agent.step}: it is another agent's; give the recorder another folder"
            )

    def write(self, agent: Trainable) -> None:
        values = read(self.latest)
        check_finite(values, agent.step)
        step, now = agent.step, time.perf_counter()
        speed = (step - self._mark[0]) / max(1e-9, now - self._mark[1])
        self._mark = (step, now)
        self.metrics.append({"step": step, **self._time(), "updates_per_second": speed, **values})
        self._events(values, step)

    def scalar(self, name: str, value: float, step: int) -> None:
        self._events({name: value}, step)

    def _time(self) -> dict[str, float]:
        return {"seconds": round(time.perf_counter() - self._began, 3)}

    def _events(self, values: dict[str, float], step: int) -> None:
        for sink in self.sinks:
            sink.write(step, values)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()

    def state_dict(self) -> dict[str, Any]:
        """Also brings the files to the disk, so that they hold what the state says they hold."""
        self.metrics.sync()
        self.model.sync()
        if self._board is not None:
            self._board.flush()
        files = sorted((self.folder / "events").glob("*"))
        sizes = {f.name: f.stat().st_size for f in files}
        return {"latest": dict(self.latest), "events": sizes}

    def load_state_dict(self, state: dict[str, Any], step: int, epoch: int) -> None:
        """Cut metrics and events back to what they were at the checkpoint."""
        self.latest = dict(state["latest"])
        self.metrics.truncate("step", step)
        self.model.truncate("epoch", epoch)
        for file in (self.folder / "events").glob("*"):
            size = state["events"].get(file.name)
            if size is None:
                file.unlink()
            else:
                os.truncate(file, size)


class Evaluator:
    """Evaluates in the real task every `every` steps with `episodes` fixed starts, and at step
    `last` with `last_episodes`; not before the agent is `ready`, where it says so. The actions are
    greedy, or sampled with `stochastic`."""

    def __init__(
        self,
        task: Task,
        folder: str | Path | None,
        *,
        every: int,
        episodes: int = 20,
        last: int,
        last_episodes: int = 100,
        stochastic: bool = False,
        recorder: Recorder | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.task, self.every, self.episodes = task, every, episodes
        self.last, self.last_episodes = last, last_episodes
        self.path = None if folder is None else Path(folder) / "evaluations.npz"
        self.stochastic = stochastic
        self.recorder, self.progress = recorder, progress
        self.evaluations = Evaluations()

    def __call__(self, event: str, agent: Trainable, metrics: Metrics) -> None:
        if event != "step":
            return
        final = agent.step == self.last
        if not final and (self.every == 0 or agent.step % self.every != 0):
            return
        if not final and not getattr(agent, "ready", True):
            return
        returns = self.returns(agent, self.last_episodes if final else self.episodes)
        self.evaluations.add(agent.step, returns)
        mean = float(returns.mean())
        if self.path is not None:
            self.evaluations.save(self.path)
        if self.recorder is not None:
            self.recorder.scalar("evaluation/return", mean, agent.step)
        if self.progress is not None:
            spec = agent.spec
            scored = f", score {spec.score(mean):.1f}" if spec.reference_returns else ""
            self.progress.note(f"return {mean:.1f}{scored}")

    def returns(self, agent: Trainable, episodes: int) -> np.ndarray:
        """Returns [episodes] of the agent, which need not be the one that is trained."""
        return evaluate(agent, self.task, episodes, deterministic=not self.stochastic)


class PolicyKeeper:
    """Keeps the policy's weights in `folder`/STEP.pt every `every` steps and at `last`, so that
    the checkpoints of a run can be compared afterwards."""

    def __init__(self, folder: str | Path, *, every: int, last: int) -> None:
        self.folder, self.every, self.last = Path(folder), every, last

    def __call__(self, event: str, agent: Trainable, metrics: Metrics) -> None:
        due = agent.step == self.last or (self.every > 0 and agent.step % self.every == 0)
        if event == "step" and due:
            self.keep(agent)

    def keep(self, agent: Trainable) -> None:
        """Keep the policy of this step."""
        weights = agent.policy.state_dict()
        checkpoint.save(self.folder / f"{agent.step}.pt", {"policy": weights})

    def steps(self) -> list[int]:
        """The steps whose policy is kept, in order."""
        return sorted(int(file.stem) for file in self.folder.glob("*.pt"))

    def truncate(self, step: int) -> None:
        """Drop the policies of later steps."""
        for later in self.steps():
            if later > step:
                (self.folder / f"{later}.pt").unlink()


class Checkpointer:
    """Saves the whole run every `every` steps, every `seconds`, at the end and on request; but not
    before `SPARING` times the time that the last save took has passed, if that was over a second,
    so that a large buffer costs a twentieth of the run at most.

    `parts` are the run's other stateful members by name (recorder, evaluator, collector).
    """

    def __init__(
        self,
        path: str | Path,
        *,
        every: int = 1000,
        seconds: float = 60.0,
        parts: dict[str, Callable[[], Any]] | None = None,
        epoch: int = 0,
        on_saved: Callable[[], None] = lambda: None,
    ) -> None:
        self.path, self.every, self.seconds = Path(path), every, seconds
        self.parts = parts or {}
        self._saved, self._cost = time.monotonic(), 0.0
        self._epoch, self.on_saved = epoch, on_saved
        self._seen: Metrics = {}

    def __call__(self, event: str, agent: Trainable, metrics: Metrics) -> None:
        if event == "prepare":
            self._epoch = int(metrics["model/epoch"])
        elif event == "step":
            self._seen |= metrics
        since = time.monotonic() - self._saved
        due = since >= self.seconds
        if event == "step" and self.every and agent.step % self.every == 0:
            due = True
        if self._cost > 1.0 and since < SPARING * self._cost:
            due = False
        if event == "start" or event == "end":
            due = True
        if due:
            self.save(agent)

    def save(self, agent: Trainable) -> None:
        """Write the checkpoint, unless the newest metrics or any weight are not finite: the last
        good checkpoint stays."""
        check_finite(read(self._seen), agent.step)
        began = time.monotonic()
        content = agent_files.content(agent)
        check_state(content["state"], agent.step)
        content["epoch"] = self._epoch
        content["threads"] = torch.get_num_threads()
        content["run"] = {name: state() for name, state in self.parts.items()}
        checkpoint.save(self.path, content)
        self.on_saved()
        self._saved = time.monotonic()
        self._cost = self._saved - began


class Interrupted(Exception):
    """The run was asked to stop and has saved."""


class StopOnSignal:
    """Turns SIGINT and SIGTERM into a save at the next step boundary and `Interrupted`."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.checkpointer, self.asked = checkpointer, False

    def __enter__(self) -> "StopOnSignal":
        self._before = {
            kind: signal.signal(kind, self._ask) for kind in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)

    def _ask(self, number: int, frame: object) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt  # the second Ctrl-C does not wait for the step boundary
        self.asked = True

    def __call__(self, event: str, agent: Trainable, metrics: Metrics) -> None:
        if self.asked and event in ("prepare", "step"):
            self.checkpointer.save(agent)
            raise Interrupted
