"""Networks: batched ensembles with their own backward, policies, normaliser, target updates."""

from mbrl.networks.ensemble_mlp import EnsembleMLP, ensemble_values, minimum_value
from mbrl.networks.policies import (
    MLP,
    ActionScale,
    DeterministicPolicy,
    Normaliser,
    SquashedGaussianPolicy,
    TanhMeanGaussianPolicy,
)
from mbrl.networks.targets import polyak_update, target_copy

__all__ = [
    "MLP",
    "ActionScale",
    "DeterministicPolicy",
    "EnsembleMLP",
    "Normaliser",
    "SquashedGaussianPolicy",
    "TanhMeanGaussianPolicy",
    "ensemble_values",
    "minimum_value",
    "polyak_update",
    "target_copy",
]
