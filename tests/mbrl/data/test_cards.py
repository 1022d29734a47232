"""Cards: each one parses and is complete; the folder is found in a checkout and in a wheel."""

import shutil
from pathlib import Path

import pytest

import mbrl.data.cards
from mbrl.data.cards import LOCAL_TIERS, all_cards, cards_dir, find_card, find_tier, read_card
from mbrl.errors import ConfigError
from mbrl.tasks import TASKS, make


def test_every_card_is_complete():
    for card in all_cards().values():
        assert card.licence and card.about and card.recipe_version >= 1
        for tier in card.tiers.values():
            environment = card.environment(tier)
            assert environment.task_reason and environment.reference_origin
            assert card.spec(tier).obs_dim == environment.obs_dim
            assert card.kind in ("local", "minari") or tier.file or tier.policies
            for part in tier.parts:
                assert card.tier(part).missing is None


def test_local_families_list_every_tier_with_a_reason_where_there_is_none():
    local = [card for card in all_cards().values() if card.kind == "local"]
    assert len(local) == 16
    for card in local:
        with_goals = any(e.goal for e in card.environments.values())
        assert with_goals or tuple(card.tiers) == LOCAL_TIERS
        for tier in card.tiers.values():
            assert tier.missing or tier.about
    assert find_card("invertedpendulum").tier("medium").missing
    assert "never reaches the goal" in find_card("mountaincarcontinuous").tier("random").about


def test_d4rl_card_states_addresses_scores_and_the_task_of_evaluation():
    card, tier = find_tier("d4rl/hopper-medium-replay-v2")
    assert tier.file == "gym_mujoco_v2/hopper_medium_replay-v2.hdf5"
    assert tier.size == 75_854_457
    assert card.environment(tier).task == "Hopper-v4"
    assert card.spec(tier).score(3234.3) == pytest.approx(100.0)
    assert card.licence == "CC-BY-4.0"
    names = (
        "walker2d-medium-replay-v0", "ant-expert-v2", "pen-human-v1", "pen-cloned-v0",
        "maze2d-umaze-v1", "antmaze-large-diverse-v2", "kitchen-mixed-v0",
    )  # fmt: skip
    assert all(card.tier(name).file for name in names)
    assert card.tier("walker2d-medium-replay-v0").file == "gym_mujoco/walker_mixed.hdf5"


def test_neorl_card_has_the_published_checksums():
    card, tier = find_tier("neorl/hopper-low")
    found = card.checksum(tier, "Hopper-v3/Hopper-v3-low-100-train-noise.npz")
    assert found is not None and (found.kind, len(found.value)) == ("md5", 32)
    assert card.spec(tier).obs_dim == 12  # the position is part of the observation


def test_unknown_names_are_answered_with_near_ones():
    with pytest.raises(ConfigError, match="hopper-medium-v2"):
        find_tier("d4rl/hopper-medum-v2")
    with pytest.raises(ConfigError, match="pendulum"):
        find_tier("pendulm/medium")
    with pytest.raises(ConfigError, match="pendulum/medium"):
        find_tier("pendulum")


@pytest.mark.parametrize(
    "text",
    [
        "family = ",
        'family = "x"',
        '[environments.a]\nobs_dim = 1\naction_low = 1\naction_high = -1\nfamily = "x"',
        "[environments.a]\nobs_dim = 3\nunknown_entry = 1",
        "[environments.a]\nobs_dim = 3\naction_low = -1\naction_high = 1\n"
        "reference_returns = [2, 1]",
        "[environments.a]\nobs_dim = 3\naction_low = -1\naction_high = 1\n"
        '[tiers.t]\nenvironment = "b"',
    ],
)
def test_a_wrong_card_is_a_config_error_that_names_the_file(tmp_path, text):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"x\.toml"):
        read_card(path)


def test_the_packaged_folder_is_used_before_a_neighbour_called_datasets(tmp_path, monkeypatch):
    """In site-packages `datasets` may be another distribution's."""
    package = tmp_path / "site" / "mbrl"
    package.mkdir(parents=True)
    foreign = tmp_path / "site" / "datasets"
    foreign.mkdir()
    (foreign / "__init__.py").write_text("")
    monkeypatch.setattr(mbrl.data.cards, "__file__", str(package / "data" / "cards.py"))
    with pytest.raises(ConfigError, match="no dataset cards"):
        cards_dir()
    source = Path(__file__).resolve().parents[3] / "datasets"
    shutil.copytree(source, package / "_cards")
    assert cards_dir() == package / "_cards"


def test_datasets_is_not_an_importable_package():
    folder = Path(__file__).resolve().parents[3] / "datasets"
    assert not list(folder.rglob("*.py"))


def test_cards_agree_with_the_tasks_they_name():
    for card in all_cards().values():
        for environment in card.environments.values():
            if environment.task not in TASKS or environment.task_options:
                continue
            built, said = make(environment.task).spec, environment.spec()
            names = ("obs_dim", "action_dim", "num_actions", "action_low", "action_high")
            for name in (*names, "goal", "achieved"):
                assert getattr(built, name) == getattr(said, name), (card.family, name)
            assert built.max_episode_steps == said.max_episode_steps
            if card.kind == "local":
                assert built.reference_returns == said.reference_returns, card.family
