"""rLLM's hook: called as rLLM calls it, against what its own estimators gave."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from algorithms.language.adapters import rllm
from mbrl.errors import ConfigError

RECORDED = json.loads((Path(__file__).parent / "others.json").read_text())["rllm"]


def called(name: str, rewards: list[list[float]]) -> list[np.ndarray]:
    assert RECORDED["arguments"] == ["algorithm_config", "rewards", "traj_groups"]
    step = SimpleNamespace(response_ids=[1, 2, 3])
    groups = [
        SimpleNamespace(
            trajectories=[SimpleNamespace(steps=[step] * (1 + i)) for i in range(len(g))]
        )
        for g in rewards
    ]
    arrays = [np.array(group) for group in rewards]
    config: Any = SimpleNamespace()
    found, returns = rllm.estimator(name)(
        rewards=arrays, algorithm_config=config, traj_groups=groups
    )
    assert len(found) == len(returns) == len(rewards)
    return found


@pytest.mark.parametrize(("ours", "theirs"), [("rloo", "rloo"), ("dr_grpo", "grpo")])
def test_it_is_what_rllm_computes(ours: str, theirs: str) -> None:
    for mine, right in zip(called(ours, RECORDED["rewards"]), RECORDED[theirs], strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-6, atol=1e-9)


def test_lengths_are_those_of_the_answers() -> None:
    """OPO's baseline weighs rewards by length: (1 3 + 0 6 + 2 9) / 18."""
    (found,) = called("opo", [[1.0, 0.0, 2.0]])
    np.testing.assert_allclose(found, np.array([1.0, 0.0, 2.0]) - 21 / 18, rtol=1e-6)
    alone = rllm.estimator("opo")([np.array([1.0, 0.0, 2.0])])[0][0]  # lengths not known
    np.testing.assert_allclose(alone, [0.0, -1.0, 1.0], atol=1e-6)


def test_no_groups_and_what_cannot_be() -> None:
    assert rllm.estimator("rloo")([]) == ([], [])
    with pytest.raises(ConfigError, match=r"needs signals.value"):
        rllm.estimator("ppo")([np.ones(2)])
    with pytest.raises(ConfigError, match="'rlo'"):
        rllm.estimator("rlo")
