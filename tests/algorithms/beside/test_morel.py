"""MOReL's pessimistic task against a re-implementation: SwapnilPande/MOReL at 97b3832,
`FakeEnv.step` with `DynamicsEnsemble.usad` (morel/fake_env.py, morel/models/Dynamics.py), in
float64.

Its members are the means of those of `tests/world_models/beside/members.py`, its changes of
mean 0 and the observations' deviation, its steps the members' mean. Threshold 2.2, HALT pays -7.
"""

import pytest
import torch

from algorithms.morel import MEASURE
from tests.algorithms.beside.inputs import ROWS, array, batch, digest
from tests.world_models.beside.members import model
from world_models import rollout
from world_models.rollout import HaltingRollout


def test_halts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, made = batch(), model(target="standardised")
    made.target_scale.std[:-1] = made.obs_normaliser.std
    made.target_scale.mean[-1] = rows.reward.mean()
    made.target_scale.std[-1] = rows.reward.std(correction=0)
    made.termination = None
    zeros = torch.zeros(ROWS, 5, dtype=torch.float64)
    monkeypatch.setattr(torch, "randn", lambda *shape, **kinds: zeros)
    config = HaltingRollout(
        horizon=1, member="mean", stop=MEASURE, stop_above=2.2, halt_reward=-7.0
    )
    steps = rollout(made, lambda obs, generator: rows.action, rows.obs, config, torch.Generator())
    assert steps.signals["halted"][:, 0].tolist() == [1, 0, 1, 1, 0, 0]
    assert torch.equal(steps.terminated[:, 0], steps.signals["halted"][:, 0].bool())
    level = made.disagreement(rows.obs, rows.action, MEASURE)
    got = [digest([array(part)]) for part in (steps.next_obs, steps.reward, level)]
    assert got == pytest.approx([3.709871047, 2.97886404, -1.131491736], rel=1e-8)
