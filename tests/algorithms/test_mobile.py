"""MOBILE against loops over members and samples."""

from typing import Any

import numpy as np
import pytest
import torch

from algorithms import ALGORITHMS
from algorithms.learners.soft_actor_critic import soft_value_target
from algorithms.mobile import bellman_inconsistency, inconsistency
from experiments.settings import build_config, merge
from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.types import Dataset
from tests.small import CONFIGS
from world_models import TrueDynamics

D = torch.float64


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def agent_of(name: str, data: Dataset, **values: Any) -> Any:
    config = build_config(name, merge(CONFIGS[name], values))
    return ALGORITHMS[name][0](data.spec, config, seed=0)


def prepared(name: str, data: Dataset, **values: Any) -> Any:
    agent = agent_of(name, data, **values)
    agent.prepare(data, lambda metrics: None)
    return agent


def test_bellman_inconsistency_against_a_loop() -> None:
    q = randn(4, 3, 5)
    for b in range(5):
        means = [float(np.mean(q[:, e, b].numpy())) for e in range(3)]
        got = bellman_inconsistency(q)[b]
        assert float(got) == pytest.approx(np.std(means, ddof=1))


def test_mobile_penalty_is_of_imagined_rows_alone(pendulum: Dataset) -> None:
    """One row, member and sample at a time with the same draws; real rows have no penalty, and the
    critic's target is lowered by the weighted penalty."""
    agent = prepared("mobile", pendulum, samples=2, imagination={"real_ratio": 0.25})
    with torch.no_grad():  # critics that differ from each other at every state
        for p in agent.learner.target.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
    agent.advance()
    batch = agent.next_batch()
    assert (batch.penalty[:4] == 0).all() and (batch.penalty[4:] > 0).all()
    before = agent.generator.get_state()
    got = inconsistency(
        agent.learner, agent.model, batch.obs[4:], batch.action[4:], 2, agent.generator
    )
    agent.generator.set_state(before)
    rows, members = 12, agent.model.num_members
    state_noise = torch.randn(2, members, rows, 4, generator=agent.generator)
    action_noise = torch.randn(2, members, rows, 1, generator=agent.generator)
    actor, critics = agent.learner.actor, agent.learner.target
    for b in range(rows):
        obs, action = batch.obs[4 + b], batch.action[4 + b]
        values = np.zeros((2, members))
        for e in range(members):
            mean, variance = agent.model.members_predict(obs[None], 2.0 * action[None])
            for k in range(2):
                y = mean[e, 0] + variance[e, 0].sqrt() * state_noise[k, e, b]
                next_obs = obs + y[:3]
                centre, log_std = actor.distribution(next_obs)
                pre = centre + log_std.exp() * action_noise[k, e, b]
                x = torch.cat([next_obs, torch.tanh(pre)])[None].detach()
                values[k, e] = min(float(critics.member(x, n).detach()) for n in range(3))
        assert float(got[b]) == pytest.approx(np.std(values.mean(0), ddof=1), rel=1e-3, abs=1e-6)
    plain = soft_value_target(agent.learner, batch)
    lowered = agent.penalised_target(agent.learner, batch, {})
    assert torch.allclose(plain - lowered, 0.5 * batch.penalty, atol=1e-5)


@pytest.mark.parametrize("clamp", [False, True])
def test_mobile_targets_may_be_negative_unless_clamped(clamp: bool, pendulum: Dataset) -> None:
    """A known reference code clamps at 0, so that on Pendulum every target is 0."""
    agent = prepared("mobile", pendulum, clamp_target_at_zero=clamp)
    with torch.no_grad():
        agent.learner.target.biases[-1].sub_(100.0)
    agent.advance()
    target = float(agent.update(agent.next_batch())["critic/target"])
    assert target == 0.0 if clamp else target < -90.0


def test_mobile_and_rambo_need_an_ensemble(pendulum: Dataset) -> None:
    for name in ("mobile", "rambo"):
        with pytest.raises(ConfigError, match="model is a TrueDynamics"):
            ALGORITHMS[name][0](pendulum.spec, model=TrueDynamics(make("Pendulum-v1")))
    with pytest.raises(ConfigError, match="at least two members"):
        build_config("mobile", {"model": {"elites": 1}})
