"""What both sides of a comparison get: weights, rows and noise that numpy makes from seeds, all in
float64. `layers` are [(weight [in, out], bias [out]), ...]; the tests say where each list stands in
the authors' networks.

`digest` makes a number of many: the products with cos(0), cos(1), ... summed up. Gradients are read
from Adam's first moment after one step of new optimisers, 0.1 times the gradient.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithms import ALGORITHMS
from experiments.settings import build_config
from mbrl.buffer import Batch
from mbrl.networks import MLP, EnsembleMLP
from mbrl.types import Spec

Layers = list[tuple[np.ndarray, np.ndarray]]
STATES, ACTIONS, ROWS, GAMMA = 4, 2, 6, 0.9
SPEC = Spec("beside", STATES, ACTIONS, None, (-1.0,) * ACTIONS, (1.0,) * ACTIONS, 10)


def normal(seed: int, *shape: int) -> np.ndarray:
    """Standard normal draws."""
    return np.random.default_rng(seed).normal(size=shape)


def layers(seed: int, *sizes: int) -> Layers:
    """Weights of deviation 1 / sqrt(in), biases of deviation 0.3."""
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(a, b)) / np.sqrt(a), 0.3 * rng.normal(size=b))
        for a, b in zip(sizes[:-1], sizes[1:], strict=True)
    ]


def rows(states: int = STATES) -> dict[str, np.ndarray]:
    """Six rows; the third ends its task."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.normal(size=(ROWS, states)),
        "action": np.tanh(rng.normal(size=(ROWS, ACTIONS))),
        "reward": rng.normal(size=ROWS),
        "next_obs": rng.normal(size=(ROWS, states)),
        "terminated": np.arange(ROWS) == 2,
    }


def digest(values: Iterable[Any]) -> float:
    """The sum of the products with cos(0), cos(1), ... of all numbers in all arrays."""
    flat = np.concatenate([np.asarray(v, dtype=np.float64).ravel() for v in values])
    return float(flat @ np.cos(np.arange(len(flat))))


def flat(layers: Layers) -> list[np.ndarray]:
    """Weights and biases in their order."""
    return [array for layer in layers for array in layer]


def batch(values: dict[str, np.ndarray] | None = None, **columns: Any) -> Batch:
    """The rows as a float64 batch of ours, with further `columns`."""
    r = rows() if values is None else values
    alive = 1.0 - r["terminated"]
    arrays = [r["obs"], r["action"], r["reward"], r["next_obs"], GAMMA * alive]
    more = {name: torch.as_tensor(value) for name, value in columns.items()}
    return Batch(*(torch.as_tensor(a) for a in arrays), **more)


def learner_of(name: str, spec: Spec = SPEC, **settings: Any) -> Any:
    """The learner of an algorithm with these settings in float64, which plain PyTorch updates."""
    agent = ALGORITHMS[name][0](spec, build_config(name, settings), seed=0)
    for module in agent.learner.modules.values():
        module.double()
    if isinstance(remembered := getattr(agent.learner, "remembered", None), Tensor):
        agent.learner.remembered = remembered.double()
    return agent.learner


@torch.no_grad()
def put(network: nn.Module, *members: Layers) -> None:
    """Write `layers` into an MLP, or one list a member into an ensemble."""
    if isinstance(network, EnsembleMLP):
        for index, member in enumerate(members):
            for layer, (weight, bias) in enumerate(member):
                network.weights[layer][index] = torch.as_tensor(weight)
                network.biases[layer][index, 0] = torch.as_tensor(bias)
        return
    assert isinstance(network, MLP)
    for module, (weight, bias) in zip(network.layers, members[0], strict=True):
        assert isinstance(module, nn.Linear)
        module.weight.copy_(torch.as_tensor(weight.T))
        module.bias.copy_(torch.as_tensor(bias))


def member(network: nn.Module, index: int = 0, of: Any = None) -> list[np.ndarray]:
    """Weights [in, out] and biases of an MLP, or of member `index`, layer by layer; `of` maps a
    parameter to the tensor to read in its place."""
    read = of or (lambda p: p)
    result = []
    if isinstance(network, EnsembleMLP):
        for weight, bias in zip(network.weights, network.biases, strict=True):
            result += [read(weight)[index], read(bias)[index, 0]]
    else:
        assert isinstance(network, MLP)
        for layer in network.layers:
            assert isinstance(layer, nn.Linear)
            result += [read(layer.weight).T, read(layer.bias)]
    return [array(t) for t in result]


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def weights_of(network: nn.Module, members: int = 1) -> float:
    """The digest of a network's weights."""
    return digest([a for index in range(members) for a in member(network, index)])


def gradients_of(network: nn.Module, optimiser: torch.optim.Optimizer, members: int = 1) -> float:
    """The digest of the gradients of an optimiser's first step."""

    def gradient(parameter: Tensor) -> Tensor:
        moment: Tensor = optimiser.state[parameter]["exp_avg"]
        return 10 * moment

    return digest([a for index in range(members) for a in member(network, index, gradient)])


def numbers(values: dict[str, Tensor], names: Sequence[str]) -> list[float]:
    return [float(values[name]) for name in names]
