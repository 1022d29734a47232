"""Randomness of tasks: against the plain task's own steps, and frequencies against their laws."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.tasks import as_live, make, make_for
from mbrl.tasks.classic import Pendulum
from mbrl.tasks.randomness import LiveRandomised, Randomised, Randomness, randomised
from tests.mbrl.own_environments import Rover

DT, MANY = 0.05, 4000


def task_of(name: str = "Pendulum-v1", **options: Any) -> Randomised:
    task = make(name, dtype=torch.float64, **options)
    assert isinstance(task, Randomised)
    return task


def starts(task: Any, count: int, seed: int = 0) -> Tensor:
    state: Tensor = task.reset(count, torch.Generator().manual_seed(seed))
    return state


def torques(before: Tensor, after: Tensor) -> Tensor:
    """What acted on pendulums between two plain states, from their equation; only where the speed
    is not at its bound."""
    angle, speed = before.unbind(1)
    return ((after[:, 1] - speed) / DT - 15.0 * angle.sin()) / 3.0


def acted(task: Randomised, actions: list[float], count: int = MANY) -> list[Tensor]:
    """Torques [count] of every step under these actions, NaN at the bound of speeds."""
    state, found = starts(task, count), []
    for action in actions:
        step = task.step(state, torch.full((count, 1), action, dtype=torch.float64))
        before, after = task.plain(state), task.plain(step.state)
        inside = after[:, 1].abs() < 8.0
        found.append(torch.where(inside, torques(before, after), torch.nan))
        state = step.state
    return found


def share(flags: Tensor, known: Tensor) -> tuple[float, float]:
    """The share of flags among what is known, and four deviations of a share of 0.3."""
    count = int(known.sum())
    return float((flags & known).sum()) / count, 4 * math.sqrt(0.3 * 0.7 / count)


def test_without_randomness_the_task_is_plain() -> None:
    assert not isinstance(make("Pendulum-v1", sticky_actions=0.0, drift_gain=0.5), Randomised)


def test_actions_wait() -> None:
    first, second, third, fourth = acted(task_of(action_delay=2), [1.0, 2.0, -1.0, 0.5], 50)
    for found, expected in ((first, 0.0), (second, 0.0), (third, 1.0), (fourth, 2.0)):
        known = ~found.isnan()
        assert torch.allclose(found[known], torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("every", "gains"), [(False, [1, 1, -0.5, -0.5, -0.5]), (True, [1, 1, -0.5, -0.5, 1])]
)
def test_drift_is_the_task_with_other_actions(every: bool, gains: list[float]) -> None:
    task = task_of(drift_at=2, drift_gain=-0.5, drift_every=every)
    state = starts(task, 20)
    plain = task.plain(state)
    for gain in gains:
        action = torch.rand(20, 1, dtype=torch.float64)
        step, expected = task.step(state, action), task.task.step(plain, gain * action)
        assert torch.equal(task.plain(step.state), expected.state)
        assert torch.equal(step.reward, expected.reward)
        state, plain = step.state, expected.state


def test_drift_is_about_the_middle_of_the_range() -> None:
    plain = make("Pendulum-v1", dtype=torch.float64)
    plain.spec = dataclasses.replace(plain.spec, action_low=(0.0,))  # type: ignore[misc]
    task = Randomised(plain, Randomness(drift_at=1, drift_gain=0.5))
    state = task.step(starts(task, 5), torch.ones(5, 1, dtype=torch.float64)).state
    step = task.step(state, torch.full((5, 1), 2.0, dtype=torch.float64))
    expected = plain.step(task.plain(state), torch.full((5, 1), 1.5, dtype=torch.float64))
    assert torch.equal(task.plain(step.state), expected.state)


def test_drift_reverses_discrete_actions() -> None:
    task = task_of("MountainCar-v0", drift_at=1)
    state = starts(task, 3)
    action = torch.tensor([0, 1, 2])
    state = task.step(state, action).state
    expected = task.task.step(task.plain(state), 2 - action)
    assert torch.equal(task.plain(task.step(state, action).state), expected.state)


def test_disturbance_is_a_sine_with_a_phase_of_its_own() -> None:
    task = task_of(disturbance=0.25, disturbance_period=8.0)
    found = torch.stack(acted(task, [0.0] * 8, 300), 1)
    rows = ~found.isnan().any(1)
    wave = found[rows]
    time = torch.arange(8, dtype=torch.float64) * 2 * math.pi / 8
    sine, cosine = wave @ time.sin() / 4, wave @ time.cos() / 4
    assert torch.allclose((sine.square() + cosine.square()).sqrt(), torch.tensor(0.5).double())
    phase = torch.atan2(cosine, sine) / (2 * math.pi) % 1.0
    assert stats.kstest(phase.numpy(), "uniform").pvalue > 1e-3


def test_noise_of_actions_is_normal_and_clipped() -> None:
    noise = torch.cat(acted(task_of(action_noise=0.1), [0.0, 0.0]))
    noise = noise[~noise.isnan()]
    assert stats.kstest(noise.numpy() / 0.2, "norm").pvalue > 1e-3
    high = torch.cat(acted(task_of(action_noise=0.1), [2.0]))
    assert high[~high.isnan()].max() <= 2.0 + 1e-9


def test_sticky_actions_repeat_what_acted() -> None:
    first, second, third = acted(task_of(sticky_actions=0.3), [1.0, -1.0, 2.0])
    assert torch.allclose(first[~first.isnan()], torch.tensor(1.0).double())  # nothing was before
    known = ~second.isnan()
    rate, bound = share((second - 1.0).abs() < 1e-9, known)
    assert abs(rate - 0.3) < bound
    rate, bound = share((third - 1.0).abs() < 1e-9, ~third.isnan())
    assert abs(rate - 0.09) < bound  # held twice


def test_random_actions_replace_the_chosen_one() -> None:
    (found,) = acted(task_of(random_actions=0.3), [1.0])
    known = ~found.isnan()
    replaced = (found - 1.0).abs() > 1e-9
    rate, bound = share(replaced, known)
    assert abs(rate - 0.3) < bound
    others = (found[known & replaced] + 2.0) / 4.0
    assert stats.kstest(others.numpy(), "uniform").pvalue > 1e-3


def test_random_discrete_actions_may_be_the_chosen_one() -> None:
    task = task_of("MountainCar-v0", random_actions=0.3)
    state = starts(task, MANY)
    after = task.plain(task.step(state, torch.full((MANY,), 2)).state)
    chosen = task.task.step(task.plain(state), torch.full((MANY,), 2)).state
    changed = (after - chosen).abs().sum(1) > 1e-9
    rate, bound = share(changed, torch.ones_like(changed))
    assert abs(rate - 0.3 * 2 / 3) < bound


def test_time_jumps_are_two_steps_of_which_the_second_pays() -> None:
    task = task_of(time_jumps=0.3)
    state, action = starts(task, MANY), torch.full((MANY, 1), 0.7, dtype=torch.float64)
    step = task.step(state, action)
    once = task.task.step(task.plain(state), action)
    twice = task.task.step(once.state, action)
    jumped = (task.plain(step.state) != once.state).any(1)
    rate, bound = share(jumped, torch.ones_like(jumped))
    assert abs(rate - 0.3) < bound
    expected = [
        torch.where(jumped[:, None], b, a) for a, b in zip(once[:2], twice[:2], strict=True)
    ]
    assert torch.equal(task.plain(step.state), expected[0]) and torch.equal(step.obs, expected[1])
    assert torch.equal(step.reward, torch.where(jumped, twice.reward, once.reward))


def test_an_episode_that_is_over_does_not_jump() -> None:
    task = task_of("CartPole-v1", time_jumps=1.0)
    state = starts(task, 4)
    state[:, 0], state[:, 1] = 2.39, 5.0  # beyond the edge after one step
    once = task.task.step(task.plain(state), torch.ones(4, dtype=torch.int64))
    assert once.terminated.all()
    assert torch.equal(task.plain(task.step(state, torch.ones(4).long()).state), once.state)


def test_missing_observations_change_nothing_else() -> None:
    dark = task_of(blackout=0.3, hidden_entries=[2])
    state, action = starts(dark, MANY), torch.ones(MANY, 1, dtype=torch.float64)
    step = dark.step(state, action)
    plain = dark.task.step(dark.plain(state), action)
    assert torch.equal(step.reward, plain.reward)
    assert torch.equal(dark.plain(step.state), plain.state)
    missing = (step.obs == 0).all(1)
    rate, bound = share(missing, torch.ones_like(missing))
    assert abs(rate - 0.3) < bound
    assert torch.equal(step.obs[~missing, :2], plain.obs[~missing, :2])
    assert (step.obs[:, 2] == 0).all() and torch.equal(step.obs, dark.observe(step.state))
    assert torch.equal(task_of(hidden_entries=1).observe(state)[:, 1], torch.zeros(MANY).double())


def test_rewards_with_noise_and_a_limit() -> None:
    task = task_of(reward_noise=2.0)
    state, action = starts(task, MANY), torch.ones(MANY, 1, dtype=torch.float64)
    step, plain = task.step(state, action), task.task.step(task.plain(state), action)
    noise = (step.reward - plain.reward).numpy() / 2.0
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    assert torch.equal(step.obs, plain.obs)
    limited = task_of(limit_entry=2, limit_size=0.5, limit_penalty=7.0)
    reward = limited.step(starts(limited, MANY), action).reward
    beyond = plain.obs[:, 2].abs() > 0.5
    assert torch.equal(reward, torch.where(beyond, -7.0, plain.reward)) and 0 < beyond.sum() < MANY


EVERYTHING = {
    "action_delay": 1,
    "sticky_actions": 0.2,
    "random_actions": 0.2,
    "action_noise": 0.1,
    "disturbance": 0.2,
    "time_jumps": 0.2,
    "blackout": 0.2,
    "reward_noise": 0.5,
    "drift_at": 3,
}


def test_a_step_is_a_function_of_state_and_action() -> None:
    task = task_of(**EVERYTHING)
    state, action = starts(task, 16), torch.rand(16, 1, dtype=torch.float64)
    for _ in range(5):
        step, again = task.step(state, action), task.step(state.clone(), action)
        alone = [task.step(state[k : k + 1], action[k : k + 1]) for k in range(16)]
        for index, part in enumerate(step):
            assert torch.equal(part, again[index])
            assert torch.equal(part, torch.cat([one[index] for one in alone]))
        state = step.state
    assert not torch.equal(starts(task, 16), starts(task, 16, seed=1))


def test_draws_of_different_purposes_and_steps_are_independent() -> None:
    task = task_of(**EVERYTHING)
    seed, steps = torch.arange(1.0, 5001.0).double(), torch.zeros(5000).double()
    draws = [task._draws(seed, steps + k, purpose, 2) for k in range(3) for purpose in range(8)]
    columns = torch.cat(draws, 1).numpy()
    correlation = np.corrcoef(columns.T) - np.eye(columns.shape[1])
    assert abs(correlation).max() < 5 / math.sqrt(5000)


def test_options_stand_in_the_spec_and_make_the_same_task() -> None:
    task = make("Pendulum-v1,hidden_entries=[1,2],sticky_actions=0.25")
    assert task.spec.task_options == {"hidden_entries": [1, 2], "sticky_actions": 0.25}
    again = make_for(task.spec)
    assert isinstance(again, Randomised) and again.spec == task.spec
    heavy = make("CartPoleSwingUp-v0", gravity=20.0, action_noise=0.1)
    assert heavy.spec.task_options == {"gravity": 20.0, "action_noise": 0.1}
    plain, action = make("CartPoleSwingUp-v0", gravity=20.0), torch.ones(3, 1)
    again, state = make_for(plain.spec), starts(plain, 3)
    assert torch.equal(again.step(state, action).obs, plain.step(state, action).obs)


def test_ends_are_the_tasks_where_observations_are_whole() -> None:
    task = task_of("CartPole-v1", random_actions=0.5)
    obs = torch.tensor([[0.0, 0, 0, 0], [3.0, 0, 0, 0]], dtype=torch.float64)
    assert task.terminates(obs, torch.zeros(2).long(), obs).tolist() == [False, True]
    state, possible = task.state_from_obs(obs)
    assert possible.all() and torch.equal(task.observe(state), obs)
    dark = task_of("CartPole-v1", hidden_entries=[0])
    with pytest.raises(ConfigError, match="termination=function"):
        dark.terminates(obs, torch.zeros(2).long(), obs)
    assert not dark.state_from_obs(obs)[1].any()
    pendulum = task_of(blackout=0.5)
    assert not pendulum.terminates(obs[:, :3], obs[:, :1], obs[:, :3]).any()


@pytest.mark.parametrize("name", ["random_actions", "time_jumps", "action_noise", "reward_noise",
                                  "disturbance", "sticky_actions"])  # fmt: skip
def test_nothing_random_happens_to_a_state_from_an_observation(name: str) -> None:
    """A fixed seed would have the same happen to every row of a batch."""
    task, plain = task_of(**{name: 0.9}), make("Pendulum-v1", dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    obs = plain.observe(plain.reset(50, draw))
    ours, theirs = task.state_from_obs(obs)[0], plain.state_from_obs(obs)[0]
    for _ in range(3):
        action = 4 * torch.rand(50, 1, generator=draw) - 2
        one, other = task.step(ours, action), plain.step(theirs, action)
        assert torch.equal(one.obs, other.obs) and torch.equal(one.reward, other.reward)
        ours, theirs = one.state, other.state


def test_the_middle_of_the_range_waits_in_a_state_from_an_observation() -> None:
    pendulum = Pendulum(dtype=torch.float64)
    pendulum.spec = dataclasses.replace(pendulum.spec, action_low=(1.0,), action_high=(2.0,))
    obs = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    task = randomised(pendulum, {"action_delay": 1})
    reached = task.step(task.state_from_obs(obs)[0], torch.ones(1, 1)).obs
    expected = pendulum.step(pendulum.state_from_obs(obs)[0], torch.tensor([[1.5]])).obs
    assert torch.equal(reached, expected)


def test_any_environment_of_gymnasium() -> None:
    task = make(Rover, sticky_actions=0.5, time_jumps=0.5, max_episode_steps=6, copies=2)
    live, draw = as_live(task), torch.Generator().manual_seed(0)
    assert isinstance(task, LiveRandomised) and live is not None and live.copies == 2
    state = task.reset(8, draw)
    for _ in range(3):
        step = task.step(state, torch.ones(8, 1))
        assert step.truncated is not None and live.holds(step.state[~step.ended])
        state = step.state
        if step.ended.any():
            state = live.restart(state, step.ended, draw)
            assert (state[step.ended, 1 - task.extra] == 0).all()
    live.release(state)
    assert not live.holds(state)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("CartPole-v1", {"action_noise": 0.1}, "discrete; take random_actions"),
        ("Pendulum-v1", {"hidden_entries": [3]}, "they are 0 to 2"),
        ("Pendulum-v1", {"sticky_actions": 1.5}, "must lie in"),
        ("Pendulum-v1", {"drift_every": True}, "needs drift_at"),
        ("Pendulum-v1", {"sticky": 0.5}, "of every task: action_delay"),
        ("Taxi-v4", {"random_actions": 0.5}, "leave actions alone"),
        ("Taxi-v4", {"time_jumps": 0.5}, "nor one be taken twice"),
    ],
)
def test_wrong_options(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(name, **options)
