"""Steps of Adam and AdamW in the compiled library, and classes of both that start sooner."""

import ctypes
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mbrl.native.build import library
from mbrl.native.structs import adam_struct, addresses

_Int = ctypes.c_int64


class _WithoutCompiler:
    """Methods of `Optimizer` without their wrapper. It makes PyTorch's compiler leave them out, and
    imports that compiler, which takes more than a second, when one of them is called."""

    add_param_group: Any = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict: Any = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict: Any = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class Adam(_WithoutCompiler, torch.optim.Adam):
    """`torch.optim.Adam` that starts sooner."""


class AdamW(_WithoutCompiler, torch.optim.AdamW):
    """`torch.optim.AdamW` that starts sooner."""


KINDS = (Adam, AdamW, torch.optim.Adam, torch.optim.AdamW)


def adam_step(optimiser: torch.optim.Optimizer, gradients: Sequence[Tensor]) -> bool:
    """A step of Adam or AdamW with `gradients` for its parameters in their order; False, and
    nothing done, where it is another optimiser, or its numbers are not float32 on the CPU."""
    if torch.compiler.is_compiling():
        return False
    loaded, groups = library(), optimiser.param_groups
    if loaded is None or type(optimiser) not in KINDS:
        return False
    parameters = [p for group in groups for p in group["params"]]
    if any(g["amsgrad"] or g["maximize"] for g in groups):
        return False
    if not all(
        t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous()
        for t in (*parameters, *gradients)
    ):
        return False
    decoupled, begin = isinstance(optimiser, torch.optim.AdamW), 0
    for group in groups:
        part = slice(begin, begin + len(group["params"]))
        begin = part.stop
        mine = [_moments(optimiser, p) for p in parameters[part]]
        loaded.adam_steps(
            _Int(len(mine)),
            (_Int * len(mine))(*[p.numel() for p in parameters[part]]),
            addresses(parameters[part]),
            addresses(gradients[part]),
            *(addresses([s[name] for s in mine]) for name in ("exp_avg", "exp_avg_sq", "step")),
            ctypes.byref(adam_struct(group, decoupled=decoupled)),
        )
    return True


def _moments(optimiser: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """What Adam keeps of a parameter, made as PyTorch makes it where there is nothing yet."""
    state: dict[str, Tensor] = optimiser.state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter) for _ in range(2))
    return state
