"""IDQL's value and critics against the authors' code: philippe-eecs/IDQL at 7582571,
`DDPMIQLLearner.critic_update` (jaxrl5/agents/ddpm_iql/ddpm_iql_learner.py), in float64. Its
diffusion is another one than ours and was not run.

Networks 8-8; critics of seeds 2 and 3, their targets 4 and 5, value 6; expectile 0.7, tau 0.1,
rates 1e-3.
"""

import pytest
import torch

from algorithms.learners.generative import Drawn
from tests.algorithms.beside.inputs import (
    ACTIONS,
    ROWS,
    batch,
    gradients_of,
    layers,
    learner_of,
    normal,
    put,
    weights_of,
)


def test_value_and_critics() -> None:
    made = learner_of(
        "idql", hidden=[8, 8], gamma=0.9, tau=0.1, learning_rate=1e-3, diffusion={"steps": 3}
    )
    put(made.critic, layers(2, 6, 8, 8, 1), layers(3, 6, 8, 8, 1))
    put(made.critic_target, layers(4, 6, 8, 8, 1), layers(5, 6, 8, 8, 1))
    put(made.value, layers(6, 4, 8, 8, 1))
    noise = torch.as_tensor(normal(7, ROWS, ACTIONS))
    metrics = made.update(Drawn(batch(), noise, torch.ones(ROWS, dtype=torch.float64)))
    losses = [metrics["value/loss"].item(), metrics["critic/loss"].item()]
    assert losses == pytest.approx([0.01208689382, 1.489770856], rel=1e-7)
    got = [
        gradients_of(made.value, made.optimisers["value"]),
        gradients_of(made.critic, made.optimisers["critic"], 2),
        weights_of(made.critic_target, 2),
    ]
    expected = [-0.1928219814, -1.760112435, -2.106243858]
    assert got == pytest.approx(expected, rel=1e-7)
