"""The files of an exported policy: ONNX, a program of torch, and its weights."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from experiments.export.graph import Parts
from mbrl.errors import ConfigError, install_command

NEEDED = ("onnx", "onnxscript", "onnxruntime", "safetensors")


def require_packages() -> None:
    """Raise `ConfigError` with the command that installs what is missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"export needs {', '.join(missing)}: {install_command('onnx')}")


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's remarks about packages that an export does not use."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def write_programs(parts: Parts, folder: Path) -> None:
    """policy.pt2, policy.onnx and policy.safetensors in `folder`, from one traced program whose
    batch size is free."""
    from safetensors.torch import save_file

    graph = parts.graph().eval()
    batch = torch.export.Dim("batch", min=1)
    example = parts.example()
    shapes = tuple({0: batch} for _ in example)
    with quiet(), torch.no_grad():
        program = torch.export.export(graph, example, dynamic_shapes=shapes)
        file = io.BytesIO()  # written in one go: PyTorch's own writer aborts Python on a full disk
        torch.export.save(program, file)
        (folder / "policy.pt2").write_bytes(file.getvalue())
        written: Any = torch.onnx.export(
            program,
            input_names=parts.inputs,
            output_names=parts.outputs,
            dynamo=True,
            verbose=False,
        )
        _name_batch(written)
        written.save(folder / "policy.onnx", external_data=False)
    weights = {k: v.detach().contiguous().clone() for k, v in graph.state_dict().items()}
    save_file(weights, folder / "policy.safetensors")


def _name_batch(written: Any) -> None:
    """Call the free size of inputs and outputs "batch"."""
    import onnx_ir

    for value in (*written.model.graph.inputs, *written.model.graph.outputs):
        value.shape = onnx_ir.Shape(["batch", *value.shape[1:]])
