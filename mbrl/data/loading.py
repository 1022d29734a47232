"""`load` gives a verified `Dataset` by name or path; `check` lists everything that is wrong with
one instead of stopping at the first problem."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mbrl import config as configs
from mbrl.data.assemble import build
from mbrl.data.cards import Card, Tier, all_cards, find_tier
from mbrl.data.checks import inspect
from mbrl.data.columns import ALIASES, Columns, Options, from_named
from mbrl.data.issues import Finding, error, has_error, raise_errors
from mbrl.data.locate import local_file
from mbrl.data.logs.reader import read_log
from mbrl.data.logs.schema import LogSchema
from mbrl.data.logs.table import Table, table_of
from mbrl.data.readers.compact import is_compact, read_compact
from mbrl.data.readers.files import MAPPED, SUFFIXES, file_hash, read_file, read_table
from mbrl.data.readers.layouts import read_layout
from mbrl.data.readers.mapped import parts_of, read_rows
from mbrl.data.readers.minari import read_minari, read_minari_folder
from mbrl.data.readers.named import Source, checksum_findings
from mbrl.data.readers.ogbench import goal_spec, is_goal_file, read_ogbench
from mbrl.data.readers.published import read_d4rl, read_neorl, read_neorl2
from mbrl.data.task_spec import given_spec
from mbrl.errors import ConfigError, DataError
from mbrl.types import Dataset, Provenance, Spec, Transitions

LISTS = ("obs", "action", "next_obs", "categorical", "units")
READERS = {
    "d4rl": read_d4rl,
    "recorded": read_d4rl,
    "neorl": read_neorl,
    "neorl2": read_neorl2,
    "ogbench": read_ogbench,
}
PARTS = {  # options that take a part of the data, by the kind of card
    "neorl": ("split", "trajectories"),
    "neorl2": ("split", "trajectories"),
    "ogbench": ("split",),
}


def load(name: str | Path, **options: Any) -> Dataset:
    """The dataset called `name` (`pendulum/medium`, `d4rl/hopper-medium-v2`, ...) or in the file
    `name` (npz, hdf5, csv, parquet, or rows, which are mapped and not read into memory). `options`
    are the fields of `Options`."""
    chosen, path = Options.of(options), Path(name).expanduser()
    if path.suffix.lower() == MAPPED:
        return read_rows(path, mapped_spec(path, chosen))
    parts = [finish(source, owned=True) for source in _sources(str(name), chosen)]
    return parts[0] if len(parts) == 1 else concatenate(parts, str(name))


def check(name: str | Path, **options: Any) -> list[Finding]:
    """Every finding about a dataset or file, errors first; an empty list means all is well."""
    findings: list[Finding] = []
    path = Path(name).expanduser()
    try:
        if path.suffix.lower() == MAPPED:
            return check_rows(load(path, **options))
        # a differing checksum is one finding among the others here, not a reason to stop
        sources = _sources(str(name), Options.of(options), collect=True)
        for source in sources:
            findings += source.findings
            if source.columns.obs is not None or not has_error(source.findings):
                findings += inspect(source.columns, source.spec, source.options).findings
    except (DataError, ConfigError) as problem:
        findings.append(error(str(problem)))
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(findings, key=lambda finding: order[finding.severity])


def mapped_spec(path: Path, options: Options) -> Spec | None:
    """The spec that `options` give for a file of mapped rows. Raises `ConfigError` for options that
    would change its rows."""
    other = [
        f.name
        for f in fields(Options)
        if f.name not in ("spec", "progress", "download", "verify")
        and getattr(options, f.name) != f.default
    ]
    if other:
        raise ConfigError(
            f"{path} is mapped as it is; leave out {', '.join(other)}, or give them where the file "
            "is made (`data import`)"
        )
    return given_spec(options)


def check_rows(dataset: Dataset) -> list[Finding]:
    """Findings about mapped rows, a part after the other, as far as the first with an error."""
    findings: list[Finding] = []
    begin = 0
    for part in parts_of(dataset):
        rows = part.transitions
        names = [n for n in ALIASES if getattr(rows, n, None) is not None]
        columns = Columns(**{n: getattr(rows, n).numpy() for n in names})
        where = f"of rows {begin} to {begin + len(part) - 1}, from 0: "
        own = inspect(columns, part.spec, Options()).findings
        findings += [replace(f, message=where + f.message) for f in own]
        if has_error(own):
            break
        begin += len(part)
    return findings


def finish(source: Source, *, owned: bool = False) -> Dataset:
    """What was read as a dataset, which keeps its arrays where they are `owned` by nobody else.
    Raises `DataError` with everything that is wrong."""
    raise_errors(source.findings, source.provenance.card)
    notes = tuple(f.message for f in source.findings)
    provenance = replace(source.provenance, notes=(*source.provenance.notes, *notes))
    return build(source.columns, source.spec, source.options, provenance, owned=owned)


def _sources(name: str, options: Options, collect: bool = False) -> list[Source]:
    path = Path(name).expanduser()
    if path.suffix.lower() in SUFFIXES and (path.is_file() or not _is_card_name(name)):
        _require_parts(name, "", options)
        return [_file_source(path, options)]
    folder = next((p for p in (path, path / "data") if (p / "metadata.json").is_file()), None)
    if folder is not None:
        _require_parts(name, "", options)
        return [read_minari_folder(folder, str(path), options)]
    if not _is_card_name(name):
        raise ConfigError(
            f"{name!r} is neither a file ({', '.join(SUFFIXES)}) nor a dataset: families are "
            f"{', '.join(sorted(all_cards()))}, named as family/dataset"
        )
    _require_parts(name, all_cards()[name.partition("/")[0]].kind, options)
    if name.startswith("minari/"):  # any id on this machine is read, listed in the card or not
        return [read_minari(name.removeprefix("minari/"), options)]
    card, tier = find_tier(name)
    if tier.missing is not None:
        raise DataError(f"{name} does not exist: {tier.missing}")
    if tier.parts:
        return [
            s for part in tier.parts for s in _sources(f"{card.family}/{part}", options, collect)
        ]
    if card.made_here(tier):
        return [_local_source(card, tier, options)]
    return [READERS[card.kind](card, tier, options, collect)]


def _require_parts(name: str, kind: str, options: Options) -> None:
    """Raise `ConfigError` where `options` ask for a part of data that have none."""
    for option, value in (("split", "train"), ("trajectories", None)):
        given = getattr(options, option)
        if given != value and option not in PARTS.get(kind, ()):
            of = ", ".join(k for k, names in PARTS.items() if option in names)
            raise ConfigError(
                f"{option} is {given!r}, and {name} has no such parts; it is an option of {of}. "
                "Leave it out, and name the dataset or file that holds what you want"
            )


def require(name: str) -> None:
    """Raise `ConfigError` or `DataError` unless `name` is a file that is there, or a dataset that
    has a card."""
    path = Path(name).expanduser()
    if path.suffix.lower() not in SUFFIXES:
        find_tier(name)
    elif not path.is_file():
        raise DataError(f"{name} does not exist")


def recipe_version(name: str) -> int:
    """Of the card of a dataset; 1 for a file."""
    return 1 if Path(name).suffix.lower() in SUFFIXES else find_tier(name)[0].recipe_version


def is_dataset_name(name: str) -> bool:
    """Whether `name` can be a dataset: of a known family, a file of a known kind, a folder."""
    return _is_card_name(name) or Path(name).suffix.lower() in SUFFIXES or Path(name).exists()


def _is_card_name(name: str) -> bool:
    return name.partition("/")[0] in all_cards()


def log_source(
    table: Table, options: Options, provenance: Provenance, known: dict[str, Any] | None = None
) -> Source:
    """A table of a user's own, read as `options.log` says; `known` is the `Provenance.log` of an
    earlier one whose encoding it shares."""
    log = read_log(table, options.log or LogSchema(), options, known)
    provenance = replace(provenance, log=log.description or None)
    columns = log.columns or Columns()
    return Source(columns, log.spec, provenance, options, tuple(log.findings))


def from_log(source: Any, *, provenance: Provenance | None = None, **options: Any) -> Dataset:
    """A `Dataset` from a log of any column names: a CSV or Parquet file, a data frame (pandas,
    polars), or a mapping of arrays [N].

    The fields of `LogSchema` (`obs`, `action`, `reward`, `episode`, `order`, ...) say which columns
    are what, further `options` are those of `load`. Raises `DataError` with everything that is
    wrong.
    """
    names = {f.name for f in fields(LogSchema)}
    wanted = {k: (v,) if k in LISTS and isinstance(v, str) else v for k, v in options.items()}
    schema = configs.from_dict(LogSchema, {k: v for k, v in wanted.items() if k in names})
    chosen = Options.of({k: v for k, v in options.items() if k not in names} | {"log": schema})
    if isinstance(source, str | Path):
        return finish(_file_source(Path(source).expanduser(), chosen))
    return finish(log_source(table_of(source), chosen, provenance or Provenance(card="table")))


def _file_source(path: Path, options: Options) -> Source:
    if options.log is not None and options.log.given:
        table = read_table(path)
        return log_source(table, options, Provenance(card=str(path), sha256=file_hash(path)))
    arrays = read_file(path)
    provenance = Provenance(card=str(path), sha256=file_hash(path))
    spec = given_spec(options)
    if is_compact(arrays):
        columns, stored, origin = read_compact(arrays, str(path))
        origin = replace(origin, sha256=provenance.sha256)
        return Source(columns, spec or stored, origin, options)
    columns = read_layout(path, arrays) or _named(arrays, path)
    if spec is None and is_goal_file(arrays):
        spec = goal_spec(path.stem.removesuffix("-val"), columns)
    return Source(columns, spec, provenance, options)


def _named(arrays: dict[str, np.ndarray], path: Path) -> Columns:
    try:
        return from_named(arrays)
    except DataError as problem:
        raise DataError(f"{path}: {problem}") from problem


def _local_source(card: Card, tier: Tier, options: Options) -> Source:
    path = local_file(card, tier)
    arrays = read_file(path)
    if not is_compact(arrays):
        raise DataError(f"{path} is not a file of this library; collect {card.family} again")
    columns, _, origin = read_compact(arrays, str(path))
    digest = file_hash(path)
    # another processor or simulator version may record other numbers: worth a note, not an error
    findings = checksum_findings(path, card.checksum(tier, path.name), digest, strict=False)
    provenance = Provenance(
        card=f"{card.family}/{tier.name}",
        version=origin.version,
        sha256=digest,
        licence=card.licence,
        recipe=origin.recipe,
        notes=origin.notes,
    )
    return Source(columns, given_spec(options) or card.spec(tier), provenance, options, findings)


def concatenate(parts: list[Dataset], name: str) -> Dataset:
    """One dataset from several of one task, in order."""
    joined = joined_rows([part.transitions for part in parts])
    hashes = "+".join(str(part.provenance.sha256) for part in parts)
    provenance = replace(
        parts[0].provenance,
        card=name,
        sha256=hashes,
        version=max(part.provenance.version for part in parts),
        notes=tuple(dict.fromkeys(n for part in parts for n in part.provenance.notes)),
    )
    return Dataset(joined, parts[0].spec, provenance)


def joined_rows(parts: list[Transitions]) -> Transitions:
    """The rows of all `parts`, in order, with the columns that each of them has."""
    values: dict[str, torch.Tensor] = {}
    for field in Transitions.__dataclass_fields__:
        columns = [getattr(part, field) for part in parts]
        if all(column is not None for column in columns):
            values[field] = torch.cat(columns)
    return Transitions(**values)
