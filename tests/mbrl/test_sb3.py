"""Models of stable-baselines3 as agents, against its own evaluation."""

import functools
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import longreach as lr
from experiments.__main__ import main
from experiments.recording.environment import collect
from mbrl.errors import ConfigError
from mbrl.sb3 import SB3Policy, load_model
from mbrl.tasks import make
from tests.mbrl.own_environments import Corridor, Rover

sb3 = pytest.importorskip("stable_baselines3")


def model(name: str, env: Any, policy: str = "MlpPolicy") -> Any:
    settings = {"policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu"}
    return getattr(sb3, name)(policy, env, **settings)


def test_returns_are_those_of_its_own_loop() -> None:
    agent = model("PPO", gymnasium.make("CartPole-v1"))
    task = lr.make(gymnasium.make("CartPole-v1"))
    generator = torch.Generator().manual_seed(20_402)
    env, expected = gymnasium.make("CartPole-v1"), []
    for _ in range(4):
        obs, _ = env.reset(seed=int(torch.randint(2**31 - 1, (1,), generator=generator)))
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(
                agent.predict(obs, deterministic=True)[0]
            )
            total, over = total + reward, terminated or truncated
        expected.append(total)
    assert lr.evaluate(agent, task, 4).tolist() == expected


@pytest.mark.parametrize("name", ["PPO", "A2C", "SAC", "TD3", "DDPG", "DQN"])
def test_a_file_tells_its_algorithm(name: str, tmp_path: Path) -> None:
    env = gymnasium.make("CartPole-v1" if name == "DQN" else "Pendulum-v1")
    before = model(name, env)
    before.save(tmp_path / "model.zip")
    after = load_model(tmp_path / "model.zip")
    # DDPG is TD3 with other settings, and its files tell the policy alone
    assert type(after).__name__ == ("TD3" if name == "DDPG" else name)
    task = make(env.spec.id)
    assert np.array_equal(lr.evaluate(after, task, 2), lr.evaluate(before, task, 2))


def test_command_line_evaluates_and_records(tmp_path: Path, capsys) -> None:
    model("SAC", gymnasium.make("Pendulum-v1")).save(tmp_path / "m.zip")
    file, words = str(tmp_path / "m.zip"), ["--task", "Pendulum-v1", "--episodes", "2"]
    assert main(["evaluate", "--sb3", file, *words]) == 0
    assert "SAC of stable-baselines3 after 0 steps, in Pendulum-v1" in capsys.readouterr().out
    out = str(tmp_path / "d.npz")
    assert main(["collect", "Pendulum-v1", "--policy", file, "--steps", "200", "--out", out]) == 0
    assert main(["evaluate", "--sb3", file]) == 2
    assert "needs --task" in capsys.readouterr().err
    assert main(["evaluate"]) == 2


def test_sampled_actions_follow_the_seed_and_leave_torch_as_it_was() -> None:
    agent, task = model("SAC", gymnasium.make("Pendulum-v1")), make("Pendulum-v1")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, again = (collect(task, agent, 200, seed=1).transitions.action for _ in range(2))
    assert torch.equal(first, again) and torch.equal(before, torch.get_rng_state())
    assert not torch.equal(first, collect(task, agent, 200, seed=2).transitions.action)
    greedy = collect(task, agent, 200, seed=1, greedy=True).transitions
    expected, _ = agent.predict(greedy.obs.numpy(), deterministic=True)
    np.testing.assert_allclose(greedy.action.numpy(), expected, atol=1e-6)


def test_models_of_other_spaces_are_refused() -> None:
    kept = gymnasium.wrappers.FilterObservation(Rover(), ["gear", "lamps"])
    nested = gymnasium.wrappers.TimeLimit(kept, 5)
    with pytest.raises(ConfigError, match="FlattenObservation"):
        SB3Policy(model("PPO", nested, "MultiInputPolicy"), make(nested).spec)
    flat = gymnasium.wrappers.FlattenObservation(nested)
    agent = model("PPO", flat)
    assert len(lr.evaluate(agent, nested, 2)) == 2  # the flat vector is the same
    with pytest.raises(ConfigError, match="has 3 observations"):
        SB3Policy(agent, make("Pendulum-v1").spec)


def test_files_that_hold_no_model(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="no model of stable-baselines3"):
        load_model(tmp_path / "a.zip")


def test_a_policy_of_the_wrong_kind_is_refused() -> None:
    task = make(functools.partial(Corridor, masked=False))
    for policy, text in [
        ("fast", "policy is 'fast'"),
        (lambda obs, generator: torch.zeros(3), r"shape \(3,\) for 10 observations"),
    ]:
        with pytest.raises(ConfigError, match=text):
            collect(task, policy, 10)


def test_observations_are_scaled_as_the_model_saw_them_in_training() -> None:
    """By the moments of its `VecNormalize`, which stay as they are."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]), norm_reward=False)
    agent = model("PPO", env)
    env.obs_rms.mean, env.obs_rms.var = np.array([3.0, -2.0, 1.0]), np.array([4.0, 9.0, 0.25])
    obs = np.array([[0.5, 0.1, -1.0], [1.0, 0.0, 2.0]], np.float32)
    policy = SB3Policy(agent, make("Pendulum-v1").spec)
    expected, _ = agent.predict(env.normalize_obs(obs), deterministic=True)
    assert np.array_equal(policy(torch.from_numpy(obs)).numpy(), expected)
    assert env.obs_rms.mean.tolist() == [3.0, -2.0, 1.0]
    other, _ = agent.predict(obs, deterministic=True)
    assert not np.allclose(other, expected)


def test_a_model_that_lost_the_moments_of_its_observations_is_warned_of(tmp_path: Path) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    plain, spec = DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]), make("Pendulum-v1").spec
    env, obs = VecNormalize(plain), torch.tensor([[1.0, 0.0, 2.0]])
    agent = model("A2C", env).learn(10)
    agent.save(tmp_path / "agent.zip")
    env.save(str(tmp_path / "moments.pkl"))
    again = load_model(tmp_path / "agent.zip")
    with pytest.warns(UserWarning, match="trained in a VecNormalize"):
        lost = SB3Policy(again, spec)(obs)
    again.set_env(VecNormalize.load(str(tmp_path / "moments.pkl"), plain))
    expected = SB3Policy(agent, spec)(obs)
    assert torch.equal(SB3Policy(again, spec)(obs), expected) and not torch.equal(lost, expected)
    model("A2C", plain).learn(10).save(tmp_path / "agent.zip")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SB3Policy(load_model(tmp_path / "agent.zip"), spec)


def test_a_model_with_memory_is_refused() -> None:
    agent = model("PPO", gymnasium.make("Pendulum-v1"))
    agent.policy.lstm_actor = torch.nn.LSTM(3, 4)
    with pytest.raises(ConfigError, match="whose memory is not carried"):
        SB3Policy(agent, make("Pendulum-v1").spec)
