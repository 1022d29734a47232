"""IQL against the authors' code: ikostrikov/implicit_q_learning at 09d7002, `Learner.update`, in
float64.

Networks 8-8, ReLU; policy of seed 1 with log-deviations 0.2 normal(9, 2), critics 2 and 3, their
targets 4 and 5, value 6; expectile 0.7, temperature 3, tau 0.1. Theirs takes advantages and next
values after the value's step, ours before it: the numbers are theirs at a rate of 1e-12, but for
the weights after the step, whose rate is 1e-3.
"""

import pytest
import torch

from tests.algorithms.beside.inputs import (
    batch,
    digest,
    gradients_of,
    layers,
    learner_of,
    normal,
    put,
    weights_of,
)


def test_update() -> None:
    made = learner_of("iql", hidden=[8, 8], learning_rate=1e-3, tau=0.1, gamma=0.9)
    put(made.policy.net, layers(1, 4, 8, 8, 2))
    made.policy.log_std.data.copy_(torch.as_tensor(0.2 * normal(9, 2)))
    put(made.critic, layers(2, 6, 8, 8, 1), layers(3, 6, 8, 8, 1))
    put(made.critic_target, layers(4, 6, 8, 8, 1), layers(5, 6, 8, 8, 1))
    put(made.value, layers(6, 4, 8, 8, 1))
    metrics = made.update(batch(), 0)
    losses = [metrics[f"{part}/loss"].item() for part in ("value", "actor", "critic")]
    losses[2] *= 2  # ours is half of theirs
    assert losses == pytest.approx([0.01208689382, 3.088844222, 2.985204524], rel=1e-7)
    optimisers = made.optimisers
    deviations = optimisers["policy"].state[made.policy.log_std]["exp_avg"]
    gradients = [
        gradients_of(made.value, optimisers["value"]),
        gradients_of(made.policy.net, optimisers["policy"]),
        10 * digest([deviations]),
        2 * gradients_of(made.critic, optimisers["critic"], 2),
    ]
    expected = [-0.1928219814, -0.1784463843, 1.196644371, -3.524740325]
    assert gradients == pytest.approx(expected, rel=1e-7)
    assert weights_of(made.value) == pytest.approx(1.230883505, rel=1e-7)
