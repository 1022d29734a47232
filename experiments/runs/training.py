"""One training run in one folder: start, resume, and the two commands for it."""

import json
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithms import ALGORITHMS
from experiments.runs import folders, selection
from experiments.runs import model_fits as fits
from experiments.runs.folders import write_json
from experiments.settings import RunSettings, default_steps, for_budget
from mbrl import agent as shared
from mbrl import checkpoint, data, tasks
from mbrl import config as configs
from mbrl.callbacks import (
    Checkpointer,
    Evaluator,
    Interrupted,
    PolicyKeeper,
    Recorder,
    StopOnSignal,
)
from mbrl.collector import Collector
from mbrl.data.fingerprint import fingerprint
from mbrl.errors import CheckpointError, ConfigError
from mbrl.progress import Progress
from mbrl.tasks import Task
from mbrl.training import Callback, Metrics, train
from mbrl.types import Dataset, Spec

PACKAGES = ("torch", "numpy", "scipy", "gymnasium", "mujoco", "h5py", "stable-baselines3")


@dataclass(frozen=True)
class Result:
    """What a finished run reports."""

    folder: Path
    step: int
    returns: np.ndarray | None  # of the last evaluation
    score: float | None  # its mean, normalised
    seconds: float  # of all sessions


def start(settings: RunSettings, config: Any, folder: Path, *, quiet: bool = False) -> Result:
    """Train from scratch in a new folder. Raises `ConfigError` if it holds a run already."""
    create(settings, config, folder)
    return resume(folder, quiet=quiet)


def create(settings: RunSettings, config: Any, folder: Path) -> None:
    """Check everything and describe the run in a new folder, ready for `resume` to begin it."""
    if (folder / "config.json").exists():
        raise ConfigError(
            f"{folder} already holds a run; continue it with `python -m experiments resume "
            f"{folder}`, or give another folder with --out"
        )
    settings = replace(
        settings, steps=settings.steps or default_steps(settings.algorithm, settings.data)
    )
    assert settings.steps is not None
    config = for_budget(settings.algorithm, settings.data, config, settings.steps)
    source = open_source(settings)
    cls, _ = ALGORITHMS[settings.algorithm]
    cls(source.spec, config, device=settings.device, seed=settings.seed)  # refuses what cannot be
    if settings.model is not None:
        fits.require_match(Path(settings.model), settings, config)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "manifest.json", manifest(settings, source))
    write_json(folder / "config.json", {"run": asdict(settings), "config": configs.to_dict(config)})


def ensure(settings: RunSettings, config: Any, folder: Path) -> None:
    """`create`, unless the folder holds a run: then it stays as it was described."""
    if not (folder / "config.json").exists():
        create(settings, config, folder)


def resume(folder: Path, *, quiet: bool = False) -> Result:
    """Continue the run in `folder` from its checkpoint (or from the start if it has none)."""
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} holds no run: there is no config.json in it")
    with folders.locked(folder):
        return _resume(folder, quiet, folders.spent(folder))


def _resume(folder: Path, quiet: bool, before: float) -> Result:
    values = json.loads((folder / "config.json").read_text())
    settings = configs.from_dict(RunSettings, values["run"])
    source = open_source(settings)
    cls, config_class = ALGORITHMS[settings.algorithm]
    torch.set_num_threads(settings.threads)
    known = json.loads((folder / "manifest.json").read_text())["data"]
    if known != source.describe():
        raise CheckpointError(
            f"the data of {folder} has changed: it was {known}, now it is {source.describe()}"
        )
    path = folder / "checkpoint.pt"
    if not path.exists():
        config = configs.from_dict(config_class, values["config"])
        agent = cls(source.spec, config, device=settings.device, seed=settings.seed)
        if settings.model is not None and agent.learned is not None:
            agent.learned.load_state_dict(fits.load(Path(settings.model)))
        return _train(agent, settings, source, folder, {}, quiet, before)
    content = checkpoint.load(path)
    agent = shared.restore(cls, content, settings.device)
    return _train(agent, settings, source, folder, content, quiet, before)


@dataclass(frozen=True)
class Source:
    """The logged data and the task that a run uses; one of the two may be absent."""

    spec: Spec
    dataset: Dataset | None
    task: Task | None

    def describe(self) -> dict[str, Any]:
        if self.dataset is None:
            return {"task": self.spec.task}
        known = self.dataset.provenance.to_dict()
        return {
            "name": known["card"],
            "version": known["version"],
            "licence": known["licence"],
            "rows": len(self.dataset),
            "fingerprint": fingerprint(self.dataset),
        }


def open_source(settings: RunSettings) -> Source:
    """Load what the settings name; every error comes from here, before any work starts."""
    if settings.online:
        cls, _ = ALGORITHMS[settings.algorithm]
        if not hasattr(cls, "learn"):
            able = [name for name, (c, _) in ALGORITHMS.items() if hasattr(c, "learn")]
            raise ConfigError(
                f"{settings.algorithm} does not learn online and {settings.data!r} is a task; give "
                f"a dataset, or one of the algorithms that do: {', '.join(able)}"
            )
        task = tasks.make(settings.data)
        return Source(task.spec, None, task)
    if not ALGORITHMS[settings.algorithm][0].learns_offline:
        raise ConfigError(
            f"{settings.algorithm} learns by acting and {settings.data!r} is a dataset; give a "
            "task, such as CartPole-v1 (`list` shows them all)"
        )
    dataset = data.load(settings.data)
    known = dataset.spec.task in tasks.TASKS
    return Source(dataset.spec, dataset, tasks.make_for(dataset.spec) if known else None)


def _train(
    agent: Any,
    settings: RunSettings,
    source: Source,
    folder: Path,
    content: dict[str, Any],
    quiet: bool,
    before: float,
) -> Result:
    """Wire the callbacks, put their state back, and run the library's loop. Earlier sessions took
    `before` seconds."""
    began = time.perf_counter()
    steps = settings.steps
    assert steps is not None
    progress = Progress(steps)
    recorder = Recorder(folder, settings.log_every, settings.tensorboard)
    evaluator = _evaluator(settings, source, folder, recorder, progress)
    collector = None
    if source.dataset is None:
        assert source.task is not None
        collector = agent.collector(source.task)
    # Every second evaluation: a policy is kept only where its score is known.
    every = 2 * evaluation_interval(settings)
    keeper = PolicyKeeper(folder / "policies", every=every, last=steps)
    keeper.cut(agent.step)
    _put_back(content, agent.step, folder, recorder, evaluator, collector)
    parts: dict[str, Callable[[], Any]] = {"recorder": recorder.state_dict}
    if evaluator is not None:
        parts["evaluations"] = evaluator.evaluations.state_dict
    if collector is not None:
        parts["collector"] = collector.state_dict
    saver = Checkpointer(
        folder / "checkpoint.pt",
        every=settings.checkpoint_every,
        seconds=settings.checkpoint_seconds,
        parts=parts,
        epoch=content.get("epoch", 0),
    )
    with StopOnSignal(saver) as stopper:
        shown: list[Callback] = [] if quiet else [Forecast(steps), progress]
        chain = [recorder, evaluator, keeper, saver, stopper, *shown]
        callbacks: list[Callback] = [c for c in chain if c is not None]
        try:
            if source.dataset is not None:
                agent.fit(source.dataset, steps - agent.step, callbacks=callbacks)
            else:
                train(agent, steps, callbacks, collector)
        finally:
            progress.close()
    returns = score = None
    if evaluator is not None and evaluator.evaluations.returns:
        returns = evaluator.evaluations.returns[-1]
        if agent.spec.reference_returns is not None:
            score = float(agent.spec.score(returns.mean()))
    seconds = before + time.perf_counter() - began
    choosing = settings.fqe_steps > 0 and selection.chooses(agent)
    if choosing and source.dataset is not None:
        selection.select(folder, agent, source.dataset, settings.fqe_steps, quiet=quiet)
    result = Result(folder, agent.step, returns, score, seconds)
    write_json(folder / "result.json", _summary(result) | {"chooses": choosing})
    return result


class Forecast:
    """Prints what the fit of a world model will take, after two epochs of it, and, before the first
    update, what an algorithm knows of the `steps` ahead of it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._epoch: float | None = None  # when the first ended

    def __call__(self, event: str, agent: Any, metrics: Metrics) -> None:
        if event == "prepare" and "model/epoch" in metrics:
            model = getattr(agent.config, "model", None)
            now, most = time.perf_counter(), getattr(model, "max_epochs", None)
            epoch = int(metrics["model/epoch"])
            if epoch == 2 and self._epoch is not None and most is not None:
                seconds = now - self._epoch
                print(
                    f"the world model takes {seconds:.2g} s an epoch, for {most} epochs at most "
                    f"{seconds * most / 3600:.2g} h here"
                )
            self._epoch = now
        if event == "start" and agent.step == 0 and hasattr(agent, "forecast"):
            for line in agent.forecast(self.steps):
                print(line)


def _evaluator(
    settings: RunSettings, source: Source, folder: Path, recorder: Recorder, progress: Progress
) -> Evaluator | None:
    """None where the data's task is not one of this library."""
    if source.task is None:
        return None
    assert settings.steps is not None
    return Evaluator(
        source.task,
        folder,
        every=evaluation_interval(settings),
        episodes=settings.eval_episodes,
        last=settings.steps,
        last_episodes=settings.final_episodes,
        recorder=recorder,
        progress=progress,
    )


def evaluation_interval(settings: RunSettings) -> int:
    """Updates between two evaluations; 0: none but the last."""
    assert settings.steps is not None
    return settings.steps // 10 if settings.eval_every is None else settings.eval_every


def _put_back(
    content: dict[str, Any],
    step: int,
    folder: Path,
    recorder: Recorder,
    evaluator: Evaluator | None,
    collector: Collector | None,
) -> None:
    """Return every part of a run to the checkpoint; an empty `content` returns it to the start."""
    kept = content.get("run", {"recorder": {"latest": {}, "events": {}}})
    recorder.load_state_dict(kept["recorder"], step, content.get("epoch", 0))
    if evaluator is not None and "evaluations" in kept:
        evaluator.evaluations.load_state_dict(kept["evaluations"])
        evaluator.evaluations.save(folder / "evaluations.npz")
    if collector is not None and "collector" in kept:
        collector.load_state_dict(kept["collector"])


def _summary(result: Result) -> dict[str, Any]:
    mean = None if result.returns is None else float(result.returns.mean())
    return {
        "step": result.step,
        "seconds": round(result.seconds, 2),
        "last_return_mean": mean,
        "last_score": result.score,
    }


def manifest(settings: RunSettings, source: Source) -> dict[str, Any]:
    """Versions, commit, data and machine: what is needed to make the run again."""
    cls, _ = ALGORITHMS[settings.algorithm]
    return {
        "algorithm": {"name": settings.algorithm, "version": cls.version},
        "data": source.describe(),
        "spec": configs.to_dict(source.spec),
        "seed": settings.seed,
        "threads": settings.threads,
        **surroundings(settings.device),
    }


def surroundings(device: str) -> dict[str, Any]:
    """Versions, commit and machine."""
    return {
        "longreach": _version("longreach"),
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "device": device,
        },
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit with `+` for uncommitted changes; None outside a checkout."""
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return None
    git = ["git", "-C", str(here)]
    found = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run(
        [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True
    )
    return (found.stdout.strip() + ("+" if changed.stdout.strip() else "")) or None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor()


def interrupted_message(folder: Path) -> str:
    return f"stopped and saved; continue with: python -m experiments resume {folder}"


__all__ = ["Interrupted", "Result", "interrupted_message", "resume", "start"]
