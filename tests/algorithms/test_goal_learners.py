"""Learners of goals: each loss against a loop written from the authors' code, where no gradient
flows, and policies that act through a hierarchy."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from algorithms import GCBC, GCIQL, GCIVL, HIQL, SAW, ContrastiveRL
from algorithms.contrastive_rl import contrastive_loss
from algorithms.evaluation.critic_values import critic_values
from algorithms.saw import waypoint_loss
from experiments.settings import build_config
from mbrl.buffer import Batch
from mbrl.types import Dataset, Spec, Transitions
from tests.small import others_long

D = torch.float64
SPEC = Spec("line", 4, 2, None, (-1.0,) * 2, (1.0,) * 2, 10, goal=(3,), achieved=(0,))
ROWS = 10


def made(cls: Any, name: str, **values: Any) -> Any:
    """A learner in double precision, whose targets are not its networks."""
    small = {"hidden": [8, 8], "batch_size": ROWS, "gamma": 0.9} | values
    learner = cls(SPEC, build_config(name, small), seed=0).learner
    generator = torch.Generator().manual_seed(5)
    for module in learner.modules.values():
        module.double()
    with torch.no_grad():
        for p in [p for m in learner.modules.values() for p in m.parameters()]:
            p.add_(0.2 * torch.randn(p.shape, generator=generator, dtype=D))
    if hasattr(learner, "policy") and hasattr(learner.policy, "log_std"):
        learner.policy.log_std.data.zero_()
    if hasattr(learner, "near"):
        learner.near.log_std.data.zero_()
    return learner


def batch() -> Batch:
    generator = torch.Generator().manual_seed(3)
    obs, next_obs, way = torch.randn(3, ROWS, 4, generator=generator, dtype=D)
    here = torch.arange(ROWS) % 4 == 0
    action = 2 * torch.rand(ROWS, 2, generator=generator, dtype=D) - 1
    goal, low = torch.randn(2, ROWS, 1, generator=generator, dtype=D)
    return Batch(
        obs, action, -(~here).double(), next_obs, 0.9 * (~here).double(),
        policy_goal=goal, waypoint=way, low_goal=low,
    )  # fmt: skip


def at(obs: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    """`obs` with `goal` in its last entry, as `GCValue(observations, goals)` sees them."""
    return torch.cat([obs[:, :3], goal], -1)


def gaussian(action: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """log N(action; mean, 1), as distrax gives it for a scale of 1."""
    size = action.shape[-1]
    return -0.5 * ((action - mean) ** 2).sum(-1) - 0.5 * size * math.log(2 * math.pi)


def weights(advantage: torch.Tensor, alpha: float) -> list[float]:
    return [min(math.exp(alpha * a), 100.0) for a in advantage.tolist()]


def weighted(log_prob: torch.Tensor, advantage: torch.Tensor, alpha: float) -> float:
    pairs = zip(weights(advantage, alpha), log_prob.tolist(), strict=True)
    return -sum(w * p for w, p in pairs) / len(advantage)


def step_losses(learner: Any, given: Batch) -> dict[str, float]:
    """The metrics of one update, and that it moved every network and its targets."""
    before = {
        f"{n}.{k}": v.detach().clone()
        for n, m in learner.modules.items()
        for k, v in m.named_parameters()
    }
    metrics = {k: float(v) for k, v in learner.update(given, 0).items()}
    for n, m in learner.modules.items():
        for k, v in m.named_parameters():
            moved = not torch.equal(before[f"{n}.{k}"], v)
            assert moved == (k != "log_std"), f"{n}.{k}"
    return metrics


def test_gcbc() -> None:
    learner, given = made(GCBC, "gcbc"), batch()
    mean = learner.policy.unit(at(given.obs, given.policy_goal)).detach()
    expected = -float(gaussian(given.action, mean).mean())
    assert step_losses(learner, given)["actor/loss"] == pytest.approx(expected, rel=1e-9)


def test_gcivl() -> None:
    learner, given = made(GCIVL, "gcivl", temperature=2.0), batch()
    with torch.no_grad():
        v, nv = (
            learner.value.values(at(o, given.policy_goal))[..., 0].mean(0)
            for o in (given.obs, given.next_obs)
        )
        log_prob = gaussian(given.action, learner.policy.unit(at(given.obs, given.policy_goal)))
    expected = weighted(log_prob, nv - v, 2.0)
    assert step_losses(learner, given)["actor/loss"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("form", ["climb", "weigh"])
def test_gciql(form: str) -> None:
    """GCIQLAgent.value_loss, critic_loss and actor_loss."""
    learner = made(GCIQL, "gciql", policy_loss=form, alpha=0.7, expectile=0.8)
    given = batch()

    def q(net: Any, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return net(torch.cat([obs, action], -1))[..., 0]

    with torch.no_grad():
        value, critic, targets = learner.value, learner.critic, learner.critic_target
        least, v = q(targets, given.obs, given.action).min(0).values, value(given.obs)[0, :, 0]
        nv = value(given.next_obs)[0, :, 0]
        both = q(critic, given.obs, given.action)
        seen = at(given.obs, given.policy_goal)
        mean = learner.policy.unit(seen)
        climbed, logged = (q(critic, seen, a).min(0).values for a in (mean, given.action))
        log_prob, there = gaussian(given.action, mean), value(seen)[0, :, 0]
    value_loss = critic_loss = 0.0
    for b in range(ROWS):
        adv = float(least[b] - v[b])
        value_loss += (0.8 if adv >= 0 else 0.2) * adv**2 / ROWS
        target = float(given.reward[b] + given.discount[b] * nv[b])
        critic_loss += sum((float(both[n, b]) - target) ** 2 for n in (0, 1)) / ROWS
    if form == "climb":
        scale = float(climbed.abs().mean()) + 1e-6
        actor = -float(climbed.mean()) / scale - 0.7 * float(log_prob.mean())
    else:
        actor = weighted(log_prob, logged - there, 0.7)
    got = step_losses(learner, given)
    assert got["value/loss"] == pytest.approx(value_loss, rel=1e-6)  # 0.8 is a float32
    assert got["critic/loss"] == pytest.approx(critic_loss, rel=1e-9)
    assert got["actor/loss"] == pytest.approx(actor, rel=1e-9)


def test_values_of_goals_are_not_taken_for_returns() -> None:
    for cls, name in ((GCIQL, "gciql"), (ContrastiveRL, "contrastive_rl"), (SAW, "saw")):
        agent = cls(SPEC, build_config(name, {"hidden": [8], "batch_size": 4}), seed=0)
        assert critic_values(agent, batch().obs) is None


def test_contrastive_rl() -> None:
    """CRLAgent.contrastive_loss and actor_loss, pair by pair."""
    learner, given = made(ContrastiveRL, "contrastive_rl", latent=5, alpha=0.4), batch()
    critic = learner.critic
    with torch.no_grad():
        phi = critic.phi(torch.cat([given.obs[:, :3], given.action], -1))
        psi = critic.psi(given.obs[:, 3:])
        mean = learner.policy.unit(at(given.obs, given.policy_goal))
        climbed = critic.phi(torch.cat([given.obs[:, :3], mean], -1))
        climbed = (climbed * critic.psi(given.policy_goal)).sum(-1) / math.sqrt(5)
        log_prob = gaussian(given.action, mean)
    total = 0.0
    for n in range(2):
        for i in range(ROWS):
            for j in range(ROWS):
                logit = float(phi[n, i] @ psi[n, j]) / math.sqrt(5)
                total += math.log1p(math.exp(-logit if i == j else logit)) / (2 * ROWS**2)
    q = climbed.min(0).values
    actor = -float(q.mean()) / (float(q.abs().mean()) + 1e-6) - 0.4 * float(log_prob.mean())
    got = step_losses(learner, given)
    assert got["critic/loss"] == pytest.approx(total, rel=1e-9)
    assert got["actor/loss"] == pytest.approx(actor, rel=1e-9)


def test_contrast_is_least_at_the_ratio_of_densities() -> None:
    """Five states, goals with p(g|s): over a large batch that has every pair as often as it
    occurs, the loss has no gradient at log p(g|s) / p(g) - log(B - 1), and none other is less."""
    generator = torch.Generator().manual_seed(0)
    given = torch.softmax(torch.randn(5, 5, generator=generator, dtype=D), 1)  # p(g|s), p(s) = 1/5
    marginal = given.mean(0)
    batch_size = 1000
    logit = (given / marginal).log() - math.log(batch_size - 1)
    logit.requires_grad_()
    joint, product = given / 5, marginal.expand(5, 5) / 5
    right = torch.nn.functional.softplus(-logit)
    wrong = torch.nn.functional.softplus(logit)
    expected = (joint * right).sum() + (batch_size - 1) * (product * wrong).sum()
    assert float(torch.autograd.grad(expected, logit)[0].abs().max()) < 1e-15
    # and that is what the function sums, here for three rows
    small = torch.randn(1, 3, 3, generator=generator, dtype=D)
    terms = [
        math.log1p(math.exp(-float(small[0, i, j]) if i == j else float(small[0, i, j])))
        for i in range(3)
        for j in range(3)
    ]
    assert float(contrastive_loss(small)) == pytest.approx(np.mean(terms), rel=1e-12)


def represented(learner: Any, obs: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    return learner.value.represent(at(obs, goal))


def mean_value(learner: Any, obs: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    seen = torch.cat([obs[:, :3], represented(learner, obs, goal)], -1)
    return learner.value.values(seen)[..., 0].mean(0)


def test_hiql() -> None:
    """HIQLAgent.low_actor_loss and high_actor_loss."""
    learner = made(HIQL, "hiql", representation=3, low_temperature=2.0, high_temperature=0.5)
    given = batch()
    with torch.no_grad():
        low_gain = mean_value(learner, given.next_obs, given.low_goal)
        low_gain = low_gain - mean_value(learner, given.obs, given.low_goal)
        phi = represented(learner, given.obs, given.low_goal)
        mean = torch.tanh(learner.policy.low(torch.cat([given.obs[:, :3], phi], -1)))
        low = -0.5 * ((given.action - mean) ** 2).sum(-1)
        gain = mean_value(learner, given.waypoint, given.policy_goal)
        gain = gain - mean_value(learner, given.obs, given.policy_goal)
        target = represented(learner, given.obs, given.waypoint[:, :1])
        high = learner.policy.high(at(given.obs, given.policy_goal))
        high = -0.5 * ((target - high) ** 2).sum(-1)
    expected = weighted(low, low_gain, 2.0), weighted(high, gain, 0.5)
    got = step_losses(learner, given)
    assert got["low_actor/loss"] == pytest.approx(expected[0], rel=1e-9)
    assert got["high_actor/loss"] == pytest.approx(expected[1], rel=1e-9)


def test_policies_take_no_gradient_into_values() -> None:
    given = batch()
    hiql, saw = made(HIQL, "hiql"), made(SAW, "saw")
    for learner, losses in (
        (hiql, (hiql.low_loss, hiql.high_loss)),
        (saw, (saw.near_loss, saw.flat_loss)),
    ):
        for loss in losses:
            taken = [p for p in learner.value.parameters() if p.requires_grad]
            found = torch.autograd.grad(loss(given)[0], taken, allow_unused=True)
            assert all(g is None for g in found)
    near = [p for p in saw.near.parameters() if p.requires_grad]
    assert all(
        g is None for g in torch.autograd.grad(saw.flat_loss(given)[0], near, allow_unused=True)
    )


def test_hiql_acts_by_way_of_a_subgoal() -> None:
    learner = made(HIQL, "hiql", representation=3)
    obs = batch().obs
    high = learner.policy.high(obs)
    phi = high / (high**2).sum(-1, keepdim=True).sqrt() * math.sqrt(3)
    expected = torch.tanh(learner.policy.low(torch.cat([obs[:, :3], phi], -1)))
    assert torch.allclose(learner.policy(obs), expected)
    assert not torch.allclose(learner.policy.explore(obs, torch.Generator()), expected)


def test_saw() -> None:
    """SAWAgent.target_actor_loss, actor_loss and waypoint_loss."""
    learner = made(
        SAW, "saw", representation=3, low_temperature=2.0, temperature=0.5, waypoint_temperature=1.5
    )
    given = batch()
    with torch.no_grad():
        near_gain = mean_value(learner, given.next_obs, given.low_goal)
        near_gain = near_gain - mean_value(learner, given.obs, given.low_goal)
        near = gaussian(given.action, learner.near.unit(at(given.obs, given.low_goal)))
        v = mean_value(learner, given.obs, given.policy_goal)
        gain = mean_value(learner, given.next_obs, given.policy_goal) - v
        way = mean_value(learner, given.waypoint, given.policy_goal) - v
        seen = at(given.obs, given.policy_goal)
        phi = learner.policy.represent(seen)
        mean = torch.tanh(learner.policy.net(torch.cat([given.obs[:, :3], phi], -1)))
        bootstrap = learner.near.unit(at(given.obs, given.waypoint[:, :1]))
        distance = ((mean - bootstrap) ** 2).sum(-1)
    waypoint = sum(w * d for w, d in zip(weights(way, 1.5), distance.tolist(), strict=True)) / ROWS
    got = step_losses(learner, given)
    assert got["near/loss"] == pytest.approx(weighted(near, near_gain, 2.0), rel=1e-9)
    flat = -0.5 * ((given.action - mean) ** 2).sum(-1)
    assert got["actor/loss"] == pytest.approx(weighted(flat, gain, 0.5), rel=1e-9)
    assert got["waypoint/loss"] == pytest.approx(waypoint, rel=1e-9)


@pytest.mark.parametrize("form", ["unweighted", "none"])
def test_saw_without_weights_and_without_waypoints(form: str) -> None:
    learner, given = made(SAW, "saw", waypoints=form, waypoint_temperature=1.5), batch()
    with torch.no_grad():
        mean = learner.policy.unit(at(given.obs, given.policy_goal))
        near = learner.near.unit(at(given.obs, given.waypoint[:, :1]))
        flat = -0.5 * ((given.action - mean) ** 2).sum(-1)
        gain = learner.value.advantage(given.next_obs, given.obs, given.policy_goal)
        plain = float(((mean - near) ** 2).sum(-1).mean()) if form == "unweighted" else 0.0
        loss, metrics = learner.flat_loss(given)
    assert float(loss) == pytest.approx(weighted(flat, gain, 3.0) + plain, rel=1e-9)
    assert ("waypoint/loss" in metrics) == (form == "unweighted")


def test_waypoints_of_a_chain() -> None:
    """n steps from the goal, w k steps nearer: A = ((1 - gamma^n) - (1 - gamma^(n - k))) / (1 -
    gamma); with kappa 0 plain distillation; nothing into the near policy."""
    gamma, n, k = 0.9, 12, 5
    gain = (gamma ** (n - k) - gamma**n) / (1 - gamma)
    mean = torch.zeros(1, 2, dtype=D, requires_grad=True)
    near = torch.ones(1, 2, dtype=D, requires_grad=True)
    for kappa in (0.0, 0.5, 3.0):
        loss, metrics = waypoint_loss(mean, near, torch.tensor([gain], dtype=D), kappa)
        weight = min(math.exp(kappa * gain), 100.0)
        assert float(metrics["waypoint/weight"]) == pytest.approx(weight)
        assert float(loss.detach()) == pytest.approx(2 * weight)
        found = torch.autograd.grad(loss, (mean, near), allow_unused=True)
        assert found[1] is None and found[0].tolist() == [[-2 * weight] * 2]


@pytest.mark.parametrize(
    "name",
    others_long(
        ["gcbc", "gcivl", "gciql", "contrastive_rl", "hiql", "saw", "smore", "hecrl"], ["smore"]
    ),
)
def test_the_way_to_a_goal_on_a_line(name: str) -> None:
    """A point on a line moves by 0.2 a and has wandered at random; all learners but GCBC, whose
    clone of wandering only leans the right way, go towards goals on either side."""
    from algorithms import ALGORITHMS

    generator = torch.Generator().manual_seed(0)
    spec = Spec("line", 2, 1, None, (-1.0,), (1.0,), 20, goal=(1,), achieved=(0,))
    place = 2 * torch.rand(60, 1, generator=generator) - 1
    steps = []
    for t in range(20):
        action = 2 * torch.rand(60, 1, generator=generator) - 1
        reached = (place + 0.2 * action).clamp(-1, 1)
        end = torch.full((60,), t == 19)
        goal = torch.zeros(60, 1)
        steps.append((torch.cat([place, goal], 1), action, torch.cat([reached, goal], 1), end))
        place = reached
    obs, action, following, end = (
        torch.stack(x, 1).flatten(0, 1) for x in zip(*steps, strict=True)
    )
    zero = torch.zeros(len(obs))
    data = Dataset(Transitions(obs, action, zero, following, end & False, end), spec)
    values = {"hidden": [32, 32], "batch_size": 128, "learning_rate": 3e-3, "gamma": 0.9}
    values |= {"tau": 0.05} if name not in ("gcbc", "contrastive_rl") else {}
    values |= {"subgoal_steps": 4} if name in ("hiql", "saw", "hecrl") else {}
    values |= {"width": 16, "levels": 1, "candidates": 8} if name == "hecrl" else {}
    values |= {"latent": 16} if name == "contrastive_rl" else {}
    agent = ALGORITHMS[name][0](spec, build_config(name, values), seed=0)
    agent.fit(data, 600, callbacks=[])
    asked = torch.tensor([[-0.5, 0.5], [0.0, 0.8], [0.5, -0.5], [0.1, -0.7]])
    towards = agent.act(asked)[0][:, 0] * torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert (towards > (0.0 if name == "gcbc" else 0.1)).all(), towards
