"""The objective refuses shapes that broadcasting would take in silence."""

import dataclasses

import pytest

from mbrl.policy_gradient import estimate, loss, recipe
from mbrl.policy_gradient.objective import Estimate
from tests.mbrl.policy_gradient.cases import batch


def test_shapes_that_would_broadcast_are_refused() -> None:
    (t, log_prob, _), objective = batch(0), recipe("grpo")
    found = estimate(objective, t)
    loss(objective, log_prob, t, found)
    for bad in (
        Estimate(found.advantage[:, :1], found.weight),
        Estimate(found.advantage, found.weight[:1]),
        Estimate(found.advantage.T, found.weight),
    ):
        with pytest.raises(ValueError, match="shapes do not fit together"):
            loss(objective, log_prob, t, bad)
    with pytest.raises(ValueError, match="shapes do not fit together"):
        loss(objective, log_prob[:, :1], t, found)
    with pytest.raises(ValueError, match="shapes do not fit together"):
        estimate(objective, dataclasses.replace(t, reward=t.reward[:, :1]))
