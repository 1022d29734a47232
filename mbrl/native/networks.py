"""Networks as the compiled library sees them: pointers to the parameters that PyTorch holds and to
the moments of their optimiser. Nothing is copied, and checkpoints are as they are without it."""

import ctypes
import operator
from typing import Any

import torch
from torch import Tensor, nn

from mbrl.native.structs import Column, NetworkStruct, NormaliserStruct, addresses
from mbrl.networks import MLP, EnsembleMLP, Normaliser

MOMENTS = {"first_moments": "exp_avg", "second_moments": "exp_avg_sq", "steps": "step"}


class Network:
    """A module's `struct`, which refers to its parameters and to their moments in `optimiser`. What
    the struct points to is kept alive here."""

    def __init__(
        self, module: EnsembleMLP | MLP, optimiser: torch.optim.Optimizer | None = None
    ) -> None:
        weights, tensors = parameters(module)
        transposed = isinstance(module, MLP)
        shapes = [w.shape[::-1] if transposed else w.shape[1:] for w in weights]
        sizes = [shapes[0][0], *(shape[1] for shape in shapes)]
        self.tensors = tensors
        self.struct = NetworkStruct(
            1 if transposed else len(weights[0]),
            len(weights),
            int(transposed),
            int(len(tensors) > 2 * len(weights)),
        )
        self.optimiser = optimiser
        self._kept: dict[str, Any] = {}
        self._point("sizes", (ctypes.c_int64 * len(sizes))(*sizes))
        self._addresses: list[int] = []
        self._states: list[Any] = []

    def _point(self, name: str, array: Any) -> None:
        self._kept[name] = array
        setattr(self.struct, name, ctypes.cast(array, ctypes.c_void_p))

    def follow(self) -> bool:
        """Refer to where the parameters and the optimiser's moments are now (loading a checkpoint
        makes new moments); False where the optimiser has none yet."""
        now = [t.data_ptr() for t in self.tensors]
        if now != self._addresses:
            self._point("parameters", addresses(self.tensors))
            self._addresses = now
        if self.optimiser is None:
            return True
        states = [self.optimiser.state.get(t) for t in self.tensors]
        if not all(states):
            return False
        if not (self._states and all(map(operator.is_, states, self._states))):
            self._states = states
            for field, name in MOMENTS.items():
                self._point(field, addresses([s[name] for s in states if s]))
        return True


def parameters(module: EnsembleMLP | MLP) -> tuple[list[Tensor], list[Tensor]]:
    """Weights of all layers; and all parameters: weights, biases, and LayerNorm's scales and
    shifts."""
    if isinstance(module, EnsembleMLP):
        weights = list(module.weights)
        return weights, [*weights, *module.biases, *module.scales, *module.shifts]
    layers = [layer for layer in module.layers if isinstance(layer, nn.Linear)]
    norms = [norm for norm in module.norms if isinstance(norm, nn.LayerNorm)]
    weights = [layer.weight for layer in layers]
    biases = [layer.bias for layer in layers]
    scales, shifts = [norm.weight for norm in norms], [norm.bias for norm in norms]
    return weights, [*weights, *biases, *scales, *shifts]


def fits(module: EnsembleMLP | MLP) -> bool:
    """Whether the library computes this module: float32 on a CPU, hidden layers with ReLU."""
    weights, tensors = parameters(module)
    plain = all(
        t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous() for t in tensors
    )
    return plain and module.activation == "relu" and len(weights) > 1


def normaliser(module: Normaliser | None) -> NormaliserStruct:
    """Where the statistics lie; null pointers for None."""
    if module is None:
        return NormaliserStruct(None, None)
    return NormaliserStruct(module.mean.data_ptr(), module.std.data_ptr())


def column(values: Tensor) -> Column:
    """The rows of `values` [B] or [B, D], which may be part of wider rows."""
    return Column(values.data_ptr(), values.stride(0))
