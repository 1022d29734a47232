"""The chain of doors against a plain simulation of one point, and its expert."""

import math

import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.tasks.common import hashed_uniform
from mbrl.tasks.door_chain import DoorChain
from mbrl.tasks.experts import expert


def moved(state: list[float], action: list[float], slide: float = 0.0) -> tuple[list[float], float]:
    """x, y, held and doors passed after a step, and the reward."""
    top = 1 + slide
    x, y, held, passed, steps, seed, *doors = state
    number = [torch.tensor([n], dtype=torch.float64) for n in (seed, 2 * steps, 2 * steps + 1)]
    draws = [float(hashed_uniform(number[0], number[k])[0]) for k in (1, 2)]
    dx, dy = (
        0.08 * a + 0.025 * math.sqrt(12) * (u - 0.5) for a, u in zip(action, draws, strict=True)
    )
    door = doors[min(3, int(passed))]
    if held:
        if action[0] >= -0.3:
            return [x, y, 1, passed], 0.0
        dx = min(dx, -0.01)
    if dx > 0 and x + dx >= passed + 1:
        crossing = y + dy * (passed + 1 - x) / dx
        if abs(crossing - door) <= 0.05:
            return [x + dx, min(top, max(-top, y + dy)), 0, passed + 1], 1.0
        y = min(top, max(-top, y + dy))
        y = min(y + slide, top) if y >= door else max(y - slide, -top)
        return [passed + 1 - 0.01, y, 1, passed], 0.0
    return [max(passed, x + dx), min(top, max(-top, y + dy)), 0, passed], 0.0


@pytest.mark.parametrize(
    ("slide", "wild"),
    [
        (0.0, 0.0),
        (0.7, 1.0),
        *(
            pytest.param(*p, marks=pytest.mark.long)
            for p in ((0.0, 0.6), (0.0, 1.0), (0.7, 0.0), (0.7, 0.6))
        ),
    ],
)
def test_steps_against_a_plain_simulation(slide: float, wild: float) -> None:
    task, generator = DoorChain(slide=slide), torch.Generator().manual_seed(1)
    state, policy = task.reset(20, generator), expert("DoorChain-v0")
    held = opened = 0
    for _ in range(150):
        noise = 2 * torch.rand(20, 2, generator=generator) - torch.tensor([0.5, 1.0])
        action = ((1 - wild) * policy(task.observe(state)) + wild * noise).clamp(-1, 1)
        step = task.step(state, action)
        for i in range(20):
            if state[i, 3] == 4:
                continue
            expected, reward = moved(state[i].tolist(), action[i].double().tolist(), slide)
            assert step.state[i, :4].tolist() == pytest.approx(expected, abs=1e-9)
            assert float(step.reward[i]) == reward
            held, opened = held + int(expected[2]), opened + int(reward)
            assert bool(step.terminated[i]) == (expected[3] == 4)
        assert torch.equal(step.terminated, task.terminates(action, action, step.obs))
        state = torch.where((step.state[:, 3:4] == 4), state, step.state)
    assert opened > 5 if wild < 1 else held > 20


def test_observations_and_noise() -> None:
    task = make("DoorChain-v0")
    state = task.reset(5000, torch.Generator().manual_seed(0))
    obs = task.observe(state)
    assert obs.dtype == torch.float32 and obs.shape == (5000, 8)
    assert torch.allclose(obs[:, 2].double(), state[:, 6])
    still = task.step(state, torch.zeros(5000, 2)).state[:, :2] - state[:, :2]
    assert float(still[:, 1].std()) == pytest.approx(0.025, rel=0.03)
    assert float(still[:, 1].abs().max()) <= 0.025 * math.sqrt(3)
    assert not task.state_from_obs(obs)[1].any()
    state[:, 3] = 2
    assert (task.observe(state)[:, 4:] == torch.tensor([0.0, 0, 1, 0])).all()


def test_a_slide_is_an_option() -> None:
    assert make("DoorChain-v0", slide=1.5).spec.task_options == {"slide": 1.5}
    assert make("DoorChain-v0").spec.task_options == {}
    with pytest.raises(ConfigError, match="slide of DoorChain-v0 is -1"):
        make("DoorChain-v0", slide=-1)
