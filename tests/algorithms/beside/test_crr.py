"""CRR's weights against the authors' implementation: google-deepmind/acme at 770bc75,
`policy_loss_coeff_advantage_exp` and `policy_loss_coeff_advantage_indicator`
(acme/agents/jax/crr/losses.py), in float64.

Networks 8-8; policy of seed 1 (a tanh behind its mean) with log-deviations 0.2 normal(9, 2), critic
2; four actions a state, noise normal(7, 5, ...), whose first is the next action's; temperature 0.2,
bound 1.5.
"""

from typing import Any

import pytest
import torch

from tests.algorithms.beside.inputs import (
    ACTIONS,
    ROWS,
    array,
    batch,
    digest,
    layers,
    learner_of,
    normal,
    put,
)


@pytest.mark.parametrize("kind", ["exp", "binary"])
def test_weights(kind: str) -> None:
    made: Any = learner_of(
        "crr", hidden=[8, 8], filter=kind, samples=4, beta=0.2, max_weight=1.5, critics=1
    )
    put(made.policy.net, layers(1, 4, 8, 8, 2))
    made.policy.log_std.data.copy_(torch.as_tensor(0.2 * normal(9, 2)))
    put(made.critic, layers(2, 6, 8, 8, 1))
    rows = batch(noise=normal(7, 5, ROWS, ACTIONS))
    weight = made.weight(made.advantage(rows))
    if kind == "binary":
        assert weight.tolist() == [0, 1, 1, 0, 1, 1]
    else:
        assert digest([array(weight)]) == pytest.approx(-0.3903394043, rel=1e-8)
