"""COPlanner's choice of actions against the authors' code: umd-huang-lab/COPlanner at 35a4b8a,
`SAC.MPC_select_action` with `PredictEnv.step` (MuJoCo-MBPO-COPlanner/sac/sac.py, predict_env.py),
in float64 and with the noise of its steps 0, where its uncertainty is the mean deviation of the
members' means, here given as a measure of its own.

The model is that of `tests/world_models/beside/members.py`, which never ends here, the policy
8-8 of seed 1. Four candidates, three steps, discount 0.97, weights 2 and 1; actions' noise
normal(61, 4, 24, 2), members 1000 normal(60, 3, 24) cut to whole numbers, modulo 3, with all first
candidates before all second ones.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.coplanner import ForesightConfig, futures
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
from tests.world_models.beside.members import MEMBERS, model
from world_models.disagreement import MEASURES

CANDIDATES, STEPS = 4, 3


def interleaved(values: np.ndarray) -> torch.Tensor:
    """Theirs has the rows of a candidate side by side, ours the candidates of a row."""
    own = values.reshape(CANDIDATES, ROWS, *values.shape[1:]).swapaxes(0, 1)
    return torch.as_tensor(own.reshape(values.shape).copy())


def test_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEASURES, "their", lambda mean, variance: mean.std(0, False).mean(-1))
    made, rows = model(), batch()
    made.termination = None
    learner: Any = learner_of("sac", learner={"hidden": [8, 8]})
    put(learner.actor.net, layers(1, 4, 8, 8, 4))
    count = CANDIDATES * ROWS
    noise = iter([interleaved(part) for part in normal(61, STEPS + 1, count, ACTIONS)])
    members: Iterator[torch.Tensor] = iter(
        [interleaved(part) for part in (1000 * normal(60, STEPS, count)).astype(int) % MEMBERS]
    )
    monkeypatch.setattr(torch, "randint", lambda *shape, **kinds: next(members))
    monkeypatch.setattr(torch, "randn", lambda shape, **kinds: torch.zeros(*shape))

    def policy(obs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        action: torch.Tensor = learner.actor.sample(obs, next(noise))[0].detach()
        return action

    many = rows.obs.repeat_interleave(CANDIDATES, 0)
    action = policy(many, torch.Generator())
    config = ForesightConfig(candidates=CANDIDATES, horizon=STEPS, measure="their")
    reward, uncertainty = futures(made, policy, many, action, config, torch.Generator())
    for weight, best, total, chosen in (
        (-config.conservative, [3, 2, 1, 3, 2, 0], -0.1426560423, 3.008075981),
        (config.optimistic, [3, 2, 3, 3, 2, 0], -3.92674052, 2.51105195),
    ):
        value = (reward + weight * uncertainty).view(ROWS, CANDIDATES)
        assert value.argmax(1).tolist() == best
        own = action.view(ROWS, CANDIDATES, -1)[torch.arange(ROWS), value.argmax(1)]
        got = [digest([array(value.T.contiguous())]), digest([array(own)])]
        assert got == pytest.approx([total, chosen], rel=1e-6)
