"""Networks: batched ensembles with their own backward, policies, normaliser, target updates."""

from mbrl.networks.ensemble import (
    ACTIVATIONS,
    EnsembleMLP,
    ensemble_values,
    minimum_value,
)
from mbrl.networks.normaliser import Normaliser
from mbrl.networks.optim import adam, descend, step
from mbrl.networks.policies import (
    MLP,
    ActionScale,
    CategoricalPolicy,
    DeterministicPolicy,
    SquashedGaussianPolicy,
    TanhMeanGaussianPolicy,
    allowed_only,
)
from mbrl.networks.targets import polyak_update, target_copy

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "ActionScale",
    "CategoricalPolicy",
    "DeterministicPolicy",
    "EnsembleMLP",
    "Normaliser",
    "SquashedGaussianPolicy",
    "TanhMeanGaussianPolicy",
    "adam",
    "allowed_only",
    "descend",
    "ensemble_values",
    "minimum_value",
    "polyak_update",
    "step",
    "target_copy",
]
