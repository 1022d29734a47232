"""The verb `data`: list, describe, check, fetch and import datasets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as Speed
from rich.table import Table

from experiments.reports.grid import grid
from mbrl.data import Finding, check, data_home, load, save_npz
from mbrl.data.cards import Card, Tier, all_cards, find_card, find_tier
from mbrl.data.locate import find_file, homes, local_file
from mbrl.errors import DataError
from mbrl.types import Dataset

COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}


@dataclass(frozen=True)
class DataList:
    """List the datasets, and which of them are on this machine."""

    family: tyro.conf.Positional[str | None] = None
    """One family (pendulum, d4rl, ...), with all its datasets; by default an overview of all."""

    def main(self) -> int:
        list_datasets(self.family)
        return 0


@dataclass(frozen=True)
class DataInfo:
    """Print the card of a dataset: task, scores, licence, addresses, files."""

    name: tyro.conf.Positional[str]
    """A dataset such as pendulum/medium or d4rl/hopper-medium-v2."""

    def main(self) -> int:
        info(self.name)
        return 0


@dataclass(frozen=True)
class DataCheck:
    """List every problem of a dataset or file; exit status 1 if it cannot be used."""

    name: tyro.conf.Positional[str]
    """A dataset, or a path to an npz, hdf5, csv or parquet file."""
    task: str | None = None
    """The task a bare file belongs to, e.g. Pendulum-v1; gives its sizes and bounds."""
    horizon: int | None = None
    """The step limit of the task, where no card or task gives it."""
    done_means: Literal["terminated", "by-length"] | None = None
    """What a merged `done` is: terminations only, or split by the length of the episode."""

    def main(self) -> int:
        options: dict[str, Any] = {
            "spec": self.task,
            "horizon": self.horizon,
            "done_means": self.done_means,
        }
        return check_dataset(self.name, **options)


@dataclass(frozen=True)
class DataFetch:
    """Download a published dataset, verify it, and print the path of its file."""

    name: tyro.conf.Positional[str]
    """A dataset such as d4rl/hopper-medium-v2."""
    trajectories: int | None = None
    """NeoRL: how many trajectories (up to 10000; 1000 by default). NeoRL-2: only the first ones."""
    split: Literal["train", "val"] = "train"
    """NeoRL and NeoRL-2: training or validation data."""

    def main(self) -> int:
        fetch(self.name, trajectories=self.trajectories, split=self.split)
        return 0


@dataclass(frozen=True)
class DataImport:
    """Verify a file of your own and write it in this library's compact format."""

    source: tyro.conf.Positional[str]
    """An npz, hdf5, csv or parquet file, or a Minari folder."""
    out: Path | None = None
    """The file to write; by default <data folder>/imported/<name of the source>.npz."""
    task: str | None = None
    """The task it belongs to, e.g. Pendulum-v1; otherwise sizes are read from the data."""
    horizon: int | None = None
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

    def main(self) -> int:
        options: dict[str, Any] = {
            "spec": self.task,
            "horizon": self.horizon,
            "done_means": self.done_means,
            "discrete": self.discrete,
            "action_low": self.action_low,
            "action_high": self.action_high,
            "clip_actions": self.clip_actions,
            "boundaries": self.boundaries,
        }
        import_file(self.source, self.out, **options)
        return 0


DataCommand = (
    Annotated[DataList, tyro.conf.subcommand("list")]
    | Annotated[DataInfo, tyro.conf.subcommand("info")]
    | Annotated[DataCheck, tyro.conf.subcommand("check")]
    | Annotated[DataFetch, tyro.conf.subcommand("fetch")]
    | Annotated[DataImport, tyro.conf.subcommand("import")]
)


def main(arguments: list[str]) -> int:
    command: Any = tyro.cli(
        DataCommand,
        args=arguments,
        prog="python -m experiments data",
        description="List, describe, check, download or import datasets.",
    )
    return int(command.main())


def place(card: Card, tier: Tier, split: str = "train") -> Path | None:
    """The file of a tier on this machine; None if it is not here."""
    try:
        if card.kind == "local":
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
    if card.kind == "local":
        return f"python -m experiments collect {card.family} --tiers {tier.name}"
    if card.kind == "minari":
        return f"minari download {tier.name}"
    return "fetched when first used"


def list_datasets(family: str | None = None, console: Console | None = None) -> None:
    """Print the families, or all datasets of one."""
    console = console or Console()
    if family is not None:
        card = find_card(family)
        table = grid("dataset", "on this machine", title=escape(card.title))
        for tier in card.tiers.values():
            table.add_row(f"{card.family}/{tier.name}", escape(status(card, tier)))
        console.print(table)
        return
    table = grid("family", "what it is", "datasets", "on this machine", title="datasets")
    for card in all_cards().values():
        tiers = [t for t in card.tiers.values() if t.missing is None]
        ready = [t.name for t in tiers if status(card, t).startswith("ready")]
        table.add_row(card.family, escape(card.title), str(len(tiers)), ", ".join(ready) or "-")
    console.print(table)
    console.print(
        "python -m experiments data list FAMILY names every dataset of a family and how to get it."
    )


def info(name: str, console: Console | None = None) -> None:
    """Print what the card says of a dataset."""
    console = console or Console()
    card, tier = find_tier(name)
    environment = card.environment(tier)
    actions = (
        f"{environment.num_actions} discrete"
        if environment.num_actions
        else f"{environment.action_dim} in {environment.action_low} to {environment.action_high}"
    )
    options = f", with {environment.task_options}" if environment.task_options else ""
    scores = tier.reference_returns or environment.reference_returns
    known = card.checksum(tier, str(tier.file))
    rows = {
        "family": f"{card.title}. {card.about}",
        "about": tier.about,
        "evaluated in": f"{environment.task or 'no task here'}{options}: {environment.task_reason}",
        "limit": f"{environment.horizon} steps",
        "observations": str(environment.obs_dim),
        "actions": actions,
        "score 0 and 100": f"returns {scores}; {environment.reference_origin}",
        "licence": f"{card.licence}{f' ({card.licence_note})' if card.licence_note else ''}",
        "addresses": "\n".join(f"{base}/{tier.file}" for base in card.sources),
        "size": f"{tier.size:,} bytes" if tier.size else "",
        "checksum": f"{known.kind} {known.value}" if known else "",
        "here": str(place(card, tier) or status(card, tier)),
    }
    if card.kind == "minari":  # the card knows no sizes: the metadata of each dataset does
        for key in ("limit", "observations", "actions", "score 0 and 100"):
            rows.pop(key)
    table = Table(show_header=False, title=escape(name))
    for key, value in rows.items():
        if value:
            table.add_row(key, escape(value))
    console.print(table)


def check_dataset(name: str, console: Console | None = None, **options: Any) -> int:
    """Print every finding and a summary; 1 if the dataset cannot be used."""
    console = console or Console()
    findings = check(name, **options)
    for finding in findings:
        console.print(line(finding))
    if any(finding.severity == "error" for finding in findings):
        return 1
    summary(load(name, **options), console)
    return 0


def line(finding: Finding) -> str:
    share = f" ({finding.share:.2%} of the rows)" if finding.share else ""
    colour = COLOURS[finding.severity]
    return f"[{colour}]{finding.severity}[/]: {escape(finding.message)}{share}"


def summary(data: Dataset, console: Console) -> None:
    rows = data.transitions
    returns = rows.returns()
    terminated = int(rows.terminated.sum())
    console.print(
        f"{escape(data.provenance.card)}: {len(rows):,} transitions, {len(returns):,} episodes, "
        f"{terminated:,} terminated, {len(returns) - terminated:,} truncated only"
    )
    text = f"returns {returns.min():.4g} to {returns.max():.4g}, mean {returns.mean():.4g}"
    if data.spec.reference_returns is not None:
        text += f", mean score {float(data.spec.score(returns).mean()):.1f}"
    console.print(text)


def fetch(name: str, console: Console | None = None, **options: Any) -> None:
    """Download (with a progress bar), verify, and print a summary."""
    console = console or Console()
    columns = ("[progress.description]{task.description}", BarColumn(), DownloadColumn())
    with Progress(*columns, Speed(), TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task(escape(name), total=None, visible=False)

        def advance(done: int, total: int | None) -> None:
            progress.update(bar, completed=done, total=total, visible=True)

        data = load(name, progress=advance, **options)
    summary(data, console)
    if not name.startswith("minari/"):
        console.print(f"file: {place(*find_tier(name), str(options.get('split', 'train')))}")


def import_file(
    source: str, out: Path | None = None, console: Console | None = None, **options: Any
) -> Path:
    """Verify `source` and write it in the compact format; the path written."""
    console = console or Console()
    data = load(source, **options)
    target = out or data_home() / "imported" / f"{Path(source).stem}.npz"
    if target.suffix != ".npz":
        raise DataError(f"--out {target}: the compact format is an npz file; end the name in .npz")
    save_npz(data, target)
    for text in data.provenance.notes:
        console.print(f"[dim]note[/]: {escape(text)}")
    summary(data, console)
    console.print(f"written to {target}; use that path wherever a dataset is named")
    return target
