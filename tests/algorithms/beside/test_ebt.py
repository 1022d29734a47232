"""Descent on a learned energy, in float64: energy 8-8 with SiLU of seed 160, four steps of length
0.2, noise normal(162, 4, 6, 2).

`test_steps_loss_and_gradients`: the base method's code, alexiglad/EBT at 0ad3628,
`EBT_IMG_Denoise.forward` and `forward_loss_wrapper` (model/img/ebt_denoise.py), with the
exponential of a network as its energy, from the logged actions plus 0.3 tanh(normal(161, 6, 2)).
Its loss is half the squared error where that is below 1, as it is here, ours the whole.

`test_momentum_and_falling_noise`: the policy's code, ZhiChengAIR/benchmarks at 8e8a5c4,
`_energy_step` and `compute_loss` (robomimic/algo/precious_policy.py) with its scheduler
(robomimic/models/schedulers.py) and without its norm, from normal(161, 6, 2).
"""

from typing import Any

import pytest
import torch

from algorithms.learners.generative import Drawn
from tests.algorithms.beside.inputs import (
    ROWS,
    array,
    batch,
    digest,
    layers,
    learner_of,
    member,
    normal,
    put,
)


def test_steps_loss_and_gradients() -> None:
    made: Any = learner_of("ebt", hidden=[8, 8], step_size=0.2, langevin=0.05)
    put(made.policy.net, layers(160, 6, 8, 8, 1))
    noise = torch.as_tensor(normal(162, 4, ROWS, 2))
    rows = batch(noise=noise)
    start = rows.action + 0.3 * torch.as_tensor(normal(161, ROWS, 2)).tanh()
    loss = made.loss(Drawn(rows, start, torch.zeros(ROWS)))
    loss.backward()
    gradient = digest(member(made.policy.net, 0, lambda p: p.grad))
    got = [loss.item() / 2, gradient / 2]
    assert got == pytest.approx([0.02649447315, -0.01279220255], rel=1e-8)
    action, steps = start, []
    for own in noise:
        action = made.policy.step(rows.obs, action + 0.05 * own, torch.zeros(ROWS, 2))[0]
        steps.append(array(action))
    assert digest(steps) == pytest.approx(3.518010247, rel=1e-8)


def test_momentum_and_falling_noise() -> None:
    values = {"step_size": 0.2, "momentum": 0.9, "langevin": 0.3, "langevin_end": 0.001}
    made: Any = learner_of("ebt", hidden=[8, 8], max_steps=6, min_gradient=0.0, **values)
    put(made.policy.net, layers(160, 6, 8, 8, 1))
    start = torch.as_tensor(normal(161, ROWS, 2))
    rows = batch(noise=torch.as_tensor(normal(162, 4, ROWS, 2)))
    loss = made.loss(Drawn(rows, start, torch.zeros(ROWS)))
    loss.backward()
    gradient = digest(member(made.policy.net, 0, lambda p: p.grad))
    assert [loss.item(), gradient] == pytest.approx([1.404952897555, -0.05304379213721], rel=1e-8)
    action, _ = made.policy.descent(rows.obs, start)
    assert digest([array(action)]) == pytest.approx(0.3854696475948, rel=1e-8)
