"""Recording local datasets, and the files that are shipped."""

import dataclasses
import hashlib
import re
import shutil

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from rich.console import Console

from experiments.cli.collect import main as collect_main
from experiments.recording import behaviour, linear_search
from experiments.recording.behaviour import TaskEnv, Training
from experiments.recording.collect import RECIPES, Collect, collect, update_card
from experiments.recording.linear_search import Search
from mbrl.data import check, load
from mbrl.data.cards import all_cards, cards_dir, read_card
from mbrl.errors import ConfigError, DataError
from mbrl.tasks import make

LOCAL = cards_dir() / "local"
SHIPPED = sorted(f"{path.parent.name}/{path.stem}" for path in LOCAL.glob("*/*.npz"))
SHIPPED = [name for name in SHIPPED if not name.startswith("policies/")]
TIERS = {name: all_cards()[name.split("/")[0]].tier(name.split("/")[1]) for name in SHIPPED}
QUIET = Console(quiet=True)


def ignore(_: int) -> None:
    pass


@pytest.fixture(autouse=True)
def _empty_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path / "data"))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- the verb ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "tier"),
    [("pendulum", "random"), ("pendulum", "medium"), ("cartpole", "expert"), ("reacher", "narrow")],
)
def test_the_same_seed_gives_the_same_bytes(tmp_path, family, tier):
    def made(seed, folder):
        (path,) = collect(Collect(family, (tier,), 100, seed, tmp_path / folder), QUIET)
        return path.read_bytes()

    first = made(3, "a")
    assert made(3, "b") == first
    assert made(4, "c") != first


def test_the_simulators_state_is_stored_on_request(tmp_path):
    """From it every step is exact, bit for bit."""
    for state in (False, True):
        collect(Collect("hopper", ("medium",), 300, out=tmp_path, with_state=state), QUIET)
        rows = load(tmp_path / "hopper/medium.npz").transitions
        assert (rows.state is not None) == state
    step = make("Hopper-v5").step(rows.state, rows.action)
    assert torch.equal(step.obs, rows.next_obs) and torch.equal(step.reward, rows.reward)


def test_a_recorded_tier_is_loaded_instead_of_the_shipped_one(tmp_path):
    assert collect_main(["pendulum", "--tiers", "random", "--steps", "300"]) == 0
    assert (tmp_path / "data/pendulum/random.npz").is_file()
    data = load("pendulum/random")
    assert len(data) == 400  # whole episodes
    assert data.provenance.recipe == (
        "python -m experiments collect pendulum --tiers random --steps 400 --seed 0"
    )


@pytest.mark.parametrize(
    ("family", "tiers", "error", "text"),
    [
        ("pendulm", None, ConfigError, "did you mean 'pendulum'"),
        ("d4rl", None, ConfigError, "unknown local dataset family"),
        ("pendulum", ("medum",), ConfigError, "did you mean 'medium'"),
        ("pendulum", ("medium-expert",), DataError, "concatenates medium and expert"),
        ("mountaincar", ("medium",), DataError, "does not exist: no learned policy"),
    ],
)
def test_errors_name_the_fix(family, tiers, error, text):
    with pytest.raises(error, match=re.escape(text)):
        collect(Collect(family, tiers), QUIET)


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        collect(Collect("pendulum", ("random",), steps=0), QUIET)


def test_every_local_family_has_a_recipe():
    local = {name for name, card in all_cards().items() if card.kind == "local"}
    assert set(RECIPES) == local
    for family, recipe in RECIPES.items():
        tiers = all_cards()[family].tiers
        assert (tiers["medium-replay"].missing is None) == (recipe.training is not None)


def test_the_card_is_updated_in_place(tmp_path):
    path = tmp_path / "pendulum.toml"
    shutil.copy(LOCAL / "pendulum.toml", path)
    before = read_card(path)
    file = tmp_path / "file.npz"
    file.write_bytes(b"content")
    for _ in range(2):  # a second update replaces the first
        update_card(path, read_card(path).tier("random"), 7, "2 episodes, mean return -1", file)
    after = read_card(path)
    changed = after.tier("random")
    assert changed.steps == 7
    assert changed.sha256 == hashlib.sha256(b"content").hexdigest()
    assert changed.about == "uniform actions; recorded: 2 episodes, mean return -1"
    assert {k: v for k, v in after.tiers.items() if k != "random"} == {
        k: v for k, v in before.tiers.items() if k != "random"
    }


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


@pytest.mark.parametrize(
    "search",
    [
        Search("cross-entropy", 6, 2, 16, 4, noise=0.5, step=0.1),
        Search("ars", 12, 2, 8, 4, noise=0.05, step=0.3, judge=2),
    ],
)
def test_searches_find_a_better_policy_than_none(search):
    task = make("PointMass-v0")
    result = linear_search.search(task, search, ignore)
    assert sorted(result.policies) == ["expert", "medium"]
    assert len(result.candidates) == search.iterations * search.population

    def value(weights):
        act = behaviour.policy_of(weights, task.spec, sampled=False)
        rows = behaviour.record(task, act, 1500, generator(), report=ignore)
        return float(rows.returns().mean())

    still = {**result.policies["expert"], "linear": np.zeros((2, 2))}
    assert value(result.policies["expert"]) > 0.6 * value(still)  # returns are negative
    short, long = (
        linear_search.record_candidates(
            task, result.candidates, steps, generator(), with_state=True, report=ignore
        )
        for steps in (300, 900)
    )
    assert (len(short), len(long)) == (300, 900)
    assert short.state is not None
    kept = {tuple(row) for row in long.state.tolist()}
    assert all(tuple(row) in kept for row in short.state.tolist())


def test_a_linear_policy_returns_what_a_plain_loop_gives():
    """The point mass step by step, a bonus off every reward."""
    task, draws = make("PointMass-v0"), generator()
    linear = torch.randn(5, 2, 2, generator=generator(1)).double() / 3
    norm = {"mean": np.array([0.1, -0.2]), "sd": np.array([2.0, 0.5])}
    result, seen = linear_search.linear_returns(task, linear, norm, generator(), 0.5)
    state, total = task.reset(5, draws), torch.zeros(5).double()
    for t in range(30):
        obs = task.observe(state)
        torch.testing.assert_close(seen[5 * t : 5 * t + 5], obs, rtol=1e-4, atol=1e-4)
        scaled = (obs.double() - torch.from_numpy(norm["mean"])) / torch.from_numpy(norm["sd"])
        action = torch.stack([linear[i] @ scaled[i] for i in range(5)])
        state, _, reward, _ = task.step(state, action.float().clamp(-1, 1))
        total += reward.double() - 0.5
    torch.testing.assert_close(result, total, rtol=1e-4, atol=1e-4)


def test_unknown_search_is_refused():
    with pytest.raises(ConfigError, match="known are cross-entropy and ars"):
        linear_search.search(make("PointMass-v0"), Search("nes", 1, 1, 2, 1, noise=1.0), ignore)


# --- the shipped files ---------------------------------------------------------------------------


def test_the_shipped_files_are_small():
    files = [*LOCAL.glob("*/*.npz")]
    assert sum(path.stat().st_size for path in files) <= 12_000_000
    assert max(path.stat().st_size for path in files) <= 1_500_000
    assert {"pendulum/random", "pendulum/medium", "pendulum/medium-replay"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_tiers_agree_with_their_cards(name):
    assert check(name) == []  # not even the note on a checksum that differs
    data, tier = load(name), TIERS[name]
    returns = data.transitions.returns()
    assert len(data) == tier.steps
    assert data.provenance.sha256 == tier.sha256
    noted = re.search(r"recorded: (\d+) episodes, mean return (\S+), score (\S+)$", tier.about)
    assert noted is not None
    assert int(noted[1]) == len(returns)
    assert float(noted[2]) == pytest.approx(float(returns.mean()), rel=1e-3)
    assert float(noted[3]) == pytest.approx(float(data.spec.score(returns).mean()), abs=0.06)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_tiers_are_as_good_as_their_names(name):
    data = load(name)
    score = float(data.spec.score(data.transitions.returns()).mean())
    low, high = {
        "random": (-5, 5), "medium": (25, 60), "medium-replay": (2, 75), "expert": (80, 110),
        "narrow": (80, 110),
    }[name.split("/")[1]]  # fmt: skip
    assert low <= score <= high


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_transitions_obey_the_task(name):
    data = load(name)
    task = make(data.spec.task, dtype=torch.float64)
    rows = data.transitions.select(torch.arange(0, len(data), max(1, len(data) // 1500)))
    _, possible = task.state_from_obs(rows.obs.double())
    share = 0.8 if name.startswith(("reacher", "hopper")) else 0.99  # elbow, speeds at their clip
    assert float(possible.double().mean()) > share
    rows = rows.select(possible)
    state, _ = task.state_from_obs(rows.obs.double())
    action = rows.action if data.spec.discrete else rows.action.double()
    step = task.step(state, action)
    # contacts of the cheetah's stiff legs amplify the rounding of stored observations
    tolerance = 5e-4 if name.startswith("halfcheetah") else 2e-5
    for result, stored in ((step.obs, rows.next_obs), (step.reward, rows.reward)):
        torch.testing.assert_close(result, stored.double(), rtol=tolerance, atol=tolerance)
    assert torch.equal(step.terminated, rows.terminated)


@pytest.mark.parametrize(
    ("name", "sd"), [("hopper/medium", 0.1), ("hopper/expert", 0.1), ("halfcheetah/expert", 0.02)]
)
def test_searched_policies_act_with_noise(name, sd):
    """Recorded actions against the shipped matrix times the standardised observation."""
    with np.load(LOCAL / "policies" / f"{name.replace('/', '-')}.npz") as weights:
        rows = load(name).transitions
        obs = (rows.obs.double().numpy() - weights["mean"]) / weights["sd"]
        plain = obs @ weights["linear"].T
    gap = (rows.action.double().numpy() - plain)[np.abs(plain) < 0.6]
    assert len(gap) > 1000
    assert gap.std() == pytest.approx(sd, rel=0.05)
    assert abs(gap.mean()) < 5 * sd / len(gap) ** 0.5


def test_narrow_starts_are_in_their_region():
    rows = load("pendulum/narrow").transitions
    first = torch.tensor([a for a, _ in rows.episodes()])
    assert bool((rows.obs[first, 0] < -0.8).all())


def test_retraining_is_only_on_request(tmp_path, monkeypatch):
    def fail(*_):
        raise AssertionError("trained although the weights are shipped")

    monkeypatch.setattr("experiments.recording.collect.train", fail)
    command = Collect("pendulum", ("medium",), 1, 0, tmp_path)
    collect(command, QUIET)
    with pytest.raises(AssertionError, match="weights are shipped"):
        collect(dataclasses.replace(command, retrain=True), QUIET)
