"""The keys of a table's file, and of what kind their values are: what is misspelt or misplaced is
refused, since a setting that nobody reads would stand in a label all the same."""

from dataclasses import dataclass, fields
from typing import Any

from mbrl import config as configs
from mbrl.config import Count, CountOrZero, Names, Positive, Seeds, Settings, Share
from mbrl.errors import ConfigError, unknown_name

FINAL_EPISODES = 100  # of the last evaluation, unless a table says otherwise
Kinds = dict[str, type | tuple[type, ...]]
COLUMN: Kinds = {"label": str, "algorithm": str, "config": dict, "matmul_precision": str}
COLUMN |= {"eval_stochastic": bool}
SWEEP: Kinds = {"algorithm": str, "knob": str, "values": list}
_SHARED: Kinds = {"title": str, "seeds": list, "cell_seconds": (int, float)}
_SHARED |= {"matmul_precision": str}
_RUN_BLOCK: Kinds = {"datasets": list, "algorithms": list, "columns": list, "steps": int}
_RUN_BLOCK |= {"final_episodes": int, "holdout": (int, float), "until_flat": dict}
_STUDY_BLOCK: Kinds = {"study": str, "rows": (list, str), "settings": dict, "metrics": list}
_TABLE: Kinds = {"note": str, "blocks": list, "conclusions": list}
RUN_BLOCK: Kinds = _SHARED | _RUN_BLOCK
STUDY_BLOCK: Kinds = _SHARED | _STUDY_BLOCK
RUN_TABLE: Kinds = RUN_BLOCK | _TABLE
RUN_TABLE |= {"fqe_steps": int, "sweep": dict, "published": list, "reference": str}
RUN_TABLE |= {"compared": list}
STUDY_TABLE: Kinds = STUDY_BLOCK | _TABLE | {"compared": list}
COMPARED: Kinds = {"rows": list, "than": str, "numbers": list, "digits": int}
COMPARED |= {"pooled": bool}
COLUMNS_COMPARED: Kinds = {"columns": list, "than": str}
NAMES = {dict: "a table", list: "a list", str: "a text", int: "a whole number", float: "a number"}
NAMES |= {bool: "true or false"}


@dataclass(frozen=True)
class _Common(Settings):
    """Keys of a table or block whose values have a range."""

    seeds: Seeds
    datasets: Names = ("none",)
    algorithms: Names = ("none",)
    published: tuple[str, ...] = ()
    conclusions: tuple[str, ...] = ()
    metrics: Names = ("none",)
    steps: Count | None = None
    fqe_steps: CountOrZero = 0
    cell_seconds: Positive | None = None
    final_episodes: Count = FINAL_EPISODES
    holdout: Share = 0.0


def check(values: dict[str, Any]) -> None:
    """Raise `ConfigError` for a key that the file of a table, or a block, column, row or sweep of
    it, does not have, and for a value of another kind or range than its key takes."""
    study = "study" in values
    require(
        "a table of a study" if study else "a table", values, STUDY_TABLE if study else RUN_TABLE
    )
    if "seeds" not in values:
        raise ConfigError("seeds is missing; give a list such as seeds = [0, 1, 2]")
    _check_range(values)
    for block in values.get("blocks", []):
        require("a block", block, STUDY_BLOCK if study else RUN_BLOCK)
        _check_range({"seeds": [0]} | block)
    for part in (values, *values.get("blocks", [])):
        for column in part.get("columns", []):
            require("a column", column, COLUMN)
        if isinstance(part.get("rows"), list):
            for row in part["rows"]:
                _require_row(row)
    for compared in values.get("compared", []):
        require("compared", compared, COMPARED if study else COLUMNS_COMPARED)
    if "sweep" in values:
        require("the sweep", values["sweep"], SWEEP)


def require(what: str, values: Any, kinds: Kinds) -> None:
    """Raise `ConfigError` unless `values` is a table of keys of `kinds`."""
    if not isinstance(values, dict):
        raise ConfigError(f"{what} is {values!r}, {_kind(values)}; give a table of keys")
    for key, value in values.items():
        if key not in kinds:
            raise unknown_name(f"key of {what}", key, sorted(kinds))
        kind = kinds[key]
        allowed = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            wanted = " or ".join(NAMES[k] for k in allowed)
            raise ConfigError(f"{key} of {what} is {value!r}, {_kind(value)}; give {wanted}")


def _require_row(row: Any) -> None:
    """A row of a study has a label and settings, which the study knows."""
    if not isinstance(row, dict) or not isinstance(row.get("label"), str):
        raise ConfigError(f'a row is {row!r}; give a label and settings: {{ label = "...", ... }}')


def _kind(value: Any) -> str:
    return NAMES.get(type(value), type(value).__name__)


def _check_range(values: dict[str, Any]) -> None:
    """Raise `ConfigError` for a value of another kind or range than its key takes."""
    names = {f.name for f in fields(_Common)}
    given = {k: v for k, v in values.items() if k in names}
    text = {"datasets", "algorithms", "published", "conclusions", "metrics"}
    for name in text & given.keys():
        if not isinstance(given[name], list) or not all(isinstance(n, str) for n in given[name]):
            raise ConfigError(f'{name} is {given[name]!r}; give a list of names: ["..."]')
    configs.from_dict(_Common, given)
