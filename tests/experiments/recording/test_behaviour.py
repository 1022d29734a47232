"""Behaviour policies: episodes, noise, training, and files of weights."""

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from experiments.recording import behaviour
from experiments.recording.behaviour import TaskEnv, Training
from experiments.recording.environment import collect
from mbrl.errors import ConfigError
from mbrl.tasks import make
from tests.experiments.recording.test_collect import generator, ignore

# --- recording -----------------------------------------------------------------------------------


def test_episodes_are_whole_and_flags_are_right():
    task = make("CartPole-v1")
    rows = behaviour.record(
        task, behaviour.uniform_actions(task.spec), 300, generator(), report=ignore
    )
    assert len(rows) >= 300
    assert len(rows) - int(np.diff(rows.episodes()[-1])[0]) < 300
    assert bool(rows.terminated[rows.ends].all())
    assert not bool(rows.truncated.any())
    inside = ~rows.ends[:-1]
    assert torch.equal(rows.next_obs[:-1][inside], rows.obs[1:][inside])


def test_time_limits_truncate():
    task = make("Pendulum-v1")
    rows = behaviour.record(
        task, behaviour.uniform_actions(task.spec), 400, generator(), report=ignore
    )
    assert torch.nonzero(rows.truncated).flatten().tolist() == [199, 399]
    assert not bool(rows.terminated.any())


def test_a_longer_recording_begins_with_the_shorter_one():
    task = make("CartPole-v1")
    short, long = (
        behaviour.record(
            task, behaviour.uniform_actions(task.spec), steps, generator(), report=ignore
        )
        for steps in (200, 900)
    )
    assert torch.equal(long.obs[: len(short)], short.obs)


def test_noise_stays_in_the_bounds_and_slips_as_often_as_said():
    spec = make("Pendulum-v1").spec
    act = behaviour.noisy(lambda obs: torch.full((len(obs), 1), 1.9), spec, 0.05)
    action = act(torch.zeros(5000, 3), generator())
    assert float(action.max()) == 2.0
    assert 0.1 < float(action.std()) < 0.2
    discrete = make("CartPole-v1").spec
    act = behaviour.noisy(lambda obs: torch.zeros(len(obs)).long(), discrete, 0.1)
    assert 0.04 < float(act(torch.zeros(5000, 4), generator()).double().mean()) < 0.06


# --- training and searching ----------------------------------------------------------------------


@pytest.mark.parametrize("task_id", ["CartPole-v1", "Pendulum-v1", "InvertedPendulum-v5"])
def test_the_gymnasium_view_of_a_task_is_valid(task_id):
    env = TaskEnv(make(task_id))
    check_env(env, skip_render_check=True)
    env = TaskEnv(make(task_id))
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(450):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    assert sum(map(len, env.episodes)) == 450
    lengths = [len(episode) for episode in env.episodes]
    assert env.begun == [0, *np.cumsum(lengths[:-1]).tolist()]


@pytest.mark.parametrize(
    ("algorithm", "task_id", "settings"),
    [
        ("SAC", "Reacher-v5", {}),
        ("SAC", "Pendulum-v1", {"use_sde": True}),
        ("PPO", "Acrobot-v1", {}),
    ],
)
def test_weights_act_as_the_model_they_come_from(tmp_path, algorithm, task_id, settings):
    import stable_baselines3

    task = make(task_id)
    model = getattr(stable_baselines3, algorithm)(
        "MlpPolicy", TaskEnv(task), seed=0, policy_kwargs={"net_arch": [16, 16]}, **settings
    )
    path = behaviour.save_weights(behaviour.actor_weights(model), tmp_path / "weights.npz")
    act = behaviour.policy_of(behaviour.load_weights(path), task.spec, sampled=False)
    obs = torch.randn(64, task.spec.obs_dim, generator=generator())
    expected, _ = model.predict(obs.numpy(), deterministic=True)
    np.testing.assert_allclose(act(obs, generator()).numpy(), expected, atol=1e-5)


def test_training_keeps_every_transition_in_order_and_the_medium_policy():
    task = make("Pendulum-v1")
    small = {"policy_kwargs": {"net_arch": [8]}, "learning_starts": 50, "batch_size": 8}
    runs = [
        behaviour.train(task, Training("SAC", 250, 150, settings=small), ignore) for _ in range(2)
    ]
    first, second = (run.replay for run in runs)
    assert torch.nonzero(first.ends).flatten().tolist() == [199, 249]
    assert torch.equal(first.action, second.action)
    assert sorted(runs[0].policies) == ["medium"]


def test_parallel_episodes_are_in_the_order_in_which_they_began():
    settings = {"n_steps": 64, "batch_size": 64, "n_epochs": 1}
    task = make("CartPole-v1")
    run = behaviour.train(task, Training("PPO", 128, settings=settings, envs=2), ignore)
    assert len(run.replay) == 128
    assert bool(run.replay.ends[-1])


def test_a_function_must_give_whole_numbers_for_discrete_actions():
    task = make("CartPole-v1")
    whole = collect(task, lambda obs, generator: torch.ones(len(obs)), 20).transitions
    assert bool((whole.action == 1).all())
    with pytest.raises(ConfigError, match=r"gave \[0\.5.*must give whole numbers"):
        collect(task, lambda obs, generator: torch.full((len(obs),), 0.5), 20)
