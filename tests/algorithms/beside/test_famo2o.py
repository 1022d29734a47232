"""FamO2O against the authors' code: LeapLabTHU/FamO2O at ea9cb01, `FamilyLearner.update` with
random balances (jax_iql/family_learner.py), in float64.

Networks 8-8; policy of seed 1 with log-deviations -2 + 0.2 normal(9, 2), so that no action is cut;
balance policy 11 with the log-deviation -0.4, in ours the last bias of a network whose other last
weights to it are 0; critics 2 and 3, their targets 4 and 5, value 6. Range 1 to 5, code of 6,
expectile 0.7, temperature 0.3, tau 0.1, rates 1e-3. Noise normal(7, 3, ...) of the action and, in
the first column, of the balance; the uniform balance is that of erf(0.3 / sqrt 2) in all rows,
since theirs weighs each row by the balances of all. Theirs takes the temperature's gradient by
itself times the temperature.
"""

import numpy as np
import pytest
import torch

from tests.algorithms.beside.inputs import (
    ACTIONS,
    ROWS,
    Layers,
    batch,
    digest,
    gradients_of,
    layers,
    learner_of,
    member,
    normal,
    put,
)


def with_deviation(balance: Layers, log_std: float) -> Layers:
    """The balance policy's layers with a second output, `log_std` everywhere."""
    weight, bias = balance[-1]
    wide = np.concatenate([weight, np.zeros_like(weight)], 1)
    return [*balance[:-1], (wide, np.concatenate([bias, [log_std]]))]


def test_update() -> None:
    made = learner_of(
        "famo2o", hidden=[8, 8], gamma=0.9, tau=0.1, alpha=0.3, learning_rate=1e-3, code=6
    )
    policy, optimisers = made.policy, made.optimisers
    put(policy.universal.net, layers(1, 10, 8, 8, 2))
    policy.universal.log_std.data.copy_(torch.as_tensor(-2 + 0.2 * normal(9, 2)))
    put(policy.balance.net, with_deviation(layers(11, 4, 8, 8, 1), -0.4))
    put(made.critic, layers(2, 6, 8, 8, 1), layers(3, 6, 8, 8, 1))
    put(made.critic_target, layers(4, 6, 8, 8, 1), layers(5, 6, 8, 8, 1))
    put(made.value, layers(6, 4, 8, 8, 1))
    noise = normal(7, 3, ROWS, ACTIONS)
    noise[2] = 0.3
    metrics = made.update(batch(noise=noise), 0)
    losses = [metrics[f"{part}/loss"].item() for part in ("value", "balance", "actor", "critic")]
    losses[3] *= 2  # ours is half of theirs
    expected = [0.01208689382, -0.2621685618, 26.64474045, 2.979541713]
    assert losses == pytest.approx(expected, rel=1e-6)
    state = optimisers["balance"].state
    *hidden, weight, bias = member(policy.balance.net, of=lambda p: 10 * state[p]["exp_avg"])
    alpha = optimisers["temperature"].state[made.log_alpha]["exp_avg"]
    gradients = [
        gradients_of(made.value, optimisers["value"]),
        digest(hidden),
        digest([weight[:, :1], bias[:1]]),
        float(bias[1]),
        0.3 * 10 * float(alpha),
        gradients_of(policy.universal.net, optimisers["policy"]),
        2 * gradients_of(made.critic, optimisers["critic"], 2),
    ]
    expected = [-0.1928219814, 0.1950476238, 0.1642740914, 0.07478705888, 0.23228706]
    assert gradients == pytest.approx([*expected, -7.968439841, -3.52022487], rel=1e-6)
