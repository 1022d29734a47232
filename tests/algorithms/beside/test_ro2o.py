"""RO2O against the authors' code: BattleWen/RO2O at d066702, `RO2O.update`
(algorithms/offline/ro2o_mujoco.py), a whole update in float64.

Networks 8-8-8; policy of seed 1, critics 2, 3 and 4, their targets 5, 6 and 7; temperature 0.3, tau
0.1, rates 1e-3, radii 0.3, 0.2 and 0.4 of values, policy and unseen actions, three copies each.
Noise normal(7, 5, ...), its first draw both the temperature's and the policy's; shifts 2 u - 1 of
uniform u of seed 8. Its log-density has 1e-6 inside the logarithm of the squash, so five digits are
compared.
"""

import numpy as np
import pytest

from tests.algorithms.beside.inputs import (
    ACTIONS,
    ROWS,
    STATES,
    batch,
    gradients_of,
    layers,
    learner_of,
    normal,
    put,
    weights_of,
)


def test_update() -> None:
    shared = {
        "hidden": [8, 8, 8], "critics": 3, "gamma": 0.9, "tau": 0.1, "alpha": 0.3,
        "actor_lr": 1e-3, "critic_lr": 1e-3, "alpha_lr": 1e-3,
    }  # fmt: skip
    smooth = {
        "perturbations": 3, "value_radius": 0.3, "policy_radius": 0.2, "policy_weight": 0.6,
        "unseen_radius": 0.4, "unseen_weight": 0.7, "pessimism": 1.5,
    }  # fmt: skip
    made = learner_of("ro2o", learner=shared, smooth=smooth)
    put(made.actor.net, layers(1, 4, 8, 8, 8, 4))
    put(made.critic, *(layers(seed, 6, 8, 8, 8, 1) for seed in (2, 3, 4)))
    put(made.target, *(layers(seed, 6, 8, 8, 8, 1) for seed in (5, 6, 7)))
    shift = 2 * np.random.default_rng(8).uniform(size=(9, STATES)) - 1
    metrics = made.update(batch(noise=normal(7, 5, ROWS, ACTIONS), shift=shift))
    names = ("actor/alpha", "actor/entropy", "critic/loss", "actor/loss", "actor/smooth")
    got = [metrics[name].item() for name in (*names, "critic/unseen", "critic/smooth")]
    expected = [0.299700141, 1.224934267, 7.940251402, 0.5274106336]
    weighted = [0.005984589101 / 0.6, 0.3659403381 / 0.7, 4.469765958e-07 / 1e-4]
    assert got == pytest.approx([*expected, *weighted], rel=1e-5)
    gradients = [
        gradients_of(made.actor.net, made.optimisers["actor"]),
        gradients_of(made.critic, made.optimisers["critic"], 3),
    ]
    assert gradients == pytest.approx([0.08858945617, -3.221122782], rel=1e-5)
    assert weights_of(made.target, 3) == pytest.approx(-2.037072916, rel=1e-5)
