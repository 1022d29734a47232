"""Tiers that are recorded from published agents by the recipe in a card."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from experiments.recording.collect import Collect, collect, update_card
from mbrl.data import load
from mbrl.data.cards import all_cards, find_card, find_tier, read_card
from mbrl.errors import ConfigError, DataError, MissingDataError
from mbrl.tasks import make

QUIET = Console(quiet=True)
REAL = Path(os.environ.get("LONGREACH_DATA", ""))  # before the fixture empties it
FAMILY = find_card("d4rl-like")
MADE = [name for name in FAMILY.tiers if (REAL / "d4rl-like" / f"{name}.npz").is_file()]


def agents(folder: Path) -> Path:
    """A linear agent in the place of each published one of Hopper."""
    folder.mkdir()
    meta = json.dumps({"algorithm": "ars", "policy_kwargs": {}})
    rng = np.random.default_rng(0)
    for name in ("sac", "a2c", "trpo"):
        weight = rng.normal(size=(3, 11)).astype(np.float32)
        np.savez(folder / f"{name}-Hopper-v3.npz", meta=meta, **{"action_net.weight": weight})
    return folder


def test_the_same_command_makes_the_same_bytes(tmp_path: Path) -> None:
    source, tier = agents(tmp_path / "agents"), "hopper-medium-expert"

    def made(seed: int, out: str) -> bytes:
        command = Collect("d4rl-like", (tier,), 200, seed, tmp_path / out, agents=source)
        (path,) = collect(command, QUIET)
        return path.read_bytes()

    first = made(0, "a")
    assert made(0, "b") == first and made(1, "c") != first


def test_medium_expert_is_half_of_each(tmp_path: Path) -> None:
    """The first episodes of medium, then those of expert: a policy's rows do not depend on the tier
    that they are for."""
    source = agents(tmp_path / "agents")
    tiers = ("hopper-medium", "hopper-expert", "hopper-medium-expert")
    for tier, steps in zip(tiers, (100, 100, 200), strict=True):
        collect(Collect("d4rl-like", (tier,), steps, agents=source), QUIET)
    medium, expert, both = (load(f"d4rl-like/{tier}").transitions for tier in tiers)
    assert torch.equal(both.obs, torch.cat([medium.obs, expert.obs]))
    assert torch.equal(both.action, torch.cat([medium.action, expert.action]))


def test_the_loaded_rows_obey_the_task_and_say_how_they_were_made(tmp_path: Path) -> None:
    source = agents(tmp_path / "agents")
    collect(Collect("d4rl-like", ("hopper-medium-replay",), 300, agents=source), QUIET)
    data = load("d4rl-like/hopper-medium-replay")
    assert data.provenance.recipe == (
        "python -m experiments collect d4rl-like --tiers hopper-medium-replay --steps 300 --seed 0"
    )
    assert data.spec.task == "Hopper-v4" and data.spec.reference_returns == (-20.272305, 3234.3)
    task = make("Hopper-v4", dtype=torch.float64)
    state, possible = task.state_from_obs(data.transitions.obs.double())
    step = task.step(state, data.transitions.action.double())
    torch.testing.assert_close(
        step.obs[possible], data.transitions.next_obs[possible].double(), rtol=2e-5, atol=2e-5
    )


def test_shares_of_a_tier_follow_the_card() -> None:
    for tier in FAMILY.tiers.values():
        assert sum(policy.rows for policy in tier.policies) == 200_000
        assert tier.resembles is not None and find_tier(tier.resembles)
        half = {policy.rows for policy in tier.policies} == {100_000}
        assert half == tier.name.endswith("medium-expert")


@pytest.mark.parametrize(
    ("command", "error", "text"),
    [
        (Collect("d4rl-like", ("hopper-medium",)), MissingDataError, "where they are with --ag"),
        (Collect("d4rl-like", ("hopper-medum",)), ConfigError, "did you mean 'hopper-medium"),
        (Collect("d4rl-like", ship=True), ConfigError, "--ship is for families whose policies"),
        (Collect("d4rl-like", with_state=True), ConfigError, "--with-state is for families"),
        (Collect("pendulum", note=True), ConfigError, "--agents and --note are for published"),
        (Collect("Pendulum-v1", note=True), ConfigError, "--note is for the families"),
    ],
)  # fmt: skip
def test_errors_name_the_fix(command: Collect, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        collect(command, QUIET)


def test_a_tier_that_is_not_here_names_the_command() -> None:
    with pytest.raises(DataError, match=r"experiments collect d4rl-like --tiers hopper-medium"):
        load("d4rl-like/hopper-medium")


def test_a_card_keeps_its_recipe_when_it_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "d4rl-like.toml"
    shutil.copy(FAMILY.path, path)
    before = read_card(path)
    file = tmp_path / "file.npz"
    file.write_bytes(b"content")
    update_card(path, before.tier("hopper-medium-replay"), 7, "1 episodes", file)
    after = read_card(path)
    changed = after.tier("hopper-medium-replay")
    assert changed.steps == 7 and changed.about.endswith("; recorded: 1 episodes")
    for name in ("policies", "environment", "resembles"):
        assert getattr(changed, name) == getattr(before.tier("hopper-medium-replay"), name)
    assert after.tier("hopper-medium") == before.tier("hopper-medium")


def test_recorded_families_are_not_taken_for_published_ones() -> None:
    card = all_cards()["d4rl-like"]
    assert "Not D4RL's datasets" in card.about and not card.sources


@pytest.mark.skipif(not MADE, reason="needs the recorded tiers in LONGREACH_DATA")
@pytest.mark.parametrize("name", MADE or ["none"])
def test_recorded_tiers_agree_with_their_card(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGREACH_DATA", str(REAL))
    data, tier = load(f"d4rl-like/{name}"), FAMILY.tier(name)
    returns = data.transitions.returns()
    assert len(data) == tier.steps
    noted = re.search(r"recorded: (\d+) episodes, mean return (\S+), score (\S+)$", tier.about)
    assert noted is not None and int(noted[1]) == len(returns)
    assert float(noted[3]) == pytest.approx(float(data.spec.score(returns).mean()), abs=0.06)
    low, high = {
        "medium": (25, 60), "medium-replay": (5, 45),
        "medium-expert": (40, 95), "expert": (85, 125),
    }[name.partition("-")[2]]  # fmt: skip
    assert low <= float(noted[3]) <= high


def test_every_recipe_names_a_task_that_its_policies_fit() -> None:
    """Rows, agents' folder and task of each recorded tier of every card."""
    recorded = [c for c in all_cards().values() if any(t.policies for t in c.tiers.values())]
    assert {card.family for card in recorded} == {"d4rl-like", "adroit"}
    for card in recorded:
        assert card.agents
        for tier in card.tiers.values():
            assert bool(tier.policies) != bool(tier.file)
            assert card.environment(tier).task and tier.resembles


def test_published_files_are_not_recorded() -> None:
    with pytest.raises(DataError, match="is a published file, door-human"):
        collect(Collect("adroit", ("door-human",)), QUIET)
