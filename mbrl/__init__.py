"""The shared core: data types, tasks, networks, estimators, the training loop, checkpoints."""

from mbrl.errors import CheckpointError, ConfigError, DataError, DivergenceError
from mbrl.types import Dataset, Provenance, Spec, Trajectories, Transitions

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Dataset",
    "DivergenceError",
    "Provenance",
    "Spec",
    "Trajectories",
    "Transitions",
]
