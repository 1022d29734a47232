"""World models: learned ensembles, the true dynamics, and rollouts from them."""

from world_models.base import Prediction, WorldModel
from world_models.ensemble import EnsembleConfig, EnsembleDynamics
from world_models.rollout import RolloutConfig, rollout
from world_models.true_dynamics import Interpolated, TrueDynamics

__all__ = [
    "EnsembleConfig",
    "EnsembleDynamics",
    "Interpolated",
    "Prediction",
    "RolloutConfig",
    "TrueDynamics",
    "WorldModel",
    "rollout",
]
