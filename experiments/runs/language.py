"""Training runs of language models, each in a folder of its own."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from torch import Tensor

from algorithms.language import schedule
from algorithms.language.domains import by_part, trained_levels
from algorithms.language.evaluation import Score, evaluate
from algorithms.language.imitation import Imitation, ImitationConfig
from algorithms.language.learner import LanguageLearner
from algorithms.language.models import huggingface
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.async_collector import (
    AsyncCollector,
    ReplayCollector,
    worker_config,
)
from algorithms.language.sampling.workers import KINDS, Inline
from algorithms.language.tasks import parts_of, text_task
from experiments.runs import folders, language_start
from experiments.runs.job import Clock, Job
from mbrl import agent_files, checkpoint
from mbrl import config as configs
from mbrl.callbacks import Checkpointer, Recorder, StopOnSignal
from mbrl.config import Count, CountOrZero, Positive, Rate, Settings
from mbrl.errors import CheckpointError, ConfigError, unknown_name
from mbrl.precision import MatmulPrecision, set_matmul_precision
from mbrl.progress import Progress
from mbrl.records import MetricsFile
from mbrl.training import Callback, Metrics, train

LEARNERS: dict[str, tuple[type[LanguageLearner], type[Any]]] = {
    "imitation": (Imitation, ImitationConfig),
    "policy_gradient": (LanguagePolicyGradient, LanguageConfig),
}


@dataclass(frozen=True)
class LanguageSettings(Settings):
    """Everything that decides a run, except the learner's own config."""

    learner: tyro.conf.Suppress[str]  # imitation or policy_gradient
    steps: Count = 300  # rounds of a policy gradient, updates of imitation
    seed: CountOrZero = 0  # seed of weights, problems and sampling
    threads: Count = 1  # CPU threads; part of what a result depends on
    # as torch.set_float32_matmul_precision; medium: products of bfloat16 where they are faster
    matmul_precision: MatmulPrecision = "highest"
    device: str = "cpu"  # cpu or cuda
    start: str | None = None  # folder of a run whose model this one starts from
    until: Rate | None = None  # stop at this accuracy on new problems of the trained levels
    tokens: Count | None = None  # stop after this many sampled tokens
    workers: CountOrZero = 0  # processes that sample while the model learns; 0: sample, then learn
    worker_kind: Literal["processes", "ray", "inline"] = "processes"  # inline: in this process
    chunk: Count = 8  # problems of a worker at a time
    budget: Count | None = None  # tokens after which a worker's conversations wait for new weights
    redundancy: CountOrZero = 0  # conversations of a group that workers begin beside those taken
    drop_late: bool = False  # give up groups that are too old, and do not wait for them
    # steps between evaluations; None: a tenth of the run; 0: none
    eval_every: CountOrZero | None = None
    eval_problems: Count = 100  # problems of each level
    final_problems: Count = 200  # of the last evaluation
    final_samples: Count = 8  # answers to each, for pass@k and cons@k
    log_every: Count = 10  # steps between rows of metrics.csv
    checkpoint_every: CountOrZero = 50  # steps between checkpoints
    checkpoint_seconds: Positive = 60.0  # and at most this long apart
    save_model: bool = True  # write a model from a folder to model/, where one was trained
    tensorboard: bool = True  # write event files, where tensorboard is installed

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learner not in LEARNERS:
            raise unknown_name("learner", self.learner, LEARNERS)
        if self.workers and self.learner != "policy_gradient":
            raise ConfigError(f"{self.learner} samples nothing; leave workers at 0")
        if (self.redundancy or self.drop_late) and not self.workers:
            raise ConfigError(
                f"redundancy is {self.redundancy} and drop_late {self.drop_late}, which are of "
                "sampling beside learning; give workers a value above 0"
            )
        if self.tokens is not None and self.learner != "policy_gradient":
            raise ConfigError(f"{self.learner} samples nothing; leave tokens out")
        if self.until is not None and self.eval_every == 0:
            raise ConfigError("until needs evaluations; give eval_every a value above 0")

    @property
    def interval(self) -> int:
        """Steps between evaluations."""
        return max(1, self.steps // 10) if self.eval_every is None else self.eval_every


def start(settings: LanguageSettings, config: Any, folder: Path, *, quiet: bool = False) -> None:
    """Train from scratch in a new folder. Raises `ConfigError` if it holds a run already."""
    LanguageRun(folder).start(description(settings, config), quiet=quiet)


def create(settings: LanguageSettings, config: Any, folder: Path) -> None:
    """Describe a run in a new folder, ready for `resume`."""
    LanguageRun(folder).describe(description(settings, config))


def description(settings: LanguageSettings, config: Any) -> dict[str, Any]:
    """The content of config.json. The first session makes the checks that need the learner."""
    if settings.workers:
        schedule.check_plain(config, "workers", "leave workers at 0")
    if settings.start is not None:
        start_checkpoint(settings.start)
    return {"language": asdict(settings), "config": configs.to_dict(config)}


def start_checkpoint(folder: str) -> Path:
    path = Path(folder) / "checkpoint.pt"
    if not path.exists():
        raise CheckpointError(
            f"start is {folder}, which holds no checkpoint.pt; give the folder of a run, such as "
            "one of `language warm-start`"
        )
    return path


def new_learner(settings: LanguageSettings, config: Any) -> Any:
    """The learner of a run that has not begun."""
    if settings.start is not None:
        path = start_checkpoint(settings.start)
        if LanguageRun(path.parent).described:
            earlier = read_settings(path.parent)
            # With LoRA, what it has learned is of its base, which is to be this run's.
            own = (settings, config) if config.model.lora else earlier
            language_start.require_same(path.parent, *own, first=False)
    cls, _ = LEARNERS[settings.learner]
    agent: Any = cls(config=config, device=settings.device, seed=settings.seed)
    if settings.start is not None:
        agent.begin_with(path)
    return agent


def first_learner(folder: Path) -> Any:
    """The learner of the run in `folder` before its first step. Raises `CheckpointError` where what
    its model was read from has changed since."""
    settings, config = read_settings(folder)
    language_start.require_same(folder, settings, config)
    return new_learner(settings, config)


def read_settings(folder: Path) -> tuple[LanguageSettings, Any]:
    """The settings and the config of the run in `folder`."""
    values = LanguageRun(folder).read()
    settings = configs.from_dict(LanguageSettings, values["language"])
    return settings, configs.from_dict(LEARNERS[settings.learner][1], values["config"])


def load(folder: Path) -> Any:
    """The learner of the run in `folder`, from its checkpoint. Raises `CheckpointError` where the
    model's folder, on which it also depends, has changed since the run began."""
    return _restored(folder)[0]


def _restored(folder: Path) -> tuple[Any, dict[str, Any]]:
    """`load`, and the content of the checkpoint."""
    settings, config = read_settings(folder)
    language_start.require_same(folder, settings, config, first=False)
    content = checkpoint.load(folder / "checkpoint.pt")
    cls: Any = LEARNERS[settings.learner][0]
    return agent_files.restore(cls, content, settings.device), content


class LanguageRun(Job):
    """The training of a language model."""

    kind, title = "language", "run of a language model"

    def work(self, quiet: bool, clock: Clock) -> dict[str, Any]:
        settings, config = read_settings(self.folder)
        torch.set_num_threads(settings.threads)
        set_matmul_precision(settings.matmul_precision)
        facts: dict[str, Any] = {}
        content: dict[str, Any] = {}
        if (self.folder / "checkpoint.pt").exists():
            agent, content = _restored(self.folder)
            self.require_own(content)
        else:
            agent = first_learner(self.folder)
            facts = {language_start.KEY: language_start.describe(settings, config)}
        facts |= {
            "algorithm": {"name": settings.learner, "version": agent.version},
            "data": {"task": config.task},
            "spec": agent.spec.to_dict(),
            "seed": settings.seed,
            "threads": settings.threads,
            "matmul_precision": settings.matmul_precision,
        }
        self.manifest(facts, settings.device)
        self.require_same(facts)
        _train(agent, settings, self.folder, content, quiet, clock)
        if settings.save_model and isinstance(agent.model, huggingface.HuggingFace):
            huggingface.save(agent.model, agent.codec, self.folder / "model")
        scores = measure(agent, settings.final_problems, settings.final_samples)
        return {"step": agent.step, **summary(agent, scores)}


def _train(
    agent: Any,
    settings: LanguageSettings,
    folder: Path,
    content: dict[str, Any],
    quiet: bool,
    clock: Clock,
) -> None:
    """Restore the callbacks and run the training loop."""
    recorder = Recorder(folder, settings.log_every, settings.tensorboard)
    kept = content.get("run", {"recorder": {"latest": {}, "events": {}}})
    recorder.load_state_dict(kept["recorder"], agent.step, 0)
    progress = Progress(settings.steps, every=1)
    evaluator = TextEvaluator(settings, folder, progress)
    evaluator.truncate(agent.step if content else -1)
    saver = Checkpointer(
        folder / "checkpoint.pt",
        every=settings.checkpoint_every,
        seconds=settings.checkpoint_seconds,
        parts={"recorder": recorder.state_dict},
        on_saved=lambda: folders.note_spent(folder, clock()),
    )
    source: Any = agent if isinstance(agent, LanguagePolicyGradient) else None
    if settings.workers > 0:
        source = rounds(agent, settings, folder / "schedule.jsonl")
        if "collector" in kept:
            source.load_state_dict(kept["collector"])
        saver.parts["collector"] = source.state_dict
    with StopOnSignal(saver) as stopper:
        shown = [] if quiet else [progress]
        callbacks: list[Callback] = [recorder, evaluator, saver, stopper, *shown]
        if settings.tokens is not None:
            callbacks.append(TokenLimit(settings.tokens))
        try:
            if not evaluator.goal_reached():
                train(agent, settings.steps, callbacks, source)
        except GoalReached:
            saver.save(agent)
        finally:
            progress.close()
            recorder.close()
            if settings.workers > 0:
                source.workers.close()


def rounds(agent: Any, settings: LanguageSettings, record: Path) -> AsyncCollector:
    """Sampling by workers."""
    known = worker_config(agent, settings.budget, settings.threads)
    workers = KINDS[settings.worker_kind](known, settings.workers)
    return AsyncCollector(
        agent,
        workers,
        chunk=settings.chunk,
        record=record,
        redundancy=settings.redundancy,
        drop_late=settings.drop_late,
    )


def replay(folder: Path) -> bool:
    """Repeat a run with workers from its schedule up to the step of its checkpoint; whether the
    model is the same, bit for bit."""
    settings, _ = read_settings(folder)
    path = folder / "schedule.jsonl"
    if not path.exists():
        raise CheckpointError(f"{folder} has no schedule.jsonl; runs with workers write one")
    torch.set_num_threads(settings.threads)
    known, agent = load(folder), first_learner(folder)
    inline = Inline(worker_config(agent, settings.budget, settings.threads))
    source = ReplayCollector(
        agent, inline, path, redundancy=settings.redundancy, drop_late=settings.drop_late
    )
    train(agent, known.step, [], source)
    pairs = zip(known.model.parameters(), agent.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


class GoalReached(Exception):
    """The run has reached its goal: an accuracy, or a number of sampled tokens."""


class TokenLimit:
    """Ends a run after the round in which its sampled tokens reach `most`."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, event: str, agent: Any, metrics: Metrics) -> None:
        if event in ("start", "step") and agent.tokens["sampled"] >= self.most:
            raise GoalReached


class TextEvaluator:
    """Evaluates on new problems before the first step and every `interval` steps; appends a row for
    each level to evaluations.csv."""

    def __init__(self, settings: LanguageSettings, folder: Path, progress: Progress) -> None:
        self.settings, self.progress = settings, progress
        self.file = MetricsFile(folder / "evaluations.csv")

    def __call__(self, event: str, agent: Any, metrics: Metrics) -> None:
        every = self.settings.interval
        first = event == "start" and agent.step == 0 and not self.file.rows()
        due = event == "step" and every > 0 and agent.step % every == 0
        due |= event == "step" and getattr(agent, "stage_over", False)
        if (every > 0 and first) or due:
            scores = measure(agent, self.settings.eval_problems, 1)
            self.write(agent, scores)
            mean = accuracy(scores, agent.levels)
            self.progress.note(f"accuracy {mean:.2f}")
            if event == "step" and self.settings.until is not None and mean >= self.settings.until:
                raise GoalReached

    def write(self, agent: Any, scores: list[Score]) -> None:
        over = getattr(agent, "stage_over", False)
        for score in scores:
            self.file.append(
                {
                    "step": agent.step,
                    "level": score.level,
                    "trained": int(score.level in agent.levels),
                    "problems": score.problems,
                    "accuracy": score.accuracy,
                    "error": "" if score.error is None else score.error,
                    "length": score.length,
                }
                | ({"stage": agent.domains.at, "over": int(over)} if agent.domains.stages else {})
            )

    def truncate(self, step: int) -> None:
        """Drop the rows of later steps than `step`."""
        self.file.truncate("step", step)

    def goal_reached(self) -> bool:
        """Whether an evaluation reached the accuracy at which the run stops."""
        if self.settings.until is None:
            return False
        rows = [r for r in self.file.rows() if r["trained"] == "1" and int(r["step"]) > 0]
        by_step: dict[str, list[float]] = {}
        for row in rows:
            by_step.setdefault(row["step"], []).append(float(row["accuracy"]))
        return any(sum(v) / len(v) >= self.settings.until for v in by_step.values())


def measure(agent: Any, problems: int, samples: int, **options: Any) -> list[Score]:
    """Scores of every level of the agent's task, on new problems."""
    limit = {"turn_tokens": agent.config.turn_tokens, **options}
    levels = agent.task.levels
    return evaluate(
        agent.model, agent.codec, agent.task, levels, problems=problems, samples=samples, **limit
    )


def accuracy(scores: list[Score], levels: tuple[int, ...]) -> float:
    """Mean accuracy over `levels`; NaN if there is none."""
    accuracies = [s.accuracy for s in scores if s.level in levels]
    return sum(accuracies) / len(accuracies) if accuracies else float("nan")


def summary(agent: Any, scores: list[Score]) -> dict[str, Any]:
    """The result of a finished run."""
    others = tuple(level for level in agent.task.levels if level not in agent.levels)
    parts = {
        part.name: accuracy(scores, tuple(own))
        for part, own in zip(parts_of(agent.task), by_part(agent.task, agent.levels), strict=True)
    }
    return {
        "accuracy": accuracy(scores, agent.levels),
        "accuracy_other_levels": accuracy(scores, others) if others else None,
        "levels": [asdict(s) for s in scores],
    } | ({"parts": parts} if len(parts) > 1 else {})


def after_stages(folder: Path) -> Tensor:
    """[N, D]: the accuracy on each part's trained levels at the end of every stage of the run in
    `folder`, the last row after the whole run: that of its final problems."""
    _, config = read_settings(folder)
    task = text_task(config.task)
    levels = by_part(task, trained_levels(config, task))
    rows = MetricsFile(folder / "evaluations.csv").rows()
    ends: dict[str, dict[int, float]] = {}
    for r in rows:
        if r.get("over") == "1":
            ends.setdefault(r["stage"], {})[int(r["level"])] = float(r["accuracy"])
    matrix = [[sum(own[x] for x in part) / len(part) for part in levels] for own in ends.values()]
    result = folders.read_json(folder / "result.json")
    last = result.get("parts", {config.task: result["accuracy"]})  # stages may be of one task
    return torch.tensor([*matrix, list(last.values())], dtype=torch.float64)
