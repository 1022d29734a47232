"""SAC-N and EDAC against CORL's: tinkoff-ai/CORL at 6afec90, `SACN.update` and `EDAC.update`
(algorithms/offline/sac_n.py, edac.py), whole updates in float64.

Networks 8-8-8; policy of seed 1, critics 2, 3 and 4, their targets 5, 6 and 7; temperature 0.3, eta
0.8, tau 0.1, rates 1e-3; noise normal(7, 2, ...), its first draw both the temperature's and the
policy's. Its log-density has 1e-6 inside the logarithm of the squash, so five digits are compared.
"""

from typing import Any

import pytest

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


def updated(name: str, **settings: Any) -> tuple[Any, Any]:
    shared = {
        "hidden": [8, 8, 8], "critics": 3, "gamma": 0.9, "tau": 0.1, "alpha": 0.3,
        "actor_lr": 1e-3, "critic_lr": 1e-3, "alpha_lr": 1e-3,
    }  # fmt: skip
    made = learner_of(name, learner=shared | settings)
    put(made.actor.net, layers(1, 4, 8, 8, 8, 4))
    put(made.critic, *(layers(seed, 6, 8, 8, 8, 1) for seed in (2, 3, 4)))
    put(made.target, *(layers(seed, 6, 8, 8, 8, 1) for seed in (5, 6, 7)))
    return made, made.update(batch(noise=normal(7, 2, ROWS, ACTIONS)))


@pytest.mark.parametrize(
    ("name", "settings", "loss", "gradient", "target"),
    [
        ("sac_n", {}, 7.940875069, -3.570345404, -2.036663301),
        ("edac", {"eta": 0.8}, 7.657731004, 0.410794234, -2.037764757),
    ],
)
def test_update(
    name: str, settings: dict[str, float], loss: float, gradient: float, target: float
) -> None:
    made, metrics = updated(name, **settings)
    names = ("actor/alpha", "actor/loss", "actor/entropy")
    got = [metrics[key].item() for key in names]
    assert got == pytest.approx([0.299700141, 0.5274106336, 1.224934267], rel=1e-5)
    whole = metrics["critic/loss"].item()
    if settings:
        whole += settings["eta"] * metrics["critic/diversity"].item()
    assert whole == pytest.approx(loss, rel=1e-5)
    gradients = [
        gradients_of(made.actor.net, made.optimisers["actor"]),
        gradients_of(made.critic, made.optimisers["critic"], 3),
    ]
    assert gradients == pytest.approx([0.1410039603, gradient], rel=1e-5)
    assert weights_of(made.target, 3) == pytest.approx(target, rel=1e-5)
