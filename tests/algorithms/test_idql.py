"""IDQL: what is taken of its samples, the implicit policy, and its steps in their order."""

from typing import Any

import numpy as np
import pytest
import torch

from algorithms import IDQL
from experiments.settings import build_config
from mbrl.types import Dataset


def agent(data: Dataset, **values: Any) -> IDQL:
    small = {"hidden": [16], "batch_size": 32, "candidates": 6, "diffusion": {"steps": 3}}
    made = IDQL(data.spec, build_config("idql", small | values), seed=0)
    made.prepare(data, lambda metrics: None)
    return made


def test_the_best_of_the_samples_is_taken(pendulum: Dataset) -> None:
    made = agent(pendulum, normalise_obs=True)
    policy, obs = made.policy, pendulum.transitions.obs[:9]
    acted = policy(obs)
    for i in range(9):
        values = []
        samples = []
        for noise in policy.base.noise:
            a = policy.base.sample(obs[i][None], noise[None])
            x = torch.cat([policy.base.normaliser(obs[i])[None], a], 1)
            values.append(float(made.learner.critic_target(x)[:, 0, 0].detach().min()))
            samples.append(a[0])
        best = samples[int(np.argmax(values))]
        assert torch.allclose(acted[i], policy.base.scale.to_task(best), atol=1e-5)
    assert torch.equal(policy.evaluations(obs), torch.full((9,), 6.0 * (3 + 1)))


def test_exploring_follows_the_implicit_policy(pendulum: Dataset) -> None:
    """Samples above the value are drawn tau / (1 - tau) as often as those below it."""
    made = agent(pendulum, candidates=2, expectile=0.8)
    policy, rows = made.policy, 4000
    obs = pendulum.transitions.obs[:1]
    q = torch.tensor([[-1.0], [1.0]])
    with torch.no_grad():
        q = q + policy.value(policy.base.normaliser(obs))[:, 0]
        assert torch.allclose(policy.weights(obs, q), torch.tensor([[0.2], [0.8]]))
    many = obs.expand(rows, -1)
    fixed = torch.tensor([-0.5, 0.5])[:, None, None].expand(2, rows, 1)
    policy.base.candidates = lambda obs, noise: fixed
    policy.values = lambda obs, actions: q.expand(2, rows)
    action = policy.explore(many, torch.Generator().manual_seed(0))
    assert float((action > 0).float().mean()) == pytest.approx(0.8, abs=0.02)


def test_steps_are_taken_in_their_order(pendulum: Dataset) -> None:
    """The value's gradient is at the target critics, the critics' at the value after its step: both
    from Adam's first moment, a tenth of the gradient."""
    made = agent(pendulum, expectile=0.7)
    learner, batch = made.learner, made.next_batch()
    rows, normalise = batch.batch, learner.base.normaliser
    x = torch.cat([normalise(rows.obs), rows.action], 1)
    q = learner.critic_target(x)[..., 0].min(0).values.detach()
    u = q - learner.value(normalise(rows.obs))[:, 0]
    weight = torch.tensor([0.3 if float(v) < 0 else 0.7 for v in u.detach()])
    value = torch.autograd.grad((weight * u * u).mean(), list(learner.value.parameters()))
    clone = torch.autograd.grad(learner.base.loss(batch), list(learner.base.parameters()))
    before = learner.critic(x)[..., 0]
    parameters = list(learner.critic.parameters())
    learner.update(batch, 0)
    with torch.no_grad():
        target = rows.reward + rows.discount * learner.value(normalise(rows.next_obs))[:, 0]
    expected = {"value": value, "base": clone}
    for name, gradients in expected.items():
        state = learner.optimisers[name].state
        for p, gradient in zip(learner.modules[name].parameters(), gradients, strict=True):
            assert torch.allclose(state[p]["exp_avg"], 0.1 * gradient, atol=1e-5), name
    made = agent(pendulum, expectile=0.7)
    again = made.learner
    q = again.critic(torch.cat([again.base.normaliser(rows.obs), rows.action], 1))[..., 0]
    assert torch.equal(q, before)
    error = (q - target).square().mean()
    gradients = torch.autograd.grad(error, list(again.critic.parameters()))
    for p, gradient in zip(parameters, gradients, strict=True):
        moment = learner.optimisers["critic"].state[p]["exp_avg"]
        assert torch.allclose(moment, 0.1 * gradient, rtol=1e-4, atol=1e-5)


def test_the_policys_rate_decays_offline_alone(pendulum: Dataset) -> None:
    made = agent(pendulum, decay_steps=10)
    batch = made.next_batch()
    made.learner.update(batch, 5)
    rate = made.learner.optimisers["base"].param_groups[0]["lr"]
    assert rate == pytest.approx(3e-4 / 2)
    made.learner.offline = False
    made.learner.update(batch, 9)
    assert made.learner.optimisers["base"].param_groups[0]["lr"] == 3e-4
