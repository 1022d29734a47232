"""The verb `search`: search hyperparameters with Optuna, whose trials are in a database. The
objective is an offline score by default."""

import contextlib
import csv
import io
import math
import shlex
import sqlite3
import tomllib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from algorithms import ALGORITHMS
from algorithms.pets import PETS
from experiments.cli import _positional as positional
from experiments.reports.grid import grid
from experiments.runs import folders, launchers
from experiments.runs.selection import require_values_differ
from experiments.settings import merge
from experiments.tables import plan, records, table
from experiments.tables.plan import Block, Column, Plan, Row
from mbrl import config as configs
from mbrl import data, tasks
from mbrl.config import Count, CountOrZero, Seeds, Settings
from mbrl.data.fingerprint import fingerprint
from mbrl.data.loading import require
from mbrl.errors import ConfigError, install_command, unknown_name
from mbrl.files import write_text
from mbrl.terminal import terminal

Objective = Literal["fqe", "score"]
MEANING = {
    "fqe": "fitted-Q value of the policy chosen offline, mean over seeds; the data alone decide",
    "score": "score of the last evaluation in the task, mean over seeds: the task itself decides, "
    "so the result is not an offline one",
}
SPACES = Path(__file__).parent.parent / "spaces"
RANGES = (
    "hyperparameters to search: learner.tau=0.001:0.01 (a range), learner.eta=log:0.1:10 (a log "
    "scale), learner.critics=int:2:20 (whole numbers), or choices: learner.hidden=[64,64],[256,256]"
)


@dataclass(frozen=True)
class Search(Settings):
    """Search hyperparameters of one algorithm on one dataset. The same command continues a search
    that was stopped; with more trials it adds to it."""

    algorithm: positional.Algorithm  # a name in `python -m experiments list`
    data: positional.Data  # a dataset
    hyperparameter: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="NAME=RANGE", help=RANGES)
    ] = ()
    space: str | None = None  # in experiments/spaces; --hyperparameter replaces those it names
    trials: Count = 20  # in total, with those of earlier calls
    objective: Objective = "fqe"  # fqe: from the data alone; score: from the task
    seeds: Seeds = (0,)  # of the runs of each trial
    steps: Count | None = None  # updates of a run; None: the preset's
    fqe_steps: CountOrZero = 2500  # updates of each fitted Q evaluation
    # of Optuna: tpe (densities of good and bad settings), gp (a Gaussian process), random
    sampler: Literal["tpe", "gp", "random"] = "tpe"
    sampler_seed: CountOrZero = 0  # seed of its draws
    out: Path = Path("runs/search")  # folder: search.db, runs, records, trials.csv
    workers: Count = 2  # jobs side by side, one thread each
    device: str = "cpu"  # where the runs train: cpu or cuda
    launcher: launchers.Name = "local"  # processes of this machine, or Ray
    address: str | None = None  # of a running Ray cluster; None: one on this machine

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective != "fqe":
            return
        if self.fqe_steps == 0:
            raise ConfigError(
                "fqe_steps is 0, and the objective is a fitted-Q value; give at least 1 update, or "
                "--objective score"
            )
        discounts = [n for n in map(name_of, self.ranges) if n.rpartition(".")[2] == "gamma"]
        if discounts:
            raise ConfigError(
                f"{discounts[0]} changes what a value is, so that fitted-Q values of trials do not "
                "compare: leave it out, or --objective score"
            )

    def main(self) -> int:
        suggest = [parse_range(text) for text in self.ranges]
        if self.algorithm not in ALGORITHMS:
            raise unknown_name("algorithm", self.algorithm, ALGORITHMS)
        if self.objective == "fqe" and issubclass(ALGORITHMS[self.algorithm][0], PETS):
            raise ConfigError(
                f"{self.algorithm} plans and learns no policy that fitted Q values could judge; "
                "give --objective score"
            )
        launchers.require_device(self.device, self.launcher)
        same = {
            "fingerprint": self._require_data(),
            "version": ALGORITHMS[self.algorithm][0].version,
        }
        self._require_names()
        with folders.locked(self.out), _database_named(self.out / "search.db"):
            study = self._study()
            self._require_same(study, same)
            launcher = launchers.launcher(self.launcher, self.workers, self.address)
            with contextlib.closing(launcher):
                status = self._search(study, suggest, launcher)
            self._show(study)
        return status

    def _require_data(self) -> str:
        """The fingerprint of the data. Raises, before trials are spent on it, where the data cannot
        be had, with the objective `score` name no task, or with `fqe` say nothing of a policy."""
        require(self.data)
        dataset = data.load(self.data)
        spec = dataset.spec
        if self.objective == "score":
            if not tasks.is_task(spec.task):
                raise ConfigError(
                    f"{self.data} names no task that scores could come from ({spec.task!r}); leave "
                    "--objective at fqe"
                )
            tasks.make_for(spec)
        else:
            config = plan.config_of(Column("", self.algorithm), self.data)
            require_values_differ(dataset, config.gamma, "give --objective score")
        return fingerprint(dataset)

    def _require_same(self, study: Any, now: dict[str, Any]) -> None:
        """Raise `ConfigError` where data or algorithm are others `now` than at the search's first
        call: values of their trials do not compare."""
        before = study.user_attrs.get("same", now)
        subjects = {"fingerprint": f"the data {self.data}", "version": self.algorithm}
        for what, subject in subjects.items():
            if before[what] != now[what]:
                raise ConfigError(
                    f"{self.out} has trials with another {what} of {subject} ({before[what]}, now "
                    f"{now[what]}), which do not compare with new ones; give another --out"
                )
        study.set_user_attr("same", now)

    def _require_names(self) -> None:
        """Raise `ConfigError` for a hyperparameter that the algorithm does not have, before trials
        are spent on it."""
        config = plan.config_of(Column("", self.algorithm), self.data)
        known = configs.flatten(configs.to_dict(config))
        for text in self.ranges:
            name, _, values = text.partition("=")
            name = name_of(text)
            if not any(k == name or k.startswith(f"{name}.") for k in known):
                raise unknown_name(f"hyperparameter of {self.algorithm}", name, known)
            whole = type(known.get(name)) is int
            if whole and values.count(":") and not values.startswith("int:"):
                bounds = ":".join(values.split(":")[-2:])
                raise ConfigError(
                    f"{name} is a whole number, and {values!r} draws others: int:{bounds}, or "
                    "choices with commas"
                )

    @property
    def ranges(self) -> tuple[str, ...]:
        """The hyperparameters of `space` and `hyperparameter`, which replaces those it names."""
        texts = (
            (*space_ranges(self.space), *self.hyperparameter) if self.space else self.hyperparameter
        )
        if not texts:
            raise ConfigError(
                "nothing to search; give --hyperparameter NAME=RANGE, or --space with one of "
                f"{spaces()}"
            )
        own = [name_of(text) for text in self.hyperparameter]
        if twice := [name for i, name in enumerate(own) if name in own[:i]]:
            raise ConfigError(f"--hyperparameter has {twice[0]} twice; give it one range")
        return tuple({name_of(text): text for text in texts}.values())

    def _study(self) -> Any:
        try:
            import optuna
        except ImportError:
            raise ConfigError(
                f"`search` needs Optuna; install it with `{install_command('hpo')}`"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        if "?" in str(self.out):  # ends the file's name in a database's address
            raise ConfigError(f"--out {self.out} has a question mark; give another folder")
        self.out.mkdir(parents=True, exist_ok=True)
        database = str(self.out / "search.db").replace("{", "{{").replace("}", "}}")  # a template
        study = optuna.create_study(
            storage=f"sqlite:///{database}",
            study_name="search",
            direction="maximize",
            load_if_exists=True,
        )
        known = {
            "algorithm": self.algorithm,
            "data": self.data,
            "objective": self.objective,
            "knobs": sorted(self.ranges),
            "seeds": list(self.seeds),
            "steps": self.steps,
            "fqe_steps": self.fqe_steps,
        }
        if self.sampler != "tpe":  # which searches before the choice had
            known["sampler"] = self.sampler
        before = study.user_attrs.get("search", known)
        if before != known:
            raise ConfigError(
                f"{self.out} holds a search of {before}, not of {known}; give another --out"
            )
        study.set_user_attr("search", known)
        return study

    def _draw(self, study: Any, suggest: Sequence["Suggest"], unfinished: Any = None) -> Any:
        """A new trial with its settings, or one that an earlier call left `unfinished`. The draws
        depend on the trial's number and on what is known by then, not on earlier draws: a search
        that was stopped goes on as it would have."""
        from optuna.trial import Trial

        number = len(study.trials) if unfinished is None else unfinished.number
        study.sampler = self._sampler(number)
        trial = study.ask() if unfinished is None else Trial(study, unfinished._trial_id)
        for choose in suggest:
            choose(trial)
        return trial

    def _sampler(self, number: int) -> Any:
        """The sampler of the trial of this number."""
        from optuna import samplers

        seed = self.sampler_seed
        if number > 0:
            seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        if self.sampler == "random":
            return samplers.RandomSampler(seed=seed)
        if self.sampler == "tpe":
            return samplers.TPESampler(seed=seed, constant_liar=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna calls it experimental
            # A trial's value depends on its seeds, so that it has noise.
            return samplers.GPSampler(seed=seed, deterministic_objective=False)

    def _search(self, study: Any, suggest: Sequence["Suggest"], where: launchers.Launcher) -> int:
        """Run as many trials at a time as there are workers, unfinished ones of earlier calls
        first. Returns the exit status: 1 if a trial failed, of this call or an earlier one."""
        from optuna.trial import TrialState

        waiting = study.get_trials(states=(TrialState.RUNNING,))
        ended = len(study.trials) - len(waiting)
        status = int(any(t.state == TrialState.FAIL for t in study.trials))
        if ended >= self.trials:
            terminal().print(f"{ended} trials are done; --trials {ended + 1} and more adds to them")
        while ended < self.trials:
            left, waiting = waiting[: self.trials - ended], waiting[self.trials - ended :]
            batch = [self._draw(study, suggest, trial) for trial in left]
            while len(batch) < min(self.workers, self.trials - ended):
                batch.append(self._draw(study, suggest))
            ended += len(batch)
            possible = [trial for trial in batch if self._is_possible(study, trial)]
            status |= int(len(possible) < len(batch))
            if not possible:
                continue
            batch = possible
            planned = self._plan([t.number for t in batch], [_settings(t.params) for t in batch])
            status |= table.finish(
                planned, self.out, self.out / "runs", where, table.all_cells(planned)
            )
            for trial, column in zip(batch, planned.blocks[0].columns, strict=True):
                value, score = self._outcome(planned, column)
                trial.set_user_attr("score", score)
                if math.isnan(value):
                    why = self._reason(planned, column)
                    terminal(error=True).print(f"trial {trial.number} failed: {why}")
                    study.tell(trial, state=TrialState.FAIL)
                    status = 1
                else:
                    study.tell(trial, value)
        return status

    def _is_possible(self, study: Any, trial: Any) -> bool:
        """Whether the trial's settings can be; one that cannot fails at once, by name."""
        try:
            plan.config_of(Column("", self.algorithm, _settings(trial.params)), self.data)
        except ConfigError as problem:
            from optuna.trial import TrialState

            terminal(error=True).print(f"trial {trial.number} failed: {problem}")
            trial.set_user_attr("score", math.nan)
            study.tell(trial, state=TrialState.FAIL)
            return False
        return True

    def _plan(self, numbers: list[int], settings: list[dict[str, Any]]) -> Plan:
        columns = tuple(
            Column(f"trial-{number}", self.algorithm, config)
            for number, config in zip(numbers, settings, strict=True)
        )
        rows = (Row(self.data, self.data, self.steps),)
        block = Block("", rows, columns, self.seeds)
        fqe = self.fqe_steps if self.objective == "fqe" else 0
        return Plan(self.out.name, "Search", (block,), fqe_steps=fqe, device=self.device)

    def _outcome(self, planned: Plan, column: Column) -> tuple[float, float]:
        """Objective and score in the task of a trial's policy, as means over seeds; NaN if one of
        its runs failed or diverged. The policy is the last, with a fitted-Q objective that which
        it values."""
        values, scores = [], []
        for cell in planned.cells(planned.blocks[0]):
            if cell.column != column:
                continue
            record = records.read(self.out / cell.path, cell.key)
            if record is None or "diverged" in record:
                return math.nan, math.nan
            if self.objective == "fqe":
                scores.append(records.selected_score(record))
                values.append(max(record["selection"]["values"]))
            else:
                scores.append(records.last_score(record))
                values.append(scores[-1])
        return float(np.mean(values)), float(np.mean(scores))

    def _reason(self, planned: Plan, column: Column) -> str:
        """Why a trial has no value."""
        cells = [c for c in planned.cells(planned.blocks[0]) if c.column == column]
        known = [records.read(self.out / cell.path, cell.key) for cell in cells]
        diverged = [r["diverged"] for r in known if r is not None and "diverged" in r]
        return str(diverged[0]) if diverged else "it has no value"

    def _show(self, study: Any) -> None:
        """Print the best trials, write all of them to trials.csv, and the settings of the first to
        best.json."""
        done = [t for t in study.trials if t.value is not None]
        done.sort(key=lambda t: -t.value)
        names = [name_of(text) for text in self.ranges]
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(["trial", *names, self.objective, "score_in_task"])
        for t in done:
            values = [t.params[n] for n in names]
            writer.writerow([t.number, *values, t.value, t.user_attrs["score"]])
        write_text(self.out / "trials.csv", lines.getvalue())
        console = terminal()
        heads = ("trial", *names, f"objective ({self.objective})", "score in the task")
        failed = sum(t.state.name == "FAIL" for t in study.trials)
        title = f"{self.algorithm} on {self.data}: {len(done)} trials"
        shown = grid(*heads, title=f"{title}, {failed} failed" if failed else title)
        for t in done[:10]:
            values = [f"{v:.4g}" if isinstance(v := t.params[n], float) else str(v) for n in names]
            shown.add_row(str(t.number), *values, f"{t.value:.5g}", f"{t.user_attrs['score']:.1f}")
        console.print(shown)
        console.print(f"objective: {MEANING[self.objective]}")
        console.print(f"all trials: {self.out / 'trials.csv'}", soft_wrap=True)
        if done:
            best = self._write_best(done[0])
            console.print(
                f"a run with the best settings: python -m experiments run {self.algorithm} "
                f"{shlex.quote(self.data)} --config {shlex.quote(str(best))}",
                soft_wrap=True,
            )

    def _write_best(self, trial: Any) -> Path:
        """Settings of `trial` as `run --config` reads them."""
        run: dict[str, Any] = {"steps": self.steps} if self.steps else {}
        if self.objective == "fqe":
            run["fqe_steps"] = self.fqe_steps
        path = self.out / "best.json"
        folders.write_json(path, {"run": run, "config": _settings(trial.params)})
        return path


Suggest = Callable[[Any], None]


@contextlib.contextmanager
def _database_named(path: Path) -> Iterator[None]:
    """An error of the database as one of its file: Optuna shows what it asked, in hundreds of
    lines."""
    try:
        yield
    except Exception as problem:
        reason: BaseException | None = problem
        while reason is not None and not isinstance(reason, sqlite3.Error):
            reason = reason.__cause__ or reason.__context__
        if reason is None:
            raise
        raise OSError(
            f"{path} could not be read or written ({reason}); make room, or give another folder "
            "with --out"
        ) from problem


def name_of(text: str) -> str:
    """The hyperparameter of `NAME=RANGE`."""
    return text.partition("=")[0]


def spaces() -> list[str]:
    return sorted(file.stem for file in SPACES.glob("*.toml"))


def space_ranges(name: str) -> list[str]:
    """The lines of experiments/spaces/NAME.toml, each as --hyperparameter takes it."""
    if name not in spaces():
        raise unknown_name("search space", name, spaces())
    ranges: list[str] = tomllib.loads((SPACES / f"{name}.toml").read_text())["knobs"]
    return ranges


def parse_range(text: str) -> Suggest:
    """The suggestion that `NAME=RANGE` asks Optuna for; a range is `log:a:b`, `int:a:b`, `a:b`, or
    choices `v1,v2,...`."""
    name, sign, values = text.partition("=")
    parts = values.split(":")
    if not sign or not name or not values:
        raise ConfigError(f"{text!r} is not NAME=RANGE; try learner.eta=log:0.1:10")
    if len(parts) == 1:
        _, choices = plan.parse_values(text)
        options = [str(c) if isinstance(c, list) else c for c in choices]  # Optuna keeps scalars
        return lambda trial: trial.suggest_categorical(name, options)
    kind, bounds = (parts[0], parts[1:]) if len(parts) == 3 else ("float", parts)
    try:
        low, high = (float(b) for b in bounds)
    except ValueError:
        raise ConfigError(f"range {values!r} of {name} is not LOW:HIGH in numbers") from None
    wrong = not low < high or math.isinf(high - low) or (kind == "log" and low <= 0)
    if kind not in ("float", "log", "int") or wrong:
        raise ConfigError(
            f"range {values!r} of {name} must be LOW:HIGH, log:LOW:HIGH (LOW above 0) or "
            "int:LOW:HIGH, with LOW below HIGH and both finite"
        )
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"range {values!r} of {name} has ends that are not whole numbers")
    if kind == "int":
        return lambda trial: trial.suggest_int(name, int(low), int(high))
    return lambda trial: trial.suggest_float(name, low, high, log=kind == "log")


def _settings(params: dict[str, Any]) -> dict[str, Any]:
    """Nested settings of a trial's parameters."""
    settings: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, str) and value.startswith("["):
            _, (value,) = plan.parse_values(f"{name}={value}")
        settings = merge(settings, plan.nested(name, value))
    return settings


def main(arguments: list[str]) -> int:
    return tyro.cli(Search, args=arguments, prog="python -m experiments search").main()
