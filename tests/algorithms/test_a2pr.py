"""A2PR's losses by hand, its update against a loop, its two limits, and what it is drawn to."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from algorithms import A2PR
from algorithms.a2pr import actor_loss, guide, vae_loss
from algorithms.learners.critics import q_values
from algorithms.td3_bc import actor_loss as td3_bc_loss
from experiments.settings import build_config
from mbrl.buffer import Batch
from mbrl.errors import ConfigError
from mbrl.types import Dataset, Spec, Transitions

D = torch.float64


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def test_vae_loss_against_torch_distributions() -> None:
    reconstruction, action, mean, log_std = (randn(5, k, seed=k) for k in (2, 2, 4, 4))
    action = action + 1
    chosen = torch.tensor([1.0, 0, 2, 1, 0], dtype=D)
    divergence = kl_divergence(Normal(mean, log_std.exp()), Normal(0.0, 1.0)).mean()
    errors = [float(chosen[i]) * float((reconstruction[i, k] - action[i, k]) ** 2)
              for i in range(5) for k in range(2)]  # fmt: skip
    expected = np.mean(errors) + 0.3 * float(divergence)
    got = vae_loss(reconstruction, action, mean, log_std, chosen, 0.3)
    assert float(got) == pytest.approx(expected)


def test_guide_by_hand() -> None:
    """Proposal better; logged better; equal, at the value; both below it."""
    action, proposal = torch.full((4, 1), 0.1), torch.full((4, 1), 0.9)
    q, proposal_q = torch.tensor([1.0, 3, 2, 1]), torch.tensor([3.0, 1, 2, 1])
    target, on = guide(action, q, proposal, proposal_q, torch.full((4,), 2.0))
    assert target.flatten().tolist() == pytest.approx([0.9, 0.1, 0.9, 0.9])
    assert on.tolist() == [1, 1, 1, 0]
    _, on = guide(action, torch.tensor([2.0] * 4), proposal, proposal_q - 9, torch.full((4,), 2.0))
    assert on.tolist() == [0, 0, 0, 0]  # the logged one needs more than the value


def test_limits_are_td3_and_td3_bc() -> None:
    q, action, logged = randn(6), randn(6, 2, seed=1), randn(6, 2, seed=2)
    loss, _ = actor_loss(q, action, logged, torch.ones(6, dtype=D), 2.5)
    assert float(loss) == pytest.approx(float(td3_bc_loss(q, action, logged, 2.5)[0]))
    loss, _ = actor_loss(q, action, logged, torch.zeros(6, dtype=D), 2.5)
    assert float(loss) == pytest.approx(float(-2.5 * q.mean() / q.abs().mean()))


def small(**values: Any) -> Any:
    spec = Spec("small", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)
    widths = {"hidden": [8], "critic_hidden": [8], "vae_hidden": [8], "gamma": 0.9}
    learner = A2PR(spec, build_config("a2pr", widths | values), seed=0).learner
    for module in learner.modules.values():
        module.double()
    with torch.no_grad():
        for k, p in enumerate(learner.critic_target.parameters()):
            p.add_(0.3 * randn(*p.shape, seed=k))
    return learner


def rows() -> Batch:
    obs, next_obs = randn(2, 7, 3, seed=3)
    action = torch.tanh(randn(7, 2, seed=4))
    discount = torch.full((7,), 0.9, dtype=D)
    discount[2] = 0
    return Batch(obs, action, randn(7, seed=5), next_obs, discount, randn(5, 7, 2, seed=6))


def test_update_against_a_loop() -> None:
    learner, batch = small(regularisation=0.4, vae_weight=1.5), rows()
    assert batch.noise is not None
    with torch.no_grad():
        value = learner.value(batch.obs)[:, 0]
        noise = batch.noise[0].mul(0.2).clamp(-0.5, 0.5)
        following = (learner.policy_target.unit(batch.next_obs) + noise).clamp(-1, 1)
        old = q_values(learner.critic_target, batch.next_obs, following).min(0).values
        codes = torch.cat([batch.noise[1], batch.noise[2]], -1)
        reconstruction, mean, log_std = learner.vae(batch.obs, batch.action, codes)
        policy = learner.policy.unit(batch.obs)
    metrics = learner.update(batch, 1)
    assert "actor/loss" not in metrics  # not due
    with torch.no_grad():
        new = q_values(learner.critic, batch.next_obs, following).min(0).values
        q = q_values(learner.critic, batch.obs, batch.action)[0]
    errors, reconstructed, divergence = [], [], []
    for i in range(7):
        target = float(batch.reward[i] + batch.discount[i] * min(old[i], new[i]))
        errors.append((float(value[i]) - target) ** 2)
        for k in range(2):
            on = 1.5 * (float(q[i]) > float(value[i]))
            reconstructed.append(on * float(reconstruction[i, k] - batch.action[i, k]) ** 2)
        for m, s in zip(mean[i].tolist(), log_std[i].tolist(), strict=True):
            divergence.append(0.5 * (m * m + np.exp(2 * s) - 1 - 2 * s))
    assert float(metrics["value/loss"]) == pytest.approx(np.mean(errors))
    expected = np.mean(reconstructed) + 0.5 * np.mean(divergence)
    assert float(metrics["vae/loss"]) == pytest.approx(expected)
    assert 0 < float(metrics["vae/chosen"]) < 1

    codes = torch.cat([batch.noise[3], batch.noise[4]], -1)
    with torch.no_grad():
        proposal = learner.vae(batch.obs, policy, codes)[0]
        proposal_q = q_values(learner.critic, batch.obs, proposal)[0]
        own = q_values(learner.critic, batch.obs, policy)[0]
    distance = []
    for i in range(7):
        goal = proposal[i] if proposal_q[i] >= q[i] else batch.action[i]
        on = bool(proposal_q[i] >= value[i]) or bool(q[i] > value[i])
        distance += [0.4 * on * float(policy[i, k] - goal[k]) ** 2 for k in range(2)]
    loss = np.mean(distance) - 2.5 * float(own.mean() / own.abs().mean())
    got = learner.update_policy(batch, batch.obs, q, value)
    assert float(got["actor/loss"]) == pytest.approx(loss)


def test_it_is_drawn_to_the_better_of_two_modes() -> None:
    """Nine of ten actions at -1 without reward, the others at +1 with 1: the mean of the data is
    -0.8; the VAE and the rows that regularise are those at +1."""
    right = torch.arange(600) % 10 == 0
    obs, ends = torch.zeros(600, 2), torch.ones(600, dtype=torch.bool)
    action = torch.where(right, 1.0, -1.0)[:, None]
    spec = Spec("two modes", 2, 1, None, (-1.0,), (1.0,), 1)
    data = Dataset(Transitions(obs, action, right.float(), obs, ends, ~ends), spec)
    widths = {"hidden": [32], "critic_hidden": [32], "vae_hidden": [32], "normalise_obs": False}
    values = widths | {"learning_rate": 3e-3, "regularisation": 1.0, "batch_size": 64}
    agent = A2PR(spec, build_config("a2pr", values), seed=0)
    agent.fit(data, 600, callbacks=[])
    learner = agent.learner
    codes = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        proposal = learner.vae(obs[:50], learner.policy.unit(obs[:50]), codes)[0]
    assert float(proposal.mean()) > 0.8
    assert float(agent.act(np.zeros(2))[0][0]) > 0.8


@pytest.mark.parametrize(("name", "value"), [("alpha", -1.0), ("vae_weight", 0.0)])
def test_settings_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        build_config("a2pr", {name: value})
