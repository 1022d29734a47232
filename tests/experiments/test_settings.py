"""Presets: values of a purpose, and settings that follow the budget of a run."""

import dataclasses
import tomllib

import pytest

from algorithms.sources.imagined import RefitConfig
from experiments.settings import CollectionSettings, default_steps, preset_config
from experiments.tables import plan
from mbrl import config as configs
from mbrl.collector import CollectorConfig
from mbrl.data.cards import cards_dir


def test_a_decay_as_long_as_the_budget_follows_it() -> None:
    """Else nothing is learned after the preset's budget; other decays stay as they are."""
    column = plan.Column("iql", "iql")
    for data, budget in (("pendulum/medium", 5000), ("d4rl/hopper-medium-v2", 1_000_000)):
        for steps in (None, budget, 300, 50_000):
            assert plan.config_of(column, data, steps).decay_steps == (steps or budget)
    own = plan.Column("iql", "iql", {"decay_steps": 0})
    assert plan.config_of(own, "pendulum/medium", 50_000).decay_steps == 0


@pytest.mark.parametrize("name", ["ravl", "edac", "mbpo"])
def test_the_main_jobs_values_stand_apart_from_those_of_tables(name: str) -> None:
    """Tables and runs keep the local preset; the quickstart changes the policy's rate and average,
    and the share of real rows where there are imagined ones."""
    data = "pendulum/medium-replay"
    local, main = (configs.to_dict(preset_config(name, data, p)) for p in ("", "quickstart"))
    changed = {
        (part, key): (value, main[part][key])
        for part, values in local.items()
        for key, value in values.items()
        if main[part][key] != value
    }
    wanted = {("learner", "policy_average"): (0.0, 0.005), ("learner", "actor_lr"): (1e-3, 5e-4)}
    if name != "edac":
        wanted["imagination", "real_ratio"] = (0.05, 0.5)
    assert changed == wanted


def test_a_tier_takes_the_values_of_the_dataset_that_it_resembles() -> None:
    """With rates for its own budget; values of the dataset that are no rates stay."""
    like, own = "d4rl/hopper-medium-v2", "d4rl-like/hopper-medium"
    assert preset_config("edac", like).learner.critics == 50
    assert preset_config("edac", own).learner.critics == 50
    assert preset_config("edac", own).learner.critic_lr == 1e-3
    assert preset_config("mopo", own).imagination.rollout.penalty_weight == 5.0
    assert preset_config("rebrac", "d4rl-like/hopper-medium-replay").actor_bc == 0.05
    iql = preset_config("iql", own)
    assert iql.normalise_rewards and iql.decay_steps == 10_000
    assert iql.tau == 4 * preset_config("iql", like).tau  # the target average's rate follows
    for name in (
        "bc",
        "td3_bc",
        "iql",
        "rebrac",
        "edac",
        "mopo",
        "mobile",
        "ravl",
        "neubay",
        "pgd",
    ):
        assert default_steps(name, own) == 10_000


def test_neubays_tapes_hold_the_episodes_of_every_local_family() -> None:
    """What is longer than a tape is never learned from."""
    for file in sorted((cards_dir() / "local").glob("*.toml")):
        for task in tomllib.loads(file.read_text())["environments"].values():
            tape = preset_config("neubay", f"{file.stem}/random").learner.tape
            assert tape > task["horizon"], file.stem


@pytest.mark.parametrize("kind", [CollectorConfig, RefitConfig])
def test_all_of_how_experience_is_gathered_can_be_given(kind: type) -> None:
    """By `run ... --collection.NAME`, and for every algorithm."""
    known = {f.name for f in dataclasses.fields(kind)}
    assert known <= {f.name for f in dataclasses.fields(CollectionSettings)}
