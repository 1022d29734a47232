"""Recording local datasets, and the files that are shipped."""

import dataclasses
import hashlib
import re
import shutil

import numpy as np
import pytest
import torch
from rich.console import Console

from experiments.cli.collect import main as collect_main
from experiments.recording.collect import RECIPES, Collect, collect, update_card
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
        if recipe.kinds is not None:  # of data, instead of tiers
            continue
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


# --- the shipped files ---------------------------------------------------------------------------


def test_the_shipped_files_are_small():
    files = [*LOCAL.glob("*/*.npz")]
    assert sum(path.stat().st_size for path in files) <= 13_500_000
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
    data, environment = load(name), TIERS[name].environment
    score = float(data.spec.score(data.transitions.returns()).mean())
    low, high = {
        "random": (-5, 5), "medium": (25, 60), "medium-replay": (2, 75), "expert": (80, 110),
        "narrow": (80, 110), "navigate": (80, 110), "stitch": (80, 110), "explore": (0, 30),
        "play": (0, 30),
    }[name.split("/")[1].removeprefix(f"{environment}-")]  # fmt: skip
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
