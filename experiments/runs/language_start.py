"""What the first model of a language model's run is read from, and whether it is as it was."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.runs import folders
from mbrl import checkpoint
from mbrl.data.readers.files import file_hash
from mbrl.errors import CheckpointError

KEY = "first_model"  # of manifest.json
WEIGHTS = (".safetensors", ".bin")
# Endings of a model folder's files that count.
READ = (*WEIGHTS, ".json", ".model", ".txt", ".jinja")


def describe(settings: Any, config: Any, *, first: bool = True) -> dict[str, str]:
    """SHA-256, 64 hexadecimal digits, of what the model of a run is made from: "start", the weights
    of the run that it starts from, and "model/NAME", files of the model's folder. Not `first`: of
    what is needed beside a checkpoint of the run."""
    known = {}
    if first and settings.start is not None:
        content = checkpoint.load(Path(settings.start) / "checkpoint.pt")
        known["start"] = digest(content["state"]["modules"]["model"])
    if config.model.path is not None:
        for path in sorted(Path(config.model.path).glob("*")):
            name = f"model/{path.name}"
            if path.is_file() and name.endswith(READ) and needed(name, config, first):
                known[name] = file_hash(path)
    return known


def needed(name: str, config: Any, first: bool) -> bool:
    """Whether a model depends on `name` of `describe`: the first one on all; one from a checkpoint,
    which holds the weights that are trained, on texts, and with LoRA on the weights beneath."""
    return first or (name != "start" and (config.model.lora > 0 or not name.endswith(WEIGHTS)))


def digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and numbers."""
    total = hashlib.sha256()
    for name, value in sorted(weights.items()):
        total.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        total.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def require_same(folder: Path, settings: Any, config: Any, *, first: bool = True) -> None:
    """Raise `CheckpointError` where what these settings and config name is not what the run in
    `folder` began with (`first`: see `describe`). A run of a release that noted nothing passes."""
    file = folder / "manifest.json"
    noted = folders.read_json(file).get(KEY) if file.exists() else None
    if not noted:
        return
    known = {name: value for name, value in noted.items() if needed(name, config, first)}
    now = describe(settings, config, first=first)
    changed = sorted(name for name, _ in known.items() ^ now.items())
    if changed:
        files = ", ".join(dict.fromkeys(n.removeprefix("model/") for n in changed if n != "start"))
        base = f"the model in {config.model.path} ({files})"
        what = f"the model of --start {settings.start}" if "start" in changed else base
        raise CheckpointError(
            f"{what} is not what the run in {folder} began with (it has changed, or is another "
            "one). Put it back as it was, or begin a new run (`run --out OTHER`)"
        )
