"""MOBILE against the authors' code: yihaosun1124/OfflineRL-Kit at e3ce697, `MOBILEPolicy.learn` and
`compute_lcb` (offlinerlkit/policy/model_based/mobile.py), in float64.

Networks 8-8; policy of seed 1, which takes no step, critics 2 and 3, their targets 4 and 5;
temperature 0.3, penalty weight 1.5, two samples a member; the first three rows are recorded ones.
The model is that of `tests/world_models/beside/members.py`; noise of its samples
normal(43, 2, 3, 6, 5), of the actions there normal(44, 2, 3, 6, 2), of the other actions
normal(7, 2, 6, 2).
"""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from algorithms.mobile import MOBILE, inconsistency
from tests.algorithms.beside.inputs import (
    ACTIONS,
    ROWS,
    array,
    batch,
    digest,
    gradients_of,
    layers,
    learner_of,
    normal,
    put,
)
from tests.world_models.beside.members import MEMBERS, WIDTH, model


@pytest.mark.parametrize(
    ("entropy", "clamp", "loss", "gradient"),
    [
        (False, False, 1.444403323, -1.653295499),
        (False, True, 0.9983018898, -1.094893943),
        (True, False, 1.611358415, -1.510892995),
    ],
)
def test_targets_and_critics(
    entropy: bool, clamp: bool, loss: float, gradient: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"hidden": [8, 8], "gamma": 0.9, "alpha": 0.3, "critics": 2}
    made = learner_of("sac", learner=shared | {"entropy_in_target": entropy})
    put(made.actor.net, layers(1, 4, 8, 8, 4))
    put(made.critic, layers(2, 6, 8, 8, 1), layers(3, 6, 8, 8, 1))
    put(made.target, layers(4, 6, 8, 8, 1), layers(5, 6, 8, 8, 1))
    rows = batch(noise=torch.as_tensor(normal(7, 2, ROWS, ACTIONS)))
    draws = [normal(43, 2, MEMBERS, ROWS, WIDTH), normal(44, 2, MEMBERS, ROWS, ACTIONS)]
    monkeypatch.setattr(torch, "randn", lambda *shape, **kinds: torch.as_tensor(draws.pop(0)))
    penalty = inconsistency(made, model(), rows.obs, rows.action, 2, torch.Generator())
    assert digest([array(penalty)]) == pytest.approx(0.003468559332, rel=1e-7)
    penalty[:3] = 0.0
    owner = SimpleNamespace(config=SimpleNamespace(penalty_weight=1.5, clamp_target_at_zero=clamp))
    target = MOBILE.penalised_target(cast(Any, owner), made, rows._replace(penalty=penalty), {})
    metrics = made.update_critic(rows, target)
    # Theirs is the mean over the two critics, ours the sum.
    assert metrics["critic/loss"].item() / 2 == pytest.approx(loss, rel=1e-7)
    got = gradients_of(made.critic, made.optimisers["critic"], 2) / 2
    assert got == pytest.approx(gradient, rel=1e-7)
