"""The ensemble that comparisons with others' code use, in float64: three members 8-8 of seeds 30 to
32 with inputs standardised by the six rows of `tests.algorithms.beside.inputs`, upper bounds of
log-variances 0.5 + 0.1 normal(40, 5), lower ones -1 + 0.1 normal(41, 5). It ends where
|s'_0| > 1.5.
"""

from typing import Any

import torch

from tests.algorithms.beside.inputs import SPEC, batch, layers, normal, put
from world_models import EnsembleConfig, EnsembleDynamics

MEMBERS, WIDTH = 3, 5


def model(**settings: Any) -> EnsembleDynamics:
    config = EnsembleConfig(
        members=MEMBERS, elites=MEMBERS, hidden=(8, 8), weight_decay=(0.1, 0.2, 0.3), **settings
    )
    made = EnsembleDynamics(
        SPEC, config, termination=lambda obs, action, reached: reached[:, 0].abs() > 1.5
    )
    for module in (made.network, made.obs_normaliser, made.action_normaliser, made.target_scale):
        module.double()
    put(made.network.mlp, *(layers(30 + e, 6, 8, 8, 2 * WIDTH) for e in range(MEMBERS)))
    made.network.high.data = torch.as_tensor(0.5 + 0.1 * normal(40, WIDTH))
    made.network.low.data = torch.as_tensor(-1 + 0.1 * normal(41, WIDTH))
    rows = batch()
    made.obs_normaliser.fit(rows.obs)
    made.action_normaliser.fit(rows.action)
    made.holdout_mse = torch.zeros(MEMBERS)
    return made
