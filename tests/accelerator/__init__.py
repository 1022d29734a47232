"""A device "fake" for PyTorch, to see without a GPU whether tensors and random numbers are where an
operation wants them. `python -m tests.accelerator offline|online ALGORITHM...` drives algorithms on
it."""

import importlib.util
import subprocess
import sysconfig
import types
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_name("device.cpp")


def build(folder: Path) -> Path:
    """The compiled device in `folder`; some 40 seconds."""
    made = folder / "accelerator.so"
    headers = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    libraries = cpp_extension.library_paths()[0]
    command = ["g++", "-O1", "-std=c++20", "-fPIC", "-shared", "-w", str(SOURCE), "-o", str(made)]
    command += ["-DTORCH_EXTENSION_NAME=accelerator", *(f"-I{h}" for h in headers)]
    command += [f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    command += ["-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return made


def begin(made: Path) -> None:
    """Make the device known to PyTorch, for the rest of this process."""
    spec = importlib.util.spec_from_file_location("accelerator", made)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.utils.rename_privateuse1_backend("fake")
    module.begin()
    face: Any = types.ModuleType("torch.fake")
    face.is_available, face._is_in_bad_fork = lambda: True, lambda: False
    face.device_count, face.current_device = lambda: 1, lambda: 0
    face.manual_seed_all = face.manual_seed = lambda seed: None
    torch._register_device_module("fake", face)
