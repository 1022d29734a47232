"""AWAC against a second source, CORL's: tinkoff-ai/CORL at 6afec90,
`AdvantageWeightedActorCritic.update` (algorithms/offline/awac.py), in float64.

Networks 8-8-8; policy of seed 1 (a tanh put behind its mean) with log-deviations 0.2 normal(9, 2),
critics 2 and 3, their targets 4 and 5; temperature 0.5, tau 0.1, rates 1e-3, noise normal(7, ...).
Its weights are not divided by their mean over the batch: our loss and gradients times that mean are
its.
"""

import pytest
import torch

from tests.algorithms.beside.inputs import (
    ACTIONS,
    ROWS,
    batch,
    digest,
    gradients_of,
    layers,
    learner_of,
    normal,
    put,
)


def test_update() -> None:
    made = learner_of(
        "awac", hidden=[8, 8, 8], gamma=0.9, tau=0.1, learning_rate=1e-3, temperature=0.5
    )
    put(made.policy.net, layers(1, 4, 8, 8, 8, 2))
    made.policy.log_std.data.copy_(torch.as_tensor(0.2 * normal(9, 2)))
    put(made.critic, layers(2, 6, 8, 8, 8, 1), layers(3, 6, 8, 8, 8, 1))
    put(made.critic_target, layers(4, 6, 8, 8, 8, 1), layers(5, 6, 8, 8, 8, 1))
    rows, optimisers = batch(noise=normal(7, 2, ROWS, ACTIONS)), made.optimisers
    metrics = made.update_critic(rows)
    mean = float((made.advantage(rows) / 0.5).exp().mean())  # of the stepped critics, as theirs
    metrics |= made.update_policy(rows)
    losses = [metrics["critic/loss"].item(), mean * metrics["actor/loss"].item()]
    assert losses == pytest.approx([4.658648791, 2.321255242], rel=1e-8)
    deviations = optimisers["policy"].state[made.policy.log_std]["exp_avg"]
    gradients = [
        gradients_of(made.critic, optimisers["critic"], 2),
        mean * gradients_of(made.policy.net, optimisers["policy"]),
        mean * 10 * digest([deviations]),
    ]
    assert gradients == pytest.approx([0.2467523175, -0.2166245307, 0.1566924359], rel=1e-8)
