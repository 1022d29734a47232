"""Every algorithm that learns from logged rows goes on in a task, with the logged rows as its first
experience, and resumes exactly there too."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import algorithms
from algorithms import ReBRAC
from experiments.runs import jobs
from experiments.runs import training as runs
from experiments.settings import CollectionSettings, RunSettings, build_config, merge
from mbrl import checkpoint
from mbrl.data import save_npz
from mbrl.errors import ConfigError
from mbrl.records import MetricsFile
from mbrl.tasks import Task, make
from mbrl.training import train
from mbrl.types import Dataset, Spec, Transitions
from tests.behaviour.test_resume import assert_same, killed_after
from tests.small import CONFIGS, OFFLINE, suited, takes

pytestmark = pytest.mark.usefixtures("short_episodes")

OFFLINE_STEPS, BEFORE, AFTER = 6, 5, 7
QUICK = {"refit_every": 4, "refit_epochs": 1, "updates_per_step": 2, "envs": 2}
QUICK |= {"warmup": 20, "capacity": 620, "frozen": 0, "logged_share": None}


def build(name: str, spec: Spec) -> Any:
    values = CONFIGS[name]
    if name == "neubay":  # tapes that fit into a short ring
        values = merge(values, {"rollouts": {"cap": 5}})
    agent = algorithms.ALGORITHMS[name][0](spec, build_config(name, values), seed=3)
    own = {f.name for f in dataclasses.fields(agent.source.collection)}
    changed = {k: v for k, v in QUICK.items() if k in own}
    agent.source.collection = dataclasses.replace(agent.source.collection, **changed)
    return agent


def task_of(name: str) -> Task:
    return make("Pendulum-v1" if takes(name, "continuous") else "CartPole-v1")


def weights(agent: Any) -> list[torch.Tensor]:
    tensors = [t for m in agent.modules.values() for t in m.state_dict().values()]
    return [t for t in tensors if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize("name", OFFLINE)
def test_fit_then_learn_resumes_exactly(
    name: str, pendulum: Dataset, cartpole: Dataset, tmp_path: Path
) -> None:
    data = suited(name, pendulum, cartpole)
    whole = build(name, data.spec).fit(data, OFFLINE_STEPS, callbacks=[])
    task = task_of(name)
    collector = whole.collector(task)
    seen: dict[str, float] = {}
    callback = [lambda event, agent, m: seen.update({k: float(v) for k, v in m.items()})]
    train(whole, OFFLINE_STEPS + BEFORE, callback, collector)
    whole.save(tmp_path / "agent.pt")
    kept = collector.state_dict()
    train(whole, OFFLINE_STEPS + BEFORE + AFTER, callback, collector)
    assert collector.rows == 2 * (BEFORE + AFTER)
    assert whole.updates == OFFLINE_STEPS + 2 * (BEFORE + AFTER)
    assert all(torch.isfinite(torch.tensor(v)) for v in seen.values())

    again = algorithms.load(tmp_path / "agent.pt")
    assert again.source.collection == whole.source.collection
    resumed = again.collector(task)
    resumed.load_state_dict(kept)
    train(again, OFFLINE_STEPS + BEFORE + AFTER, (), resumed)
    for a, b in zip(weights(whole), weights(again), strict=True):
        assert torch.equal(a, b)
    obs = data.transitions.obs[:5]
    assert torch.equal(whole.act(obs)[0], again.act(obs)[0])


@pytest.mark.parametrize("name", [n for n in OFFLINE if n not in ("neubay", "pgd", "pets")])
def test_logged_rows_are_the_first_experience(
    name: str, pendulum: Dataset, cartpole: Dataset
) -> None:
    """They stand before the rows of the task, unchanged; the task begins without a warm-up."""
    data = suited(name, pendulum, cartpole)
    agent = build(name, data.spec)
    agent.prepare(data, lambda metrics: None)
    rows = getattr(agent.source, "real", agent.source)
    before = rows.rows.gather(torch.arange(len(data)))
    assert agent.collector(task_of(name)).warmup == 0
    agent.learn(task_of(name), 4, callbacks=[])
    # A row whose next action is not known yet waits for the step after it, one whose episode is to
    # be known for the end of that.
    waiting = 2 if name == "rebrac" else 8 if agent.needs_goals else 0
    assert len(rows.rows) == len(data) + 2 * 4 - waiting
    assert torch.equal(rows.rows.gather(torch.arange(len(data))), before)


def test_next_actions_of_experience_are_those_of_the_same_copy() -> None:
    """Two copies, one of which ends in between; against the steps themselves."""
    spec = Spec("line", 1, 1, None, (-1.0,), (1.0,), 10)
    agent = ReBRAC(spec, build_config("rebrac", {"hidden": [4]}))
    steps = []
    for t in range(4):
        obs = torch.tensor([[float(t)], [float(10 + t)]])
        action = torch.tensor([[0.1 * t], [-0.1 * t]])
        ended = torch.tensor([False, t == 1])
        steps.append(Transitions(obs, action, torch.zeros(2), obs + 1, ended, ended & False))
        agent.observe(steps[-1])
    batch = agent.source.rows.whole()
    assert len(batch.obs) == 6 and batch.next_action is not None and batch.has_next is not None
    for row in range(6):
        t, copy = divmod(row, 2)
        known = not (t == 1 and copy == 1)
        expected = float(steps[t + 1].action[copy]) if known else 0.0
        assert float(batch.has_next[row]) == known
        assert float(batch.next_action[row]) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["iql", "rebrac", "ravl", "neubay"])
def test_a_run_that_goes_on_in_the_task_resumes_exactly(
    name: str, pendulum: Dataset, tmp_path: Path
) -> None:
    """From the command line's side: killed thrice, once before the
    first checkpoint with experience, it ends where the uninterrupted run ends, its
    steps counted on behind those of the run on logged data."""
    save_npz(pendulum, tmp_path / "pendulum.npz")
    config = build_config(name, CONFIGS[name])
    quick = {"eval_episodes": 2, "final_episodes": 2, "tensorboard": False, "log_every": 5}
    logged = RunSettings(name, str(tmp_path / "pendulum.npz"), steps=10, eval_every=0, **quick)
    runs.start(logged, config, tmp_path / "logged", quiet=True)
    quick |= {"steps": 24, "eval_every": 17, "checkpoint_every": 6}
    online = RunSettings(name, "Pendulum-v1", after=str(tmp_path / "logged"), **quick)
    runs.start(online, config, tmp_path / "whole", quiet=True)
    folder, cls = tmp_path / "killed", algorithms.ALGORITHMS[name][0]
    killed_after(folder, lambda: runs.start(online, config, folder, quiet=True), cls, "update", 2)
    killed_after(folder, lambda: jobs.resume(folder, quiet=True), cls, "update", 9)
    killed_after(folder, lambda: jobs.resume(folder, quiet=True), cls, "update", 5)
    result = jobs.resume(folder, quiet=True)
    assert result is not None and result["step"] == 34
    contents = [checkpoint.load(f / "checkpoint.pt") for f in (tmp_path / "whole", folder)]
    assert_same(*contents)
    rows = [MetricsFile(f / "metrics.csv").rows() for f in (tmp_path / "whole", folder)]
    steps = [[int(row["step"]) for row in table] for table in rows]
    assert steps[0] == steps[1] == [15, 20, 25, 30]


@pytest.mark.parametrize(
    ("name", "policy"), [("iql", "policy"), ("idql", "base"), ("f_dvl", "policy")]
)
def test_decayed_rates_are_whole_again_online(name: str, policy: str, pendulum: Dataset) -> None:
    """The policy would stand still: its rate has fallen to 0 over the offline updates."""
    config = build_config(name, CONFIGS[name] | {"decay_steps": 5})
    agent = algorithms.ALGORITHMS[name][0](pendulum.spec, config)
    agent.fit(pendulum, 6, callbacks=[])
    rate = agent.optimisers[policy].param_groups[0]
    assert rate["lr"] == 0.0
    before = [p.clone() for p in agent.policy.parameters()]
    agent.learn(make("Pendulum-v1"), 2, callbacks=[])
    assert rate["lr"] == config.learning_rate
    assert any(
        not torch.equal(a, b) for a, b in zip(before, agent.policy.parameters(), strict=True)
    )
    agent.fit(pendulum, 1, callbacks=[])
    assert rate["lr"] == 0.0


def test_what_cannot_go_on_is_refused(pendulum: Dataset, tmp_path: Path) -> None:
    save_npz(pendulum, tmp_path / "pendulum.npz")
    file, config = str(tmp_path / "pendulum.npz"), build_config("bc", CONFIGS["bc"])
    quick = {"steps": 3, "eval_every": 0, "final_episodes": 2, "tensorboard": False}
    folder = tmp_path / "logged"
    runs.start(RunSettings("bc", file, **quick), config, folder, quiet=True)
    after = quick | {"after": str(folder)}
    other = build_config("bc", CONFIGS["bc"] | {"learning_rate": 1.0})
    for settings, given, message in (
        (RunSettings("bc", file, **after), config, "is a dataset; --after"),
        (RunSettings("bc", "Hopper-v5", **after), config, "differ in"),
        (RunSettings("bc", "Pendulum-v1", **after), other, "keeps its algorithm"),
        (RunSettings("bc", "Pendulum-v1", **after | {"seed": 1}), config, "keeps its algorithm"),
    ):
        with pytest.raises(ConfigError, match=message):
            runs.start(settings, given, tmp_path / "online", quiet=True)
    runs.create(RunSettings("bc", file, **quick), config, tmp_path / "begun")
    begun = RunSettings("bc", "Pendulum-v1", **quick | {"after": str(tmp_path / "begun")})
    with pytest.raises(ConfigError, match="is not finished"):
        runs.start(begun, config, tmp_path / "online", quiet=True)
    unknown = CollectionSettings(refit_every=3)
    with pytest.raises(ConfigError, match="unknown setting of the collection 'refit_every'"):
        runs.start(
            RunSettings("bc", "Pendulum-v1", collection=unknown, **after),
            config,
            tmp_path / "online",
            quiet=True,
        )


def test_a_row_before_another_collector_has_no_next_action() -> None:
    """The task begins anew, so what comes after is no continuation."""
    spec = Spec("line", 1, 1, None, (-1.0,), (1.0,), 10)
    agent = ReBRAC(spec, build_config("rebrac", {"hidden": [4]}))
    flags = torch.zeros(1, dtype=torch.bool)
    for obs in (0.0, 1.0, 7.0, 8.0):  # a jump from 2 to 7
        at = torch.full((1, 1), obs)
        agent.observe(Transitions(at, at / 10, torch.zeros(1), at + 1, flags, flags))
    batch = agent.source.rows.batch(agent.source.rows.rows[:3])
    assert batch.has_next is not None and batch.has_next.tolist() == [1, 0, 1]
    assert batch.discount.tolist() == [pytest.approx(0.99)] * 3  # the task did not end there


def test_unfinished_episodes_are_saved(pendulum: Dataset, tmp_path: Path) -> None:
    """NEUBAY records whole episodes: what began before the checkpoint ends after it."""
    whole = build("neubay", pendulum.spec)
    whole.prepare(pendulum, lambda metrics: None)
    known = len(whole.source.recorded.episodes)

    def rows(t: int, end: bool) -> Transitions:
        obs = torch.full((2, 3), float(t))
        truncated = torch.tensor([end, False])
        return Transitions(
            obs, torch.zeros(2, 1), torch.ones(2), obs + 1, truncated & False, truncated
        )

    for t in range(3):
        whole.observe(rows(t, False))
    whole.save(tmp_path / "agent.pt")
    again = algorithms.load(tmp_path / "agent.pt")
    for agent in (whole, again):
        agent.observe(rows(3, True))
        assert len(agent.source.recorded.episodes) == known + 1
        start, length = agent.source.recorded.episodes[-1]
        assert length == 5
        assert agent.source.recorded.rows[start : start + 5, 0].tolist() == [0, 1, 2, 3, 4]


def test_what_depends_on_the_model_follows_its_refits(pendulum: Dataset) -> None:
    """MOReL's threshold is of the disagreements of the model as it is."""
    agent = build("morel", pendulum.spec).fit(pendulum, 1, callbacks=[])
    before = agent.source.halt.clone()
    agent.learn(make("Pendulum-v1"), 6, callbacks=[])  # a refit is due at step 4
    assert not torch.equal(agent.source.halt[:1], before[:1])
