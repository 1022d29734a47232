"""ODICE's conjugates, its gradient and its dual against maximisers, loops and scipy."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize

from algorithms import ODICE
from algorithms.odice import conjugate, density_ratio, orthogonal_sum
from experiments.settings import build_config
from mbrl.buffer import Batch
from mbrl.errors import ConfigError
from mbrl.types import Dataset, Spec

D = torch.float64
SPEC = Spec("small", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)


def learner(seed: int = 0, **values: Any) -> Any:
    """One in double precision whose targets are not its values."""
    config = build_config("odice", {"hidden": [8], "policy_hidden": [8], "gamma": 0.9} | values)
    made = ODICE(SPEC, config, seed=seed).learner
    generator = torch.Generator().manual_seed(1)
    for module in made.modules.values():
        module.double()
    with torch.no_grad():
        for p in made.value_target.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=D))
    return made


def rows(count: int = 6, seed: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    obs, next_obs = torch.randn(2, count, 3, generator=generator, dtype=D)
    action = 2 * torch.rand(count, 2, generator=generator, dtype=D) - 1
    reward = 2 * torch.randn(count, generator=generator, dtype=D)
    discount = torch.full((count,), 0.9, dtype=D)
    discount[1] = 0.0
    return Batch(obs, action, reward, next_obs, discount)


@pytest.mark.parametrize("y", [-6.0, -2.5, -2.0, -1.0, 0.0, 0.7, 3.0, 6.0])
def test_conjugate_and_its_maximiser_against_scipy(y: float) -> None:
    functions: dict[Any, Any] = {
        "chi_square": lambda w: (w - 1) ** 2,
        "reverse_kl": lambda w: w * np.log(w) if w > 0 else 0.0,
    }
    for name, f in functions.items():
        best = optimize.minimize_scalar(
            lambda w, f=f: f(w) - w * y,
            bounds=(0, 200),
            method="bounded",
            options={"xatol": 1e-10},
        )
        got = torch.tensor(y, dtype=D)
        assert float(conjugate(got, name)) == pytest.approx(-best.fun, abs=1e-6)
        ratio = float(density_ratio(got, name, "derivative"))
        assert ratio == pytest.approx(best.x, abs=1e-4, rel=1e-5)


def test_authors_weight_leaves_the_one_out() -> None:
    y = torch.tensor([-3.0, -1.0, 0.5, 4.0])
    assert density_ratio(y, "chi_square", "residual").tolist() == [0, 0, 0.5, 4]
    assert density_ratio(y, "chi_square", "derivative").tolist() == [0, 0.5, 1.25, 3]


def test_projection_is_over_all_tensors_together() -> None:
    generator = torch.Generator().manual_seed(0)
    f = [torch.randn(4, 3, generator=generator), torch.randn(2, generator=generator)]
    b = [x + torch.randn(x.shape, generator=generator) for x in f]
    flat_f = np.concatenate([x.numpy().ravel() for x in f]).astype(float)
    flat_b = np.concatenate([x.numpy().ravel() for x in b]).astype(float)
    expected = flat_f + flat_b - (flat_f @ flat_b) / (flat_f @ flat_f) * flat_f
    got = np.concatenate([x.numpy().ravel() for x in orthogonal_sum(f, b)])
    assert got == pytest.approx(expected, abs=1e-5)
    assert (got - flat_f) @ flat_f == pytest.approx(0, abs=1e-4)
    same = orthogonal_sum(f, [2 * x for x in f])  # a self-loop: the backward part goes
    assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(same, f, strict=True))
    nothing = orthogonal_sum([torch.zeros(3)], [torch.ones(3)])
    assert nothing[0].tolist() == [1, 1, 1]


def slow_gradient(made: Any, batch: Batch, mode: str) -> torch.Tensor:
    """The gradient as one vector, a row and a member after the other, from the paper's formula."""
    c, value, target = made.config, made.value, made.value_target
    weight, count = c.conjugate_weight, len(batch.obs)

    def conjugate_of(y: torch.Tensor) -> torch.Tensor:
        return y * y / 4 + y if float(y.detach()) > -2 else -1 + 0 * y

    def flat(loss: torch.Tensor) -> torch.Tensor:
        made_by = torch.autograd.grad(loss, list(value.parameters()), retain_graph=True)
        return torch.cat([g.flatten() for g in made_by])

    forward = backward = pull = true = torch.zeros((), dtype=D)
    for i in range(count):
        obs, following = batch.obs[i : i + 1], batch.next_obs[i : i + 1]
        held = min(float(target.member(obs, n).detach()) for n in range(2))
        held_next = min(float(target.member(following, n).detach()) for n in range(2))
        reward, discount = float(batch.reward[i]), float(batch.discount[i])
        for n in range(2):
            v, v_next = value.member(obs, n)[0, 0], value.member(following, n)[0, 0]
            share = 1 / (2 * count)
            forward = forward + share * weight * conjugate_of(reward + discount * held_next - v)
            back = conjugate_of(reward + discount * v_next - held)
            backward = backward + share * weight * c.eta * back
            true = true + share * weight * conjugate_of(reward + discount * v_next - v)
            pull = pull + share * (1 - weight) * v
    if mode == "true":
        return flat(true + pull)
    f = flat(forward)
    if mode == "semi":
        return f + flat(pull)
    b = flat(backward)
    return f + b - (f @ b) / (f @ f) * f + flat(pull)


@pytest.mark.parametrize("mode", ["orthogonal", "true", "semi"])
@pytest.mark.parametrize("layer_norm", [True, False])
def test_value_gradient_against_a_loop(mode: str, layer_norm: bool) -> None:
    made = learner(gradient=mode, eta=0.7, layer_norm=layer_norm)
    batch = rows()
    got, residual, _ = made.value_gradient(batch)
    expected = slow_gradient(made, batch, mode)
    assert torch.allclose(torch.cat([g.flatten() for g in got]), expected, atol=1e-10)
    assert residual.shape == (2, 6) and (residual < -2).any() and (residual > -2).any()


def test_without_backward_weight_it_is_the_semi_gradient(pendulum: Dataset) -> None:
    """Bit for bit, over twenty updates."""
    agents = []
    for values in ({"eta": 0.0}, {"gradient": "semi"}):
        config = build_config("odice", {"hidden": [16], "policy_hidden": [16]} | values)
        agents.append(ODICE(pendulum.spec, config, seed=3).fit(pendulum, 20, callbacks=[]))
    for a, b in zip(*(agent.policy.parameters() for agent in agents), strict=True):
        assert torch.equal(a, b)


def test_policy_loss_against_a_loop() -> None:
    """The mean over both members' bounded weights, before the step, of -log pi."""
    made, batch = learner(max_weight=1.5, weight="residual"), rows(40)
    _, residual, _ = made.value_gradient(batch)
    log_prob = made.policy.log_prob(batch.obs, batch.action).detach()
    terms = [
        -min(max(float(residual[n, i]), 0.0), 1.5) * float(log_prob[i])
        for n in range(2)
        for i in range(40)
    ]
    metrics = made.update(batch)
    assert float(metrics["actor/loss"]) == pytest.approx(np.mean(terms), rel=1e-6)


def test_minimiser_is_the_dual_of_the_problem_over_visits() -> None:
    """Five states, two actions each: at the minimum of (1 - lambda) E V + lambda E f*(y), w = f*'
    solves max over d >= 0 of sum d r - sum d_D f(d / d_D) with flow ((1 - lambda) / lambda) d_D(s)
    + gamma inflow = outflow; scipy solves that one."""
    rng = np.random.default_rng(0)
    states, gamma, weight = 5, 0.9, 0.6
    start = np.repeat(np.arange(states), 2)
    end = rng.integers(states, size=2 * states)
    reward = rng.normal(size=2 * states)
    share = rng.dirichlet(np.ones(2 * states))
    v = torch.zeros(states, dtype=D, requires_grad=True)
    optimiser = torch.optim.LBFGS([v], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16)
    r, p = torch.tensor(reward), torch.tensor(share)

    def loss() -> Any:
        optimiser.zero_grad()
        y = r + gamma * v[end] - v[start]
        value = (p * ((1 - weight) * v[start] + weight * conjugate(y, "chi_square"))).sum()
        value.backward()
        return value

    for _ in range(5):
        optimiser.step(loss)
    y = r + gamma * v.detach()[end] - v.detach()[start]
    got = density_ratio(y, "chi_square", "derivative").numpy()
    flow = np.zeros((states, 2 * states))
    for k in range(2 * states):
        flow[start[k], k] += share[k]
        flow[end[k], k] -= gamma * share[k]
    inflow = np.bincount(start, share, states) * (1 - weight) / weight
    solved = optimize.minimize(
        lambda w: (share * ((w - 1) ** 2 - w * reward)).sum(),
        np.ones(2 * states),
        jac=lambda w: share * (2 * (w - 1) - reward),
        bounds=[(0, None)] * (2 * states),
        constraints={"type": "eq", "fun": lambda w: flow @ w - inflow, "jac": lambda w: flow},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert solved.success and got == pytest.approx(solved.x, abs=1e-3)
    assert (share * got).sum() == pytest.approx((1 - weight) / weight / (1 - gamma), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "value"),
    [("conjugate_weight", 1.0), ("conjugate_weight", 0.0), ("eta", -1.0), ("values", 0)],
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is {value}"):
        build_config("odice", {name: value})
