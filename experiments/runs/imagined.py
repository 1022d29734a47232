"""The imagined rows of a run: read, filtered once, and put beside the logged ones."""

from pathlib import Path
from typing import Any

import torch

from experiments.settings import RunSettings
from mbrl import checkpoint, data
from mbrl.data.fingerprint import fingerprint
from mbrl.data.loading import require
from mbrl.data.sources import with_source
from mbrl.errors import ConfigError
from mbrl.types import Dataset, Spec
from world_models.imagined_filter import Filter, score_imagined

FILE = "imagined.pt"  # in the run's folder: the scores of the rows


def check(settings: RunSettings) -> None:
    """Raise `ConfigError` for settings of imagined rows that cannot mean anything."""
    chosen = settings.imagined
    if chosen.data is None:
        if chosen.filter != "none":
            raise ConfigError(
                f"imagined.filter is {chosen.filter} and there are no imagined rows; give "
                "--imagined.data FILE"
            )
        return
    if settings.online:
        raise ConfigError(
            f"{settings.data} is a task, and imagined rows stand beside logged ones; give a "
            "dataset, or leave imagined.data out"
        )
    require(chosen.data)


def describe(settings: RunSettings, spec: Spec) -> dict[str, Any]:
    """What a manifest says of the imagined rows; nothing where there are none."""
    if settings.imagined.data is None:
        return {}
    rows = data.load(settings.imagined.data, spec=spec)
    about = {
        "name": rows.provenance.card,
        "rows": len(rows),
        "fingerprint": fingerprint(rows),
    }
    return {"imagined": about}


def with_imagined(settings: RunSettings, real: Dataset, folder: Path) -> Dataset:
    """`real` and the imagined rows that the settings ask for, with the weights of both. The filter
    is fitted to `real` once, and what it says kept in the run's `folder`."""
    chosen = settings.imagined
    if chosen.data is None:
        return real
    rows, keep = data.load(chosen.data, spec=real.spec), None
    if chosen.filter != "none":
        keep = _kept(chosen.filter, chosen.quantile, real, rows, folder / FILE)
    return with_source(real, rows, chosen.share, keep)


def _kept(name: Filter, quantile: float, real: Dataset, rows: Dataset, file: Path) -> torch.Tensor:
    """[N] bool: the rows that the filter keeps, from the file of an earlier session if there is
    one."""
    if file.exists():
        known: torch.Tensor = checkpoint.load(file)["keep"]
        return known
    scored = score_imagined(real, rows, name, quantile)
    values = {"score": scored.score, "threshold": scored.threshold, "keep": scored.keep}
    checkpoint.save(file, values)
    print(
        f"the filter keeps {int(scored.keep.sum())} of {len(rows)} imagined rows: {name} up to "
        f"{scored.threshold:.3g}, the {quantile:g} quantile of real rows held out"
    )
    return scored.keep
