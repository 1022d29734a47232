"""Ids of equal, similar and historically equal steps, by hand."""

import numpy as np
import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.policy_gradient.groups import numbered
from mbrl.policy_gradient.measures.group_ids import equal_ids, history_ids, similar_ids


def same(ids: np.ndarray) -> np.ndarray:
    return ids[:, None] == ids


def test_equal_observations_of_one_prompt_share_an_id() -> None:
    obs = np.array([[0, 1], [0, 2], [0, 1], [0, 1], [0, 2]], dtype=float)
    prompt = np.array([0, 0, 0, 1, 0])
    expected = (prompt[:, None] == prompt) & (obs[:, None] == obs).all(2)
    ids = equal_ids(obs, prompt)
    np.testing.assert_array_equal(same(ids), expected)
    assert set(ids) == set(range(3))


def test_similar_steps_join_the_first_head_that_is_near() -> None:
    place = np.array([0.0, 0.04, 0.08, 0.5, 0.0])
    similarity = 1 - np.abs(place[:, None] - place)
    # The third is near the second, which is no head, and not near the first.
    assert similar_ids(similarity, np.array([0, 0, 0, 0, 1])).tolist() == [0, 0, 1, 2, 3]
    with pytest.raises(ConfigError, match="give \\[n, n\\]"):
        similar_ids(similarity[:, :2], np.zeros(5))


def test_histories_nest() -> None:
    generator = np.random.default_rng(0)
    sequence, prompt = np.repeat(np.arange(8), 5), np.repeat(np.arange(2), 20)
    state = generator.integers(0, 2, 40)
    groups = [same(history_ids(state, sequence, prompt, k)) for k in (1, 2, 3)]
    for finer, coarser in zip(groups[1:], groups[:-1], strict=True):
        assert (finer <= coarser).all()
    np.testing.assert_array_equal(groups[0], same(equal_ids(state[:, None], prompt)))
    for i in range(40):
        for j in range(40):
            a, b = (tuple(state[max(x - 2, 5 * (x // 5)) : x + 1].tolist()) for x in (i, j))
            assert groups[2][i, j] == (a == b and prompt[i] == prompt[j])
    with pytest.raises(ConfigError, match="at least"):
        history_ids(state, sequence, prompt, 0)


def test_groups_are_numbered_without_gaps() -> None:
    ids = torch.randint(0, 1000, (6, 7), generator=torch.Generator().manual_seed(0))
    assert torch.equal(numbered(ids), torch.unique(ids, return_inverse=True)[1])
