"""The adapter against plain loops over gymnasium's environments, and what it refuses."""

import functools
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Generator

import algorithms
from algorithms import DiscreteCQL
from experiments.recording.environment import collect
from mbrl.data import load, save_npz
from mbrl.errors import ConfigError, TaskError
from mbrl.tasks import as_task, is_task, make, make_for
from mbrl.tasks.base import LiveTask
from mbrl.tasks.gym_task import GymTask
from mbrl.types import Spec
from tests.mbrl.own_environments import Corridor, Failing, Rover, Wrong

MODULE = "tests.mbrl.own_environments"


def seeds(seed: int, count: int) -> list[int]:
    return torch.randint(2**31 - 1, (count,), generator=Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("task_id", ["Pendulum-v1", "CartPole-v1", "Acrobot-v1"])
def test_rollouts_are_gymnasiums_bit_for_bit(task_id: str) -> None:
    task, chance = GymTask(task_id), np.random.default_rng(1)
    state = task.reset(3, Generator().manual_seed(5))
    envs = [gymnasium.make(task_id) for _ in range(3)]
    obs = [env.reset(seed=s)[0] for env, s in zip(envs, seeds(5, 3), strict=True)]
    np.testing.assert_array_equal(task.observe(state).numpy(), np.stack(obs).astype(np.float32))
    alive = list(range(3))
    for _ in range(task.spec.max_episode_steps or 0):
        if task.spec.discrete:
            action = chance.integers(task.spec.num_actions or 0, size=len(alive))
        else:
            action = chance.uniform(-2, 2, (len(alive), 1)).astype(np.float32)
        step = task.step(state, torch.from_numpy(action))
        for row, (e, a) in enumerate(zip(alive, action, strict=True)):
            seen, reward, terminated, truncated, _ = envs[e].step(a)
            np.testing.assert_array_equal(step.obs[row].numpy(), seen.astype(np.float32))
            assert float(step.reward[row]) == np.float32(reward)
            assert bool(step.terminated[row]) == terminated
            assert step.truncated is not None and bool(step.truncated[row]) == truncated
        keep = ~step.ended
        alive = [e for e, k in zip(alive, keep.tolist(), strict=True) if k]
        state = step.state[keep]
        if not alive:
            break
    assert not alive


def test_one_seed_gives_one_rollout_whatever_ran_before() -> None:
    def rollout(task: GymTask) -> torch.Tensor:
        state, total = task.reset(4, Generator().manual_seed(0)), torch.zeros(4)
        for _ in range(5):
            step = task.step(state, torch.full((4, 1), 0.7))
            state, total = step.state, total + step.reward
        task.release(state)
        return total

    task = GymTask(Rover, max_episode_steps=30)
    first = rollout(task)
    assert torch.equal(first, rollout(task)) and torch.equal(
        first, rollout(GymTask(Rover(), max_episode_steps=30))
    )
    assert len(task._copies) == 4


def test_sources_of_one_environment() -> None:
    by_class, by_name = make(Rover, speed=0.2), make(f"{MODULE}:Rover", speed=0.2)
    assert isinstance(by_class, LiveTask) and by_class.spec == by_name.spec
    assert by_name.spec.task_options == {"speed": 0.2}
    assert make(f"{MODULE}:Rover,speed=0.2").spec == by_name.spec
    instance = as_task(Rover(0.2))
    assert instance.spec.task == "Rover (instance)" and not is_task(instance.spec.task)
    assert make(functools.partial(Rover, 0.2)).spec.task == "partial"
    assert as_task("Pendulum-v1").spec == make("Pendulum-v1").spec
    registered = make(gymnasium.make("CliffWalking-v1", max_episode_steps=9))
    assert registered.spec.task == "CliffWalking-v1" and registered.spec.max_episode_steps == 9
    assert make_for(registered.spec).spec == registered.spec
    plain = make(gymnasium.make("Pendulum-v1")).spec  # with the limit that the id has
    assert plain.task_options == {} and plain.max_episode_steps == 200
    assert make_for(plain).spec == make("Pendulum-v1").spec
    assert make(gymnasium.make("Acrobot-v1")).spec == GymTask("Acrobot-v1").spec
    shorter = make(gymnasium.make("Pendulum-v1", max_episode_steps=100)).spec
    assert shorter.max_episode_steps == 100 and make_for(shorter).spec == shorter
    wrapped = gymnasium.wrappers.RescaleObservation(gymnasium.make("MountainCar-v0"), 0, 1)
    assert make(wrapped).spec.task == "MountainCar-v0 in RescaleObservation"
    assert make(f"{MODULE}:Rover,max_episode_steps=12").spec.max_episode_steps == 12


class Tabular(Corridor):
    """With an option that is an array."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table


def test_options_that_no_file_can_hold(tmp_path: Path) -> None:
    task = make(Tabular, table=np.zeros(3))
    assert task.spec.task.endswith(":Tabular in options of its own")
    assert task.spec.task_options == {} and not is_task(task.spec.task)
    data = collect(task, steps=10)
    assert load(save_npz(data, tmp_path / "x.npz")).spec == task.spec
    agent = DiscreteCQL(task.spec)
    agent.save(tmp_path / "agent.pt")
    assert algorithms.load(tmp_path / "agent.pt").spec == task.spec
    counted = make("ContextGrid-v0", size=np.int64(3)).spec
    assert json.loads(json.dumps(counted.task_options)) == {"size": 3}


def test_dict_observations_have_names() -> None:
    spec = make(Rover).spec
    assert spec.obs_names == ("gear=1", "gear=2", "gear=3", "lamps[0]", "lamps[1]", "position/x[0]")


def test_goal_environment() -> None:
    class Goal(Rover):
        """A goal environment as gymnasium-robotics writes them."""

        observation_space = gymnasium.spaces.Dict(
            {
                name: gymnasium.spaces.Box(-2, 2, (1,), np.float32)
                for name in ("observation", "achieved_goal", "desired_goal")
            }
        )

        def _obs(self) -> dict:
            here = np.array([self.x], np.float32)
            return {
                "observation": here,
                "achieved_goal": here,
                "desired_goal": np.ones(1, np.float32),
            }

    task = make(Goal)
    state = task.reset(2, Generator().manual_seed(0))
    assert task.spec.obs_names == ("achieved_goal[0]", "desired_goal[0]", "observation[0]")
    obs = task.observe(state)
    assert torch.equal(obs[:, 0], obs[:, 2]) and bool((obs[:, 1] == 1).all())


def test_both_flags_are_kept_apart_and_together() -> None:
    task = make(Corridor, limit=4)
    state, right = task.reset(8, Generator().manual_seed(0)), torch.ones(8, dtype=torch.int64)
    began = task.observe(state).argmax(1)
    assert set(began.tolist()) == {0, 1}
    ends = {}
    alive = torch.arange(8)
    for t in range(1, 5):
        step = task.step(state, right[: len(alive)])
        for e, terminated, truncated in zip(
            alive.tolist(), step.terminated.tolist(), step.truncated.tolist(), strict=True
        ):
            if terminated or truncated:
                ends[e] = (t, terminated, truncated)
        alive, state = alive[~step.ended], step.state[~step.ended]
    assert ends == {
        e: (4, True, True) if cell == 0 else (3, True, False)
        for e, cell in enumerate(began.tolist())
    }


def test_limits() -> None:
    assert make(gymnasium.wrappers.TimeLimit(Rover(), 6)).spec.max_episode_steps == 6
    assert (
        make(Corridor).spec.max_episode_steps == 10 and make(Rover).spec.max_episode_steps is None
    )
    task = make(Rover, max_episode_steps=2)
    state = task.reset(1, Generator().manual_seed(0))
    first = task.step(state, torch.zeros(1, 1))
    second = task.step(first.state, torch.zeros(1, 1))
    assert [bool(s.truncated) for s in (first, second)] == [False, True]
    assert not bool(second.terminated)


def test_masks_and_shifted_actions() -> None:
    task = make(Corridor)
    state = task.reset(8, Generator().manual_seed(0))
    mask, cell = task.action_mask(state), task.observe(state).argmax(1)
    assert mask.dtype == torch.bool and torch.equal(mask[:, 0], cell > 0) and bool(mask[:, 1].all())
    assert task.spec.action_mask and make(Rover).action_mask(state) is None


class Board(Corridor):
    """Where nothing can be done any more once the goal is reached."""

    def _info(self):
        info = super()._info()
        return info if self.cell < 4 else {"action_mask": np.zeros(2, np.int8)}


class Stuck(Corridor):
    def _info(self):
        return {"action_mask": np.zeros(2, np.int8)}


def test_nothing_needs_to_be_allowed_after_the_end() -> None:
    task = make(Board)
    state = task.reset(1, Generator().manual_seed(0))
    while True:
        step = task.step(state, torch.ones(1, dtype=torch.long))
        state = step.state
        if bool(step.terminated):
            break
    mask = task.action_mask(state)
    assert mask is not None and bool(mask.all())
    with pytest.raises(TaskError, match="unless the episode has ended"):
        make(Stuck).reset(1, Generator().manual_seed(0))


def test_a_state_is_used_once() -> None:
    task = make(Rover, max_episode_steps=5)
    state = task.reset(1, Generator().manual_seed(0))
    step = task.step(state, torch.zeros(1, 1))
    with pytest.raises(ConfigError, match="was stepped already"):
        task.step(state, torch.zeros(1, 1))
    assert task.holds(step.state) and not task.holds(state)
    with pytest.raises(ConfigError, match="nothing can begin twice"):
        task.step(step.state.repeat(2, 1), torch.zeros(2, 1))
    with pytest.raises(ConfigError, match="cannot be put into the state"):
        task.state_from_obs(step.obs)
    with pytest.raises(ConfigError, match="rule of ends is not known"):
        task.terminates(step.obs, torch.zeros(1, 1), step.obs)


@pytest.mark.parametrize("source", [Rover, Corridor])
def test_nothing_to_restart(source: Any) -> None:
    task, draw = GymTask(source), Generator().manual_seed(0)
    assert task.observe(task.reset(0, draw)).shape == (0, task.spec.obs_dim)
    state = task.reset(2, draw)
    assert torch.equal(task.restart(state, torch.zeros(2).bool(), draw), state)
    assert task.holds(state)


def test_restart_takes_new_starts_for_those_that_ended() -> None:
    task = make(Rover, max_episode_steps=5)
    state = task.reset(3, Generator().manual_seed(0))
    ended = torch.tensor([False, True, False])
    after = task.restart(state, ended, Generator().manual_seed(1))
    assert torch.equal(after[~ended], state[~ended]) and not torch.equal(after[1], state[1])
    assert task.holds(after) and len(task._copies) == 3


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("shape", r"at step 1 of an episode: entry 'a' .* shape \(3,\), its space has \(2,\)"),
        ("dtype", r"at step 1 .*entry 'a' of the observation is float64, its space .* has float32"),
        ("missing", "no entry 'b'"),
    ],
)
def test_wrong_observations_name_the_entry(how: str, text: str) -> None:
    task = make(functools.partial(Wrong, how))
    state = task.reset(1, Generator().manual_seed(0))
    with pytest.raises(ConfigError, match=text):
        task.step(state, torch.zeros(1, dtype=torch.int64))


def test_numbers_outside_of_the_bounds_are_told_once() -> None:
    """Many environments leave their own bounds, in the last observation for example."""
    task = make(functools.partial(Wrong, "bounds"))
    state = task.reset(1, Generator().manual_seed(0))
    action = torch.zeros(1, dtype=torch.int64)
    with pytest.warns(UserWarning, match=r"entry 'b' of the observation is 7.0, outside"):
        state = task.step(state, action).state
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*outside of its space")
        state = task.step(state, action).state
    assert float(task.observe(state)[0, 2]) == 7.0


def test_a_type_is_taken_as_it_is_without_checks() -> None:
    task = make(functools.partial(Wrong, "dtype"), check=False)
    task.step(task.reset(1, Generator().manual_seed(0)), torch.zeros(1, dtype=torch.int64))


def test_a_failure_names_environment_and_step_and_frees_the_copies() -> None:
    task = make(Failing, at=3)
    state = task.reset(2, Generator().manual_seed(0))
    for _ in range(2):
        state = task.step(state, torch.zeros(2, 1)).state
    with pytest.raises(TaskError, match=r"Failing at step 3 .*OSError: the cable came off"):
        task.step(state, torch.zeros(2, 1))
    assert all(copy.ticket is None for copy in task._copies)
    bad = make(functools.partial(Wrong, "reward"))
    with pytest.raises(TaskError, match="the reward is nan"):
        bad.step(bad.reset(1, Generator().manual_seed(0)), torch.zeros(1, dtype=torch.int64))
    for how, text in (
        ("flag", "terminated is 'False', not True or False"),
        ("word", "reward is '1'"),
    ):
        bad = make(functools.partial(Wrong, how))
        with pytest.raises(TaskError, match=f"at step 1 .*{text}"):
            bad.step(bad.reset(1, Generator().manual_seed(0)), torch.zeros(1, dtype=torch.int64))
    bad = make(functools.partial(Wrong, "number"))
    with pytest.raises(TaskError, match=r"at step 1 .*entry 1 of the observation is nan"):
        bad.step(bad.reset(1, Generator().manual_seed(0)), torch.zeros(1, dtype=torch.int64))


def test_an_instance_that_cannot_be_copied_is_used_alone() -> None:
    class Wired(Rover):
        """Holds what cannot be copied."""

        def __deepcopy__(self, memo: dict) -> "Wired":
            raise TypeError("a socket")

    task = make(Wired(), max_episode_steps=3)
    assert isinstance(task, LiveTask) and task.copies == 1
    task.reset(1, Generator().manual_seed(0))
    with pytest.raises(ConfigError, match=r"cannot be copied.*give a function"):
        task.reset(1, Generator().manual_seed(0))


def test_an_instance_stays_untouched() -> None:
    env = Rover()
    task = make(env, max_episode_steps=3)
    task.step(task.reset(2, Generator().manual_seed(0)), torch.zeros(2, 1))
    assert not hasattr(env, "x")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CliffWalkin-v1", "not a task of this library nor registered .* CliffWalking-v1"),
        ("Pendulum-v7", "nearest names: Pendulum-v1"),
        ("no_such_module:make", "module 'no_such_module' cannot be imported"),
        (f"{MODULE}:Rove", "did you mean 'Rover'"),
        (f"{MODULE}:np", "is a module, not an environment"),
        ("Pendulum-v1,speed", "'speed' is no option"),
        ("Blackjack-v1,colour=1", "cannot be made"),
    ],
)
def test_names_that_are_no_task(name: str, text: str) -> None:
    with pytest.raises((ConfigError, TaskError), match=text):
        make(name)


def test_things_that_are_no_environment() -> None:
    with pytest.raises(ConfigError, match="int is no environment"):
        make(3)
    with pytest.raises(TaskError, match="made a int, which is no"):
        make(lambda: 3)
    with pytest.raises(ConfigError, match="vector environment"):
        make(gymnasium.make_vec("CartPole-v1", 2))
    with pytest.raises(TaskError, match="cannot be made: ZeroDivisionError"):
        make(lambda: 1 / 0)


def test_a_file_can_call_environments_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a dataset's spec names is called only where it is declared to make an environment."""
    text = (
        "import gymnasium\nfrom tests.mbrl.own_environments import Rover\ncalls = []\n"
        "def harm(**options):\n    calls.append(options)\n"
        "def declared(speed: float = 0.1) -> gymnasium.Env:\n    return Rover(speed)\n"
    )
    (tmp_path / "of_others.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    spec = make(Rover).spec
    for name in ("of_others:harm", "shutil:rmtree", "os:system"):
        with pytest.raises(ConfigError, match="not annotated to return one"):
            make_for(Spec(name, **{k: v for k, v in spec.to_dict().items() if k != "task"}))
    assert sys.modules["of_others"].calls == []
    assert make_for(make("of_others:declared", speed=0.3).spec).spec.task_options == {"speed": 0.3}
    assert make_for(spec).spec == spec


@pytest.mark.parametrize("limit", ["abc", "0", "2.5"])
def test_a_limit_that_is_no_number_of_steps_is_named(limit: str) -> None:
    with pytest.raises(ConfigError, match=r"max_episode_steps .*whole numbers of at least 1"):
        make(f"CliffWalking-v1,max_episode_steps={limit}")


class Clock(gymnasium.Env):
    """Observes a time that 32 bits round, or a number beyond them."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, begin: float) -> None:
        self.begin = begin

    def reset(self, *, seed=None, options=None):
        return np.array([self.begin]), {}

    def step(self, action):
        return np.array([self.begin]), 0.0, False, False, {}


@pytest.mark.parametrize("begin", [1.7e9 + 1, 1e39])
def test_observations_that_32_bits_do_not_keep_are_refused(begin: float) -> None:
    with pytest.raises(TaskError, match="32-bit numbers do not keep"):
        make(lambda: Clock(begin), max_episode_steps=5)
    assert make(lambda: Clock(2.5), max_episode_steps=5).spec.obs_dim == 1
    assert GymTask(lambda: Clock(1.7e9 + 1), dtype=torch.float64).spec.obs_dim == 1


@pytest.mark.parametrize("kind", ["NormalizeObservation", "NormalizeReward"])
def test_wrappers_with_running_statistics_are_refused(kind: str) -> None:
    wrapper = getattr(gymnasium.wrappers, kind)

    def wrapped(moving: bool) -> gymnasium.Env:
        env = wrapper(gymnasium.make("Pendulum-v1"))
        env.update_running_mean = moving
        return env

    with pytest.raises(ConfigError, match=f"wrapped in {kind}, whose statistics move"):
        make(lambda: wrapped(True))
    assert make(lambda: wrapped(False)).spec.max_episode_steps == 200


def test_a_limit_beyond_the_environments_own_is_refused() -> None:
    make_env = functools.partial(gymnasium.make, "Acrobot-v1")
    with pytest.raises(ConfigError, match="ends its episodes after 500 by itself"):
        make(make_env, max_episode_steps=501)
    assert make(make_env, max_episode_steps=40).spec.max_episode_steps == 40


def test_a_mask_that_comes_after_the_reset_is_refused() -> None:
    class Late(Corridor):
        def reset(self, **options: Any) -> Any:
            return super().reset(**options)[0], {}

    task = make(Late, max_episode_steps=5)
    state = task.reset(1, Generator().manual_seed(0))
    with pytest.raises(TaskError, match="give one at reset too"):
        task.step(state, torch.ones(1).long())
