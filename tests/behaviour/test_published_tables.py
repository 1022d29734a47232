"""The D4RL and NeoRL tables from files in their exact formats to a page with published scores."""

import json
import tomllib

import numpy as np
import pytest

import mbrl.data.readers.published
from algorithms import ALGORITHMS
from experiments.settings import preset, preset_config
from experiments.tables import plan, render, summary, table
from mbrl.data.cards import all_cards, cards_dir, find_tier
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
    for tier in all_cards()[name].tiers:
        for algorithm in ALGORITHMS:
            config = preset_config(algorithm, f"{name}/{tier}")
            assert config is not None
            assert preset(algorithm, f"{name}/{tier}").get("steps", 1_000_000) >= 1_000_000


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
        for data, (mean, spread) in scores.items():
            find_tier(data)
            # SafetyHalfCheetah pays -100 a step beyond its limit: scores far below 0 exist.
            low = -500 if "Safety" in data else -10
            assert low < mean < 200 and 0 <= spread < 250


def test_published_means_are_those_that_the_sources_print() -> None:
    """Averages over the nine sets as CORL prints them below its table."""
    wanted = {"bc": 50.40, "td3_bc": 76.45, "awac": 67.72, "cql": 78.28, "iql": 81.63}
    wanted |= {"sac_n": 83.52, "edac": 92.92, "rebrac": 89.74}
    result = summary.published("corl", "a")
    for algorithm, mean in wanted.items():
        scores = [p.mean for (name, _), p in result.items() if name == algorithm]
        assert len(scores) == 9 and np.mean(scores) == pytest.approx(mean, abs=0.01)
