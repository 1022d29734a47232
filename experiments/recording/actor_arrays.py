"""Policies that others publish as arrays: the actors that recorded NeoRL-2's datasets."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.recording.behaviour import load_weights
from mbrl.errors import ConfigError

LAYERS = ("preprocess.model.model.0", "preprocess.model.model.2", "mu.model.0")


def actor_of(path: Path) -> Any:
    """The policy of an npz file with the arrays of tianshou's actor: two hidden layers of rectified
    units and the mean of the actions, clipped to [-1, 1].

    It takes no noise: every logged action of NeoRL-2's SafetyHalfCheetah and RandomFrictionHopper
    is the clipped mean of one of these files, to 1e-3.
    """
    if not path.is_file():
        raise ConfigError(f"policy {path} does not exist")
    weights = load_weights(path)
    names = [f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")]
    missing = [name for name in names if name not in weights]
    if missing:
        raise ConfigError(
            f"policy {path} has no {missing[0]}; of npz files only tianshou's actors with the "
            f"layers {', '.join(LAYERS)} are read"
        )
    given = [torch.from_numpy(weights[name].astype(np.float32)) for name in names]

    def act(obs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        first = torch.relu(obs.float() @ given[0].T + given[1])
        second = torch.relu(first @ given[2].T + given[3])
        return (second @ given[4].T + given[5]).clamp(-1.0, 1.0)

    return act
