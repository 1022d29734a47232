"""The true dynamics behind the model protocol, and their mixture with a model that is wrong."""

import dataclasses

import pytest
import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.types import Spec
from world_models.protocol import Prediction, WorldModel
from world_models.true_dynamics import Interpolated, TrueDynamics, shown

TASKS = ["Pendulum-v1", "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "PointMass-v0"]


@dataclasses.dataclass
class Shifted:
    """A model that answers obs + 1 with reward 2, and names the member it was asked for."""

    spec: Spec
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))
    num_members: int = 3

    def predict(
        self,
        obs: Tensor,
        action: Tensor,
        generator: torch.Generator,
        *,
        member: Tensor | None = None,
        state: Tensor | None = None,
        measure: str | None = None,
    ) -> Prediction:
        assert state is None
        chosen = torch.zeros(len(obs)) if member is None else member.float()
        never = torch.zeros(len(obs), dtype=torch.bool)
        return Prediction(obs + 1, torch.full((len(obs),), 2.0), never, disagreement=chosen)


def batch(task_id: str, count: int = 64) -> tuple[WorldModel, Tensor, Tensor, Tensor]:
    task = make(task_id)
    generator = torch.Generator().manual_seed(0)
    state = task.reset(count, generator)
    if task.spec.discrete:
        action = torch.randint(task.spec.num_actions or 0, (count,), generator=generator)
    else:
        action = torch.rand((count, task.spec.action_dim), generator=generator) - 0.5
    return TrueDynamics(task), state, task.observe(state), action


@pytest.mark.parametrize("task_id", TASKS)
def test_a_carried_state_gives_the_tasks_own_trajectory(task_id: str) -> None:
    truth, state, obs, action = batch(task_id)
    task, generator = make(task_id), torch.Generator()
    carried = state
    for _ in range(20):
        expected = task.step(state, action)
        got = truth.predict(obs, action, generator, state=carried)
        assert torch.equal(got.next_obs, expected.obs)
        assert torch.equal(got.reward, expected.reward)
        assert torch.equal(got.terminated, expected.terminated)
        assert got.state is not None and torch.equal(got.state, expected.state)
        state, obs, carried = expected.state, expected.obs, got.state


@pytest.mark.parametrize("task_id", TASKS)
def test_a_state_rebuilt_from_observations_agrees(task_id: str) -> None:
    truth, state, obs, action = batch(task_id)
    expected = make(task_id).step(state, action)
    got = truth.predict(obs, action, torch.Generator())
    assert got.valid is not None and got.valid.all()
    torch.testing.assert_close(got.next_obs, expected.obs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.reward, expected.reward, rtol=1e-5, atol=1e-5)


def test_a_mujoco_state_is_carried_beside_the_observation() -> None:
    """Without it the hidden root position is lost, but not what follows from the observation."""
    truth, state, obs, action = batch("Hopper-v5", 8)
    task, generator = make("Hopper-v5"), torch.Generator()
    for _ in range(5):
        step = task.step(state, action)
        carried = truth.predict(obs, action, generator, state=state)
        assert carried.state is not None and torch.equal(carried.state, step.state)
        rebuilt = truth.predict(obs, action, generator)
        assert rebuilt.state is not None
        assert not torch.equal(rebuilt.state[:, 0], step.state[:, 0])
        torch.testing.assert_close(rebuilt.next_obs, step.obs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(rebuilt.reward, step.reward, rtol=1e-4, atol=1e-4)
        state, obs = step.state, step.obs


def test_impossible_rows_are_flagged_and_leave_the_others_alone() -> None:
    truth, _, obs, action = batch("Pendulum-v1", 4)
    clean = truth.predict(obs, action, torch.Generator())
    broken = obs.clone()
    broken[1] = torch.tensor([0.1, 0.1, 0.0])
    broken[2, 2] = float("nan")
    got = truth.predict(broken, action, torch.Generator())
    assert got.valid is not None and got.valid.tolist() == [True, False, False, True]
    assert torch.equal(got.next_obs[[0, 3]], clean.next_obs[[0, 3]])
    assert torch.equal(got.reward[[0, 3]], clean.reward[[0, 3]])
    assert torch.equal(got.next_obs[1], broken[1])
    nothing = truth.predict(torch.full_like(obs, 9.0), action, torch.Generator())
    assert nothing.valid is not None and not nothing.valid.any()


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_interpolation_is_linear_in_observation_and_reward(weight: float) -> None:
    truth, state, obs, action = batch("CartPole-v1")
    assert isinstance(truth, TrueDynamics)
    mixed = Interpolated(Shifted(truth.spec), truth, weight)
    member = torch.arange(len(obs)) % 3
    got = mixed.predict(obs, action, torch.Generator(), member=member)
    exact = make("CartPole-v1").step(state, action)
    expected = (1 - weight) * (obs + 1) + weight * exact.obs
    torch.testing.assert_close(got.next_obs, expected)
    torch.testing.assert_close(got.reward, torch.full((64,), (1 - weight) * 2 + weight))
    fallen = (expected[:, 0].abs() > 2.4) | (expected[:, 2].abs() > 0.2094395)
    assert torch.equal(got.terminated, fallen)
    if weight < 1.0:
        assert got.state is None
        torch.testing.assert_close(got.disagreement, (1 - weight) * member.float())
    assert mixed.num_members == 3


def test_a_blend_is_an_observation_of_the_task() -> None:
    """A mean of two points of a circle lies inside it: put back along its radius, so that the truth
    has an answer at the next step too."""
    truth, _, obs, action = batch("Pendulum-v1")
    assert isinstance(truth, TrueDynamics)
    obs[:, 2].clamp_(-3, 3)
    mixed = Interpolated(Shifted(truth.spec), truth, 0.5)
    for _ in range(5):
        got = mixed.predict(obs, action, torch.Generator(), member=torch.zeros(len(obs)))
        exact = truth.predict(obs, action, torch.Generator())
        mean = (obs + 1 + exact.next_obs) / 2
        radius = torch.hypot(mean[:, 0], mean[:, 1])
        assert got.valid is not None and got.valid.all() and (radius - 1).abs().max() > 0.1
        expected = torch.stack([mean[:, 0] / radius, mean[:, 1] / radius, mean[:, 2]], 1)
        torch.testing.assert_close(got.next_obs, expected, rtol=1e-4, atol=1e-5)
        obs = got.next_obs


def test_a_blend_keeps_to_the_speeds_of_the_task() -> None:
    """A mean may be faster than the pendulum can be; its next step has an answer all the same."""
    truth, _, obs, action = batch("Pendulum-v1")
    assert isinstance(truth, TrueDynamics)
    obs[:, 2] = 7.9
    mixed = Interpolated(Shifted(truth.spec), truth, 0.5)  # which adds 1 to the speed
    for _ in range(5):
        got = mixed.predict(obs, action, torch.Generator(), member=torch.zeros(len(obs)))
        assert got.valid is not None and got.valid.all() and (got.next_obs[:, 2] <= 8).all()
        obs = got.next_obs
    assert (obs[:, 2] == 8).any()


@pytest.mark.parametrize("task_id", ["Reacher-v5", "InvertedDoublePendulum-v5"])
def test_a_blend_of_mujoco_observations_keeps_its_angles(task_id: str) -> None:
    """Off the circle the pose is read all the same; it is not that of a start."""
    truth, _, obs, _ = batch(task_id, 16)
    assert isinstance(truth, TrueDynamics)
    pairs = [(0, 2), (1, 3)] if task_id == "Reacher-v5" else [(3, 1), (4, 2)]  # cosine and sine
    off = obs.clone()
    for cosine, sine in pairs:
        angle = torch.linspace(-1.2, 1.2, 16)
        obs[:, cosine], obs[:, sine] = angle.cos(), angle.sin()
        off[:, cosine], off[:, sine] = 0.9 * angle.cos(), 0.9 * angle.sin()
    _, possible = truth.task.state_from_obs(off)
    assert not possible.any()
    columns = [column for pair in pairs for column in pair]
    seen = shown(truth.task, off)
    torch.testing.assert_close(seen[:, columns], obs[:, columns], rtol=0, atol=1e-5)
    lost = torch.full_like(obs, torch.nan)
    assert shown(truth.task, lost).shape == obs.shape


def test_the_state_is_carried_only_where_the_truth_is_alone() -> None:
    truth, state, obs, action = batch("Pendulum-v1")
    assert isinstance(truth, TrueDynamics)
    far = state + torch.tensor([20 * torch.pi, 0.0])  # the same observation, another state
    alone = Interpolated(Shifted(truth.spec), truth, 1.0)
    got = alone.predict(obs, action, torch.Generator(), state=far)
    assert got.state is not None and (got.state[:, 0] > 50).all()
    half = Interpolated(Shifted(truth.spec), truth, 0.5)
    assert half.predict(obs, action, torch.Generator(), state=far).state is None


def test_interpolation_refuses_what_does_not_fit() -> None:
    pendulum, cartpole = TrueDynamics(make("Pendulum-v1")), TrueDynamics(make("CartPole-v1"))
    with pytest.raises(ConfigError, match=r"\[0, 1\]"):
        Interpolated(pendulum, pendulum, 1.5)
    with pytest.raises(ConfigError, match="use the same task"):
        Interpolated(cartpole, pendulum, 0.5)
