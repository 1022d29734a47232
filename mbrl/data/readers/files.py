"""Files to named arrays: npz, HDF5, CSV and parquet. Whatever a broken file makes a library do
comes out as a `DataError` that names the file; nothing is ever unpickled."""

import hashlib
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mbrl.data.columns import ALIASES
from mbrl.data.logs.schema import listing
from mbrl.data.logs.table import (
    Table,
    clean,
    is_missing,
    is_numeric,
    is_whole,
    numbers,
    read_parquet_table,
    read_text_table,
    table_of,
)
from mbrl.errors import ConfigError, DataError, install_command

MAPPED = ".rows"  # of files that are not read but mapped
SUFFIXES = (".npz", ".hdf5", ".h5", ".csv", ".parquet", MAPPED)


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn any failure of a file library into a `DataError`: on damaged bytes they raise a dozen
    kinds (zip, zlib, struct, tokenizer, h5py, arrow), so no list of them would be complete."""
    try:
        yield
    except (DataError, ConfigError):
        raise
    except ModuleNotFoundError as problem:
        raise DataError(
            f"{path}: reading {what} needs {problem.name}; {install_command('tables')}"
        ) from problem
    except Exception as problem:
        first = (str(problem).splitlines() or [type(problem).__name__])[0]
        if "pickle" in first:  # numpy would suggest to load it anyway
            first = "it holds pickled objects, which are never loaded"
        if isinstance(problem, UnicodeDecodeError):
            raise DataError(
                f"{path} is not written in UTF-8 ({first}); save it as UTF-8 and read it again"
            ) from problem
        raise DataError(
            f"{path} is not a readable {what} file ({first}). It may be truncated or of another "
            "kind; fetch or write it again"
        ) from problem


def read_file(path: Path) -> dict[str, np.ndarray]:
    """Named arrays of `path`, by its suffix."""
    require_file(path)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_npz(path)
    if suffix in (".hdf5", ".h5"):
        return read_hdf5(path)
    if suffix == ".csv":
        return read_csv(path)
    if suffix == ".parquet":
        return read_parquet(path)
    if suffix == MAPPED:
        raise DataError(f"{path}: a file of mapped rows is no table; load it by its name alone")
    raise DataError(f"{path}: suffix {suffix!r} is not known; allowed: {', '.join(SUFFIXES)}")


def require_file(path: Path) -> None:
    """Raise `DataError` unless `path` is a file with something in it."""
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file ({', '.join(SUFFIXES)})")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes)")


def read_npz(path: Path) -> dict[str, np.ndarray]:
    with reading(path, "npz"):
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise DataError(f"{path} holds one bare array, not the named arrays of an npz file")
        with loaded:
            return {name: loaded[name] for name in loaded.files}


def read_hdf5(path: Path) -> dict[str, np.ndarray]:
    """Every numeric dataset by its path in the file; scalar and text leaves (D4RL's metadata) are
    left out, `infos/...` too, which the library does not use."""
    import h5py

    arrays: dict[str, np.ndarray] = {}

    def visit(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset) or name.startswith(("metadata/", "infos/")):
            return
        if item.shape == () and "/" not in name and item.dtype.kind not in "biuf":
            return
        arrays[name] = np.asarray(item[()])

    with reading(path, "HDF5"):
        with path.open("rb") as file:
            # h5py's own message for a web page saved under the name of a dataset is obscure
            if file.read(8) != b"\x89HDF\r\n\x1a\n":
                raise DataError(f"{path} is not an HDF5 file (its first bytes say otherwise)")
        with h5py.File(path, "r") as opened:
            require_own(path, opened)
            opened.visititems(visit)
    return arrays


def require_own(path: Path, file: Any) -> None:
    """Raise `DataError` unless all of an open HDF5 file is its own and was written: a link, a
    virtual dataset or external storage can read any file of the machine, and a chunk that nobody
    wrote reads as zeros."""
    import h5py

    todo, seen = [("", file)], set()
    while todo:
        place, group = todo.pop()
        for name in group:
            where = f"{place}{name}"
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise DataError(f"{path}: {where} is a link; copy what it points to into the file")
            item = group[name]
            address = h5py.h5o.get_info(item.id).addr
            if isinstance(item, h5py.Group) and address not in seen:
                seen.add(address)
                todo.append((f"{where}/", item))
            elif isinstance(item, h5py.Dataset):
                _require_stored(path, where, item)


def _require_stored(path: Path, name: str, item: Any) -> None:
    if item.is_virtual or item.external:
        kind = "a virtual dataset" if item.is_virtual else "in external storage"
        raise DataError(f"{path}: {name} is {kind}, values of other files; copy them into this one")
    if not item.size:
        return
    if item.chunks is None:
        written, wanted = int(item.id.get_storage_size() > 0), 1
    else:
        sizes = zip(item.shape, item.chunks, strict=True)
        written, wanted = item.id.get_num_chunks(), math.prod(-(-n // c) for n, c in sizes)
    if written < wanted:
        raise DataError(
            f"{path}: {wanted - written} of {wanted} parts of {name} were never written and would "
            "read as a fill value; write the file again"
        )


def read_table(path: Path) -> Table:
    """The columns of a table by any name, as they are: CSV, parquet, or arrays [N] of npz and
    HDF5."""
    require_file(path)
    suffix = path.suffix.lower()
    with reading(path, "table"):
        if suffix == ".csv":
            return read_text_table(path)
        if suffix == ".parquet":
            return read_parquet_table(path)
        return table_of(read_file(path))


def read_csv(path: Path) -> dict[str, np.ndarray]:
    with reading(path, "CSV"):
        return group_columns(read_text_table(path), str(path))


def read_parquet(path: Path) -> dict[str, np.ndarray]:
    with reading(path, "parquet"):
        return group_columns(read_parquet_table(path, nested=True), str(path))


def _group(column: str) -> tuple[str, int | None] | None:
    """(`obs`, 3) of column `obs_3` or `observations_3`, (`reward`, None) of `reward`; None for a
    column that is not ours."""
    for name, aliases in ALIASES.items():
        if column in aliases:
            return name, None
        for alias in aliases:
            match = re.fullmatch(rf"{alias}_(\d+)", column)
            if match and name in ("obs", "next_obs", "action", "state"):
                return name, int(match[1])
    return None


def group_columns(columns: dict[str, Any], source: str) -> dict[str, np.ndarray]:
    """Arrays from table columns: obs_0, obs_1, ... become obs [N, 2]."""
    groups: dict[str, dict[int | None, np.ndarray]] = {}
    for column, values in columns.items():
        place = _group(str(column))
        if place is not None:
            group = groups.setdefault(place[0], {})
            if place[1] in group:
                raise DataError(f"{source}: two columns hold {place[0]} number {place[1]}")
            group[place[1]] = _parsed(str(column), place[0], np.asarray(values))
    if not groups.keys() >= {"obs", "action"}:
        raise DataError(
            f"{source}: its columns are {listing(map(str, columns)) or 'none'}. Without more, "
            "obs_0, obs_1, .., action_0, .., reward, terminated, truncated, episode are read; name "
            "your own with --obs, --action, --reward, --episode (in Python: from_log(...))"
        )
    arrays = {}
    for name, parts in groups.items():
        if None in parts:
            if len(parts) > 1:
                raise DataError(f"{source}: both {name} and {name}_0.. are there; keep one")
            arrays[ALIASES[name][0]] = _unnest(parts[None])
            continue
        indices = sorted(int(k) for k in parts if k is not None)
        if indices != list(range(len(indices))):
            raise DataError(f"{source}: {name} has columns {indices}; expected 0, 1, 2, ...")
        arrays[ALIASES[name][0]] = np.stack([parts[k] for k in indices], axis=1)
    # the others are handed on, so that a note can name them
    return arrays | {str(c): np.asarray(v) for c, v in columns.items() if _group(str(c)) is None}


def _parsed(column: str, name: str, values: np.ndarray) -> np.ndarray:
    """Text cells of a table as numbers, whole ones as integers; episodes may have any names."""
    if values.dtype == object and len(values) and isinstance(values[0], list | np.ndarray):
        return values
    if values.dtype.kind in "OSUmM":
        values = clean(values)
    missing = is_missing(values)
    if name == "episode" and missing.any():
        row = int(np.argmax(missing))
        raise DataError(f"{column} is missing in row {row}; every row needs its episode")
    if name == "episode" and not is_numeric(values):
        return np.unique(values.astype(str), return_inverse=True)[1]
    if values.dtype.kind not in "OM":
        return values
    parsed = numbers(column, values)
    whole = len(values) and is_whole(values) and not missing.any()
    return parsed.astype(np.int64) if whole else parsed


def _unnest(values: np.ndarray) -> np.ndarray:
    """A column of equal lists (parquet's nested columns) as [N, S]; anything else as it is."""
    if values.dtype == object and len(values) and isinstance(values[0], list | np.ndarray):
        lengths = {np.size(value) for value in values}
        if len(lengths) == 1:
            return np.stack([np.asarray(value) for value in values])
    return values


def file_hash(path: Path, kind: str = "sha256") -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
