"""FQL's loss in literal numbers, its targets against a loop, and an update of all networks at
once."""

from typing import Any

import pytest
import torch

from algorithms import FQL
from algorithms.fql import actor_loss
from experiments.settings import build_config
from mbrl.types import Dataset


def agent(data: Dataset, **values: Any) -> FQL:
    config = build_config("fql", {"hidden": [16], "batch_size": 8} | values)
    made = FQL(data.spec, config, seed=0)
    made.prepare(data, lambda metrics: None)
    return made


def test_policys_loss_in_literal_numbers() -> None:
    q = torch.tensor([-1.0, -3.0])
    action, taught = torch.tensor([[0.5, 0.0], [0.0, 1.0]]), torch.zeros(2, 2)
    loss, metrics = actor_loss(q, action, taught, alpha=2.0, normalise=False)
    assert float(loss) == pytest.approx(2.0 * (0.25 + 1.0) / 4 + 2.0)
    assert float(metrics["actor/distance"]) == pytest.approx(1.25 / 4)
    loss, _ = actor_loss(q, action, taught, alpha=2.0, normalise=True)
    assert float(loss) == pytest.approx(2.0 * 1.25 / 4 + 1.0)


@pytest.mark.parametrize("value", ["mean", "min"])
def test_targets_against_a_loop(value: str, pendulum: Dataset) -> None:
    made = agent(pendulum, target_value=value, flow={"steps": 4}, normalise_obs=True)
    learner, batch = made.learner, made.next_batch()
    rows = batch.batch
    target, taught = learner.targets(rows, rows.noise[0], rows.noise[1])
    normalise = learner.policy.normaliser
    for i in range(8):
        s, s_next = normalise(rows.obs[i])[None], normalise(rows.next_obs[i])[None]
        a = learner.policy.net(torch.cat([s_next, rows.noise[0, i][None]], 1)).clamp(-1, 1)
        both = learner.critic_target(torch.cat([s_next, a], 1)).flatten().tolist()
        q = sum(both) / 2 if value == "mean" else min(both)
        expected = float(rows.reward[i]) + float(rows.discount[i]) * q
        assert float(target[i]) == pytest.approx(expected, rel=1e-4)
        x = rows.noise[1, i][None]
        for k in range(4):
            x = x + learner.base.net(torch.cat([s, x, torch.tensor([[k / 4]])], 1)) / 4
        assert torch.allclose(taught[i], x.clamp(-1, 1)[0], atol=1e-5)


def test_an_update_takes_all_gradients_at_the_weights_before_it(pendulum: Dataset) -> None:
    """As one joint loss of all networks does: Adam's first moment is a tenth of the gradient."""
    made = agent(pendulum, alpha=3.0)
    learner, batch = made.learner, made.next_batch()
    rows, normalise = batch.batch, learner.policy.normaliser
    target, taught = learner.targets(rows, rows.noise[0], rows.noise[1])
    action = learner.policy.raw(rows.obs, rows.noise[1])
    values = learner.critic(torch.cat([normalise(rows.obs), action.clamp(-1, 1)], 1))[..., 0]
    logged = learner.critic(torch.cat([normalise(rows.obs), rows.action], 1))[..., 0]
    own = 3.0 * (action - taught).square().mean() - values.mean(0).mean()
    error = (logged - target).square().mean()
    expected = {
        "policy": torch.autograd.grad(own, list(learner.policy.parameters())),
        "base": torch.autograd.grad(learner.base.loss(batch), list(learner.base.parameters())),
        "critic": torch.autograd.grad(error, list(learner.critic.parameters())),
    }
    before = [p.clone() for p in learner.critic_target.parameters()]
    learner.update(batch, 0)
    for name, gradients in expected.items():
        optimiser = learner.optimisers[name]
        for p, gradient in zip(learner.modules[name].parameters(), gradients, strict=True):
            assert torch.allclose(optimiser.state[p]["exp_avg"], 0.1 * gradient, atol=1e-5), name
    averages = zip(
        before, learner.critic.parameters(), learner.critic_target.parameters(), strict=True
    )
    for old, new, average in averages:
        assert torch.allclose(average, 0.995 * old + 0.005 * new, atol=1e-7)


def test_actions_follow_their_noise(pendulum: Dataset) -> None:
    made = agent(pendulum)
    obs = pendulum.transitions.obs[:50]
    first, second = (
        made.policy.explore(obs, torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    assert not torch.equal(first, second)
    assert torch.equal(made.policy(obs), made.policy(obs))
