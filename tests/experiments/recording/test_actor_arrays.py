"""Actors that others publish as arrays, against the same network in torch, against
stable-baselines3, and against the returns that the published agents had in gymnasium."""

import csv
import json
import os
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from experiments.recording.actor_arrays import LAYERS, Actor, actor_of
from experiments.recording.behaviour import TimedBehaviour, at_step, with_noise
from experiments.recording.environment import collect, named_policy, policy_returns
from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.types import Spec

SPEC = Spec("Here-v0", 4, 2, None, (-2.0, -2.0), (2.0, 2.0), max_episode_steps=50)
SPACES = gymnasium.spaces.Box(-9, 9, (4,)), gymnasium.spaces.Box(-2, 2, (2,))


class Still(gymnasium.Env):
    """Spaces for a model; nothing happens in it."""

    observation_space, action_space = SPACES


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def write(path: Path, sizes: tuple[int, ...]) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True)]
    arrays = {
        f"{name}.{part}": getattr(layer, part).detach().numpy()
        for name, layer in zip(LAYERS, layers, strict=True)
        for part in ("weight", "bias")
    }
    np.savez(path, **arrays, unused=np.zeros(3))
    relu = torch.nn.ReLU()
    return torch.nn.Sequential(layers[0], relu, layers[1], relu, layers[2])


def test_tianshous_is_the_clipped_network(tmp_path: Path) -> None:
    network = write(tmp_path / "actor.npz", (6, 32, 32, 2))
    spec = Spec("There-v0", 6, 2, None, (-1.0, -1.0), (1.0, 1.0))
    obs = 5 * torch.randn(100, 6)
    expected = network(obs).detach()
    assert expected.abs().max() > 1
    act = at_step(actor_of(tmp_path / "actor.npz").behaviour(spec), 0)
    torch.testing.assert_close(act(obs, generator()), expected.clamp(-1, 1))


def test_it_records_and_is_valued(tmp_path: Path) -> None:
    write(tmp_path / "actor.npz", (6, 32, 32, 2))
    policy = named_policy(str(tmp_path / "actor.npz"))
    data = collect("DMSD-v0", policy, 250)
    assert len(data) == 300 and not data.transitions.terminated.any()
    returns = policy_returns(make("DMSD-v0"), policy, 500, seed=1)
    assert returns.shape == (500,) and returns.dtype == torch.float64
    recorded = collect("DMSD-v0", policy, 20_000, seed=2).transitions.returns()
    assert abs(float(returns.mean() - recorded.mean())) < 4 * float(returns.std()) / 150**0.5


def test_returns_stop_where_episodes_end() -> None:
    task = make("CartPole-v1")
    returns = policy_returns(task, "random", 200)
    assert float(returns.max()) < 200 and float(returns.mean()) == pytest.approx(22, abs=3)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        named_policy(str(tmp_path / "none.npz"))
    np.savez(tmp_path / "other.npz", w0=np.zeros(3))
    with pytest.raises(ConfigError, match=r"holds w0; read are stable-baselines3's"):
        named_policy(str(tmp_path / "other.npz"))


# --- stable-baselines3 ---------------------------------------------------------------------------


def saved(model, path: Path, **statistics) -> Actor:
    """The actor of a model, through a file as the published agents are."""
    policy_kwargs = {k: str(v) for k, v in model.policy_kwargs.items()}
    meta = {"algorithm": type(model).__name__.lower(), "policy_kwargs": policy_kwargs}
    skipped = ("critic", "actor_target", "value")
    arrays = {
        name: value.numpy()
        for name, value in model.policy.state_dict().items()
        if not name.startswith(skipped)
    }
    np.savez(path, meta=json.dumps(meta), **arrays, **statistics)
    return actor_of(path)


MODELS = [
    ("A2C", {}),
    ("A2C", {"use_sde": True}),
    ("PPO", {"policy_kwargs": {"activation_fn": torch.nn.ReLU, "log_std_init": -2}}),
    ("SAC", {}),
    ("SAC", {"use_sde": True}),
    ("TD3", {}),
    ("DDPG", {}),
]


@pytest.mark.parametrize(("name", "settings"), MODELS)
def test_greedy_actions_are_those_of_stable_baselines3(name, settings, tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    model = getattr(sb3, name)("MlpPolicy", Still(), seed=1, device="cpu", **settings)
    with torch.no_grad():  # fresh heads are near zero
        for parameter in model.policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator(3)))
    act = saved(model, tmp_path / "a.npz").behaviour(SPEC, greedy=True)
    obs = 2 * torch.randn(200, 4, generator=generator(1))
    expected, _ = model.predict(obs.numpy(), deterministic=True)
    assert np.abs(expected).max() > 1
    torch.testing.assert_close(
        act(obs, generator()), torch.from_numpy(expected), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(("name", "settings"), [m for m in MODELS if m[0] in ("A2C", "PPO", "SAC")])
def test_sampled_actions_have_their_distribution(name, settings, tmp_path: Path) -> None:
    """Before the tanh, or the clip, the mean and deviation of torch's own distribution there."""
    sb3 = pytest.importorskip("stable_baselines3")
    model = getattr(sb3, name)("MlpPolicy", Still(), seed=1, device="cpu", **settings)
    obs = torch.randn(5, 4, generator=generator(1))
    mean, sd = saved(model, tmp_path / "a.npz").head(obs)
    policy = model.policy
    with torch.no_grad():
        if name == "SAC":
            policy.actor(obs)
            inner = policy.actor.action_dist.distribution
        else:
            inner = policy.get_distribution(obs).distribution
    torch.testing.assert_close(mean, inner.mean)
    assert sd is not None
    torch.testing.assert_close(sd.expand(5, 2), inner.stddev)
    wide = Spec("Here-v0", 4, 2, None, (-99.0, -99.0), (99.0, 99.0))
    act = saved(model, tmp_path / "a.npz").behaviour(wide)
    drawn = act(obs[:1].expand(20_000, 4), generator())
    if name == "SAC":
        drawn = (drawn / 99).clamp(-0.999999, 0.999999).atanh()
    assert torch.allclose(drawn.mean(0), mean[0], atol=5 * float(sd.max()) / 20_000**0.5)
    assert torch.allclose(drawn.std(0), sd.expand(5, 2)[0], rtol=0.05)


def test_observations_are_standardised_as_by_vec_normalize(tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    model = sb3.PPO("MlpPolicy", Still(), seed=1, device="cpu")
    wrapped = VecNormalize(DummyVecEnv([Still]), training=False, clip_obs=1.5)
    wrapped.obs_rms.mean, wrapped.obs_rms.var = np.arange(4.0), np.array([4.0, 1.0, 1e-12, 9.0])
    statistics = {
        "obs_mean": wrapped.obs_rms.mean, "obs_var": wrapped.obs_rms.var,
        "obs_clip": wrapped.clip_obs, "norm_obs": True,
    }  # fmt: skip
    act = saved(model, tmp_path / "a.npz", **statistics).behaviour(SPEC, greedy=True)
    obs = 5 * torch.randn(100, 4, generator=generator(1))
    expected, _ = model.predict(wrapped.normalize_obs(obs.numpy()), deterministic=True)
    torch.testing.assert_close(act(obs, generator()), torch.from_numpy(expected))


def test_linear_search_policies_are_clipped(tmp_path: Path) -> None:
    """sb3-contrib's ARSLinearPolicy: no bias, no tanh; with hidden layers it has both."""
    meta = json.dumps({"algorithm": "ars", "policy_kwargs": {}})
    weight = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0]], np.float32)
    np.savez(tmp_path / "a.npz", meta=meta, **{"action_net.weight": weight})
    act = actor_of(tmp_path / "a.npz").behaviour(SPEC)
    assert act(torch.tensor([[0.5, 3.0, 7.0, 7.0]]), generator()).tolist() == [[0.5, 2.0]]
    arrays = {"action_net.0.weight": np.eye(4), "action_net.0.bias": np.zeros(4)}
    arrays |= {"action_net.2.weight": weight, "action_net.2.bias": np.array([0.0, 0.25])}
    np.savez(tmp_path / "b.npz", meta=meta, **arrays)
    act = actor_of(tmp_path / "b.npz").behaviour(SPEC)
    expected = 2 * np.tanh([[0.5, 0.25]])  # the second unit is below zero
    assert act(torch.tensor([[0.5, -3.0, 0, 0]]), generator()).numpy() == pytest.approx(expected)


def test_actors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    meta = json.dumps({"algorithm": "ars", "policy_kwargs": {}})
    np.savez(tmp_path / "a.npz", meta=meta, **{"action_net.weight": np.zeros((2, 4))})
    actor = actor_of(tmp_path / "a.npz")
    with pytest.raises(ConfigError, match=r"takes 4 numbers and gives 2; 'Hopper-v4' has 11"):
        actor.behaviour(make("Hopper-v4").spec)
    with pytest.raises(ConfigError, match="are discrete"):
        actor.behaviour(make("CartPole-v1").spec)
    arrays = {f"mlp_extractor.policy_net.0.{p}": np.zeros((4, 4)[: 1 + (p == "weight")]) for p in
              ("weight", "bias")}  # fmt: skip
    np.savez(tmp_path / "b.npz", meta=meta, **arrays, **{"action_net.weight": np.zeros((2, 4))})
    with pytest.raises(ConfigError, match="of discrete actions"):
        actor_of(tmp_path / "b.npz")


def test_noise_is_a_share_of_the_range() -> None:
    still = with_noise(lambda obs, generator: torch.zeros(len(obs), 2), SPEC, 0.05)
    drawn = at_step(still, 0)(torch.zeros(50_000, 4), generator())
    assert float(drawn.std()) == pytest.approx(0.05 * 4, rel=0.02)
    with pytest.raises(ConfigError, match="share of the action range"):
        with_noise(lambda obs, generator: obs, make("CartPole-v1").spec, 0.1)


def test_the_time_that_is_left_is_appended(tmp_path: Path) -> None:
    """One input more than observations: 1 - t / T, in recording and in valuation."""
    meta = json.dumps({"algorithm": "ars", "policy_kwargs": {}})
    weight = np.array([[0, 0, 0, 1.0]], np.float32)  # the action is the time feature
    np.savez(tmp_path / "a.npz", meta=meta, **{"action_net.weight": weight})
    actor = actor_of(tmp_path / "a.npz")
    assert isinstance(actor.behaviour(make("Pendulum-v1").spec), TimedBehaviour)
    rows = collect("Pendulum-v1", actor, 400).transitions
    expected = (1 - torch.arange(200) / 200).repeat(2)
    torch.testing.assert_close(rows.action[:, 0], expected)
    assert policy_returns(make("Pendulum-v1"), actor, 3).shape == (3,)


# --- the published agents ------------------------------------------------------------------------


AGENTS = Path(os.environ.get("LONGREACH_DATA", "")) / "rl-zoo-agents"
RETURNS = AGENTS / "returns-gymnasium-v4-3-episodes.csv"
LONG = pytest.mark.long
STRENGTHS = [
    ("trpo-Hopper", 4),
    pytest.param("ppo-Hopper", 10, marks=LONG),
    pytest.param("sac-Hopper", 10, marks=LONG),
    ("trpo-HalfCheetah", 4),
    pytest.param("a2c-HalfCheetah", 10, marks=LONG),
    pytest.param("ppo-HalfCheetah", 10, marks=LONG),
    pytest.param("sac-HalfCheetah", 10, marks=LONG),
    pytest.param("sac-Walker2d", 10, marks=LONG),
    pytest.param("ppo-Walker2d", 10, marks=LONG),
    pytest.param("trpo-Walker2d", 10, marks=LONG),
    ("ppo-Swimmer", 4),
    pytest.param("ars-Ant", 10, marks=LONG),
    pytest.param("ppo-Ant", 10, marks=LONG),
    pytest.param("trpo-Ant", 10, marks=LONG),
]


@pytest.mark.skipif(not RETURNS.is_file(), reason="needs rl-zoo-agents in LONGREACH_DATA")
@pytest.mark.parametrize(("name", "episodes"), STRENGTHS)
def test_greedy_returns_are_those_in_gymnasium(name: str, episodes: int) -> None:
    """Three episodes of each agent were measured elsewhere, with stable-baselines3 in gymnasium's
    v4 tasks: within four standard errors of the difference."""
    algorithm, _, robot = name.partition("-")
    with RETURNS.open() as file:
        rows = [row for row in csv.reader(file) if row[0].startswith(f"{algorithm}/{robot}-v3")]
    mean, sd = next((float(r[4]), float(r[5])) for r in rows if not r[4].startswith("ERROR"))
    task = make(f"{robot}-v4")
    actor = named_policy(str(AGENTS / f"{name}-v3.npz"))
    returns = policy_returns(task, actor, episodes, seed=5, greedy=True)
    spread = max(sd, float(returns.std()))
    error = 4 * spread * (1 / 3 + 1 / episodes) ** 0.5
    assert abs(float(returns.mean()) - mean) < error
