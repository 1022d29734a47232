"""COMBO against OfflineRL-Kit's: yihaosun1124/OfflineRL-Kit at e3ce697, `COMBOPolicy.learn`
(offlinerlkit/policy/model_based/combo.py), in float64, with one action a kind, where its soft
maximum over three values is one over all, deterministic targets and no Lagrange form.

Networks 8-8; policy of seed 1, which takes no step, critics 2 and 3, their targets 4 and 5;
temperature 0.3, weight 5. The first three rows are recorded ones. Noise normal(7, 5, ...); uniform
actions are erf(noise / sqrt 2).
"""

import pytest

from algorithms.learners.soft_actor_critic import plain_target
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
    ("states", "temperature", "loss", "gradient"),
    [
        ("mixture", 1.0, 27.24597185, -4.596885825),
        ("model", 0.5, 22.82079034, -2.588637781),
    ],
)
def test_critics(states: str, temperature: float, loss: float, gradient: float) -> None:
    shared = {"hidden": [8, 8], "gamma": 0.9, "alpha": 0.3, "batch_size": ROWS, "critics": 2}
    made = learner_of(
        "combo", learner=shared, samples=1, states=states, temperature=temperature, weight=5.0,
        imagination={"termination": "never"},
    )  # fmt: skip
    put(made.actor.net, layers(1, 4, 8, 8, 4))
    put(made.critic, layers(2, 6, 8, 8, 1), layers(3, 6, 8, 8, 1))
    put(made.target, layers(4, 6, 8, 8, 1), layers(5, 6, 8, 8, 1))
    rows = batch(noise=normal(7, 5, ROWS, ACTIONS))._replace(real=3)
    metrics = made.update_critic(rows, plain_target(made, rows, {}))
    whole = metrics["critic/loss"] + 5.0 * 2 * metrics["critic/gap"]
    assert whole.item() == pytest.approx(loss, rel=1e-7)
    got = gradients_of(made.critic, made.optimisers["critic"], 2)
    assert got == pytest.approx(gradient, rel=1e-7)
