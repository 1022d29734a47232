"""Datasets to files that other programs read: Minari, npz, CSV, parquet. What is written is read
back bit for bit; what a format has no place for is refused."""

import csv
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mbrl.data.columns import ALIASES
from mbrl.data.readers.compact import refuse_weights, save_npz
from mbrl.data.readers.mapped import save_rows
from mbrl.errors import ConfigError, DataError, install_command, unknown_name
from mbrl.files import replacing
from mbrl.types import Dataset, Spec

NOT_IN_TABLES = ("action_mask", "next_action_mask")
NOT_IN_MINARI = (
    "duration", "behaviour_prob", "expert", "segment", "state", "action_mask", "next_action_mask",
)  # fmt: skip


def write(dataset: Dataset, path: str | Path, kind: str) -> Path:
    """Write `dataset` as "npz" (this library's, with spec and provenance), "rows" (the same to be
    mapped), "csv", "parquet" (a column a number: obs_0, ..), or "minari" (a folder). Raises
    `ConfigError` where packages are missing, and `DataError` for data that the format cannot hold,
    or a Minari folder that exists."""
    if kind not in WRITERS:
        raise unknown_name("format", kind, WRITERS)
    if len(dataset) == 0:
        raise DataError(f"{dataset.provenance.card} has no rows to write")
    refuse_weights(dataset)
    path = Path(path)
    if kind != "minari" and path.suffix.lower() != f".{kind}":
        raise ConfigError(f"--out {path}: end the name in .{kind}")
    WRITERS[kind](dataset, path)
    return path


def table_of(dataset: Dataset) -> dict[str, np.ndarray]:
    """Columns [N] by the names that `load` reads: obs_0, .., next_obs_0, .., action_0, .. (action,
    where discrete), reward, terminated, truncated, episode, and others that the data have."""
    _refuse(dataset, NOT_IN_TABLES, "a table")
    rows = dataset.transitions
    columns: dict[str, np.ndarray] = {}
    for name in rows.__dataclass_fields__:
        value = getattr(rows, name)
        if value is None:
            continue
        array = value.detach().cpu().numpy()
        named = ALIASES[name][0]
        if array.ndim == 1:
            columns[named] = array
        else:
            columns |= {f"{named}_{i}": array[:, i] for i in range(array.shape[1])}
    spans = rows.episodes()
    columns["episode"] = np.repeat(np.arange(len(spans)), [b - a for a, b in spans])
    return columns


def _refuse(dataset: Dataset, names: tuple[str, ...], what: str) -> None:
    rows = dataset.transitions
    extra = [name for name in names if getattr(rows, name) is not None]
    if extra:
        raise DataError(
            f"{dataset.provenance.card} has {', '.join(extra)}, which {what} has no place for; "
            "--format npz keeps everything"
        )


def _write_csv(dataset: Dataset, path: Path) -> None:
    columns = table_of(dataset)
    # The shortest text from which the same 32-bit number comes back.
    cells = [[_text(cell) for cell in column] for column in columns.values()]
    with replacing(path) as file:
        lines: list[str] = []
        writer = csv.writer(_Lines(lines), lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*cells, strict=True))
        file.write("".join(lines).encode())


class _Lines:
    """What csv writes to: a list."""

    def __init__(self, lines: list[str]) -> None:
        self.write = lines.append


def _text(cell: Any) -> str:
    return str(int(cell)) if cell.dtype.kind in "biu" else str(cell)


def _write_parquet(dataset: Dataset, path: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as problem:
        raise ConfigError(f"parquet needs pyarrow: {install_command('tables')}") from problem
    with replacing(path) as file:
        parquet.write_table(pyarrow.table(table_of(dataset)), file)


def _write_minari(dataset: Dataset, path: Path) -> None:
    """Through Minari's own `create_dataset_from_buffers`, in a folder of its own that then takes
    its place."""
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
    except ImportError as problem:
        raise ConfigError(f"Minari needs its package: {install_command('minari')}") from problem
    _require_minari(dataset, path)
    buffers = [EpisodeBuffer(**episode) for episode in _episodes(dataset)]
    name = re.sub(r"[^A-Za-z0-9]+", "-", path.name).strip("-") or "dataset"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=path.parent))
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(draft)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about fields that only Minari's own server wants
            minari.create_dataset_from_buffers(f"{name}-v0", buffers, **_described(dataset))
        os.replace(draft / f"{name}-v0", path)
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before
        shutil.rmtree(draft, ignore_errors=True)


def _require_minari(dataset: Dataset, path: Path) -> None:
    _refuse(dataset, NOT_IN_MINARI, "Minari")
    rows = dataset.transitions
    if path.exists():
        raise DataError(f"{path} exists; name a folder that does not")
    if rows.next_known is not None and not bool(rows.next_known.all()):
        raise DataError(
            f"{dataset.provenance.card} does not know what its episodes ended in (next_known), and "
            "Minari holds the last observation of every episode; --format npz keeps it so"
        )
    inside = ~rows.ends[:-1]
    if bool(((rows.obs[1:] != rows.next_obs[:-1]).any(1) & inside).any()):
        raise DataError(
            "next_obs is not the next row's obs inside an episode; Minari holds one of them only. "
            "--format csv or parquet keeps both"
        )


def _episodes(dataset: Dataset) -> list[dict[str, np.ndarray]]:
    rows = dataset.transitions.to("cpu")
    return [
        {
            "observations": torch.cat([rows.obs[a:b], rows.next_obs[b - 1 : b]]).numpy(),
            "actions": rows.action[a:b].numpy(),
            "rewards": rows.reward[a:b].numpy(),
            "terminations": rows.terminated[a:b].numpy(),
            "truncations": rows.truncated[a:b].numpy(),
        }
        for a, b in rows.episodes()
    ]


def _described(dataset: Dataset) -> dict[str, Any]:
    """Spaces, and the environment where gymnasium has it."""
    from gymnasium.spaces import Box, Discrete

    spec, origin = dataset.spec, dataset.provenance
    action: Any
    if spec.discrete:
        action = Discrete(int(spec.num_actions or 0))
    else:
        action = Box(*(np.array(v, np.float32) for v in (spec.action_low, spec.action_high)))
    return {
        "env": _environment(spec),
        "observation_space": Box(-np.inf, np.inf, (spec.obs_dim,), np.float32),
        "action_space": action,
        "algorithm_name": origin.recipe,
        "description": f"{origin.card}, version {origin.version}; licence: {origin.licence}",
        "data_format": "hdf5",
    }


def _environment(spec: Spec) -> Any:
    """gymnasium's description of the task with its options; None where gymnasium has it not."""
    import gymnasium

    from mbrl.tasks import randomness

    own = {"categories", *randomness.NAMES}  # options that are this library's
    if spec.task not in gymnasium.registry or own & spec.task_options.keys():
        return None
    options = {k: v for k, v in spec.task_options.items() if k != "max_episode_steps"}
    known = gymnasium.spec(spec.task)
    limit = spec.max_episode_steps or known.max_episode_steps
    return replace(known, kwargs=known.kwargs | options, max_episode_steps=limit)


WRITERS: dict[str, Callable[[Dataset, Path], Any]] = {
    "minari": _write_minari,
    "npz": save_npz,
    "rows": save_rows,
    "csv": _write_csv,
    "parquet": _write_parquet,
}
