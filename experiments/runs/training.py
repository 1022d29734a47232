"""Training runs: an algorithm on a dataset or online in a task, in a folder of its own."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from algorithms import ALGORITHMS
from experiments.runs import (
    continuation,
    folders,
    imagined,
    model_fits,
    own_callbacks,
    selection,
    until_flat,
)
from experiments.runs.job import Clock, Job
from experiments.runs.sources import Source, load_data, open_source
from experiments.runs.until_flat import UntilFlat
from experiments.runs.values import ValueWatch
from experiments.settings import RunSettings, default_steps, for_budget, is_file
from mbrl import agent_files, checkpoint, data, sinks, tasks
from mbrl import config as configs
from mbrl.callbacks import (
    Checkpointer,
    Evaluator,
    PolicyKeeper,
    Recorder,
    StopOnSignal,
)
from mbrl.collector import Collector
from mbrl.data.cards import all_cards, find_tier
from mbrl.errors import ConfigError, TaskError
from mbrl.logged_rules import require_match
from mbrl.precision import set_matmul_precision
from mbrl.progress import Progress
from mbrl.records import MetricsFile
from mbrl.training import Callback, Metrics, train

Result = dict[str, Any]  # the content of result.json


def start(settings: RunSettings, config: Any, folder: Path, *, quiet: bool = False) -> Result:
    """Train from scratch in a new folder. Raises `ConfigError` if it holds a run already."""
    return TrainingRun(folder).start(description(settings, config), quiet=quiet)


def create(settings: RunSettings, config: Any, folder: Path) -> None:
    """Describe a run in a new folder, ready for `resume`."""
    TrainingRun(folder).describe(description(settings, config))


def description(settings: RunSettings, config: Any) -> dict[str, Any]:
    """The content of config.json, checked against the algorithm and the dataset's card. The
    first session makes the checks that need the data or the agent."""
    steps = settings.steps or default_steps(settings.algorithm, settings.data)
    settings = replace(settings, steps=steps)
    check(settings)
    if settings.after is not None:
        return continuation.description(settings, config, TrainingRun(Path(settings.after)))
    config = for_budget(settings.algorithm, settings.data, config, steps)
    if settings.model is not None:
        model_fits.require_match(Path(settings.model), settings, config)
    return {"run": asdict(settings), "config": configs.to_dict(config)}


def ensure(settings: RunSettings, config: Any, folder: Path) -> None:
    """`create`, unless a run is described in the folder: then it stays as it is."""
    if not TrainingRun(folder).described:
        create(settings, config, folder)


def check(settings: RunSettings) -> None:
    """Raise `ConfigError` if the algorithm cannot learn from the data or task of the settings."""
    name, given = settings.algorithm, settings.data
    cls, _ = ALGORITHMS[name]
    sinks.require(settings.sinks)
    own_callbacks.load_all(settings.callback)
    until_flat.check(settings)
    imagined.check(settings)
    if not settings.online and (settings.after or settings.logged or settings.collection.given()):
        raise ConfigError(
            f"{given!r} is a dataset; --after, --logged and --collection are for runs in a task, "
            "such as Pendulum-v1"
        )
    if settings.logged is not None:
        continuation.check_logged(settings)
    if settings.holdout > 0 and (settings.online or settings.model is not None):
        what = "learning in a task" if settings.online else "--model, which was fitted to all of it"
        raise ConfigError(f"--holdout leaves logged episodes out; it does not go with {what}")
    if settings.task is not None and not is_file(given):
        raise ConfigError(
            f"{given!r} is no file; --task says which task a file belongs to, and the card or the "
            "task itself says it here"
        )
    if not settings.online and not cls.learns_offline:
        raise ConfigError(
            f"{name} learns by acting and {given!r} is a dataset; give a task, such as CartPole-v1 "
            "(`list` shows them all)"
        )
    if not settings.online and not data.is_dataset_name(given) and "/" not in given:
        tasks.require_task(given)  # a name with a slash is rather a mistyped dataset
    kind = action_kind(settings)
    if kind is not None and kind not in cls.action_kinds:
        able = [n for n, (c, _) in ALGORITHMS.items() if kind in c.action_kinds]
        raise ConfigError(
            f"{name} needs {cls.action_kinds[0]} actions and those of {given} are {kind}; "
            f"algorithms that take them: {', '.join(able)}"
        )


def action_kind(settings: RunSettings) -> str | None:
    """Whether the actions of the task, or of the dataset by its card, are "discrete" or
    "continuous"; None where only the data can tell."""
    if settings.online:
        return "discrete" if tasks.make(settings.data).spec.discrete else "continuous"
    family = settings.data.partition("/")[0]
    if family not in all_cards() or family == "minari":  # whose card knows no sizes
        return None
    card, tier = find_tier(settings.data)
    return "discrete" if card.environment(tier).num_actions else "continuous"


class TrainingRun(Job):
    """The training of an algorithm on a dataset, or online in a task."""

    kind, title = "run", "run"
    again = "run --config FILE --out OTHER"

    @property
    def settings(self) -> RunSettings:
        return configs.from_dict(RunSettings, self.read()["run"])

    def needs(self) -> list[Path]:
        """The fit of the world model that the run starts from."""
        model = self.settings.model
        return [] if model is None else [Path(model)]

    def finished(self) -> bool:
        """Whether all updates are done, and the choice among checkpoints where the settings ask for
        it."""
        if not super().finished():
            return False
        settings, result = self.settings, folders.read_json(self.folder / "result.json")
        chooses = result.get("chooses", settings.fqe_steps > 0)
        chosen = (self.folder / "selection.json").exists() or not chooses
        ended = "until_flat" in result or result["step"] >= self.last_step
        return bool(ended and chosen)

    @property
    def last_step(self) -> int:
        """The agent's step at the end: behind that of an earlier run, where one goes on."""
        return int(self.read().get("first_step", 0)) + int(self.settings.steps or 0)

    def size(self) -> int:
        return int(self.settings.steps or 0)

    def progress(self) -> int:
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            first = int(self.read().get("first_step", 0))
            return int(MetricsFile(self.folder / "metrics.csv").rows()[-1]["step"]) - first
        return 0

    def work(self, quiet: bool, clock: Clock) -> Result:
        settings, source = self.settings, open_source(self.settings)
        cls, config_class = ALGORITHMS[settings.algorithm]
        torch.set_num_threads(settings.threads)
        set_matmul_precision(settings.matmul_precision)
        path, content = self.folder / "checkpoint.pt", {}
        if path.exists():
            with selection.naming_kept(self.folder):
                content = checkpoint.load(path)
            self.require_own(content)
            agent: Any = agent_files.restore(cls, content, settings.device, config_class)
            continuation.give_logged(agent, settings, source)
        elif settings.after is not None:
            config = configs.from_dict(config_class, self.read()["config"])
            before = TrainingRun(Path(settings.after))
            agent = continuation.trained(settings, config, before, source)
        else:
            config = configs.from_dict(config_class, self.read()["config"])
            agent = cls(source.spec, config, device=settings.device, seed=settings.seed)
            if settings.model is not None and agent.learned is not None:
                agent.learned.load_state_dict(model_fits.load(Path(settings.model)))
            if source.logged is not None:
                require_match(agent.spec, source.logged)
                agent.prepare(source.logged, lambda metrics: None)
        if settings.online:
            agent.source.collection = settings.collection.apply(agent.source.collection)
        _require_choice(agent, settings, source)
        data_now = source.describe() | imagined.describe(settings, source.spec)
        facts = {
            "algorithm": {"name": settings.algorithm, "version": cls.version},
            "data": data_now,
            "spec": configs.plain(source.spec.to_dict()),
            "seed": settings.seed,
            "threads": settings.threads,
            "matmul_precision": settings.matmul_precision,
        }
        self.manifest(facts, settings.device)
        self.require_same(facts)
        last = self.last_step
        return _train(agent, settings, source, self.folder, content, last, quiet, clock)


def _require_choice(agent: Any, settings: RunSettings, source: Source) -> None:
    """Raise `ConfigError`, before anything is trained, where fitted Q evaluation is to choose among
    policies that are all worth the same by the data."""
    if settings.fqe_steps > 0 and source.dataset is not None and selection.chooses(agent):
        instead = "give --fqe-steps 0 and take the last policy"
        selection.require_values_differ(source.dataset, agent.config.gamma, instead)


def _train(
    agent: Any,
    settings: RunSettings,
    source: Source,
    folder: Path,
    content: dict[str, Any],
    steps: int,
    quiet: bool,
    clock: Clock,
) -> Result:
    """Restore the callbacks and run the training loop until the agent's step is `steps`."""
    progress = Progress(steps)
    own = own_callbacks.load_all(settings.callback)
    recorder = open_recorder(settings, folder)
    evaluator = _evaluator(settings, source, folder, steps, recorder, progress)
    collector = _collector(agent, source, content, steps)
    # Every second evaluation: a policy is kept only where its score is known.
    every = 2 * evaluation_interval(settings)
    keeper = PolicyKeeper(folder / "policies", every=every, last=steps)
    keeper.truncate(agent.step)
    watch = None if source.dataset is None else ValueWatch(folder, source.dataset, steps)
    if watch is not None:
        watch.file.truncate("step", agent.step)
    _put_back(content, agent.step, folder, recorder, evaluator, collector)
    flat = _until_flat(settings, source, folder, content, steps, keeper, [evaluator, keeper, watch])
    if flat is not None:
        steps = agent.step if flat.why is not None else steps  # an earlier session came to the end
    saver = Checkpointer(
        folder / "checkpoint.pt",
        every=settings.checkpoint_every,
        seconds=settings.checkpoint_seconds,
        parts=_stateful_parts(recorder, evaluator, collector, flat),
        epoch=content.get("epoch", 0),
        on_saved=lambda: folders.note_spent(folder, clock()),
    )
    with StopOnSignal(saver) as stopper:
        shown: list[Callback] = [] if quiet else [Forecast(steps), progress]
        chain = [recorder, flat, evaluator, keeper, watch, *own, saver, stopper, *shown]
        callbacks: list[Callback] = [c for c in chain if c is not None]
        try:
            if source.dataset is not None:
                rows = imagined.with_imagined(settings, source.dataset, folder)
                agent.fit(rows, steps - agent.step, callbacks=callbacks)
            else:
                train(agent, steps, callbacks, collector)
        except TaskError:  # of an environment: what was learned before it stays
            saver.save(agent)
            raise
        finally:
            progress.close()
            recorder.close()
    result = _result(agent, evaluator, collector) | {"seconds": clock()}  # before the choice
    if flat is not None:
        result["until_flat"] = flat.outcome()
    chooses = settings.fqe_steps > 0 and selection.chooses(agent)
    if flat is not None and flat.best is not None and not chooses:
        selection.select_highest(folder, flat.best, evaluator)
    if chooses and source.dataset is not None:
        selection.select(folder, agent, source.dataset, settings.fqe_steps, quiet=quiet)
    return result | {"chooses": chooses}


def _collector(agent: Any, source: Source, content: dict[str, Any], steps: int) -> Any:
    """What acts in the task of a run that has one, else None. A run that begins is warned where it
    ends in its warm-up."""
    if source.dataset is not None:
        return None
    assert source.task is not None
    collector = agent.collector(source.task)
    if not content and isinstance(collector, Collector):
        collector.warn_of_warmup(steps - agent.step)
    return collector


def _stateful_parts(
    recorder: Recorder, evaluator: Evaluator | None, collector: Any, flat: UntilFlat | None
) -> dict[str, Callable[[], Any]]:
    """What a checkpoint saves beside the agent, by name."""
    parts: dict[str, Callable[[], Any]] = {"recorder": recorder.state_dict}
    if evaluator is not None:
        parts["evaluations"] = evaluator.evaluations.state_dict
    if collector is not None:
        parts["collector"] = collector.state_dict
    if flat is not None:
        parts["until_flat"] = flat.state_dict
    return parts


def _until_flat(
    settings: RunSettings,
    source: Source,
    folder: Path,
    content: dict[str, Any],
    last: int,
    keeper: PolicyKeeper,
    others: Sequence[Any],
) -> UntilFlat | None:
    """What ends the run by the offline criterion, has the `keeper` keep the policy of the highest
    value, and lets the `others` know that a step is the last; None where the settings ask for none.
    """
    if settings.until_flat.every == 0:
        return None
    assert source.dataset is not None

    def on_stop(step: int) -> None:
        for callback in others:
            if callback is not None:
                callback.last = step

    model = until_flat.halting_model(settings, source.dataset, load_data(settings), folder)
    flat = UntilFlat(settings.until_flat, model, last, on_stop, keeper.keep)
    if "until_flat" in content.get("run", {}):
        flat.load_state_dict(content["run"]["until_flat"])
    return flat


def open_recorder(settings: RunSettings, folder: Path) -> Recorder:
    """Metrics to the folder and to the sinks of the settings."""
    name = f"{settings.algorithm} on {settings.data}, seed {settings.seed}"
    about = {"name": name, **folders.description(folder)}
    board = settings.tensorboard or "tensorboard" in settings.sinks
    trackers = sinks.open_trackers(settings.sinks, folder, about)
    return Recorder(folder, settings.log_every, board, trackers)


def _result(agent: Any, evaluator: Evaluator | None, collector: Any) -> Result:
    mean = score = None
    if evaluator is not None and evaluator.evaluations.returns:
        mean = float(evaluator.evaluations.returns[-1].mean())
        if agent.spec.reference_returns is not None:
            score = float(agent.spec.score(mean))
    result = {"step": agent.step, "last_return_mean": mean, "last_score": score}
    if collector is not None and collector.interrupted:
        result["interrupted_episodes"] = collector.interrupted
    return result


class Forecast:
    """Prints how long the fit of a world model will take, after its second epoch, and the forecast
    of the algorithm for `steps` updates, before the first one."""

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
    settings: RunSettings,
    source: Source,
    folder: Path,
    last: int,
    recorder: Recorder,
    progress: Progress,
) -> Evaluator | None:
    """None where the data's task is not one of this library."""
    if source.task is None:
        return None
    return Evaluator(
        source.task,
        folder,
        every=evaluation_interval(settings),
        episodes=settings.eval_episodes,
        last=last,
        last_episodes=settings.final_episodes,
        stochastic=settings.eval_stochastic,
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
    """Restore every part of a run from the checkpoint; from an empty one, to the start."""
    kept = content.get("run", {"recorder": {"latest": {}, "events": {}}})
    recorder.load_state_dict(kept["recorder"], step, content.get("epoch", 0))
    if evaluator is not None and "evaluations" in kept:
        evaluator.evaluations.load_state_dict(kept["evaluations"])
        evaluator.evaluations.save(folder / "evaluations.npz")
    if collector is not None and "collector" in kept:
        collector.load_state_dict(kept["collector"])
        if collector.interrupted:
            known = folders.read_json(folder / "manifest.json")
            known["interrupted_episodes"] = collector.interrupted
            folders.write_json(folder / "manifest.json", known)
