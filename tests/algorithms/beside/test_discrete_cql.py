"""Discrete CQL against a second source, d3rlpy's: takuseno/d3rlpy at 38c34b6,
`DiscreteCQLImpl._compute_conservative_loss` and `DoubleDQNImpl.compute_target`
(d3rlpy/algos/qlearning/torch/), with squared errors, in float64.

Networks 8-8 of seeds 2 and, the target, 4, with three actions; the logged ones are 0, 2, 1, 1, 0
and 2; weight 0.7.
"""

from typing import Any

import pytest
import torch

from mbrl.types import Spec
from tests.algorithms.beside.inputs import (
    STATES,
    batch,
    gradients_of,
    layers,
    learner_of,
    put,
)


def test_update() -> None:
    spec = Spec("beside", STATES, 1, 3, (0.0,), (2.0,), 10)
    made: Any = learner_of("discrete_cql", spec, hidden=[8, 8], gamma=0.9, weight=0.7)
    put(made.policy.critic, layers(2, 4, 8, 8, 3))
    put(made.critic_target, layers(4, 4, 8, 8, 3))
    rows = batch()._replace(action=torch.tensor([0, 2, 1, 1, 0, 2]))
    metrics = made.update(rows)
    got = [
        metrics["critic/loss"].item(),
        metrics["critic/gap"].item(),
        gradients_of(made.policy.critic, made.optimisers["critic"], 1),
    ]
    assert got == pytest.approx([2.498833023, 1.202865755, -0.7747598824], rel=1e-8)
