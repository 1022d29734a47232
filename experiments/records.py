"""Records: one small JSON file for each finished run of a table, from which tables are printed."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from mbrl.cards import find_tier
from mbrl.records import Evaluations

RECORDS = Path(__file__).parent / "records"
LIMIT = 8_000  # bytes of one record


def key(algorithm: str, version: int, config: dict, data: str, seed: int, steps: int) -> dict:
    """What decides a cell: a record with the same key need not be made again."""
    card, _ = find_tier(data)
    return {
        "algorithm": algorithm,
        "version": version,
        "config": config,
        "data": data,
        "recipe_version": card.recipe_version,
        "seed": seed,
        "steps": steps,
        "threads": 1,
    }


def path(table: str, algorithm: str, data: str, seed: int) -> Path:
    return RECORDS / table / algorithm / data.replace("/", "-") / f"{seed}.json"


def read(file: Path, wanted: dict) -> dict[str, Any] | None:
    """The record in `file` if it is the one of the key `wanted`."""
    if not file.exists():
        return None
    record: dict[str, Any] = json.loads(file.read_text())
    return record if record["key"] == wanted else None


def write(file: Path, wanted: dict, folder: Path) -> dict[str, Any]:
    """Make the record of the finished run in `folder`."""
    evaluations = Evaluations.load(folder / "evaluations.npz")
    manifest = json.loads((folder / "manifest.json").read_text())
    result = json.loads((folder / "result.json").read_text())
    spec = manifest["spec"]
    record = {
        "key": wanted,
        "fingerprint": manifest["data"]["fingerprint"],
        "rows": manifest["data"]["rows"],
        "task": spec["task"],
        "reference_returns": spec["reference_returns"],
        "packages": manifest["packages"],
        "commit": manifest["commit"],
        "seconds_of_last_session": result["seconds_of_last_session"],
        "steps": evaluations.steps,
        "mean_returns": [round(float(r.mean()), 4) for r in evaluations.returns],
        "last_returns": [round(float(v), 3) for v in evaluations.returns[-1]],
    }
    text = json.dumps(record) + "\n"
    if len(text) > LIMIT:
        record["last_returns"] = [float(f"{v:.4g}") for v in evaluations.returns[-1]]
        text = json.dumps(record) + "\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return record


def scores(record: dict[str, Any]) -> np.ndarray:
    """Normalised score of the mean return of each evaluation, in order."""
    low, high = record["reference_returns"]
    means = np.array(record["mean_returns"])
    result: np.ndarray = 100.0 * (means - low) / (high - low)
    return result
