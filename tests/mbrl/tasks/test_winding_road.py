"""The winding road against a simulation of one car in plain Python, and its rewards' own claims."""

import math
from typing import Any

import gymnasium
import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.tasks.experts import expert
from mbrl.tasks.winding_road import (
    CLEAR,
    LANE,
    LENGTH,
    MEMORY,
    ROAD,
    WindingRoad,
    centre_line,
    distance_off,
    gap_to_parked,
    time_to_collision,
)

Memory = dict[str, float]


def road(**options: Any) -> WindingRoad:
    return WindingRoad(dtype=torch.float64, **options)


def height(x: float, phases: list[float]) -> float:
    return 5 * math.sin(2 * math.pi * x / 60 + phases[0]) + 2 * math.sin(
        2 * math.pi * x / 37 + phases[1]
    )


def slope_at(x: float, phases: list[float]) -> float:
    return (height(x + 1e-6, phases) - height(x - 1e-6, phases)) / 2e-6


def seconds_to_touch(
    x: float, y: float, h: float, v: float, cars: list[tuple[float, float]]
) -> float:
    """By walking along in steps of a thousandth of a second."""
    for i in range(1100):
        t = i / 1000
        at = (x + v * math.cos(h) * t, y + v * math.sin(h) * t)
        if any(math.dist(at, car) <= 2.2 for car in cars):
            return t
    return math.inf


def driven(
    state: list[float], action: list[float], memory: Memory
) -> tuple[list[float], dict[str, float]]:
    """One step of one car, and its three rewards."""
    x, y, h, v = state[:4]
    phases, cars = state[8:10], list(zip(state[10:14], state[14:18], strict=True))
    turn = v / 2.5 * math.tan(0.5 * action[1])
    faster = min(15.0, max(0.0, v + 0.2 * 4 * action[0]))
    x, y = x + 0.2 * v * math.cos(h), y + 0.2 * v * math.sin(h)
    across, along = abs(v * turn), abs(faster - v) / 0.2
    h, v = h + 0.2 * turn, faster
    off = abs((y - height(x, phases)) * math.cos(math.atan(slope_at(x, phases))))
    memory["off"] = memory["off"] + 1 if off > 0.5 else 0
    soon = seconds_to_touch(x, y, h, v, cars) < 1
    rough = along > 3 or across > 4
    factors = {"time": 1.0, "comfort": 1.0}
    for name, now in (("time", soon), ("comfort", rough)):
        if now or memory[name] > 0:
            factors[name] = 0.5
        memory[name] = 25 if now else max(0, memory[name] - 1)
    gain = max(0.0, min(x, 200) - memory["furthest"]) / 2
    memory["furthest"] = max(memory["furthest"], min(x, 200))
    speed = max(0.0, 1 - max(0.0, v - 8) / 2.23)
    simple = gain * speed * factors["time"] * factors["comfort"]
    simple *= (0.5 if memory["off"] > 15 else 1) * (off <= 2.5)
    shaped = (5 * min(1.0, 2 * gain / 1.6) + 5 * (not soon) + 4 * speed + 2 * (not rough)) / 16
    return [x, y, h, v], {"simple": simple, "progress": gain, "shaped": shaped}


@pytest.mark.parametrize("wild", [0.0, 0.3, 1.0])
def test_steps_and_rewards_against_a_plain_simulation(wild: float) -> None:
    tasks = {name: road(reward=name) for name in ("simple", "progress", "shaped")}
    generator = torch.Generator().manual_seed(int(10 * wild))
    state = tasks["simple"].reset(6, generator)
    policy = expert("WindingRoad-v0")
    memories: list[Memory] = [{"off": 0, "time": 0, "comfort": 0, "furthest": 0} for _ in range(6)]
    penalised = 0
    for _ in range(60):
        noise = 2 * torch.rand(6, 2, generator=generator, dtype=torch.float64) - 1
        action = ((1 - wild) * policy(tasks["simple"].observe(state)) + wild * noise).clamp(-1, 1)
        steps = {name: task.step(state, action) for name, task in tasks.items()}
        for i in range(6):
            moved, rewards = driven(state[i].tolist(), action[i].tolist(), memories[i])
            assert steps["simple"].state[i, :4].tolist() == pytest.approx(moved, abs=1e-9)
            for name, step in steps.items():
                assert float(step.reward[i]) == pytest.approx(rewards[name], abs=1e-6), name
            penalised += rewards["simple"] < rewards["progress"]
        state = steps["simple"].state
    assert penalised > 15  # or the factors were not tested


def test_the_centre_line_and_the_distance_to_it() -> None:
    x = torch.linspace(0, 200, 50, dtype=torch.float64)
    phases = torch.tensor([0.3, 2.0], dtype=torch.float64)
    y, slope = centre_line(x, phases.expand(50, 2))
    for i in range(50):
        assert float(y[i]) == pytest.approx(height(float(x[i]), phases.tolist()))
        assert float(slope[i]) == pytest.approx(slope_at(float(x[i]), phases.tolist()), abs=1e-6)
    state = road().reset(20, torch.Generator().manual_seed(0))
    assert torch.allclose(distance_off(state), torch.zeros(20, dtype=torch.float64))
    for i in range(4):  # 1.8 m across, to first order in the curvature
        at = state.clone()
        at[:, 0], at[:, 1] = state[:, 10 + i], state[:, 14 + i]
        assert ((distance_off(at).abs() - 1.8).abs() < 0.3).all()


def test_time_to_collision_in_closed_form() -> None:
    def after(place: list[float], velocity: list[float], *cars: list[float]) -> float:
        tensors = [torch.tensor([v], dtype=torch.float64) for v in (place, velocity)]
        return float(time_to_collision(*tensors, torch.tensor([cars], dtype=torch.float64)))

    assert after([0, 0], [5, 0], [20, 0]) == pytest.approx((20 - CLEAR) / 5)
    assert after([0, 0], [5, 0], [20, 0], [12, 0]) == pytest.approx((12 - CLEAR) / 5)
    leg = math.sqrt(CLEAR**2 - 1)
    assert after([0, 0], [0, 4], [1, 10]) == pytest.approx((10 - leg) / 4)
    assert after([0, 0], [5, 0], [20, CLEAR + 0.01]) == math.inf
    assert after([0, 0], [-5, 0], [20, 0]) == math.inf  # behind
    assert after([0, 0], [0, 0], [1, 0]) == math.inf  # at rest


def alone(task: WindingRoad, count: int = 3) -> torch.Tensor:
    """Starts on a road without parked cars near."""
    state = task.reset(count, torch.Generator().manual_seed(2))
    state[:, 10:] = 1e4
    return state


def crawl(task: WindingRoad, state: torch.Tensor) -> torch.Tensor:
    """Pure pursuit at 3 m/s."""
    obs = task.observe(state)
    ahead, left = 10 * obs[:, 7], 10 * obs[:, 8]
    steer = (2.5 * 2 * left / (ahead.square() + left.square())).atan() / 0.5
    return torch.stack([(3 - state[:, 3]).clamp(-0.5, 0.5), steer], -1)


def test_a_clean_route_pays_100_and_is_cut_at_its_end() -> None:
    task = road()
    state = alone(task)
    total, on = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.bool)
    for _ in range(500):
        step = task.step(state, crawl(task, state))
        total += torch.where(on, step.reward, 0.0)
        assert not (step.terminated & on).any()
        assert step.truncated is not None
        assert torch.equal(step.truncated, step.state[:, 4] >= LENGTH)
        on, state = on & ~step.truncated, step.state
    assert not on.any()
    assert torch.allclose(total, torch.full_like(total, 100.0))


def test_a_factor_of_0_leaves_nothing_whatever_the_rest() -> None:
    task = road()
    state = alone(task)
    idle = torch.zeros(3, 2, dtype=torch.float64)
    state[:, 3] = 8 + 2.23
    assert (task.step(state, idle).reward == 0).all()
    assert (road(reward="progress").step(state, idle).reward > 0).all()
    state = alone(task)
    state[:, 1] += 1.5 * LANE
    step = task.step(state, idle)
    assert (step.reward == 0).all() and not step.terminated.any()


def test_standing_still_is_paid_by_the_sum_alone() -> None:
    state = alone(road())
    state[:, 3] = 0
    still = torch.tensor([[-1.0, 0.0]] * 3, dtype=torch.float64)
    rewards = {
        n: road(reward=n).step(state, still).reward for n in ("simple", "progress", "shaped")
    }
    assert (rewards["simple"] == 0).all() and (rewards["progress"] == 0).all()
    assert torch.allclose(rewards["shaped"], torch.full((3,), 11 / 16, dtype=torch.float64))


def test_what_was_driven_before_is_not_paid_again() -> None:
    task = road(reward="progress")
    state = alone(task)
    state[:, 4] = state[:, 0] + 2.0
    idle = torch.zeros(3, 2, dtype=torch.float64)
    total = torch.zeros(3, dtype=torch.float64)
    for _ in range(5):
        step = task.step(state, idle)
        total, state = total + step.reward, step.state
    assert torch.allclose(total, (state[:, 0] - 2.0) / 2)


def test_a_violation_is_remembered_for_25_steps() -> None:
    task = road()
    state = alone(task, 1)
    state[:, 3] = 3.0
    action = crawl(task, state)
    action[:, 0] = 1.0  # 4 m/s^2
    step = task.step(state, action)
    ratios = []
    for _ in range(MEMORY + 3):
        ratios.append(float(step.reward / ((step.state[0, 0] - state[0, 0]) / 2)))
        state = step.state
        step = task.step(state, crawl(task, state))
    assert ratios == pytest.approx([0.5] * (MEMORY + 1) + [1.0] * 2)


def test_ends_are_read_from_observations() -> None:
    task = road()
    generator = torch.Generator().manual_seed(0)
    state, ends = task.reset(300, generator), 0
    for _ in range(60):
        action = 2 * torch.rand(300, 2, generator=generator, dtype=torch.float64) - 1
        before, step = task.observe(state), task.step(state, action)
        assert torch.equal(step.terminated, task.terminates(before, action, step.obs))
        expected = (distance_off(step.state).abs() > ROAD) | (gap_to_parked(step.state) < CLEAR)
        assert torch.equal(step.terminated, expected)
        ends += int(step.terminated.sum())
        state = torch.where(step.ended[:, None], task.reset(300, generator), step.state)
    assert ends > 100
    assert not task.state_from_obs(step.obs)[1].any()


def test_options_and_gymnasium() -> None:
    with pytest.raises(ConfigError, match="reward of WindingRoad-v0"):
        make("WindingRoad-v0", reward="sparse")
    assert make("WindingRoad-v0", reward="shaped").spec.task_options == {"reward": "shaped"}
    env: Any = gymnasium.make("longreach/WindingRoad-v0")
    env.reset(seed=0)
    inner = env.unwrapped
    inner._state[:, 0], inner._state[:, 4], inner._state[:, 3] = LENGTH - 0.1, LENGTH - 0.1, 5.0
    inner._state[:, 1] = centre_line(inner._state[:, 0], inner._state[:, 8:10])[0]
    inner._state[:, 2] = 0
    _, _, terminated, truncated, _ = env.step([0.0, 0.0])
    assert truncated and not terminated
