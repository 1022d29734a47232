"""An ensemble that corrects a simulator with wrong numbers."""

import dataclasses

import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.types import Transitions
from world_models import EnsembleConfig, EnsembleDynamics
from world_models.physics import PhysicsResidual

TASK, NOMINAL = "CartPoleSwingUp-v0,pole_mass=0.3", "CartPoleSwingUp-v0"
CONFIG = EnsembleConfig(
    members=3, elites=2, hidden=(32, 32), weight_decay=(0.0,), target="standardised",
    min_epochs=30, max_epochs=60, batch_size=64,
)  # fmt: skip


def rows(name: str, count: int, seed: int = 0) -> Transitions:
    """One step from random states, near and far from upright."""
    task, generator = make(name), torch.Generator().manual_seed(seed)
    state = 2 * torch.randn(count, 4, generator=generator)
    action = 2 * torch.rand(count, 1, generator=generator) - 1
    step = task.step(state, action)
    flags = torch.zeros(count, dtype=torch.bool)
    return Transitions(task.observe(state), action, step.reward, step.obs, flags, flags)


def error(model: EnsembleDynamics, data: Transitions) -> torch.Tensor:
    """Root mean squared error of the mean step [S + 1]."""
    member = torch.zeros(len(data), dtype=torch.long)
    with torch.no_grad():
        next_obs, reward, _ = model.mean_step(data.obs, data.action, member)
    apart = torch.cat([next_obs - data.next_obs, (reward - data.reward)[:, None]], -1)
    return apart.square().mean(0).sqrt()


def test_right_physics_leaves_nothing_to_correct() -> None:
    """The differences are 0, so the members' answer is the simulator's."""
    data = rows(TASK, 400)
    model = PhysicsResidual(make(TASK).spec, CONFIG, physics=make(TASK), seed=1)
    assert float(model.targets(data).abs().max()) < 1e-5
    model.fit(data)
    assert float(error(model, rows(TASK, 200, seed=1)).max()) < 1e-4


def test_wrong_physics_is_corrected() -> None:
    """Better than the wrong numbers alone, and than members without them."""
    data, unseen = rows(TASK, 2000), rows(TASK, 300, seed=1)
    spec = make(TASK).spec
    model = PhysicsResidual(spec, CONFIG, physics=make(NOMINAL), seed=1)
    plain = EnsembleDynamics(spec, CONFIG, seed=1)
    for m in (model, plain):
        m.fit(data)
    alone = model.answers(unseen.obs, unseen.action)
    actual = torch.cat([unseen.next_obs, unseen.reward[:, None]], -1)
    wrong = (alone - actual).square().mean(0).sqrt()
    corrected, learned = error(model, unseen), error(plain, unseen)
    speeds = [1, 4]  # what the mass changes in one step
    assert bool((corrected[speeds] < 0.5 * wrong[speeds]).all())
    assert bool((corrected[speeds] < 0.5 * learned[speeds]).all())


def test_units_are_those_of_what_the_physics_leaves() -> None:
    """Small corrections would drown in the deviation of the observations."""
    data = rows(TASK, 300)
    model = PhysicsResidual(make(TASK).spec, CONFIG, physics=make(NOMINAL))
    model.fit(data)
    targets = model.targets(data)
    assert torch.allclose(targets[:, [1, 4]].std(0, correction=0), torch.ones(2), atol=1e-3)


def test_targets_and_steps_are_inverse() -> None:
    data = rows(TASK, 50)
    model = PhysicsResidual(make(TASK).spec, CONFIG, physics=make(NOMINAL))
    next_obs, reward = model.decode(data.obs, data.action, model.targets(data))
    assert torch.allclose(next_obs, data.next_obs, atol=1e-5)
    assert torch.allclose(reward, data.reward, atol=1e-5)


def test_the_physics_answers_off_the_circle_and_nowhere_else_is_guessed() -> None:
    """Cosine and sine of a prediction are off their circle: their angle is stepped."""
    data = rows(TASK, 50)
    model = PhysicsResidual(make(TASK).spec, CONFIG, physics=make(NOMINAL))
    off = data.obs.clone()
    off[:, 2:4] *= 1.05
    assert not bool(make(NOMINAL).state_from_obs(off)[1].any())
    assert torch.allclose(model.answers(off, data.action), model.answers(data.obs, data.action))
    none = torch.tensor([[0.0, float("inf"), 1.0, 0.0, 0.0]])
    without = torch.cat([none, torch.zeros(1, 1)], -1)
    assert torch.equal(model.answers(none, torch.zeros(1, 1)), without)


def test_corrected_physics_stays_near_the_task_over_ten_steps() -> None:
    """Sampled rollouts, of which every step is a prediction of the model, beside the task from the
    same states; a short fit, so that predictions leave the circle."""
    heavy = "CartPoleSwingUp-v0,pole_mass=1.0,half_length=1.0"
    data, task = rows(heavy, 300), make(heavy)
    short = dataclasses.replace(CONFIG, min_epochs=5, max_epochs=5)
    model = PhysicsResidual(task.spec, short, physics=make(NOMINAL), seed=1)
    model.fit(data)
    generator = torch.Generator().manual_seed(3)
    state = 0.5 * torch.randn(200, 4, generator=generator)
    obs, reward_error = task.observe(state), torch.zeros(200)
    for _ in range(10):
        action = 2 * torch.rand(200, 1, generator=generator) - 1
        guess, step = model.predict(obs, action, generator), task.step(state, action)
        reward_error = (guess.reward - step.reward).abs()
        obs, state = guess.next_obs, step.state
    apart = (obs - task.observe(state)).square().mean(0).sqrt()
    assert float(apart[0]) < 0.06 and float(apart[2:4].max()) < 0.1
    assert float(reward_error.mean()) < 0.1  # 0.8 where the physics falls silent off the circle


def test_state_goes_on(tmp_path: object) -> None:
    data, spec = rows(TASK, 200), make(TASK).spec
    model = PhysicsResidual(spec, CONFIG, physics=make(NOMINAL), seed=1)
    model.fit(data)
    again = PhysicsResidual(spec, CONFIG, physics=make(NOMINAL), seed=2)
    again.load_state_dict(model.state_dict())
    assert torch.equal(error(model, data), error(again, data))


def test_what_does_not_fit_is_refused() -> None:
    spec = make(TASK).spec
    with pytest.raises(ConfigError, match="give one of the same sizes"):
        PhysicsResidual(spec, CONFIG, physics=make("Pendulum-v1"))
    with pytest.raises(ConfigError, match="know no physics"):
        PhysicsResidual(spec, EnsembleConfig(reward="reached"), physics=make(NOMINAL))
    model = PhysicsResidual(spec, CONFIG, physics=make(NOMINAL))
    with pytest.raises(ConfigError, match="not for MOBILE"):
        model.reached(torch.zeros(1, 5), torch.zeros(1, 6))
