"""Which rows are an expert's, and what a batch has of them."""

from typing import Any

import pytest
import torch

from algorithms import ReCOIL
from algorithms.sources.expert_rows import expert_marks
from experiments.settings import build_config
from mbrl.data import from_arrays
from mbrl.errors import ConfigError, DataError
from mbrl.types import Dataset, Transitions


def logged(expert: list[bool] | None = None) -> Dataset:
    """Three episodes of 3, 2 and 4 rows with returns 3, 6 and 6."""
    reward = torch.tensor([1.0, 1, 1, 3, 3, 0, 0, 0, 6])
    ends = torch.tensor([0, 0, 1, 0, 1, 0, 0, 0, 1]).bool()
    obs = torch.arange(9.0)[:, None]
    action = torch.linspace(-1, 1, 9)[:, None]
    return from_arrays(obs, action, reward, next_obs=obs + 1, terminated=ends, expert=expert)


def agent(data: Dataset, **values: Any) -> ReCOIL:
    made = ReCOIL(data.spec, build_config("recoil", {"hidden": [4], "batch_size": 50} | values))
    made.prepare(data, lambda metrics: None)
    return made


def test_best_episodes_or_the_datas_own_marks() -> None:
    data = logged()
    assert torch.nonzero(expert_marks(data.transitions, 1)).flatten().tolist() == [3, 4]
    assert torch.nonzero(expert_marks(data.transitions, 2)).flatten().tolist() == [3, 4, 5, 6, 7, 8]
    assert expert_marks(data.transitions, 9).all()
    own = logged([True, False, False, False, True, False, False, False, False])
    assert torch.nonzero(expert_marks(own.transitions, 2)).flatten().tolist() == [0, 4]


def test_a_batch_is_half_the_experts_and_half_of_all() -> None:
    made = agent(logged(), expert_episodes=1)
    batch = made.source.sample(torch.Generator().manual_seed(0))
    assert batch.obs.shape == (100, 1) and batch.expert is not None
    assert set(batch.obs[:50].flatten().tolist()) == {3, 4} and batch.expert[:50].all()
    seen = batch.obs[50:].flatten()
    assert set(seen.tolist()) == set(range(9))
    assert torch.equal(batch.expert[50:] > 0, (seen == 3) | (seen == 4))


def test_experience_is_no_experts_and_may_push_them_out() -> None:
    made = agent(logged(), expert_episodes=1)
    made.source.collection = type(made.source.collection)(capacity=12, warmup=0)
    rows = logged().transitions
    for row in range(8):
        made.observe(rows.select(slice(row, row + 1)))
        if row == 3:
            batch = made.source.sample(torch.Generator().manual_seed(0))
            assert set(batch.obs[:50].flatten().tolist()) == {3, 4}
    with pytest.raises(DataError, match="none of the rows is an expert's"):
        made.source.sample(torch.Generator().manual_seed(0))


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="set expert_episodes to the number"):
        agent(logged())
    with pytest.raises(DataError, match="expert is False in all 9 rows"):
        agent(logged([False] * 9))
    with pytest.raises(DataError, match="expert"):
        logged([2] * 9)  # type: ignore[list-item]
    values = vars(logged().transitions) | {"expert": torch.ones(1).bool()}
    with pytest.raises(DataError, match="expert has 1 rows, obs has 9"):
        Transitions(**values)
