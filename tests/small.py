"""Settings that make one training step of each algorithm cheap."""

from typing import Any

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
    "iql": {"hidden": [16]},
    "sac": {"learner": LEARNER, "capacity": 500, "warmup": 20},
    "sac_n": {"learner": LEARNER},
    "edac": {"learner": LEARNER | {"eta": 1.0}},
    "mbpo": MODEL_BASED,
    "mopo": MODEL_BASED,
    "ravl": MODEL_BASED | {"learner": LEARNER | {"eta": 1.0}},
}
