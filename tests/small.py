"""Settings that make one training step of each algorithm cheap, and which data suits it."""

from typing import Any, TypeVar

from algorithms import ALGORITHMS

T = TypeVar("T")

LEARNER = {"hidden": [16, 16], "batch_size": 16, "critics": 3}
MODEL = {
    "members": 3,
    "elites": 2,
    "hidden": [16],
    "weight_decay": [1e-5],
    "batch_size": 64,
    "min_epochs": 2,
    "max_epochs": 6,
}
MODEL_BASED = {
    "learner": LEARNER,
    "model": MODEL,
    "imagination": {"starts": 32, "every": 10, "retain": 2, "rollout": {"horizon": 3}},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bc": {"hidden": [16]},
    "td3_bc": {"hidden": [16]},
    "rebrac": {"hidden": [16, 16], "batch_size": 32},
    "iql": {"hidden": [16]},
    "awac": {"hidden": [16]},
    "crr": {"hidden": [16], "samples": 3},
    "cql": {"learner": LEARNER, "samples": 3, "threshold": 1.0},
    "sac": {"learner": LEARNER, "capacity": 500, "warmup": 20},
    "sac_n": {"learner": LEARNER},
    "edac": {"learner": LEARNER | {"eta": 1.0}},
    "mbpo": MODEL_BASED,
    "mopo": MODEL_BASED,
    "ravl": MODEL_BASED | {"learner": LEARNER | {"eta": 1.0}},
    "discrete_cql": {"hidden": [16], "critics": 2},
    "discrete_iql": {"hidden": [16]},
    "discrete_sac_n": {"hidden": [16], "critics": 3},
}


def takes(algorithm: str, kind: str) -> bool:
    """Whether an algorithm takes "continuous" or "discrete" actions."""
    return kind in ALGORITHMS[algorithm][0].action_kinds


def suited(algorithm: str, continuous: T, discrete: T) -> T:
    """The one of two things that suits the algorithm; `continuous` where both do."""
    return continuous if takes(algorithm, "continuous") else discrete
