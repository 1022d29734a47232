"""TD3+BC and ReBRAC against the authors' code, in float64, networks 8-8 without LayerNorm, all
rates 1e-3, tau 0.1, with noise 3 normal(7, ...) of the next actions and targets other than the
networks: policy of seed 1 and its target 10, critics 2 and 3 and their targets 4 and 5.

TD3+BC: sfujim/TD3_BC at 8791ad7, `TD3_BC.train` with `policy_freq` 1 and layers of width 8.
ReBRAC: tinkoff-ai/ReBRAC at 694385b, `update_td3` (src/algorithms/rebrac.py), penalties 0.4 and
0.6, next actions tanh(normal(8, ...)). Its target policy follows the policy before the step.
"""

from typing import Any

import numpy as np
import pytest
import torch

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

SHARED = {"hidden": [8, 8], "gamma": 0.9, "tau": 0.1, "learning_rate": 1e-3}


def learner(name: str, **settings: Any) -> Any:
    made = learner_of(name, **SHARED, **settings)
    put(made.policy.net, layers(1, 4, 8, 8, 2))
    put(made.policy_target.net, layers(10, 4, 8, 8, 2))
    put(made.critic, layers(2, 6, 8, 8, 1), layers(3, 6, 8, 8, 1))
    put(made.critic_target, layers(4, 6, 8, 8, 1), layers(5, 6, 8, 8, 1))
    return made


def gradients(made: Any) -> list[float]:
    return [
        gradients_of(made.critic, made.optimisers["critic"], 2),
        gradients_of(made.policy.net, made.optimisers["policy"]),
    ]


def noise() -> torch.Tensor:
    return torch.as_tensor(3 * normal(7, 1, ROWS, ACTIONS))


def test_td3_bc() -> None:
    made = learner("td3_bc")
    made.update(batch(noise=noise()), 0)
    assert gradients(made) == pytest.approx([-3.309284648, 0.3599614375], rel=1e-8)
    targets = [weights_of(made.critic_target, 2), weights_of(made.policy_target.net)]
    assert targets == pytest.approx([-2.106255353, -0.2385121428], rel=1e-8)


@pytest.mark.parametrize(
    ("normalise", "actor", "expected"),
    [
        (True, 0.3286308779, [-4.997896386, 1.17532044]),
        (False, 0.2748863615, [-4.997896386, 0.1962518694]),
    ],
)
def test_rebrac(normalise: bool, actor: float, expected: list[float]) -> None:
    made = learner("rebrac", actor_bc=0.4, critic_bc=0.6, normalise_q=normalise, layer_norm=False)
    following = np.tanh(normal(8, ROWS, ACTIONS))
    metrics = made.update(batch(noise=noise(), next_action=following, has_next=np.ones(ROWS)), 0)
    assert metrics["critic/loss"].item() == pytest.approx(6.342667603, rel=1e-8)
    assert metrics["actor/loss"].item() == pytest.approx(actor, rel=1e-8)
    assert gradients(made) == pytest.approx(expected, rel=1e-8)
    assert weights_of(made.critic_target, 2) == pytest.approx(-2.106160108, rel=1e-8)
