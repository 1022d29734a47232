"""The study of search at sampling time: budgets that are kept, rewards, mistakes, figures."""

from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from experiments.studies import conditional_windows
from experiments.studies import steered_windows as study
from mbrl.errors import ConfigError

pytestmark = pytest.mark.usefixtures("short_episodes")

TINY: dict[str, Any] = study.DEFAULTS | {
    "length": 8,
    "model": {"width": 8, "levels": 2, "updates": 30},
    "conditional": 5,
    "denoising": 4,
    "starts": 3,
    "steps": 40,
    "episodes": 2,
    "config": {"hidden": [8, 8]},
}


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> conditional_windows.ConditionalWindows:
    folder = tmp_path_factory.mktemp("model")
    return conditional_windows.conditional_windows(TINY, 0, folder, TINY["starts"])


@pytest.mark.parametrize("method", sorted(set(study.SEARCHES) - {"policy"}))
@pytest.mark.parametrize("budget", [30, 100])
def test_no_method_takes_more_than_its_budget(
    method: str, budget: int, windows: conditional_windows.ConditionalWindows
) -> None:
    """Up to the end of a path that was begun."""
    plans, taken = study.searched(windows, None, TINY | {"method": method}, budget, 0)
    assert plans.shape == windows.judge.values.shape and plans.isfinite().all()
    assert taken <= budget + TINY["denoising"]
    assert taken > (0.0 if method == "forcing" else 0.8) * budget  # forcing gives tries back
    assert torch.equal(plans[:, 0, :3], windows.judge.values[:, 0, :3])


def test_more_windows_have_a_higher_best(
    windows: conditional_windows.ConditionalWindows,
) -> None:
    """Of the reward that chooses."""
    for reward in ("window", "states", "task"):
        settings = TINY | {"reward": reward}
        worth = [
            float(study.rewards(windows, settings)(plans).mean())
            for plans, _ in (study.searched(windows, None, settings, b, 0) for b in (4, 400))
        ]
        assert worth[1] > worth[0]


def test_a_search_in_the_task_earns_more_than_the_data(
    windows: conditional_windows.ConditionalWindows,
) -> None:
    """Whose actions it could have taken."""
    from algorithms.diffusion_rl import simulated_return

    tokens = windows.generator.tokens
    logged = simulated_return(tokens, windows.judge.values, windows.task).mean()
    assert study.planned(windows, 0) > float(logged)


def test_a_cell_with_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "BUDGETS", (4, 8))
    outcome = study.measure(TINY | {"method": "policy"}, 0, tmp_path / "cell")
    assert outcome.curves["evaluations"] == [4.0, 8.0]
    assert set(outcome.values) == {
        "return", "expected", "error", "evaluations", "planned", "single"
    }  # fmt: skip
    rows = {f"states, {name}": [{"curves": outcome.curves}] * 2 for name in ("best of", "tree")}
    files = study.draw(rows, tmp_path, "")
    assert [f.name for f in files] == ["steered-return.png", "steered-expected.png"]
    assert all(f.exists() for f in files)


def test_mistakes_are_named() -> None:
    assert set(study.SEARCHES) == set(get_args(study.Method))
    with pytest.raises(ConfigError, match="slope"):
        study.check(TINY | {"method": "feynman_kac", "reward": "task"})
    with pytest.raises(ConfigError, match="'best'"):
        study.check(TINY | {"method": "best"})
    with pytest.raises(ConfigError, match="denoising"):
        study.check(TINY | {"denoising": 1})
