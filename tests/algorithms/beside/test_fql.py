"""FQL against the authors' code: seohongpark/fql at 719d044, `FQLAgent.update` (agents/fql.py), in
float64.

Networks 8-8 with ReLU in both codes, without LayerNorm; one-step policy of seed 1, critics 2 and 3,
their targets 4 and 5, flow 6 of three steps; alpha 1.7, rates 1e-3. Of normal(7, 3, ...) the first
draw is the flow's x_0, then the next action's and the policy's noise; times are uniform draws of
seed 8. Theirs halves the loss over two critics by its mean.
"""

import numpy as np
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
)


@pytest.mark.parametrize(
    ("value", "normalise", "critic", "distance", "expected"),
    [
        ("mean", False, 1.460871487, 0.4133975464, [-1.539864426, 0.9387920295, -0.05123950272]),
        ("min", True, 1.505176647, 0.4133975464, [-1.644084245, 0.9387920295, 0.01436629125]),
    ],
)
def test_update(
    value: str, normalise: bool, critic: float, distance: float, expected: list[float]
) -> None:
    made = learner_of(
        "fql", hidden=[8, 8], layer_norm=False, gamma=0.9, tau=0.1, learning_rate=1e-3, alpha=1.7,
        target_value=value, normalise_q=normalise, flow={"steps": 3},
    )  # fmt: skip
    made.policy.net.activation = made.base.net.activation = "relu"
    put(made.policy.net, layers(1, 6, 8, 8, 2))
    put(made.critic, layers(2, 6, 8, 8, 1), layers(3, 6, 8, 8, 1))
    put(made.critic_target, layers(4, 6, 8, 8, 1), layers(5, 6, 8, 8, 1))
    put(made.base.net, layers(6, 7, 8, 8, 2))
    noise = torch.as_tensor(normal(7, 3, ROWS, ACTIONS))
    level = torch.as_tensor(np.random.default_rng(8).uniform(size=ROWS))
    metrics = made.update(Drawn(batch(noise=noise[1:]), noise[0], level))
    losses = [metrics[n].item() for n in ("critic/loss", "actor/bc", "actor/distance")]
    assert losses == pytest.approx([critic, 1.147868887, distance], rel=1e-7)
    gradients = [
        gradients_of(made.critic, made.optimisers["critic"], 2),
        gradients_of(made.base.net, made.optimisers["base"]),
        gradients_of(made.policy.net, made.optimisers["policy"]),
    ]
    assert gradients == pytest.approx(expected, rel=1e-7)
