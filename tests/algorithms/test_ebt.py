"""EBT-Policy: derivatives of the energy, descents in closed form, its loss against a loop, and what
becomes of two modes."""

from typing import Any

import pytest
import torch
from torch import nn

from algorithms import EBT
from algorithms.ebt import EBTConfig, EnergyPolicy
from algorithms.learners.generative import Drawn
from experiments.settings import build_config
from mbrl.buffer import Batch
from mbrl.types import Dataset, Spec, Transitions

SPEC = Spec("wide", 3, 2, None, (-2.0, 0.0), (2.0, 1.0), 10)


def policy(**values: Any) -> EnergyPolicy:
    config = build_config("ebt", {"hidden": [8, 7]} | values)
    return EnergyPolicy(SPEC, config, torch.Generator().manual_seed(0)).double()


class Bowl(EnergyPolicy):
    """ln of a quadratic: exp(E) = k |a - goal|^2 / 2 has the gradient k (a - goal)."""

    goal, k = torch.tensor([0.3, -0.5]), 0.4

    def energy(self, obs: torch.Tensor, action: torch.Tensor) -> Any:
        apart = action - self.goal
        squared = apart.square().sum(1)
        return (0.5 * self.k * squared).log(), 2 * apart / squared[:, None]


def bowl(**values: Any) -> Bowl:
    return Bowl(SPEC, build_config("ebt", {"hidden": [8]} | values), torch.Generator())


def two_modes(rows: int = 2000) -> Dataset:
    """One state; actions -0.7 and 0.7 in equal shares with a deviation of 0.05."""
    generator = torch.Generator().manual_seed(0)
    side = (torch.rand(rows, 1, generator=generator) < 0.5).float() * 2 - 1
    action = 0.7 * side + 0.05 * torch.randn(rows, 1, generator=generator)
    obs, ends = torch.zeros(rows, 2), torch.ones(rows, dtype=torch.bool)
    spec = Spec("two modes", 2, 1, None, (-1.0,), (1.0,), 1)
    return Dataset(Transitions(obs, action, torch.zeros(rows), obs, ends, ~ends), spec)


def test_energy_has_autograds_derivatives() -> None:
    """By the action, and of that derivative by the weights (twice by autograd)."""
    made, generator = policy(), torch.Generator().manual_seed(1)
    obs = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    action = torch.randn(5, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    energy, slope = made.energy(obs, action)
    plain = nn.Sequential()
    for i, layer in enumerate(made.net.layers):
        plain.append(layer)
        plain.extend([nn.SiLU()] if i < 2 else [])
    other = plain(torch.cat([obs, action], 1))[:, 0]
    assert torch.allclose(energy, other)
    (expected,) = torch.autograd.grad(other.sum(), action, create_graph=True)
    assert torch.allclose(slope, expected)
    weights = [layer.weight for layer in made.net.layers]
    for one, two in zip(
        torch.autograd.grad((slope**3).sum(), weights),
        torch.autograd.grad((expected**3).sum(), weights),
        strict=True,
    ):
        assert torch.allclose(one, two)


def test_a_step_lands_in_a_bowl() -> None:
    """With the step size 1 / k from anywhere, with half of it half the way."""
    start = torch.tensor([[1.0, 1.0], [-2.0, 0.4]])
    obs = torch.zeros(2, 3)
    moved, velocity, _ = bowl(step_size=1 / 0.4).step(obs, start, torch.zeros(2, 2))
    assert torch.allclose(moved, Bowl.goal.expand(2, -1), atol=1e-6)
    assert torch.allclose(velocity, moved - start, atol=1e-6)
    half, _, norm = bowl(step_size=1.0, temperature=2 * 0.4).step(obs, start, torch.zeros(2, 2))
    assert torch.allclose(half, 0.5 * (start + Bowl.goal), atol=1e-6)
    assert torch.allclose(norm, 2 / (start - Bowl.goal).norm(dim=1), atol=1e-5)


def test_a_descent_ends_by_its_gradient_and_its_bound() -> None:
    """The gradient of a logarithm grows near its end: with a threshold of 2 / r rows go on while
    they are nearer than r, so one far away takes the first step, and the last one."""
    start = torch.tensor([[0.31, -0.5], [3.0, 3.0]])
    obs = torch.zeros(2, 3)
    made = bowl(step_size=0.5 / 0.4, max_steps=6, min_gradient=2.0)
    action, steps = made.descent(obs, start)
    assert steps.tolist() == [6.0, 2.0]
    apart = (start[1] - Bowl.goal) * 0.5**2
    assert torch.allclose(action[1], (Bowl.goal + apart).clamp(-1, 1), atol=1e-5)
    assert bowl(max_steps=1).descent(obs, start)[1].tolist() == [1.0, 1.0]


def test_momentum_against_torchs_sgd() -> None:
    """On exp(E) = k |a - goal|^2 / 2: what torch's Nesterov moves is the point that the momentum
    leads to, a + mu v, of the action a."""
    start = torch.tensor([[0.9, 0.2]], dtype=torch.float64)
    made = bowl(step_size=0.6, momentum=0.7, max_steps=5, min_gradient=0.0).double()
    action, steps = made.descent(torch.zeros(1, 3, dtype=torch.float64), start)
    ahead = start.clone().requires_grad_()
    sgd = torch.optim.SGD([ahead], lr=0.6, momentum=0.7, nesterov=True)
    for _ in range(5):
        sgd.zero_grad()
        (0.5 * Bowl.k * (ahead - Bowl.goal).square().sum()).backward()
        sgd.step()
    velocity = -0.6 * sgd.state[ahead]["momentum_buffer"]
    assert steps.tolist() == [5.0]
    assert torch.allclose(action, (ahead - 0.7 * velocity).detach(), atol=1e-9)


def test_noise_falls_as_half_a_cosine() -> None:
    def deviations(steps: int, **values: Any) -> list[float]:
        return EBT(SPEC, build_config("ebt", values), seed=0).learner.deviations(steps)

    assert deviations(4) == [0.05] * 4
    falling = deviations(4, langevin=0.3, langevin_end=0.1)
    cosine = [1.0, 0.5**0.5, 0.0, -(0.5**0.5)]
    assert falling == pytest.approx([0.2 + 0.1 * x for x in cosine])


def test_loss_against_a_loop_and_no_gradient_between_steps() -> None:
    for start in ("noise", "noised"):
        config = EBTConfig(start=start, hidden=(8,), langevin=0.3)  # type: ignore[arg-type]
        made = EBT(SPEC, config, seed=0)
        learner, generator = made.learner, torch.Generator().manual_seed(1)
        obs, action = torch.randn(6, 3, generator=generator), torch.rand(6, 2) - 0.5
        batch = learner.draw(Batch(obs, action, obs[:, 0], obs, obs[:, 0]), generator)
        net, parameters = learner.policy.net, list(learner.policy.parameters())
        a = batch.noise
        if start == "noised":
            share = batch.level[:, None]
            a = torch.sqrt(share) * action + torch.sqrt(1 - share) * batch.noise
        errors = []
        for noise in batch.batch.noise:
            a = (a + 0.3 * noise).detach().requires_grad_()
            energy = torch.nn.functional.silu(net.layers[0](torch.cat([obs, a], 1)))
            energy = net.layers[1](energy)[:, 0]
            (slope,) = torch.autograd.grad(energy.sum(), a, create_graph=True)
            a = a - 10.0 * energy.exp()[:, None] * slope
            errors.append(((a - action) ** 2).mean())
        expected = sum(errors) / len(errors)
        got = learner.loss(batch)
        assert float(got.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)
        for one, two in zip(
            torch.autograd.grad(got, parameters),
            torch.autograd.grad(expected, parameters),
            strict=True,
        ):
            assert torch.allclose(one, two, rtol=1e-3, atol=1e-5)


def test_the_number_of_steps_is_drawn() -> None:
    made = EBT(SPEC, EBTConfig(hidden=(8,)), seed=0)
    obs = torch.zeros(4, 3)
    batch = Batch(obs, obs[:, :2], obs[:, 0], obs, obs[:, 0])
    generator = torch.Generator().manual_seed(0)
    drawn: list[Drawn] = [made.learner.draw(batch, generator) for _ in range(200)]
    counts = [len(one.batch.noise) for one in drawn if one.batch.noise is not None]
    assert set(counts) == {3, 4, 5, 6, 7}


@pytest.mark.long
@pytest.mark.parametrize("start", ["noise", "noised"])
def test_two_modes_need_a_start_that_knows_of_them(start: str) -> None:
    """From noise alone the least loss is at the mean of all actions, 0; from a mixture of action
    and noise samples go to either side."""
    data = two_modes()
    values = {"start": start, "hidden": [64, 64], "learning_rate": 2e-3, "normalise_obs": False}
    agent = EBT(data.spec, build_config("ebt", values), seed=0)
    agent.fit(data, 1500, callbacks=[])
    with torch.no_grad():
        action = agent.policy.explore(torch.zeros(1000, 2), torch.Generator().manual_seed(0))
    between = float((action.abs() < 0.2).float().mean())
    if start == "noise":
        assert between > 0.95
    else:
        assert between < 0.1
        assert 0.3 < float((action > 0).float().mean()) < 0.7


def test_a_descent_that_would_overflow_ends_before_it_does() -> None:
    """An energy whose exponential is infinite beyond 1: the first step leads there, and the second
    is not taken; a row that stays inside is not touched by its neighbour."""

    class Cliff(EnergyPolicy):
        def energy(self, obs: torch.Tensor, action: torch.Tensor) -> Any:
            beyond = action.abs().amax(1) > 1
            return torch.where(beyond, 1000.0, 0.0), obs[:, :2]

    made = Cliff(SPEC, build_config("ebt", {"hidden": [8], "step_size": 1.0, "max_steps": 6}),
                 torch.Generator())  # fmt: skip
    obs = torch.tensor([[0.8, -0.3, 0.0], [0.01, 0.0, 0.0]])
    action, steps = made.descent(obs, torch.tensor([[-0.5, 0.2], [0.5, 0.5]]))
    assert torch.allclose(action[0], torch.tensor([-1.0, 0.5]))
    assert torch.allclose(action[1], torch.tensor([0.5 - 6 * 0.01, 0.5]))
    assert steps.tolist() == [3, 6]
