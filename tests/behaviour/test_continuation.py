"""Runs in a task that begin with the networks of another run, or with logged rows alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

import algorithms
from experiments.cli.run import main, run_command
from experiments.runs import folders, jobs
from experiments.runs import training as runs
from experiments.settings import CollectionSettings, RunSettings, build_config, merge
from mbrl import checkpoint
from mbrl.continuation import take_over
from mbrl.data import save_npz
from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.types import Dataset
from tests.behaviour.test_resume import assert_same, killed_after
from tests.small import CONFIGS

QUICK: dict[str, Any] = {"eval_episodes": 2, "final_episodes": 2, "tensorboard": False}
GREEDY = ["--collection.deterministic", "True"]
QUICK |= {"log_every": 5, "eval_every": 0}


def weights(agent: Any, names: tuple[str, ...]) -> list[torch.Tensor]:
    return [t for n in names for t in agent.modules[n].state_dict().values()]


@pytest.fixture
def logged(pendulum: Dataset, tmp_path: Path) -> Path:
    """A finished run of SAC-N on logged data."""
    save_npz(pendulum, tmp_path / "pendulum.npz")
    settings = RunSettings("sac_n", str(tmp_path / "pendulum.npz"), steps=6, **QUICK)
    values = merge(CONFIGS["sac_n"], {"learner": {"normalise_obs": True, "gamma": 0.9}})
    runs.start(settings, build_config("sac_n", values), tmp_path / "logged", quiet=True)
    return tmp_path / "logged"


def test_another_algorithm_goes_on_with_the_networks(logged: Path, tmp_path: Path) -> None:
    """WSRL after SAC-N: its first policy is SAC-N's last, its rates are its own, the networks'
    sizes follow without an option, and the optimisers keep their moments."""
    options = ["--after", str(logged), "--steps", "8", "--no-tensorboard", "--final-episodes", "2"]
    options += ["--collection.frozen", "4", "--learner.batch-size", "16"]
    command = run_command("wsrl", "Pendulum-v1", options)
    learner = command.config.learner
    assert (learner.hidden, learner.critics, learner.normalise_obs) == ((16, 16), 3, True)
    assert learner.layer_norm == "none" and learner.actor_lr == 1e-4
    assert learner.gamma == 0.9  # which the values are of
    runs.create(command.settings, command.config, tmp_path / "online")
    first = runs.TrainingRun(tmp_path / "online")
    agent = first_agent(first)
    before = algorithms.load(logged / "checkpoint.pt")
    names = ("actor", "critic", "target", "temperature")
    for a, b in zip(weights(agent, names), weights(before, names), strict=True):
        assert torch.equal(a, b)
    for name, optimiser in agent.optimisers.items():
        mine, theirs = (o.state_dict() for o in (optimiser, before.optimisers[name]))
        assert mine["state"][0]["step"] == theirs["state"][0]["step"] == 6
        assert mine["param_groups"][0]["lr"] == (3e-4 if name == "critic" else 1e-4)
    assert agent.step == 0 and agent.source.logged == 600
    jobs.resume(tmp_path / "online", quiet=True)
    ended = algorithms.load(tmp_path / "online" / "checkpoint.pt")
    assert ended.step == 8 and len(ended.source.rows) == 8  # logged rows are left behind


def first_agent(run: runs.TrainingRun) -> Any:
    from experiments.runs import continuation
    from experiments.runs.sources import open_source

    settings = run.settings
    config = build_config(settings.algorithm, run.read()["config"])
    before = runs.TrainingRun(Path(str(settings.after)))
    return continuation.trained(settings, config, before, open_source(settings))


def test_a_run_on_other_networks_resumes_exactly(logged: Path, tmp_path: Path) -> None:
    values = merge(CONFIGS["mbpo"], {"learner": {"normalise_obs": True}})
    config = build_config("mbpo", merge(values, {"online": {"warmup": 20}}))
    settings = RunSettings(
        "mbpo", "Pendulum-v1", after=str(logged), steps=24, checkpoint_every=6, **QUICK
    )
    runs.start(settings, config, tmp_path / "whole", quiet=True)
    folder, cls = tmp_path / "killed", algorithms.MBPO

    def start() -> None:
        runs.start(settings, config, folder, quiet=True)

    killed_after(folder, start, cls, "update", 9)
    killed_after(folder, lambda: jobs.resume(folder, quiet=True), cls, "update", 5)
    jobs.resume(folder, quiet=True)
    assert_same(*(checkpoint.load(f / "checkpoint.pt") for f in (tmp_path / "whole", folder)))


def test_networks_go_on_from_one_task_to_another(tmp_path: Path) -> None:
    """After a run in a task its experience is left behind, and no uniform actions come first."""
    values = merge(CONFIGS["sac"], {"warmup": 10})
    first = RunSettings("sac", "CartPoleSwingUp-v0", steps=14, **QUICK)
    runs.start(first, build_config("sac", values), tmp_path / "first", quiet=True)
    options = ["--after", str(tmp_path / "first"), "--steps", "3", "--no-tensorboard"]
    command = run_command("sac", "CartPoleSwingUp-v0,pole_mass=0.3", options + GREEDY)
    assert command.config == build_config("sac", values)  # as it was
    runs.start(command.settings, command.config, tmp_path / "second", quiet=True)
    agent = algorithms.load(tmp_path / "second" / "checkpoint.pt")
    assert agent.step == 3 and len(agent.source.rows) == 3
    assert agent.source.collection.deterministic
    assert (
        agent.updates == 0
    )  # the policy makes the 10 rows of the warm-up, and these are the first
    batch = agent.source.rows.whole()
    expected = agent.policy.scale.to_unit(agent.policy(batch.obs)).detach()
    assert torch.allclose(batch.action, expected, atol=1e-6)


def test_greedy_collection_takes_the_actions_of_evaluation(pendulum: Dataset) -> None:
    agent = algorithms.SAC(pendulum.spec, build_config("sac", CONFIGS["sac"]), seed=1)
    greedy = CollectionSettings(deterministic=True, warmup=0, frozen=5)
    agent.source.collection = greedy.apply(agent.source.collection)
    agent.learn(make("Pendulum-v1"), 5, callbacks=[])
    batch = agent.source.rows.whole()
    expected = agent.policy.scale.to_unit(agent.policy(batch.obs)).detach()
    assert torch.allclose(batch.action, expected, atol=1e-6)


def test_logged_rows_from_the_start(pendulum: Dataset, tmp_path: Path) -> None:
    """RLPD: one command, no training before; killed and resumed it ends where the whole ends."""
    file = tmp_path / "pendulum.npz"
    save_npz(pendulum, file)
    config = build_config("rlpd", CONFIGS["rlpd"])
    settings = RunSettings(
        "rlpd", "Pendulum-v1", logged=str(file), steps=20, checkpoint_every=4, **QUICK
    )
    runs.start(settings, config, tmp_path / "whole", quiet=True)
    folder = tmp_path / "killed"

    def start() -> None:
        runs.start(settings, config, folder, quiet=True)

    killed_after(
        folder, start, algorithms.RLPD, "update", 2
    )  # before it has acted for a checkpoint
    killed_after(folder, lambda: jobs.resume(folder, quiet=True), algorithms.RLPD, "update", 13)
    jobs.resume(folder, quiet=True)
    assert_same(*(checkpoint.load(f / "checkpoint.pt") for f in (tmp_path / "whole", folder)))
    agent = algorithms.load(folder / "checkpoint.pt")
    assert len(agent.source.kept) == 600 and len(agent.source.rows) == 20
    known = folders.read_json(folder / "manifest.json")["data"]
    assert known["task"] == "Pendulum-v1" and known["logged"]["rows"] == 600


def test_logged_rows_come_from_the_command_line(pendulum: Dataset, tmp_path: Path) -> None:
    save_npz(pendulum, tmp_path / "log.npz")
    options = [
        "--logged",
        str(tmp_path / "log.npz"),
        "--steps",
        "2",
        "--out",
        str(tmp_path / "out"),
    ]
    options += ["--no-tensorboard", "--final-episodes", "2", "--learner.hidden", "16", "16"]
    assert main(["rlpd", "Pendulum-v1", *options]) == 0
    assert algorithms.load(tmp_path / "out" / "checkpoint.pt").source.logged == 600


def test_what_cannot_go_on_is_refused(
    logged: Path, pendulum: Dataset, cartpole: Dataset, tmp_path: Path
) -> None:
    after = {"after": str(logged), "steps": 3} | QUICK
    plain = merge(CONFIGS["wsrl"], {"learner": {"layer_norm": "none"}})
    for name, values, message in (
        ("iql", CONFIGS["iql"], "cannot go on with the networks of sac_n"),
        ("wsrl", plain, r"learner\.normalise_obs is False, and True in"),
    ):
        refused(RunSettings(name, "Pendulum-v1", **after), values, message, tmp_path)
    with pytest.raises(ConfigError, match=r"take both from .*cql, sac"):
        run_command("iql", "Pendulum-v1", ["--after", str(logged)])
    known = {"logged": "pendulum/medium"}
    for settings, message in (
        (RunSettings("rlpd", "Pendulum-v1", logged="nothing", **QUICK), "neither a dataset"),
        (RunSettings("props", "Pendulum-v1", **known), "learns by acting alone"),
        (RunSettings("rlpd", "pendulum/medium", **known), "is a dataset; --after"),
        (RunSettings("wsrl", "Pendulum-v1", **known, **after), "does not go with"),
    ):
        refused(settings, CONFIGS[settings.algorithm], message, tmp_path)
    save_npz(cartpole, tmp_path / "cartpole.npz")
    other = RunSettings("rlpd", "Pendulum-v1", logged=str(tmp_path / "cartpole.npz"), **QUICK)
    refused(other, CONFIGS["rlpd"], "differ in", tmp_path)


def test_values_go_on_in_the_units_that_they_were_learned_in(
    pendulum: Dataset, tmp_path: Path
) -> None:
    """CQL with rewards scaled by the data's returns: WSRL scales alike, SAC cannot."""
    save_npz(pendulum, tmp_path / "pendulum.npz")
    values = merge(CONFIGS["cql"], {"normalise_rewards": True})
    first = RunSettings("cql", str(tmp_path / "pendulum.npz"), steps=3, **QUICK)
    runs.start(first, build_config("cql", values), tmp_path / "logged", quiet=True)
    options = ["--after", str(tmp_path / "logged"), "--steps", "2", "--no-tensorboard"]
    command = run_command("wsrl", "Pendulum-v1", options)
    assert command.config.normalise_rewards
    runs.create(command.settings, command.config, tmp_path / "online")
    scale = algorithms.load(tmp_path / "logged" / "checkpoint.pt").source.reward_scale
    assert first_agent(runs.TrainingRun(tmp_path / "online")).source.reward_scale == scale != 1.0
    command = run_command("sac", "Pendulum-v1", options)
    with pytest.raises(ConfigError, match="normalise_rewards is True in the earlier run of cql"):
        runs.start(command.settings, command.config, tmp_path / "sac", quiet=True)


def refused(settings: RunSettings, values: dict[str, Any], message: str, folder: Path) -> None:
    config = build_config(settings.algorithm, values)
    with pytest.raises(ConfigError, match=message):
        runs.start(settings, config, folder / "online", quiet=True)


def test_an_average_that_is_new_begins_at_the_policy(pendulum: Dataset) -> None:
    """It acts before the first update, where its own first weights would be no policy at all."""
    first, average = (
        algorithms.SACN(pendulum.spec, build_config("sac_n", {"learner": values}), seed=seed)
        for seed, values in enumerate([{"hidden": [8]}, {"hidden": [8], "policy_average": 0.1}])
    )
    take_over(average, first)
    obs = pendulum.transitions.obs[:5]
    assert torch.equal(average.act(obs)[0], first.act(obs)[0])


def test_networks_of_another_size_are_refused(pendulum: Dataset) -> None:
    small, large = (
        algorithms.SACN(pendulum.spec, build_config("sac_n", {"learner": {"hidden": sizes}}))
        for sizes in ([8], [16])
    )
    with pytest.raises(ConfigError, match=r"the actor of SACN is of another size"):
        take_over(small, large)
    cloned = algorithms.BC(pendulum.spec, build_config("bc", CONFIGS["bc"]))
    with pytest.raises(ConfigError, match="has networks that BC does not have"):
        take_over(small, cloned)
