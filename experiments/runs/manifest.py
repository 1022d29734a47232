"""Versions, commit and machine: what is needed to repeat a result."""

import functools
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from mbrl.native.build import library
from mbrl.precision import has_tiles

PACKAGES = ("torch", "numpy", "scipy", "gymnasium", "mujoco", "h5py", "stable-baselines3")


def environment(device: str) -> dict[str, Any]:
    used = {} if device == "cpu" else {"accelerator": accelerator(device)}
    return {
        "longreach": version("longreach"),
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "machine": {
            "system": platform.platform(),
            "processor": processor(),
            "device": device,
            **used,
            "compiled": library() is not None,  # whether updates run in compiled code
            "tiles": has_tiles(),  # whether they multiply bfloat16 at medium precision
        },
    }


def accelerator(device: str) -> str:
    """What the device is called by its maker; of others than CUDA's, by PyTorch."""
    place = torch.device(device)
    return torch.cuda.get_device_name(place) if place.type == "cuda" else place.type


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def commit() -> str | None:
    """The checkout's commit with `+` for uncommitted changes; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    changes = subprocess.run(
        [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True
    )
    return (head.stdout.strip() + ("+" if changes.stdout.strip() else "")) or None


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
