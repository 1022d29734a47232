"""The D4RL and NeoRL tables from files in their exact formats to a page with published scores."""

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest

import mbrl.data.readers.published
from algorithms import ALGORITHMS
from experiments.settings import build_config, preset, preset_config
from experiments.tables import plan, render, summary, table
from mbrl.data.cards import all_cards, cards_dir, find_tier
from mbrl.tasks.mujoco import MUJOCO_TASKS
from tests.experiments.tables.small_table import Here
from tests.mbrl.data.readers.test_published import (
    d4rl_arrays,
    hopper,
    neorl_arrays,
    short_limit,
    write_npz,
)

TABLE = """
title = "Small copy"
seeds = [0]
steps = 9
fqe_steps = 5
datasets = ["d4rl/hopper-medium-v2", "neorl/hopper-low", "d4rl/walker2d-medium-v2"]
published = ["corl"]

[[columns]]
algorithm = "edac"
config.learner = { hidden = [8], critics = 3 }

[[columns]]
algorithm = "mopo"
config.learner.hidden = [8]
config.model = { hidden = [8], weight_decay = [1e-5], min_epochs = 1, max_epochs = 2, members = 2, elites = 2 }
config.imagination.starts = 16
"""  # noqa: E501


def test_the_whole_path_on_files_in_the_published_formats(tmp_path, monkeypatch) -> None:
    for task in ("Hopper-v4", "Hopper-v5"):  # of 100 episodes each
        short = replace(MUJOCO_TASKS[task], max_episode_steps=10)
        monkeypatch.setitem(MUJOCO_TASKS, task, short)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(mbrl.data.readers.published, "checksum_findings", lambda *a, **k: ())
    short_limit(monkeypatch, "neorl", "hopper", 6)
    hopper(tmp_path, d4rl_arrays())
    neorl = tmp_path / "data/neorl/Hopper-v3/Hopper-v3-low-1000-train-noise.npz"
    write_npz(neorl, neorl_arrays())
    (tmp_path / "copy.toml").write_text(TABLE)
    copy, home = plan.load(str(tmp_path / "copy.toml")), tmp_path / "records"
    table.finish(copy, home, tmp_path / "runs", Here(), table.all_cells(copy))

    record = json.loads((home / "mopo/d4rl-hopper-medium-v2/0.json").read_text())
    tier = find_tier("d4rl/hopper-medium-v2")[1]
    low, high = record["reference_returns"]
    assert (low, high) == pytest.approx((-20.272305, 3234.3))  # D4RL's own reference returns
    assert record["task"] == "Hopper-v5" or record["task"].startswith("Hopper")
    assert record["key"]["config"]["imagination"]["rollout"]["penalty_weight"] == 5.0
    assert len(record["last_returns"]) == 100 and tier is not None

    fingerprints, missing = table.fingerprints(table.all_cells(copy))
    result = summary.collect(copy, home, fingerprints, missing)
    page = render.markdown(result)
    entry = result.blocks[0].entries["d4rl/hopper-medium-v2", "edac"]
    score = 100 * (np.mean(record_of(home, "edac")["last_returns"]) - low) / (high - low)
    assert entry.last == [pytest.approx(score, abs=1e-3)]
    assert f"| d4rl/hopper-medium-v2 | {entry.last[0]:.1f} [101.7 ± 0.3 a] |" in page
    assert "| d4rl/walker2d-medium-v2 | no data [93.4 ± 1.4 a] | no data |" in page
    assert "data fetch d4rl/walker2d-medium-v2" in page and "a: CORL" in page


def record_of(home, algorithm: str) -> dict:
    return json.loads((home / algorithm / "d4rl-hopper-medium-v2/0.json").read_text())


@pytest.mark.parametrize("name", ["d4rl", "neorl"])
def test_every_algorithm_and_dataset_has_a_preset_that_builds(name: str) -> None:
    built = set()
    for tier in all_cards()[name].tiers:
        for algorithm in ALGORITHMS:
            values = preset(algorithm, f"{name}/{tier}")
            assert values.get("steps", 1_000_000) >= 1_000_000
            text = algorithm + json.dumps(values["config"], sort_keys=True)
            if text not in built:  # most are those of other tiers
                built.add(text)
                assert build_config(algorithm, values["config"]) is not None
    assert len(built) >= len(ALGORITHMS)


def test_presets_are_the_published_ones() -> None:
    """Spot checks against the sources that the preset files name."""
    edac = preset_config("edac", "d4rl/hopper-medium-v2").learner
    assert (edac.critics, edac.eta) == (50, 1.0)
    assert preset_config("edac", "d4rl/walker2d-medium-expert-v2").learner.eta == 5.0
    assert preset_config("sac_n", "d4rl/hopper-medium-v2").learner.critics == 500
    mopo = preset_config("mopo", "d4rl/walker2d-medium-replay-v2").imagination.rollout
    assert (mopo.horizon, mopo.penalty_weight) == (1, 2.5)
    rebrac = preset_config("rebrac", "d4rl/hopper-medium-replay-v2")
    assert (rebrac.actor_bc, rebrac.critic_bc) == (0.05, 0.5)
    assert preset_config("cql", "d4rl/hopper-medium-v2").weight == 10.0


@pytest.mark.parametrize("file", sorted((cards_dir() / "published").glob("*.toml")), ids=str)
def test_published_scores_name_their_source(file) -> None:
    values = tomllib.loads(file.read_text())
    assert values["source"]
    assert values["mark"] in (
        "read in the repository", "computed from the run files", "secondary",
    )  # fmt: skip
    for scores in values["scores"].values():
        for data, score in scores.items():
            mean, spread = score if isinstance(score, list) else (score, 0.0)
            find_tier(data)
            # SafetyHalfCheetah pays -100 a step beyond its limit: scores far below 0 exist.
            low = -500 if "Safety" in data else -10
            assert low < mean < 220 and 0 <= spread < 250


@pytest.mark.parametrize(
    ("kind", "count", "wanted"),
    [
        ("-v2", 9, (50.40, 76.45, 67.72, 78.28, 81.63, 89.74, 83.52, 92.92)),
        ("maze2d", 3, (1.13, 61.99, 114.89, 33.65, 46.23, 96.77, 141.32, 82.64)),
        ("antmaze", 6, (17.21, 19.33, 19.29, 50.71, 57.17, 78.42, 0.0, 0.0)),
        ("-v1", 12, (48.18, 10.40, 56.75, 1.53, 53.43, 59.39, 12.43, 18.78)),
    ],
)
def test_published_means_are_those_that_the_source_prints(kind, count, wanted) -> None:
    """Averages over the sets of each kind as CORL prints them below its tables (Adroit's -v1)."""
    result = summary.published("corl", "a")
    mazes = ("maze2d", "antmaze")
    names = ("bc", "td3_bc", "awac", "cql", "iql", "rebrac", "sac_n", "edac")
    for algorithm, mean in zip(names, wanted, strict=True):
        scores = [
            p.mean
            for (name, data), p in result.items()
            if name == algorithm
            and (data.startswith(f"d4rl/{kind}") if kind in mazes else data.endswith(kind))
            and (kind in mazes or not data.startswith(("d4rl/maze2d", "d4rl/antmaze")))
        ]
        assert len(scores) == count and np.mean(scores) == pytest.approx(mean, abs=0.01)


def test_scores_beside_adroits_sources_are_those_of_d4rls_own_sets() -> None:
    theirs, ours = (summary.published(name, "a") for name in ("corl", "corl-adroit"))
    for (algorithm, data), score in ours.items():
        own = theirs[algorithm, f"{data.replace('adroit/', 'd4rl/')}-v1"]
        assert (score.mean, score.spread) == (own.mean, own.spread)
