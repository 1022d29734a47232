"""An environment of a user's from end to end: evaluate, record, learn offline and online, stop and
resume, and masks that every step keeps to."""

import dataclasses
import functools
import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import longreach as lr
from algorithms import ALGORITHMS
from algorithms.control.measures import log_probs_and_entropy
from experiments.__main__ import main
from experiments.recording.environment import RecordingStopped, collect
from experiments.settings import build_config
from mbrl import agent_files
from mbrl.agent import Agent
from mbrl.buffer import Batch, Buffer
from mbrl.collector import Collector, CollectorConfig
from mbrl.data import from_arrays, load, save_npz
from mbrl.errors import ConfigError, DataError, TaskError
from mbrl.evaluation import require_fit
from mbrl.tasks import make
from mbrl.types import Spec
from tests.mbrl.own_environments import Corridor, Failing, Rover
from tests.small import CONFIGS

MODULE = "tests.mbrl.own_environments"
ROVER, CORRIDOR = f"{MODULE}:Rover,max_episode_steps=25", f"{MODULE}:Corridor"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path / "data"))
    return tmp_path


def small(name: str, spec: Spec) -> Agent:
    cls, config = ALGORITHMS[name]
    return cls(spec, config(hidden=(16, 16), batch_size=32))


def test_evaluation_is_a_plain_loop_with_the_same_seeds() -> None:
    task = make(Rover, max_episode_steps=25, copies=3)
    agent = small("bc", task.spec)
    returns = lr.evaluate(agent, task, 7)
    generator = torch.Generator().manual_seed(20_402)
    seeds = [int(torch.randint(2**31 - 1, (1,), generator=generator)) for _ in range(7)]
    env = gymnasium.wrappers.TimeLimit(gymnasium.wrappers.FlattenObservation(Rover()), 25)
    for seed, expected in zip(seeds, returns, strict=True):
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            action, _ = agent.act(np.asarray(obs, np.float32))
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + np.float32(reward), terminated or truncated
        assert total == pytest.approx(expected, abs=1e-5)
    again = lr.evaluate(agent, make(Rover, max_episode_steps=25, copies=7), 7)
    np.testing.assert_allclose(again, returns, atol=1e-5)


def test_instances_and_factories_go_straight_in() -> None:
    env = gymnasium.wrappers.TimeLimit(Rover(), 25)
    agent = small("td3_bc", make(env).spec)
    assert np.array_equal(lr.evaluate(agent, env, 3), lr.evaluate(agent, env, 3))
    agent.fit(collect(env, steps=100), 5, callbacks=[])
    agent.learn(env, 40, collection=CollectorConfig(envs=2, capacity=500), callbacks=[])
    assert agent.step == 45 and len(agent.source.rows) >= 180
    with pytest.raises(ConfigError, match="agent and task differ"):
        lr.evaluate(agent, "Pendulum-v1", 1)
    with pytest.raises(ConfigError, match="agent and task differ"):
        agent.learn("Pendulum-v1", 1, callbacks=[])
    with pytest.raises(ConfigError, match=r"no episode limit.*max_episode_steps=200"):
        lr.evaluate(agent, Rover(), 1)


def test_flags_reach_the_data() -> None:
    rows = collect(
        functools.partial(Corridor, limit=4), lambda o, g, m: np.ones(len(o)), 60
    ).transitions
    both = rows.terminated & rows.truncated
    lengths = torch.tensor([b - a for a, b in rows.episodes()])
    assert set(lengths.tolist()) == {3, 4}
    assert torch.equal(both[rows.ends], lengths == 4) and bool(rows.terminated[rows.ends].all())


def test_command_line_from_recording_to_going_online(here: Path, capsys) -> None:
    assert main(["collect", ROVER, "--steps", "300", "--out", "rover.npz"]) == 0
    dataset = load("rover.npz")
    assert dataset.spec.obs_names[-1] == "position/x[0]" and len(dataset) >= 300
    common = ["--steps", "20", "--eval-episodes", "2", "--final-episodes", "2"]
    assert main(["run", "td3_bc", "rover.npz", *common, "--out", "run"]) == 0
    assert "last evaluation: return" in capsys.readouterr().out
    assert main(["evaluate", "run", "--episodes", "3"]) == 0
    assert f"in {MODULE}:Rover,max_episode_steps=25" in " ".join(capsys.readouterr().out.split())
    assert main(["evaluate", "run", "--task", f"{MODULE}:Rover,max_episode_steps=3"]) == 0
    changed = ["evaluate", "run", "--task", f"{ROVER},sticky_actions=0.5", "--episodes", "2"]
    assert main(changed) == 0
    assert "sticky_actions=0.5" in capsys.readouterr().out
    assert main([*changed, "--film", "run.gif"]) == 2
    assert "draws gymnasium's plain" in " ".join(capsys.readouterr().err.split())
    for name, text in [
        ("Pendulum-v1", "agent and task differ"),
        ("Foo-v1", "nor registered with gymnasium"),
    ]:
        assert main(["evaluate", "run", "--task", name]) == 2
        assert text in capsys.readouterr().err
    assert main(["run", "td3_bc", ROVER, "--after", "run", *common, "--out", "on"]) == 0
    assert main(["collect", ROVER, "--policy", "run", "--steps", "30", "--greedy"]) == 0
    assert list((here / "data/recorded").glob("*.npz"))
    assert main(["data", "check", "rover.npz", "--task", ROVER]) == 0


def test_names_that_are_no_task_on_the_command_line(capsys) -> None:
    for words in (["run", "sac", "Pendulun-v1"], ["collect", "Pendulun-v1"]):
        assert main(words) == 2
    assert main(["run", "sac", "CliffWalking-v1"]) == 2
    told = capsys.readouterr().err
    assert "registered with gymnasium; nearest names: Pendulum-v1" in told
    assert "sac needs continuous actions" in told


def test_a_failing_environment_loses_nothing_computed(here: Path, capsys) -> None:
    name = f"{MODULE}:Failing,at=32"
    words = ["run", "sac", name, "--steps", "60", "--collection.warmup", "5", "--eval-every", "0"]
    assert main([*words, "--learner.batch-size", "8", "--out", "run"]) == 3
    told = capsys.readouterr().err
    assert "OSError: the cable came off" in told and "Failing" in told and "at step 2 " in told
    agent = lr.load("run/checkpoint.pt")
    assert agent.step == 31 and len(agent.source.rows) == 31
    with pytest.raises(RecordingStopped) as stop:
        collect(Failing, steps=200)
    assert main(["collect", f"{MODULE}:Failing", "--out", "part.npz"]) == 3
    assert "transitions before that are in part.npz" in capsys.readouterr().err
    assert len(load("part.npz")) == len(stop.value.dataset) > 0
    assert main(["collect", f"{MODULE}:Failing", "--out", "part.npz"]) == 2
    assert "part.npz exists" in capsys.readouterr().err
    assert main(["collect", f"{MODULE}:Failing", "--out", "part.npz", "--overwrite"]) == 3
    assert "transitions before that are in part-partial.npz" in capsys.readouterr().err


def test_a_resumed_run_says_that_episodes_were_lost(here: Path, capsys) -> None:
    words = ["run", "sac", ROVER, "--steps", "90", "--learner.batch-size", "8", "--eval-every", "0"]
    words += ["--final-episodes", "2", "--collection.warmup", "5", "--out", "run"]
    from mbrl import callbacks

    class Stop(callbacks.PolicyKeeper):
        """Stops the run in the middle of an episode."""

        def __call__(self, event, agent, metrics) -> None:
            if agent.step == 35 and event == "step":
                raise TaskError("stop")

    from experiments.runs import training

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "PolicyKeeper", Stop)
        assert main(words) == 3
    with pytest.warns(UserWarning, match="cannot be saved"):
        assert main(["resume", "run"]) == 0
    assert json.loads((here / "run/manifest.json").read_text())["interrupted_episodes"] == 1
    assert json.loads((here / "run/result.json").read_text())["interrupted_episodes"] == 1
    assert lr.load("run/checkpoint.pt").step == 90


def test_policy_gradient_drops_a_round_that_was_lost() -> None:
    task = make(Corridor, masked=False)
    config = lr.PolicyGradientConfig(recipe="ppo", envs=4, group=1)
    agent = lr.PolicyGradient(task.spec, config)
    collector = agent.collector(task)
    while not agent.transitions:
        collector.collect(agent)
    kept, content = collector.state_dict(), agent_files.content(agent)
    other = agent_files.restore(lr.PolicyGradient, content)
    fresh = other.collector(make(Corridor, masked=False))
    with pytest.warns(UserWarning, match="cannot be saved"):
        fresh.load_state_dict(kept)
    assert fresh.interrupted == 1 and other.transitions
    for _ in range(20):
        fresh.collect(other)
    assert all(len(rows) <= 4 for _, rows in other.transitions) and fresh.returns
    with pytest.raises(ConfigError, match="group is 2"):
        lr.PolicyGradient(task.spec, lr.PolicyGradientConfig(envs=4, group=2)).collector(task)


MASKED = ["bc", "discrete_cql", "discrete_iql", "discrete_sac_n"]


@pytest.mark.parametrize("name", MASKED)
def test_masked_algorithms_learn_and_keep_to_the_mask(name: str) -> None:
    """`Corridor` raises where a masked action is taken; a wall action is the best by value else."""
    dataset = collect(Corridor, steps=400)
    assert dataset.spec.action_mask
    assert bool(dataset.transitions.action_mask.any(1).all())
    agent = small(name, dataset.spec).fit(dataset, 300, callbacks=[])
    assert (lr.evaluate(agent, Corridor, 20) >= -10).all()
    lr.evaluate(agent, Corridor, 20, deterministic=False)
    agent.learn(Corridor, 30, callbacks=[])  # a policy that is sampled from would hit the wall too
    if name in ("discrete_cql", "discrete_sac_n"):  # 300 updates are few for the others
        assert (lr.evaluate(agent, Corridor, 20) >= -4).all()


@pytest.mark.parametrize("name", ["policy_gradient", "props"])
def test_masked_policy_gradients_keep_to_the_mask(name: str) -> None:
    """Two actions, of which one is masked at the ends: the corridor is solved, and probabilities
    and entropies are those of the allowed actions, closed form at the ends."""
    task = make(Corridor)
    cls, config = ALGORITHMS[name]
    agent = cls(task.spec, config(hidden=(16,), envs=8, group=1, learning_rate=0.03))
    agent.learn(Corridor, 60, callbacks=[])
    assert (lr.evaluate(agent, Corridor, 20) >= -4).all()
    lr.evaluate(agent, Corridor, 20, deterministic=False)
    t = agent.rounds[-1]
    one = t.mask & (t.action_mask.sum(-1) == 1)
    assert bool(one.any()) and bool((t.mask & ~one).any())
    log_prob, entropy = log_probs_and_entropy(agent.policy, t)
    assert torch.equal(log_prob[one], torch.zeros(int(one.sum())))
    assert torch.equal(entropy[one], torch.zeros(int(one.sum())))
    free = t.mask & ~one
    whole = torch.distributions.Categorical(logits=agent.policy.logits(t.obs[free]))
    assert torch.allclose(log_prob[free], whole.log_prob(t.action[free]), atol=1e-6)
    assert torch.allclose(entropy[free], whole.entropy(), atol=1e-6)


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_of_all_actions_changes_no_bit(name: str) -> None:
    rows = collect(functools.partial(Corridor, masked=False), steps=200)
    plain = small(name, rows.spec).fit(rows, 20, callbacks=[])
    ones = torch.ones(len(rows), 2, dtype=torch.bool)
    spec = Spec.from_dict(rows.spec.to_dict() | {"action_mask": True})
    t = rows.transitions
    masked = from_arrays(
        t.obs, t.action, t.reward, next_obs=t.next_obs, terminated=t.terminated,
        truncated=t.truncated, action_mask=ones, next_action_mask=ones, spec=spec,
    )  # fmt: skip
    other = small(name, spec).fit(masked, 20, callbacks=[])
    for one, two in zip(plain.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_targets_and_losses_leave_masked_actions_out() -> None:
    """The values that masked actions have change neither target, nor gap, nor expectation."""
    from algorithms.discrete_cql import conservative_gap, double_q_values
    from algorithms.discrete_sac_n import expectations
    from mbrl.networks import allowed_only

    q = torch.tensor([[[1.0, 2.0, 50.0]]])
    mask = torch.tensor([[True, True, False]])
    assert double_q_values(allowed_only(q, mask), q).item() == 2.0
    gap = conservative_gap(allowed_only(q, mask), torch.tensor([[1.0]]))
    assert gap.item() == pytest.approx(np.log(np.exp(1) + np.exp(2)) - 1)
    logits = allowed_only(torch.zeros(1, 3), mask)
    value, log_prob = expectations(logits, q[0])
    assert value.item() == pytest.approx(1.5) and log_prob.item() == pytest.approx(np.log(0.5))


def test_masks_come_back_from_file_and_buffer(here: Path) -> None:
    dataset = collect(Corridor, steps=100)
    rows = dataset.transitions
    back = load(save_npz(dataset, here / "corridor.npz"))
    assert torch.equal(back.transitions.action_mask, rows.action_mask)
    assert torch.equal(back.transitions.next_action_mask, rows.next_action_mask)
    assert back.spec == dataset.spec
    buffer = Buffer(dataset.spec, len(rows), 0.99)
    buffer.append(rows)
    batch = buffer.batch(buffer.rows)
    assert torch.equal(batch.action_mask, rows.action_mask)
    assert torch.equal(batch.next_action_mask, rows.next_action_mask)


def test_what_does_not_keep_to_masks_is_refused() -> None:
    dataset = collect(Corridor, steps=100)

    class Careless(lr.BC):
        takes_masks = False

    with pytest.raises(ConfigError, match="masks actions, which Careless does not keep to"):
        Careless(dataset.spec)
    bare = collect(functools.partial(Corridor, masked=False), steps=100)
    agent = small("bc", dataset.spec)
    with pytest.raises(DataError, match="no action_mask"):
        agent.fit(bare, 1, callbacks=[])
    t = dataset.transitions
    wrong = t.action_mask.clone()
    wrong[3, t.action[3]] = False
    with pytest.raises(DataError, match=r"row 3: action . is one that its action_mask forbids"):
        from_arrays(
            t.obs, t.action, t.reward, next_obs=t.next_obs, terminated=t.terminated,
            truncated=t.truncated, action_mask=wrong, next_action_mask=wrong, spec=dataset.spec,
        )  # fmt: skip


def test_parallel_copies_end_apart() -> None:
    """Each copy begins anew when its own episode ends, and only then."""
    task = make(Corridor, masked=False)
    agent = small("discrete_sac_n", task.spec)
    collector = Collector(task, envs=3, warmup=10_000)
    agent.source.begin_experience()
    seen: list = []
    agent.observe = seen.append
    for _ in range(60):
        collector.collect(agent)
    for before, after in zip(seen, seen[1:], strict=False):
        going = ~before.ends
        assert torch.equal(before.next_obs[going], after.obs[going])
        assert bool((after.obs[before.ends].argmax(1) <= 1).all())
    assert len(task._copies) == 3 and len(collector.returns) > 10


@pytest.mark.parametrize("name", MASKED)
def test_an_update_leaves_masked_actions_out(name: str) -> None:
    """Values and logits of 100 at an action that both masks forbid change nothing that is
    measured."""
    spec = Spec("T", 2, num_actions=3, max_episode_steps=5, action_mask=True)
    agent = small(name, spec)
    with torch.no_grad():
        for module in agent.modules.values():
            for key, weights in module.named_parameters():
                if key.endswith("bias") or "biases" in key:
                    last = weights[..., -1:] if weights.shape[-1] == 3 else weights[..., :0]
                    last += 100.0
    obs = torch.randn(32, 2, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([True, True, False]).expand(32, 3)
    batch = Batch(
        obs, torch.arange(32) % 2, torch.zeros(32), obs, torch.full((32,), 0.9),
        action_mask=mask, next_action_mask=mask,
    )  # fmt: skip
    metrics = {key: abs(float(value)) for key, value in agent.learner.update(batch, 0).items()}
    assert max(metrics.values()) < 5.0, metrics
    without = batch._replace(action_mask=None, next_action_mask=None)
    unmasked = agent.learner.update(without, 0)
    assert max(abs(float(value)) for value in unmasked.values()) > 20.0


def test_what_would_learn_nothing_or_act_outside_of_the_bounds_is_refused(here, capsys) -> None:
    words = ["run", "sac", ROVER, "--eval-every", "0", "--final-episodes", "1", "--out", "run"]
    with pytest.warns(UserWarning, match="nothing is learned: 50 steps end after 50 rows"):
        assert main([*words, "--steps", "50", "--collection.warmup", "50"]) == 0
    assert "50 steps in" in capsys.readouterr().out
    assert main([*words, "--steps", "50", "--envs", "4", "--collection.envs", "2"]) == 2
    assert "--envs and --collection.envs say the same" in capsys.readouterr().err
    agent = lr.SAC(lr.make(ROVER).spec)
    with pytest.warns(UserWarning, match="the first update comes after 100"):
        agent.learn(ROVER, 50)
    with pytest.raises(ConfigError, match=r"gave 50 for entry 0 .*clip its actions"):
        collect(ROVER, lambda obs, generator: torch.full((len(obs), 1), 50.0), steps=10)
    with pytest.raises(ConfigError, match="episodes is 'many', it must be a whole number"):
        lr.evaluate(agent, ROVER, "many")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="gamma is 2"):
        lr.evaluate(agent, ROVER, 1, gamma=2.0)


def test_actions_outside_of_the_collector_keep_to_the_mask(tmp_path: Path) -> None:
    task = lr.make(Corridor)
    data = collect(task, steps=40)
    agent = lr.DiscreteIQL(data.spec, build_config("discrete_iql", {"hidden": [8]}), seed=0)
    agent.fit(data, 5, callbacks=[])
    obs = data.transitions.obs[:6].numpy()
    with pytest.raises(ConfigError, match=r"give `mask` .*info\['action_mask'\]"):
        agent.act(obs[0])
    with pytest.raises(ConfigError, match="mask has shape"):
        agent.act(obs[0], mask=np.array([1, 1, 1]))
    for kind in (np.array, torch.tensor):
        for only in (0, 1):
            mask = kind([int(only == 0), int(only == 1)])
            assert int(agent.act(obs[0], mask=mask)[0]) == only
            assert agent.predict(obs, action_masks=np.tile(np.asarray(mask), (6, 1)))[
                0
            ].tolist() == ([only] * 6)


def test_a_task_whose_entries_have_other_names_is_refused() -> None:
    task = lr.make("Pendulum-v1")
    named = dataclasses.replace(task.spec, obs_names=("x", "y", "speed"))
    agent = lr.BC(named, lr.BCConfig(hidden=(8,)), seed=0)
    assert lr.evaluate(agent, task, 1).shape == (1,)  # it has no names
    other = dataclasses.replace(named, obs_names=("y", "x", "speed"))
    with pytest.raises(ConfigError, match="differ in obs_names"):
        require_fit(agent.spec, other)


def test_moments_that_nothing_was_logged_for_are_said_to_be_missing() -> None:
    agent = lr.SAC(lr.make("Pendulum-v1").spec, build_config("sac", CONFIGS["sac"]), seed=0)
    agent.learner.config = dataclasses.replace(agent.learner.config, normalise_obs=True)
    with pytest.warns(UserWarning, match="normalise_obs is on and there are no logged rows"):
        agent.learn("Pendulum-v1", 3, callbacks=[])
