"""SHAC against the authors' code: NVlabs/DiffRL at a4c0dd1, `SHAC.compute_actor_loss` and
`compute_target_values` (algorithms/shac.py), in float64 with a learned model as its simulator.

The model is that of `tests/world_models/beside/members.py`, row i in member i modulo 3, and
ends nowhere in the windows of four steps; policy 8-8 of seed 1, target critic of seed 4, twice.
Targets with ends: rewards normal(70, 4, 6), values normal(71, 4, 6), the third column ends at its
second step, the fifth at its third.
"""

from typing import Any

import pytest
import torch

from algorithms.shac import trace_targets
from mbrl.networks import descend
from tests.algorithms.beside.inputs import (
    ROWS,
    array,
    batch,
    digest,
    gradients_of,
    layers,
    learner_of,
    normal,
    put,
)
from tests.world_models.beside.members import model

STEPS = 4


def test_windows_targets_and_gradients() -> None:
    made: Any = learner_of(
        "shac", hidden=[8, 8], critic_hidden=[8, 8], gamma=0.9, horizon=STEPS, termination="never"
    )
    made.model = model()
    made.model.termination = None
    put(made.actor.net, layers(1, 4, 8, 8, 2))
    put(made.target, layers(4, 4, 8, 8, 1), layers(4, 4, 8, 8, 1))
    window = made.imagine(batch().obs)
    loss = -made.returns(window).mean() / STEPS
    values = made.target(window.obs[1:].flatten(0, 1))[0, :, 0].view(STEPS, ROWS)
    targets = trace_targets(window.reward, values, window.alive, 0.9, 0.95)
    descend(made.optimisers["actor"], loss)
    gradient = gradients_of(made.actor.net, made.optimisers["actor"])
    got = [loss.item(), gradient, digest([array(targets)])]
    assert got == pytest.approx([-0.3043686758, -0.1482957377, -3.363358566], rel=1e-6)


def test_targets_with_ends() -> None:
    alive = torch.ones(STEPS, ROWS, dtype=torch.float64)
    alive[1, 2] = alive[2, 4] = 0.0
    reward, value = (torch.as_tensor(normal(seed, STEPS, ROWS)) for seed in (70, 71))
    targets = trace_targets(reward, value, alive, 0.9, 0.95)
    assert digest([array(targets)]) == pytest.approx(-7.55498899, rel=1e-8)
