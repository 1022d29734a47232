"""Definitions of tables: TOML files in experiments/tables/definitions that list the cells."""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from algorithms import ALGORITHMS
from experiments import studies
from experiments.settings import (
    UntilFlatSettings,
    build_config,
    default_steps,
    for_budget,
    merge,
    preset,
)
from experiments.tables import keys
from experiments.tables.compared import Compared, column_pairs, comparisons
from experiments.tables.keys import FINAL_EPISODES
from mbrl import config as configs
from mbrl.data.cards import cards_dir
from mbrl.data.loading import recipe_version, require
from mbrl.errors import ConfigError, unknown_name
from mbrl.policy_gradient import RECIPES
from mbrl.policy_gradient.schedulers import SCHEDULERS
from mbrl.precision import PRECISIONS, MatmulPrecision

TABLES = Path(__file__).parent / "definitions"


@dataclass(frozen=True)
class Column:
    """An algorithm with settings; in a table of a study, a measured quantity."""

    label: str
    algorithm: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    matmul_precision: MatmulPrecision | None = None  # None: the row's
    eval_stochastic: bool = False  # evaluate sampled actions, not the greedy ones

    @property
    def folder(self) -> str:
        return file_name(self.label.replace("/", "-").replace(" ", "-"))


def file_name(text: str) -> str:
    """`text` as the name of a file or folder: never one above."""
    text = re.sub(r"[\\\x00-\x1f]", "-", text)
    return "-" if text.strip(".") == "" else text


@dataclass(frozen=True)
class Row:
    """A dataset at a budget, or the settings of a study."""

    label: str
    data: str = ""
    steps: int | None = None  # None: the preset's
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None  # that a cell may take, as the table's file states
    final_episodes: int = FINAL_EPISODES  # starts of the last evaluation
    holdout: float = 0.0  # share of the episodes that nothing is learned from
    until_flat: UntilFlatSettings = field(default_factory=UntilFlatSettings)
    matmul_precision: MatmulPrecision = "highest"  # as torch.set_float32_matmul_precision

    @property
    def trained_on(self) -> str:
        """The name of the part of the data that a run learns from."""
        return self.data if self.holdout == 0 else f"{self.data} less {self.holdout:g}"

    @property
    def folder(self) -> str:
        return file_name(re.sub(r"[^A-Za-z0-9._=+@-]+", "-", self.label).strip("-"))


@dataclass(frozen=True)
class Block:
    """Rows that are shown together; with a `study`, calls of it, else runs."""

    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    seeds: tuple[int, ...]
    study: str | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is asked of a study."""
        return tuple(column.label for column in self.columns) if self.study else ()


@dataclass(frozen=True)
class Cell:
    """A job of a table, with its `key` and the `path` of its record relative to the table's
    folder."""

    row: Row
    column: Column
    seed: int
    key: dict[str, Any]
    path: Path

    @property
    def matmul_precision(self) -> MatmulPrecision:
        return self.column.matmul_precision or self.row.matmul_precision

    def folder(self, data_fingerprint: str | None) -> Path:
        """Job folder relative to the table's, unique to the key and the data."""
        text = json.dumps([self.key, data_fingerprint], sort_keys=True)
        return self.path.with_suffix("") / hashlib.sha256(text.encode()).hexdigest()[:10]


@dataclass(frozen=True)
class SweptHyperparameter:
    """One setting, and its value in each column."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    name: str
    title: str
    blocks: tuple[Block, ...]
    note: str = ""
    fqe_steps: int = 0
    published: tuple[str, ...] = ()  # files in datasets/published
    conclusions: tuple[str, ...] = ()  # sentences computed from the records, under the table
    compared: tuple[Compared, ...] = ()  # rows of a study
    compared_columns: tuple[tuple[str, str], ...] = ()  # of runs, each with another
    reference: str | None = None  # the column that the others are compared with
    swept: SweptHyperparameter | None = None  # of a sweep over one numeric setting
    device: str = "cpu"  # where its runs train; not part of what a cell is known by

    @property
    def studies_only(self) -> bool:
        """Whether all blocks are of studies, so that no number is a score."""
        return all(block.study is not None for block in self.blocks)

    def cells(self, block: Block) -> Iterator[Cell]:
        """Cells of a block, seed by seed, so that an unfinished table has whole seeds."""
        places = [(row, column) for row in block.rows for column in block.columns]
        of_runs = [] if block.study else [self._key(row, column) for row, column in places]
        for seed in block.seeds:
            if block.study is not None:
                yield from (self._measurement(block.study, row, seed) for row in block.rows)
                continue
            for (row, column), key in zip(places, of_runs, strict=True):
                path = Path(column.folder) / row.folder / f"{seed}.json"
                yield Cell(row, column, seed, key | {"seed": seed}, path)

    def _key(self, row: Row, column: Column) -> dict[str, Any]:
        """What a run is known by, but for its seed."""
        cls, _ = ALGORITHMS[column.algorithm]
        steps = row.steps or default_steps(column.algorithm, row.data)
        key = {
            "algorithm": column.algorithm,
            "version": cls.version,
            "config": configs.to_dict(config_of(column, row.data, steps)),
            "data": row.data,
            "recipe_version": recipe_version(row.data),
            "seed": None,
            "steps": steps,
            "fqe_steps": self.fqe_steps,
            "threads": 1,
        }
        if row.final_episodes != FINAL_EPISODES:
            key["final_episodes"] = row.final_episodes
        if column.eval_stochastic:
            key["eval_stochastic"] = True
        if row.holdout > 0:
            key["holdout"] = row.holdout
        if row.until_flat.every > 0:
            key["until_flat"] = configs.to_dict(row.until_flat)
        key |= objective_version(key["config"]) | scheduler_version(key)
        precision = column.matmul_precision or row.matmul_precision
        if precision != "highest":
            key["matmul_precision"] = precision
        return key

    def _measurement(self, study: str, row: Row, seed: int) -> Cell:
        key = {
            "study": study,
            "version": studies.module(study).VERSION,
            "settings": studies.settings_of(study, row.settings),
            "seed": seed,
            "threads": 1,
        }
        key |= objective_version(key["settings"]) | algorithm_versions(key["settings"])
        key |= scheduler_version(key["settings"])
        if row.matmul_precision != "highest":
            key["matmul_precision"] = row.matmul_precision
        path = Path(study) / row.folder / f"{seed}.json"
        return Cell(row, Column(study), seed, key, path)


def objective_version(settings: dict[str, Any]) -> dict[str, int]:
    """The version of the recipe in `settings` where it is not the first: records of an earlier
    formula are not its own."""
    recipe = RECIPES.get(settings.get("recipe", ""))
    return {} if recipe is None or recipe.version == 1 else {"objective_version": recipe.version}


def scheduler_version(settings: dict[str, Any]) -> dict[str, int]:
    """The version of the scheduler that the `config` in `settings` names, where it is not the
    first."""
    config = settings.get("config")
    entry = SCHEDULERS.get(config.get("scheduler") or "") if isinstance(config, dict) else None
    return {} if entry is None or entry.version == 1 else {"scheduler_version": entry.version}


# Of algorithms that were past the first when studies' keys began to hold versions.
FIRST_VERSIONS = {"lift": 2, "neubay": 3, "policy_gradient": 5, "props": 4}


def algorithm_versions(settings: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The versions of the algorithms that a study's settings name, where a record without them is
    of an earlier one."""
    names = [settings.get("algorithm"), *settings.get("algorithms", ())]
    versions = {n: ALGORITHMS[n][0].version for n in names if n in ALGORITHMS}
    newer = {n: v for n, v in versions.items() if v > FIRST_VERSIONS.get(n, 1)}
    return {"algorithms": newer} if newer else {}


def config_of(column: Column, data: str, steps: int | None = None) -> Any:
    """The config of a column's algorithm on a dataset: its preset, then the column's settings, for
    a run of `steps` updates (None: as many as the preset has)."""
    values = merge(preset(column.algorithm, data)["config"], column.config)
    config = build_config(column.algorithm, values)
    return config if steps is None else for_budget(column.algorithm, data, config, steps)


def names() -> list[str]:
    return sorted(file.stem for file in TABLES.glob("*.toml"))


def load(name: str) -> Plan:
    """Read and check a table's file. Raises `ConfigError` that names what is wrong in it."""
    file = Path(name) if name.endswith(".toml") else TABLES / f"{name}.toml"
    if not file.exists():
        raise unknown_name("table", name, names())
    try:
        values = tomllib.loads(file.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from None
    try:
        return _plan(file.stem, values)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    except KeyError as lacking:
        raise ConfigError(f"{file}: a row, column, block or sweep lacks {lacking}") from None


def published_file(name: str) -> Path:
    """The file of published scores called `name`. Raises `ConfigError` where there is none."""
    file: Path = cards_dir() / "published" / f"{name}.toml"
    if not file.exists():
        known = [other.stem for other in file.parent.glob("*.toml")]
        raise unknown_name("file of published scores", name, known)
    return file


def _plan(name: str, values: dict[str, Any]) -> Plan:
    keys.check(values)
    for published in values.get("published", ()):
        published_file(published)
    blocks = _study_blocks(values) if "study" in values else _run_blocks(values)
    if not blocks:
        raise ConfigError("the table has no rows; give datasets, or rows of a study, or blocks")
    reference = values.get("reference")
    columns = [c.label for c in blocks[0].columns]
    if reference is not None and reference not in columns:
        raise unknown_name("reference column", reference, columns)
    return Plan(
        name,
        values.get("title", name),
        tuple(blocks),
        note=values.get("note", ""),
        fqe_steps=values.get("fqe_steps", 0),
        published=tuple(values.get("published", ())),
        conclusions=tuple(values.get("conclusions", ())),
        **_compared(values, blocks),
        reference=reference,
        swept=_swept(values),
    )


def _compared(values: dict[str, Any], blocks: list[Block]) -> dict[str, Any]:
    """What the file asks to be compared, as fields of its plan."""
    asked = values.get("compared", ())
    if "study" not in values:
        labels = list(dict.fromkeys(c.label for block in blocks for c in block.columns))
        pairs = (pair for part in asked for pair in column_pairs(part, labels))
        return {"compared_columns": tuple(pairs)}
    rows = [row.label for block in blocks for row in block.rows]
    metrics = list(dict.fromkeys(name for block in blocks for name in block.metrics))
    return {"compared": tuple(c for part in asked for c in comparisons(part, rows, metrics))}


def _swept(values: dict[str, Any]) -> SweptHyperparameter | None:
    sweep = values.get("sweep")
    if sweep is None or not all(isinstance(v, int | float) for v in sweep["values"]):
        return None
    return SweptHyperparameter(sweep["knob"], tuple(sweep["values"]))


def _study_blocks(values: dict[str, Any]) -> list[Block]:
    """The rows of the table, then its blocks, which inherit the settings of the table."""
    common = {k: v for k, v in values.items() if k not in ("blocks", "title", "rows")}
    blocks = [_study_block(values | {"title": ""})] if "rows" in values else []
    for block in values.get("blocks", []):
        settings = common.get("settings", {}) | block.get("settings", {})
        blocks.append(_study_block(common | block | {"settings": settings}))
    known: dict[tuple[str | None, str], Any] = {}
    for block in blocks:
        for row in block.rows:
            cell = row.settings, row.matmul_precision
            if known.setdefault((block.study, row.folder), cell) != cell:
                raise ConfigError(f"two rows are called {row.label!r}; give each its own label")
    return blocks


def _study_block(values: dict[str, Any]) -> Block:
    if not values.get("rows") or not values.get("metrics"):
        raise ConfigError("a table of a study needs rows (label and settings) and metrics")
    name, shared = values["study"], values.get("settings", {})
    given = values["rows"]
    if isinstance(given, str):
        given = studies.rows_of(name, given)
    rows = [
        Row(
            r["label"],
            settings=shared | {k: v for k, v in r.items() if k != "label"},
            seconds=values.get("cell_seconds"),
            matmul_precision=_precision(values, "highest"),
        )
        for r in given
    ]
    for row in rows:
        studies.settings_of(name, row.settings)
        if row.matmul_precision != "highest" and not studies.takes_precision(name):
            raise ConfigError(
                f"the study {name!r} runs in the highest matmul_precision alone, not in "
                f"{row.matmul_precision!r}; leave the key out"
            )
    columns = tuple(Column(m) for m in values["metrics"])
    return Block(values["title"], tuple(rows), columns, tuple(values["seeds"]), name)


def _run_blocks(values: dict[str, Any]) -> list[Block]:
    columns = _columns(values)
    steps, precision = values.get("steps"), values.get("matmul_precision", "highest")
    seeds = tuple(values["seeds"])
    blocks = [Block("", _rows(values, ""), columns, seeds)]
    for block in values.get("blocks", []):
        own = _columns(block) if {"algorithms", "columns"} & block.keys() else columns
        if not block.get("datasets"):
            raise ConfigError(f"block {block.get('title')!r} needs datasets")
        suffix = "" if block.get("steps", steps) == steps else f"@{block['steps']}"
        if block.get("matmul_precision", precision) != precision:
            suffix += f"@{block['matmul_precision']}"
        shared = {k: v for k, v in values.items() if k != "datasets"}
        rows = _rows(shared | block, suffix)
        blocks.append(Block(block["title"], rows, own, tuple(block.get("seeds", seeds))))
    known: dict[tuple[str, str], Any] = {}
    for block in blocks:
        for row in block.rows:
            require(row.data)
            for column in block.columns:
                cell = replace(row, seconds=None), column
                if known.setdefault((row.folder, column.folder), cell) != cell:
                    raise ConfigError(
                        f"two columns with other settings have one place, {column.folder!r}, for "
                        f"their records on {row.label!r}; give {column.label!r} another label"
                    )
    return blocks


def _rows(values: dict[str, Any], suffix: str) -> tuple[Row, ...]:
    """A row for each of the datasets that a table or block names."""
    common = {
        "steps": values.get("steps"),
        "seconds": values.get("cell_seconds"),
        "final_episodes": values.get("final_episodes", FINAL_EPISODES),
        "holdout": values.get("holdout", 0.0),
        "until_flat": configs.from_dict(UntilFlatSettings, values.get("until_flat", {})),
        "matmul_precision": _precision(values, "highest"),
    }
    return tuple(Row(f"{data}{suffix}", data, **common) for data in values.get("datasets", []))


def _precision(values: dict[str, Any], default: MatmulPrecision | None) -> Any:
    """The precision of products that a table, block or column asks for. Raises `ConfigError` for
    one that torch does not have."""
    precision = values.get("matmul_precision", default)
    if precision is not None and precision not in PRECISIONS:
        raise unknown_name("matmul_precision", precision, PRECISIONS)
    return precision


def _columns(values: dict[str, Any]) -> tuple[Column, ...]:
    """From `algorithms` (names), `columns` (label, algorithm, config) or `sweep` (algorithm, knob,
    values)."""
    columns = [Column(a, a) for a in values.get("algorithms", [])]
    columns += [
        Column(
            c.get("label", c["algorithm"]),
            c["algorithm"],
            c.get("config", {}),
            _precision(c, None),
            c.get("eval_stochastic", False),
        )
        for c in values.get("columns", [])
    ]
    if "sweep" in values:
        sweep = values["sweep"]
        for value in sweep["values"]:
            label = f"{sweep['algorithm']} {sweep['knob'].split('.')[-1]}={value}"
            columns.append(Column(label, sweep["algorithm"], nested(sweep["knob"], value)))
    if not columns:
        raise ConfigError("there are no columns; give algorithms, columns or sweep")
    for column in columns:
        if column.algorithm not in ALGORITHMS:
            raise unknown_name("algorithm", column.algorithm, ALGORITHMS)
        if not ALGORITHMS[column.algorithm][0].learns_offline:
            raise ConfigError(
                f"column {column.label!r}: {column.algorithm} learns by acting, the columns of a "
                "table learn from datasets; take an algorithm that `list` shows as offline"
            )
    labels = [c.label for c in columns]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"two columns have the same label among {labels}; give each its own")
    return tuple(columns)


def parse_values(text: str) -> tuple[str, list[Any]]:
    """`a.b=1,2` as ("a.b", [1, 2]); values are JSON (numbers, true, null, [64, 64]) or words."""
    name, sign, values = text.partition("=")
    if not sign or not name or not values:
        raise ConfigError(f"setting {text!r} is not NAME=VALUE[,VALUE...]; try learner.eta=0.5,1")
    try:
        return name, list(json.loads(f"[{values}]"))
    except json.JSONDecodeError:
        return name, [_word(v) for v in values.split(",")]


def _word(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def nested(name: str, value: Any) -> dict[str, Any]:
    """{"a": {"b": value}} of the hyperparameter "a.b"."""
    for part in reversed(name.split(".")):
        value = {part: value}
    result: dict[str, Any] = value
    return result
