"""The verb `data`: list, describe, check, replay, fetch, import and export datasets."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as Speed
from rich.table import Table
from rich.text import Text

from experiments.cli import _positional as positional
from experiments.recording.environment import named_policy, policy_returns
from experiments.reports.drift import print_drift
from experiments.reports.grid import grid
from experiments.runs.drift import drift_of, reference_of
from mbrl.config import Count
from mbrl.data import Finding, LogSchema, check, data_home, load
from mbrl.data.cards import Card, Tier, all_cards, find_card, find_tier
from mbrl.data.locate import find_file, homes, local_file
from mbrl.data.readers.files import MAPPED, SUFFIXES
from mbrl.data.replay import replay
from mbrl.data.suspicions import action_coverage, suspicions
from mbrl.data.writers import WRITERS, write
from mbrl.errors import ConfigError, DataError
from mbrl.goals import with_last_states
from mbrl.tasks import Task, is_task, make, randomness
from mbrl.terminal import terminal
from mbrl.types import Dataset

COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}


@dataclass(frozen=True)
class DataList:
    """List the datasets, and which of them are on this machine."""

    family: positional.Family = None
    """One family (pendulum, d4rl, ...), with all its datasets; by default an overview of all."""

    def main(self) -> int:
        console = terminal()
        if self.family is not None:
            card = find_card(self.family)
            table = grid("dataset", "on this machine", title=card.title)
            for tier in card.tiers.values():
                table.add_row(f"{card.family}/{tier.name}", status(card, tier))
            console.print(table)
            return 0
        table = grid("family", "what it is", "datasets", "on this machine", title="datasets")
        for card in all_cards().values():
            tiers = [t for t in card.tiers.values() if t.missing is None]
            ready = [t.name for t in tiers if status(card, t).startswith("ready")]
            table.add_row(card.family, card.title, str(len(tiers)), ", ".join(ready) or "-")
        console.print(table)
        console.print(
            "python -m experiments data list FAMILY names every dataset of a family and how to get "
            "it."
        )
        return 0


@dataclass(frozen=True)
class DataInfo:
    """Print the card of a dataset: task, scores, licence, addresses, files."""

    name: positional.Dataset
    """A dataset such as pendulum/medium or d4rl/hopper-medium-v2, or a file."""

    def main(self) -> int:
        if Path(self.name).suffix.lower() in SUFFIXES:
            return self._of_file()
        card, tier = find_tier(self.name)
        env = card.environment(tier)
        actions = (
            f"{env.num_actions} discrete"
            if env.num_actions
            else f"{env.action_dim} in {env.action_low} to {env.action_high}"
        )
        options = f", with {env.task_options}" if env.task_options else ""
        scores = tier.reference_returns or env.reference_returns
        known = card.checksum(tier, str(tier.file))
        rows = {
            "family": f"{card.title}. {card.about}",
            "about": tier.about,
            "evaluated in": f"{env.task or 'no task here'}{options}: {env.task_reason}",
            "limit": f"{env.horizon} steps",
            "observations": str(env.obs_dim),
            "actions": actions,
            "score 0 and 100": f"returns {scores}; {env.reference_origin}",
            "licence": f"{card.licence}{f' ({card.licence_note})' if card.licence_note else ''}",
            "addresses": "\n".join(f"{base}/{tier.file}" for base in card.sources),
            "size": f"{tier.size:,} bytes" if tier.size else "",
            "checksum": f"{known.kind} {known.value}" if known else "",
            "here": str(place(card, tier) or status(card, tier)),
        }
        if card.kind == "minari":  # the card knows no sizes: the metadata of each dataset does
            for key in ("limit", "observations", "actions", "score 0 and 100"):
                rows.pop(key)
        print_rows(self.name, rows)
        return 0

    def _of_file(self) -> int:
        dataset = load(self.name)
        spec, origin = dataset.spec, dataset.provenance
        data = dataset.transitions
        spans = zip(data.obs.amin(0).tolist(), data.obs.amax(0).tolist(), strict=True)
        names = spec.obs_names or tuple(f"obs[{i}]" for i in range(spec.obs_dim))
        columns = zip(names, spans, strict=True)
        labels = ", ".join(spec.action_names)
        actions = f"{spec.num_actions} discrete" if spec.discrete else f"{spec.action_dim}"
        bounds = "" if spec.discrete else f" in {spec.action_low} to {spec.action_high}"
        rows = {
            "from": origin.card,
            "task": "" if spec.task == "file" else spec.task,
            "rows": f"{len(dataset):,} in {len(data.episodes()):,} episodes",
            "observations": "\n".join(f"{n}: {a:.6g} to {b:.6g}" for n, (a, b) in columns),
            "actions": f"{actions}{bounds}{f': {labels}' if labels else ''}",
            "licence": origin.licence or "",
            "sha256": origin.sha256 or "",
            "notes": "\n".join(origin.notes),
        }
        print_rows(self.name, rows)
        return 0


def print_rows(title: str, rows: dict[str, str]) -> None:
    table = Table(show_header=False, title=title)
    for key, value in rows.items():
        if value:
            table.add_row(key, value)
    terminal().print(table)


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """What can be said about a file of one's own."""

    log: Annotated[LogSchema, tyro.conf.arg(name="")] = field(default_factory=LogSchema)
    task: str | None = None
    """The task it belongs to, e.g. Pendulum-v1; otherwise sizes are read from the data."""
    horizon: Count | None = None
    """The step limit of the task, where no task gives it."""
    done_means: Literal["terminated", "by-length"] | None = None
    """What a merged `done` is: terminations only, or split by the length of the episode."""
    discrete: bool | None = None
    """Whether actions are discrete; by default they are where their type is integer."""
    action_low: tuple[float, ...] | None = None
    """Lower bounds of the actions, where no task gives them."""
    action_high: tuple[float, ...] | None = None
    """Upper bounds of the actions, where no task gives them."""
    clip_actions: bool = False
    """Clip actions beyond the bounds instead of refusing them."""
    boundaries: Literal["refuse", "cut"] = "refuse"
    """Where next_obs is not the next row's obs: refuse the file, or end the episode there (cut)."""


@dataclass(frozen=True)
class DataCheck(FileOptions):
    """List every problem of a dataset or file, and what its actions cover; with --against, whether
    it is like the data of a run. Exit status 1 if it cannot be used."""

    name: positional.Dataset
    """A dataset, or a path to an npz, hdf5, csv or parquet file."""
    against: Path | None = None
    """Folder of a run: compare with the data that it was trained on. A table is read as the log of
    the run was."""
    json: bool = False
    """Print one JSON object instead of text."""

    def main(self) -> int:
        options, console = given(self, "name", "json", "against"), terminal()
        if self.against is not None:
            return self._compare(self.against, console)
        findings = check(self.name, **options)
        failed = any(finding.severity == "error" for finding in findings)
        dataset = None if failed else load(self.name, **options)
        coverage = {} if dataset is None else action_coverage(dataset)
        if dataset is not None:
            findings += suspicions(dataset)
        if self.json:
            listed = [{k: v for k, v in asdict(f).items() if v is not None} for f in findings]
            result = {"usable": not failed, "findings": listed, "coverage": coverage}
            console.print_json(json.dumps(result))
            return int(failed)
        for finding in findings:
            console.print(line(finding))
        if dataset is not None:
            summary(dataset, console)
            for text in coverage_lines(dataset, coverage):
                console.print(text)
        return int(failed)

    def _compare(self, run: Path, console: Console) -> int:
        reference = reference_of(run)
        changed = {
            f.name: getattr(self, f.name)
            for f in fields(FileOptions)
            if getattr(self, f.name) != getattr(FileOptions(), f.name)
        }
        if "task" in changed:
            changed["spec"] = changed.pop("task")
        try:
            drift = drift_of(self.name, reference, changed)
        except DataError as problem:
            if self.json:
                listed = [{"severity": "error", "message": str(problem)}]
                console.print_json(json.dumps({"usable": False, "findings": listed}))
            else:
                console.print(line(Finding("error", str(problem))))
            return 1
        if self.json:
            console.print_json(json.dumps({"usable": True, "run": str(run)} | asdict(drift)))
        else:
            print_drift(drift, console)
        return 0


@dataclass(frozen=True)
class DataFetch:
    """Download a published dataset, verify it, and print the path of its file."""

    name: positional.Dataset
    """A dataset such as d4rl/hopper-medium-v2."""
    trajectories: Count | None = None
    """NeoRL: how many trajectories (up to 10000; 1000 by default). NeoRL-2: only the first ones."""
    split: Literal["train", "val"] = "train"
    """NeoRL and NeoRL-2: training or validation data."""

    def main(self) -> int:
        console, options = terminal(), given(self, "name")
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
        with Progress(*columns, Speed(), TimeRemainingColumn(), console=console) as progress:
            bar = progress.add_task(self.name, total=None, visible=False)

            def advance(done: int, total: int | None) -> None:
                progress.update(bar, completed=done, total=total, visible=True)

            dataset = load(self.name, progress=advance, **options)
        summary(dataset, console)
        if not self.name.startswith("minari/"):
            console.print(f"file: {place(*find_tier(self.name), self.split)}")
        return 0


@dataclass(frozen=True)
class DataImport(FileOptions):
    """Verify a file of your own and write it in this library's compact format. Columns of any name
    are read where --obs, --action, --reward, --episode say which is what."""

    source: positional.Source
    """An npz, hdf5, csv or parquet file, or a Minari folder."""
    out: Path | None = None
    """The file to write, in .npz or .rows; by default
    <data folder>/imported/<name of the source>.npz."""

    def main(self) -> int:
        console, dataset = terminal(), load(self.source, **given(self, "source", "out"))
        target = self.out or data_home() / "imported" / f"{Path(self.source).stem}.npz"
        if target.suffix not in (".npz", MAPPED):
            raise DataError(
                f"--out {target}: end the name in .npz (compact) or {MAPPED} (mapped, for files "
                "larger than memory)"
            )
        if self.out is None and target.exists():
            known = load(target).provenance.card
            if known != dataset.provenance.card:
                raise DataError(
                    f"{target} has the rows of {known}; give --out FILE.npz for those of "
                    f"{self.source}"
                )
        write(dataset, target, target.suffix[1:])
        for finding in check(self.source, **given(self, "source", "out")):
            console.print(line(finding))
        summary(dataset, console)
        console.print(f"written to {target}; use that path wherever a dataset is named")
        return 0


@dataclass(frozen=True, kw_only=True)
class DataExport(FileOptions):
    """Write a dataset: a Minari folder, a table, an npz of this library, or rows of this library
    that are mapped (for files larger than memory)."""

    name: positional.Dataset
    """A dataset, or a file."""
    format: Literal["minari", "npz", "rows", "csv", "parquet"] | None = None
    """What to write; None: what the ending of --out says, such as .csv."""
    out: Path
    """The file, or for Minari the folder."""
    last_states: bool = False
    """Add a row to each episode that stays in its last state: for learners of goals whose goals are
    states that rows leave (gcivl, gciql, hiql, saw, hecrl)."""

    def main(self) -> int:
        format = self.format or self.out.suffix[1:].lower()
        if format not in WRITERS:
            raise ConfigError(
                f"--out {self.out} does not end in a format; give --format: {', '.join(WRITERS)}"
            )
        dataset = load(self.name, **given(self, "name", "format", "out", "last_states"))
        if self.last_states:
            dataset = with_last_states(dataset)
        target = write(dataset, self.out, format)
        summary(dataset, terminal())
        terminal().print(f"written to {target}", soft_wrap=True)
        return 0


@dataclass(frozen=True)
class DataReplay:
    """Take the logged steps of datasets again in their tasks and compare: is the task the one that
    the data come from? A line a dataset: rows compared, then the median, the 99th percentile and
    the largest error, of observations as |error| / (1 + |value|), and of rewards."""

    names: positional.Datasets
    """Datasets such as neorl2/DMSD, or files."""
    task: str | None = None
    """The task, where a file does not say it; else that of each dataset."""
    split: Literal["train", "val"] = "train"
    """NeoRL and NeoRL-2: training or validation data."""
    policies: tuple[str, ...] = ()
    """Print the mean return in the task of these policies too, as `collect --policy` takes them."""
    episodes: Count = 200
    """Of each policy."""

    def main(self) -> int:
        console = terminal()
        table = grid("dataset", "rows", "observations", "rewards", "ends that differ")
        tasks, notes = dict[str, Task](), list[str]()
        for name in self.names:
            options = {} if self.task is None else {"spec": self.task}
            dataset = load(name, split=self.split, **options)
            spec = dataset.spec
            if not is_task(spec.task):
                raise ConfigError(f"{name}: there is no task {spec.task!r} here; give --task")
            task = make(spec.task, dtype=torch.float64, **spec.task_options)
            chosen = [f"{k}={v}" for k, v in spec.task_options.items()]
            tasks[",".join([spec.task, *chosen])] = task
            unseen = sorted(randomness.NAMES & spec.task_options.keys())
            if unseen:  # the data say nothing of what happened in a row
                notes.append(
                    f"{name}: compared without {', '.join(unseen)}, which rows do not record"
                )
            result = replay(dataset, task)
            how = " in whole episodes" if result.episodes else f" of {result.rows:,}"
            shown = [" ".join(map("{:.1e}".format, three(v))) for v in (result.obs, result.reward)]
            table.add_row(name, f"{len(result.reward):,}{how}", *shown, str(result.ends))
        console.print(table)
        for note in notes:
            console.print(note, markup=False, highlight=False, soft_wrap=True)
        for policy in self.policies:
            for task_id, task in tasks.items():
                returns = policy_returns(task, named_policy(policy), self.episodes)
                half = 1.96 * float(returns.std()) / self.episodes**0.5
                text = f"{task_id}: {policy}: {returns.mean():.1f} ± {half:.1f} (95 %)"
                console.print(text, highlight=False, soft_wrap=True)
        return 0


def three(values: torch.Tensor) -> list[float]:
    """The median, the 99th percentile and the largest of `values` [N]; nothing of none."""
    if len(values) == 0:
        return []
    ordered = values.sort().values
    return [float(ordered[int(share * (len(ordered) - 1))]) for share in (0.5, 0.99, 1.0)]


DataCommand = (
    Annotated[DataList, tyro.conf.subcommand("list")]
    | Annotated[DataInfo, tyro.conf.subcommand("info")]
    | Annotated[DataCheck, tyro.conf.subcommand("check")]
    | Annotated[DataReplay, tyro.conf.subcommand("replay")]
    | Annotated[DataFetch, tyro.conf.subcommand("fetch")]
    | Annotated[DataImport, tyro.conf.subcommand("import")]
    | Annotated[DataExport, tyro.conf.subcommand("export")]
)


def main(arguments: list[str]) -> int:
    command: Any = tyro.cli(
        DataCommand,
        args=arguments,
        prog="python -m experiments data",
        description="List, describe, check, replay, download, import or export datasets.",
    )
    return int(command.main())


def given(command: Any, *others: str) -> dict[str, Any]:
    """The fields of a command as options of `load`, without `others`."""
    values = {f.name: getattr(command, f.name) for f in fields(command) if f.name not in others}
    if "log" in values and not values["log"].given:
        del values["log"]
    if "task" in values:
        values["spec"] = values.pop("task")
    return values


def place(card: Card, tier: Tier, split: str = "train") -> Path | None:
    """The file of a tier on this machine; None if it is not here."""
    try:
        if card.made_here(tier):
            return local_file(card, tier)
        if card.kind == "minari":
            folders = [home / tier.name / "data/metadata.json" for home in homes("minari")]
            return next((path.parent for path in folders if path.is_file()), None)
        sizes = (10, 100, 1000, 10000) if "{trajectories}" in str(tier.file) else (0,)
        names = [str(tier.file).format(trajectories=n, split=split) for n in sizes]
        return next((p for p in (find_file(card.family, n) for n in names) if p), None)
    except DataError:
        return None


def status(card: Card, tier: Tier) -> str:
    if tier.missing:
        return f"none: {tier.missing}"
    if tier.parts:
        ready = all(place(card, card.tier(part)) for part in tier.parts)
        return f"{'ready' if ready else 'not complete'}: {' + '.join(tier.parts)}"
    if place(card, tier):
        return "ready"
    if card.made_here(tier):
        return f"python -m experiments collect {card.family} --tiers {tier.name}"
    if card.kind == "minari":
        return f"minari download {tier.name}"
    if not card.sources:
        return f"put the file in {data_home() / card.family}"
    return "fetched when first used"


def line(finding: Finding) -> Text:
    share = f" ({finding.share:.2%} of the rows)" if finding.share else ""
    severity = (finding.severity, COLOURS[finding.severity])
    return Text.assemble(severity, f": {finding.message}{share}")


def coverage_lines(dataset: Dataset, coverage: dict[str, Any]) -> list[str]:
    """What the logged actions cover, for people."""
    names = dataset.spec.action_names
    if dataset.spec.discrete:
        shares = coverage["shares"]
        labels = names or tuple(map(str, range(len(shares))))
        parts = [f"{name} {share:.1%}" for name, share in zip(labels, shares, strict=True)]
        first = "actions: " + ", ".join(parts[:20])
    else:
        labels = names or tuple(f"action[{i}]" for i in range(dataset.spec.action_dim))
        spans = zip(labels, coverage["low"], coverage["high"], coverage["std"], strict=True)
        parts = [f"{n} {a:.4g} to {b:.4g} (standard deviation {s:.3g})" for n, a, b, s in spans]
        first = "actions: " + ", ".join(parts[:20])
    text = (
        f"among the {coverage['neighbours']} nearest observations, actions vary by "
        f"{coverage['local_spread']:.0%} of their spread over the whole log: "
    )
    if coverage["local_spread"] < 0.1:
        text += "hardly anything says what another action would have done"
    elif coverage["local_spread"] < 0.4:
        text += "some alternatives to the logged action were tried"
    else:
        text += "alternatives to the logged action were tried"
    return [first, text]


def summary(data: Dataset, console: Console) -> None:
    rows = data.transitions
    returns = rows.returns()
    terminated = int(rows.terminated.sum())
    console.print(
        f"{data.provenance.card}: {len(rows):,} transitions, {len(returns):,} episodes, "
        f"{terminated:,} terminated, {len(returns) - terminated:,} truncated only"
    )
    text = f"returns {returns.min():.4g} to {returns.max():.4g}, mean {returns.mean():.4g}"
    if data.spec.reference_returns is not None:
        text += f", mean score {float(data.spec.score(returns).mean()):.1f}"
    console.print(text)
