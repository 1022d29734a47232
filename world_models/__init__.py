"""World models: learned ensembles, the true dynamics, rollouts from them, and generators of whole
trajectories."""

import longreach  # noqa: F401  refuses a foreign `mbrl`
from world_models.ensemble import EnsembleDynamics
from world_models.ensemble_network import EnsembleConfig
from world_models.guidance import PolicyGuidance
from world_models.protocol import Prediction, WorldModel
from world_models.rollout import RolloutConfig, rollout
from world_models.trajectory_diffusion import DiffusionConfig, TrajectoryDiffusion
from world_models.true_dynamics import Interpolated, TrueDynamics

__all__ = [
    "DiffusionConfig",
    "EnsembleConfig",
    "EnsembleDynamics",
    "Interpolated",
    "PolicyGuidance",
    "Prediction",
    "RolloutConfig",
    "TrajectoryDiffusion",
    "TrueDynamics",
    "WorldModel",
    "rollout",
]
