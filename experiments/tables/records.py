"""Records: a JSON file for each finished cell, from which tables are printed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from experiments import studies
from experiments.runs import folders, jobs
from experiments.settings import build_config
from mbrl import config as configs
from mbrl.errors import ConfigError
from mbrl.files import replacing
from mbrl.records import Evaluations

Record = dict[str, Any]  # as read from its file
HERE = Path(__file__).resolve().parent.parent
# A checkout's own folder; an installed package keeps records where it is used.
RECORDS = HERE / "records" if (HERE.parent / "pyproject.toml").exists() else Path("records")
# Entries in which a repeated run of the same cell may differ.
TIMES = ("seconds", "processor_seconds", "model_seconds", "shared_seconds")
CIRCUMSTANCES = (*TIMES, "commit", "packages", "processor", "device")


def home(name: str) -> Path:
    """Where the records of a table are kept: of a table of this library, by its name, in
    `RECORDS`; of a file of the user's own in a folder beside it that has its name."""
    file = Path(name)
    if file.suffix != ".toml" or file.resolve().parent == HERE / "tables" / "definitions":
        return RECORDS / file.stem
    return file.with_suffix("")


def read(file: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    """The record in `file` if it has that `key`, so that its job need not be repeated.

    Settings that are newer than the record count as having their defaults: one whose default
    changes what an algorithm does must raise the algorithm's version.
    """
    if not file.exists():
        return None
    record: dict[str, Any] = json.loads(file.read_text())
    return record if with_defaults(record["key"]) == json.loads(json.dumps(key)) else None


def copy_from_other_table(
    home: Path, path: Path, key: dict[str, Any], fingerprint: str | None = None
) -> dict[str, Any] | None:
    """The record of the same cell in another table beside `home`, copied to `home`; of data with
    that `fingerprint` where one is given: a key has the name of a file, not what is in it."""
    for other in sorted(home.parent.glob(f"*/{path}")):
        record = read(other, key)
        if record is None:
            continue
        if fingerprint in (None, record.get("fingerprint", fingerprint)):
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(other, home / path)
            return record
    return None


def with_defaults(key: dict[str, Any]) -> dict[str, Any]:
    """`key` with the defaults of settings that are newer than it."""
    if "study" in key:
        return key | {"settings": studies.module(key["study"]).DEFAULTS | key["settings"]}
    try:
        config = build_config(key["algorithm"], key["config"])
    except ConfigError:  # a setting of an earlier version
        return key
    return key | {"config": json.loads(json.dumps(configs.to_dict(config)))}


def write(file: Path, key: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write the record of the finished or diverged job in `folder` to `file`."""
    if (folder / folders.DIVERGED).exists():
        record = of_diverged(key, folder)
    else:
        record = of_run(key, folder) if "algorithm" in key else of_study(key, folder)
    with replacing(file) as part:
        part.write((json.dumps(record, separators=(",", ":")) + "\n").encode())
    return record


def of_diverged(key: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Why the training diverged, in `diverged`, with data, versions and time; no score."""
    outcome = folders.read_json(folder / folders.DIVERGED)
    record: dict[str, Any] = {"key": key, "diverged": outcome["reason"]}
    if (folder / "manifest.json").exists():
        manifest = folders.read_json(folder / "manifest.json")
        record |= environment(manifest)
        if manifest["data"] is not None:
            record["fingerprint"] = manifest["data"]["fingerprint"]
    return record | {"seconds": outcome["seconds"]}


def of_study(key: dict[str, Any], folder: Path) -> dict[str, Any]:
    result = folders.read_json(folder / "result.json")
    curves = {name: _rounded(v, 5) for name, v in result["curves"].items()}
    record = {"key": key, "values": result["values"], "curves": curves}
    shared = jobs.in_order(jobs.job_in(folder).needs())
    if shared:
        record["shared_seconds"] = round(sum(map(jobs.seconds, shared)), 2)
    if (folder / "manifest.json").exists():  # absent in folders of earlier versions
        manifest = folders.read_json(folder / "manifest.json")
        record |= environment(manifest)
        if manifest["data"] is not None:
            record["fingerprint"] = manifest["data"]["fingerprint"]
    return record | {"seconds": result["seconds"]}


def environment(manifest: dict[str, Any]) -> dict[str, Any]:
    machine = manifest["machine"]
    here = {
        "packages": manifest["packages"],
        "processor": machine["processor"],
        "commit": manifest["commit"],
    }
    if "accelerator" in machine:
        here["device"] = machine["accelerator"]
    return here


def of_run(key: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Configuration, data, versions, the mean return of every evaluation, and all returns of the
    last one. Other returns stay in the run's folder."""
    manifest = folders.read_json(folder / "manifest.json")
    settings = folders.read_json(folder / "config.json")["run"]
    file, spec = folder / "evaluations.npz", manifest["spec"]
    # Data of a task that is not in the library have no evaluations.
    evaluations = Evaluations.load(file) if file.exists() else Evaluations()
    record: dict[str, Any] = {
        "key": key,
        "fingerprint": manifest["data"]["fingerprint"],
        "rows": manifest["data"]["rows"],
        "task": spec["task"],
        "reference_returns": spec["reference_returns"],
        **environment(manifest),
        "seconds": jobs.seconds(folder),
        "steps": evaluations.steps,
        "means": [float(f"{r.mean():.7g}") for r in evaluations.returns],
        "last_returns": _rounded(evaluations.returns[-1], 6) if evaluations.returns else [],
    }
    result = folders.read_json(folder / "result.json")
    if "until_flat" in result:
        record["until_flat"] = dict(result["until_flat"])
        record["processor_seconds"] = record["until_flat"].pop("processor_seconds")
    if (folder / "selection.json").exists():
        record["selection"] = folders.read_json(folder / "selection.json")
    elif key.get("fqe_steps") and settings["fqe_steps"] == 0 and evaluations.steps:
        by = "nothing: by the data all policies are worth the same"
        record["selection"] = {"by": by, "chosen": evaluations.steps[-1]}
    if settings["model"] is not None:
        fit = folders.read_json(Path(settings["model"]) / "result.json")
        record["model_seconds"] = fit["seconds"]
    return record


def _rounded(values: Any, digits: int) -> list[float]:
    return [float(f"{v:.{digits}g}") for v in np.asarray(values, dtype=float).tolist()]


def agree(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two records of a cell agree in all but time and circumstances. One may be older than
    some settings, have returns of four digits, or lack the fingerprint of a study's data."""
    rest = []
    for record in (a, b):
        kept = {k: v for k, v in record.items() if k not in CIRCUMSTANCES}
        if "fingerprint" not in a or "fingerprint" not in b:
            kept.pop("fingerprint", None)
        kept["key"] = with_defaults(record["key"])
        if "last_returns" in record:
            kept["last_returns"] = _rounded(record["last_returns"], 4)
        rest.append(json.dumps(kept, sort_keys=True))
    return rest[0] == rest[1]


def scores(record: dict[str, Any]) -> np.ndarray:
    """Normalised score of the mean return of each evaluation, in order; the mean return itself
    where the data have no reference returns."""
    return normalised(record, np.array(record["means"]))


def normalised(record: dict[str, Any], returns: np.ndarray) -> np.ndarray:
    """Scores of returns; the returns where the data have no reference returns."""
    if record["reference_returns"] is None:
        return returns
    low, high = record["reference_returns"]
    result: np.ndarray = 100.0 * (returns - low) / (high - low)
    return result


def last_score(record: dict[str, Any]) -> float:
    """Score of the last evaluation. Of data whose task is not here, the value that fitted Q
    evaluation gave to the policy it chose; NaN without either, and of a run that diverged."""
    if "diverged" in record:
        return float("nan")
    if record["steps"]:
        return float(scores(record)[-1])
    if estimated(record):
        choice = record["selection"]
        return float(choice["values"][choice["steps"].index(choice["chosen"])])
    return float("nan")


def estimated(record: dict[str, Any]) -> bool:
    """Whether a run has an estimate of its policy's value and no evaluation in a task."""
    return "steps" in record and not record["steps"] and "values" in record.get("selection", {})


def unit(record: dict[str, Any]) -> str:
    """What the numbers of a run are: "score" (0 to 100 between two reference returns), "return"
    where the data have no such returns, or "value", of fitted Q evaluation, without a task."""
    if estimated(record):
        return "value"
    return "return" if record["reference_returns"] is None else "score"


def selected_score(record: dict[str, Any]) -> float:
    """Score of the policy that was chosen from the logged data; NaN without a choice."""
    if "selection" not in record or not record["steps"]:
        return float("nan")
    choice = record["selection"]
    if "return_mean" in choice:  # chosen by `--until-flat`, and evaluated at the end
        return float(normalised(record, np.array(choice["return_mean"])))
    return float(scores(record)[record["steps"].index(choice["chosen"])])
