"""Files that need not fit into memory: rows of fixed width that are mapped, not read. A dataset of
such a file holds pages that the system gives back whenever it needs the memory.

The bytes: `MAGIC`, the length of the description (8 bytes, little-endian), the description (JSON:
format, version, spec, provenance, fields), zeros up to a multiple of 4096, the rows, all
`terminated` flags, all `truncated` flags. A row is the C struct of its fields, padded to its
alignment.
"""

import json
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from mbrl.data.readers.files import MAPPED, require_file
from mbrl.errors import DataError
from mbrl.files import replacing
from mbrl.types import Dataset, Provenance, Spec, Transitions

MAGIC = b"LRROWS1\n"
FORMAT, VERSION = "longreach-rows", 1
PAGE = 4096
FLAGS = ("terminated", "truncated")  # which lie behind the rows
COLUMNS = set(Transitions.__dataclass_fields__) - {*FLAGS}


def save_rows(parts: Dataset | Iterable[Dataset], path: str | Path) -> Path:
    """Write a dataset, or one that comes in parts of whole episodes, to `path`, which a crash
    leaves as it was; only one part is in memory at a time, and two bytes for every row.

    The first part says which task and which columns there are. Values come back as they were:
    float32, int64 actions, flags, and states as they are. Raises `DataError` for parts that differ
    in task or columns, that end inside an episode or hold values that are not finite, and where
    there are no rows.
    """
    path = Path(path)
    if path.suffix.lower() != MAPPED:
        raise DataError(f"{path}: a file of mapped rows has a name that ends in {MAPPED}")
    flags: dict[str, list[np.ndarray]] = {name: [] for name in FLAGS}
    kind, first = np.dtype([]), None
    with replacing(path) as file:
        for part in parts_of(parts) if isinstance(parts, Dataset) else parts:
            rows = part.transitions
            if first is None:
                first, kind = part, _row_type(rows)
                _write_head(file, part, kind)
            _require_like(part, first, _row_type(rows), kind, path)
            table = np.zeros(len(rows), kind)
            for name in kind.names or ():
                table[name] = getattr(rows, name).detach().cpu().numpy()
            file.write(table.tobytes())
            for name in FLAGS:
                flags[name].append(getattr(rows, name).cpu().numpy())
        if first is None:
            raise DataError(f"nothing to save to {path}: there are no rows")
        for name in FLAGS:
            for values in flags[name]:
                file.write(values.tobytes())
    return path


def _row_type(rows: Transitions) -> np.dtype:
    """The struct of a row: every column that the data have, but the flags of ends."""
    fields: list[Any] = []
    for name in rows.__dataclass_fields__:
        value = getattr(rows, name)
        if value is not None and name not in FLAGS:
            fields.append((name, value[:0].cpu().numpy().dtype, tuple(value.shape[1:])))
    return np.dtype(fields, align=True)


def _write_head(file: BinaryIO, dataset: Dataset, kind: np.dtype) -> None:
    fields = [(name, field[0].base.str, field[0].shape) for name, field in _fields(kind).items()]
    head = {
        "format": FORMAT,
        "version": VERSION,
        "spec": dataset.spec.to_dict(),
        "provenance": dataset.provenance.to_dict(),
        "fields": fields,
    }
    text = json.dumps(head).encode()
    size = len(MAGIC) + 8 + len(text)
    file.write(MAGIC + len(text).to_bytes(8, "little") + text + bytes(-size % PAGE))


def _fields(kind: np.dtype) -> dict[str, Any]:
    return {name: kind.fields[name] for name in kind.names or () if kind.fields is not None}


def _require_like(part: Dataset, first: Dataset, own: np.dtype, kind: np.dtype, path: Path) -> None:
    rows, name = part.transitions, part.provenance.card
    if own != kind or part.spec != first.spec:
        raise DataError(
            f"{path}: a part ({name}) differs in its task or columns from the first one: "
            f"{part.spec.task!r} with {own}, where that has {first.spec.task!r} with {kind}"
        )
    if len(rows) == 0 or not bool(rows.ends[-1]):
        raise DataError(
            f"{path}: a part ({name}) has no rows or ends inside an episode; give whole episodes, "
            "the last row of each with terminated or truncated"
        )
    for field in ("obs", "action", "reward", "next_obs"):
        if not bool(torch.isfinite(getattr(rows, field)).all()):
            raise DataError(f"{path}: {field} of a part ({name}) has values that are not finite")


def read_rows(path: Path, spec: Spec | None = None) -> Dataset:
    """The dataset of a file that `save_rows` wrote, its values mapped: read-only, and in memory
    only while they are used. `spec` replaces the one in the file. Raises `DataError` for a file
    that is damaged or of a later version; values are not looked at (`check` does)."""
    head, start = _head(path)
    kind = head["kind"]
    count, rest = divmod(path.stat().st_size - start, kind.itemsize + len(FLAGS))
    if count < 1 or rest:
        raise DataError(
            f"{path} is cut off or damaged: {path.stat().st_size} bytes are not {start} and a "
            f"number of rows of {kind.itemsize + len(FLAGS)} each. Write it again"
        )
    table = np.memmap(path, kind, "r", start, (count,))
    columns: dict[str, Any] = {name: table[name] for name in kind.names}
    for place, name in enumerate(FLAGS):
        begin = start + count * (kind.itemsize + place)
        columns[name] = np.memmap(path, np.bool_, "r", begin, (count,))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")  # nor does anyone write
        rows = Transitions(**{name: torch.from_numpy(array) for name, array in columns.items()})
    origin = head["provenance"]
    origin |= {"card": str(path), "notes": tuple(origin.get("notes", ()))}
    stored = Spec.from_dict(head["spec"])
    own = spec or stored
    sizes = [(s.obs_dim, s.action_dim, s.num_actions) for s in (own, stored)]
    fewer = (own.num_actions or 0) < (stored.num_actions or 0)
    if sizes[0][:2] != sizes[1][:2] or own.discrete != stored.discrete or fewer:
        raise DataError(
            f"{path}: it has (obs_dim, action_dim, num_actions) {sizes[1]}, task {own.task!r} has "
            f"{sizes[0]}"
        )
    return Dataset(rows, own, Provenance(**origin))


def _head(path: Path) -> tuple[dict[str, Any], int]:
    """The description of a file, and where its rows begin."""
    require_file(path)
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise DataError(f"{path} is not a file of mapped rows (its first bytes say so)")
            size = int.from_bytes(file.read(8), "little")
            if size > path.stat().st_size:
                raise DataError(f"{path} is cut off inside its description; write it again")
            head = json.loads(file.read(size))
        if head["format"] != FORMAT or head["version"] > VERSION:
            raise DataError(
                f"{path}: format {head['format']!r} version {head['version']}; this release reads "
                f"{FORMAT!r} up to version {VERSION}"
            )
        kind = np.dtype([(n, t, tuple(s)) for n, t, s in head["fields"]], align=True)
        names = set(kind.names or ())
        if kind.hasobject or not {"obs", "action", "reward", "next_obs"} <= names <= COLUMNS:
            raise DataError(f"{path}: its fields are {kind}, which no dataset has")
        head["kind"] = kind
    except (ValueError, KeyError, TypeError) as problem:
        raise DataError(f"{path}: its description cannot be read: {problem}") from problem
    used = len(MAGIC) + 8 + size
    return head, used + -used % PAGE


def parts_of(dataset: Dataset, size: int = 1 << 18) -> Iterator[Dataset]:
    """The dataset in parts of whole episodes, of `size` rows at least each but the last."""
    rows, begin = dataset.transitions, 0
    for _, stop in rows.episodes():
        if stop - begin >= size or stop == len(rows):
            yield dataset.with_transitions(rows.select(slice(begin, stop)))
            begin = stop
