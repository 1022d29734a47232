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


LARGEST = 10_000_000  # parameters of a compiled `step`, on one thread; PyTorch's takes all


class _WithoutCompiler(torch.optim.Optimizer):
    """Methods of `Optimizer` without their wrapper. It makes PyTorch's compiler leave them out, and
    imports that compiler, which takes more than a second, when one of them is called."""

    add_param_group: Any = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict: Any = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict: Any = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    zero_grad: Any = inspect.unwrap(torch.optim.Optimizer.zero_grad)

    def step(self, closure: Any = None) -> Any:
        """One step with the gradients that `backward` left, compiled where `adam_step` can."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        few = closure is None and sum(p.numel() for p in parameters) <= LARGEST
        if few and adam_step(self, [p.grad for p in parameters]):
            return None
        for p in parameters:
            if p.grad is not None:  # PyTorch's fused kernel reads gradients as they lie in memory
                p.grad = _laid(p.grad, p)
        return super().step(closure)


class Adam(_WithoutCompiler, torch.optim.Adam):
    """`torch.optim.Adam` that starts sooner."""


class AdamW(_WithoutCompiler, torch.optim.AdamW):
    """`torch.optim.AdamW` that starts sooner."""


KINDS = (Adam, AdamW, torch.optim.Adam, torch.optim.AdamW)


def adam_step(optimiser: torch.optim.Optimizer, gradients: Sequence[Tensor | None]) -> bool:
    """A step of Adam or AdamW with `gradients` for its parameters in their order (None: the
    parameter stays); False, and nothing done, where it is another optimiser, or its numbers are not
    float32 on the CPU."""
    if torch.compiler.is_compiling():
        return False
    loaded, groups = library(), optimiser.param_groups
    if loaded is None or type(optimiser) not in KINDS:
        return False
    if any(g["amsgrad"] or g["maximize"] or g["differentiable"] for g in groups):
        return False
    owned = [p for group in groups for p in group["params"]]
    if not all(
        t.device.type == "cpu" and t.dtype == torch.float32 and t.layout == torch.strided
        for t in (*owned, *gradients)
        if t is not None
    ) or not all(_dense(p) for p in owned):
        return False
    left = iter(gradients)
    for group in groups:
        pairs = [(p, _laid(g, p)) for p in group["params"] if (g := next(left)) is not None]
        if not pairs:
            continue
        parameters = [p for p, _ in pairs]
        states = [_moments(optimiser, p) for p in parameters]
        loaded.adam_steps(
            _Int(len(pairs)),
            (_Int * len(pairs))(*[p.numel() for p in parameters]),
            addresses(parameters),
            addresses([g for _, g in pairs]),
            *(addresses([s[name] for s in states]) for name in ("exp_avg", "exp_avg_sq", "step")),
            ctypes.byref(adam_struct(group)),
        )
        torch.autograd.graph.increment_version(parameters)
    return True


def _moments(optimiser: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """What Adam keeps of a parameter, made as PyTorch makes it where there is nothing yet, in the
    parameter's order in memory."""
    state: dict[str, Tensor] = optimiser.state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter) for _ in range(2))
    for name in ("exp_avg", "exp_avg_sq"):
        state[name] = _laid(state[name], parameter)
    return state


def _dense(parameter: Tensor) -> bool:
    """Whether its numbers fill one piece of memory, in whatever order of its axes."""
    if parameter.is_contiguous():
        return True
    return torch.empty_like(parameter).stride() == parameter.stride()


def _laid(values: Tensor, parameter: Tensor) -> Tensor:
    """Values of a parameter's shape in its order in memory."""
    # PyTorch's compiler fails where it compares strides of sizes that it holds open.
    if not torch.compiler.is_compiling() and values.stride() == parameter.stride():
        return values
    return torch.empty_like(parameter).copy_(values)
