"""What the model-free offline algorithms share, as functions that their classes take over by name:
the data buffer, batches and state."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mbrl import agent as shared
from mbrl.buffer import Batch, Buffer
from mbrl.errors import ConfigError
from mbrl.networks import Normaliser
from mbrl.training import Metrics
from mbrl.types import Dataset, Spec

DISCRETE_ALGORITHMS = ("BC",)  # those that take discrete actions


class Offline:
    """The attributes these functions use; algorithm classes derive from it to declare them."""

    version: int
    spec: Spec
    config: Any
    device: torch.device
    seed: int
    step: int
    generator: torch.Generator
    real: Buffer | None
    modules: dict[str, nn.Module]
    optimisers: dict[str, torch.optim.Optimizer]


def setup(self: Any, spec: Spec, config: Any, device: str, seed: int) -> torch.Generator:
    """Set the shared attributes; returns the generator for initial weights."""
    self.spec, self.config, self.seed, self.step = spec, config, seed, 0
    self.device = shared.resolve_device(device)
    initial, self.generator = shared.generators(seed, self.device)
    self.real = None
    self.modules, self.optimisers = {}, {}
    return initial


def require_continuous(spec: Spec, algorithm: str) -> None:
    if spec.discrete:
        raise ConfigError(
            f"{algorithm} needs continuous actions and task {spec.task!r} has {spec.num_actions} "
            f"discrete ones; algorithms that take them: {', '.join(DISCRETE_ALGORITHMS)}"
        )


def prepare(self: Offline, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
    """Put the dataset on the device and, at the first call, fit the observation normaliser."""
    if self.real is not None:
        return
    self.real = Buffer(self.spec, len(dataset), self.config.gamma, self.device)
    self.real.append(dataset.transitions)
    if self.step == 0 and getattr(self.config, "normalise_obs", False):
        for module in self.modules.values():
            normaliser = getattr(module, "normaliser", None)
            if isinstance(normaliser, Normaliser):
                normaliser.fit(dataset.transitions.obs.to(self.device), eps=1e-3)


def next_batch(self: Offline) -> Batch:
    """A uniform batch of real rows."""
    return data_buffer(self).sample(self.config.batch_size, self.generator)


def data_buffer(self: Any) -> Buffer:
    if self.real is None:
        raise ConfigError(
            f"{type(self).__name__} has no data yet; call fit(dataset, steps) or prepare(dataset)"
        )
    buffer: Buffer = self.real
    return buffer


def state_dict(self: Offline) -> dict[str, Any]:
    return {
        "modules": {k: v.state_dict() for k, v in self.modules.items()},
        "optimisers": {k: v.state_dict() for k, v in self.optimisers.items()},
        "generator": self.generator.get_state(),
    }


def load_state_dict(self: Offline, state: dict[str, Any]) -> None:
    for name, module in self.modules.items():
        module.load_state_dict(state["modules"][name])
    for name, optimiser in self.optimisers.items():
        optimiser.load_state_dict(state["optimisers"][name])
    self.generator.set_state(state["generator"])
