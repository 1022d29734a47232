"""`load` gives a verified `Dataset` by name or path; `check` lists everything that is wrong with
one instead of stopping at the first problem."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mbrl.data.assemble import build
from mbrl.data.cards import Card, Tier, all_cards, find_tier
from mbrl.data.checks import inspect
from mbrl.data.columns import Columns, Options, from_named
from mbrl.data.issues import Finding, error
from mbrl.data.locate import local_file
from mbrl.data.readers.compact import is_compact, read_compact
from mbrl.data.readers.files import SUFFIXES, file_hash, read_file
from mbrl.data.readers.minari import read_minari, read_minari_folder
from mbrl.data.readers.named import Source, checksum_findings
from mbrl.data.readers.published import read_d4rl, read_neorl, read_neorl2
from mbrl.data.task_spec import given_spec
from mbrl.errors import ConfigError, DataError
from mbrl.types import Dataset, Provenance, Transitions

READERS = {"d4rl": read_d4rl, "neorl": read_neorl, "neorl2": read_neorl2}


def load(name: str | Path, **options: Any) -> Dataset:
    """The dataset called `name` (`pendulum/medium`, `d4rl/hopper-medium-v2`, ...) or in the file
    `name` (npz, hdf5, csv, parquet). `options` are the fields of `Options`."""
    chosen = Options.of(options)
    parts = [_finish(source) for source in _sources(str(name), chosen)]
    return parts[0] if len(parts) == 1 else concatenate(parts, str(name))


def check(name: str | Path, **options: Any) -> list[Finding]:
    """Every finding about a dataset or file, errors first; an empty list means all is well."""
    findings: list[Finding] = []
    try:
        # a differing checksum is one finding among the others here, not a reason to stop
        sources = _sources(str(name), Options.of(options), collect=True)
        for source in sources:
            findings += source.findings
            findings += inspect(source.columns, source.spec, source.options).findings
    except (DataError, ConfigError) as problem:
        findings.append(error(str(problem)))
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(findings, key=lambda finding: order[finding.severity])


def _finish(source: Source) -> Dataset:
    notes = tuple(f.message for f in source.findings)
    provenance = replace(source.provenance, notes=(*source.provenance.notes, *notes))
    return build(source.columns, source.spec, source.options, provenance)


def _sources(name: str, options: Options, collect: bool = False) -> list[Source]:
    path = Path(name).expanduser()
    if path.suffix.lower() in SUFFIXES and (path.is_file() or not _is_card_name(name)):
        return [_file_source(path, options)]
    folder = next((p for p in (path, path / "data") if (p / "metadata.json").is_file()), None)
    if folder is not None:
        return [read_minari_folder(folder, str(path), options)]
    if not _is_card_name(name):
        raise ConfigError(
            f"{name!r} is neither a file ({', '.join(SUFFIXES)}) nor a dataset: families are "
            f"{', '.join(sorted(all_cards()))}, named as family/dataset"
        )
    if name.startswith("minari/"):  # any id on this machine is read, listed in the card or not
        return [read_minari(name.removeprefix("minari/"), options)]
    card, tier = find_tier(name)
    if tier.missing is not None:
        raise DataError(f"{name} does not exist: {tier.missing}")
    if tier.parts:
        return [
            s for part in tier.parts for s in _sources(f"{card.family}/{part}", options, collect)
        ]
    if card.kind == "local":
        return [_local_source(card, tier, options)]
    return [READERS[card.kind](card, tier, options, collect)]


def is_dataset_name(name: str) -> bool:
    """Whether `name` can be a dataset: of a known family, a file of a known kind, a folder."""
    return _is_card_name(name) or Path(name).suffix.lower() in SUFFIXES or Path(name).exists()


def _is_card_name(name: str) -> bool:
    return name.partition("/")[0] in all_cards()


def _file_source(path: Path, options: Options) -> Source:
    arrays = read_file(path)
    provenance = Provenance(card=str(path), sha256=file_hash(path))
    spec = given_spec(options)
    if is_compact(arrays):
        columns, stored, origin = read_compact(arrays, str(path))
        origin = replace(origin, sha256=provenance.sha256)
        return Source(columns, spec or stored, origin, options)
    return Source(_named(arrays, path), spec, provenance, options)


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
    rows = [part.transitions for part in parts]
    values: dict[str, Any] = {}
    for column in Transitions.__dataclass_fields__:
        present = [getattr(r, column) for r in rows if getattr(r, column) is not None]
        values[column] = torch.cat(present) if len(present) == len(rows) else None
    joined = Transitions(**values)
    hashes = "+".join(str(part.provenance.sha256) for part in parts)
    provenance = replace(
        parts[0].provenance,
        card=name,
        sha256=hashes,
        version=max(part.provenance.version for part in parts),
        notes=tuple(dict.fromkeys(n for part in parts for n in part.provenance.notes)),
    )
    return Dataset(joined, parts[0].spec, provenance)
