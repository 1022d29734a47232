"""LIFT: what it takes over, how it acts, and that its model is the physics and a correction."""

from pathlib import Path

import pytest
import torch

from algorithms import LIFT, SAC
from experiments.settings import build_config, merge
from mbrl.continuation import take_over
from mbrl.errors import ConfigError
from mbrl.tasks import make
from tests.algorithms.continued import continued
from tests.small import CONFIGS
from world_models import EnsembleDynamics
from world_models.physics import PhysicsResidual

TASK = make("CartPoleSwingUp-v0,pole_mass=0.3")
PHYSICS = {"physics": "CartPoleSwingUp-v0"}


def built(**values: object) -> LIFT:
    return LIFT(TASK.spec, build_config("lift", merge(CONFIGS["lift"], values)), seed=1)


def test_networks_go_on_and_the_temperature_begins_anew() -> None:
    sac = SAC(TASK.spec, build_config("sac", CONFIGS["sac"]), seed=2)
    sac.learn(TASK, 25, callbacks=[])
    agent = built(learner={"alpha": 0.001})
    take_over(agent, sac)
    for name in ("actor", "critic", "target"):
        mine, theirs = (a.modules[name].state_dict() for a in (agent, sac))
        assert all(torch.equal(mine[k], theirs[k]) for k in theirs)
    assert float(agent.learner.log_alpha.detach().exp()) == pytest.approx(0.001)
    assert not agent.optimisers["alpha"].state and agent.optimisers["actor"].state


def test_greedy_in_the_task_and_noisy_in_the_model() -> None:
    agent = built(**PHYSICS).learn(TASK, 30, callbacks=[])
    real, imagined = (rows.whole() for rows in (agent.source.real.rows, agent.source.imagined))
    with torch.no_grad():
        again = agent.policy.scale.to_unit(agent.policy(real.obs[-1:]))
        gap = agent.policy.scale.to_unit(agent.policy(imagined.obs[-32:])) - imagined.action[-32:]
    assert torch.allclose(real.action[-1:], again, atol=0.05)  # one update later
    assert float(gap.abs().mean()) > 0.1


@pytest.mark.parametrize("physics", [None, "CartPoleSwingUp-v0"])
def test_goes_on_exactly(physics: str | None, tmp_path: Path) -> None:
    agent = continued(built(physics=physics), TASK, tmp_path / "agent.pt", 33, 47)
    kind = EnsembleDynamics if physics is None else PhysicsResidual
    assert type(agent.model) is kind and agent.model.fitted


def test_physics_and_truth_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="the truth needs no physics"):
        built(**PHYSICS, imagination={"truth": 0.5})


def test_the_first_rows_are_of_the_policy_as_it_came() -> None:
    agent = built(**PHYSICS, online={"warmup": 20}).learn(TASK, 12, callbacks=[])
    rows = agent.source.real.rows.whole()
    with torch.no_grad():
        greedy = agent.policy.scale.to_unit(agent.policy(rows.obs))
    torch.testing.assert_close(rows.action, greedy, rtol=0, atol=1e-5)
