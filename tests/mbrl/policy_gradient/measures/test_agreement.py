"""Rewards from the answers themselves, against hand-written ones and loops."""

import math
import statistics

import numpy as np
import pytest

from mbrl.errors import ConfigError
from mbrl.policy_gradient.measures.agreement import (
    consistency_reward,
    majority_reward,
    similarity_reward,
)

PROMPT = np.array([7, 7, 7, 7, 2, 2, 5])


def test_the_majority_is_the_commonest_and_of_equals_the_first() -> None:
    answer = np.array([3, 1, 1, 3, 9, 4, 8])
    assert majority_reward(answer, PROMPT).tolist() == [1, 0, 0, 1, 1, 0, 1]
    assert majority_reward(np.array([3, 1, 1, 2, 9, 9, 8]), PROMPT).tolist() == [
        0, 1, 1, 0, 1, 1, 1,
    ]  # fmt: skip


def slow_overlap(a: list[float], b: list[float], cells: int = 1000) -> float:
    """By counting cells."""
    inside = [[x[0] <= (i + 0.5) / cells < x[1] for i in range(cells)] for x in (a, b)]
    both = sum(p and q for p, q in zip(*inside, strict=True))
    return both / sum(p or q for p, q in zip(*inside, strict=True))


def test_consistency_is_confidence_times_overlap_with_the_mean() -> None:
    ends = np.random.default_rng(0).integers(0, 1001, size=(7, 2)) / 1000
    interval = np.sort(ends, axis=1)
    interval[:, 1] = np.maximum(interval[:, 1], interval[:, 0] + 0.02)
    interval[1] = np.nan
    reward, confidence = consistency_reward(interval, PROMPT)
    for i in range(7):
        rows = [j for j in range(7) if PROMPT[j] == PROMPT[i] and j != 1]
        mean = [sum(interval[j][d] for j in rows) / len(rows) for d in (0, 1)]
        u = sum(statistics.pstdev(interval[j][d] for j in rows) for d in (0, 1))
        c = math.exp(-u)
        wanted = 0.0 if i == 1 else 0.5 * c * slow_overlap(list(interval[i]), mean) + 0.5
        assert reward[i] == pytest.approx(wanted, abs=5e-3)
        assert confidence[sorted(set(PROMPT)).index(PROMPT[i])] == pytest.approx(c)
    same, sure = consistency_reward(np.full((7, 2), [0.2, 0.6]), PROMPT)
    assert same.tolist() == [1.0] * 7 and sure.tolist() == [1.0] * 3
    _, torn = consistency_reward(
        np.array([[0.0, 0.1], [0.9, 1.0]] * 2 + [[0, 1]] * 3, dtype=float), PROMPT
    )
    assert torn[2] == pytest.approx(math.exp(-0.9))  # two clusters
    nothing, none = consistency_reward(np.full((7, 2), np.nan), PROMPT)
    assert nothing.tolist() == [0.0] * 7 and none.tolist() == [0.0] * 3


def test_similarity_is_over_other_paraphrases_of_the_prompt() -> None:
    similarity = np.random.default_rng(1).uniform(size=(7, 7))
    paraphrase = np.array([0, 0, 1, 2, 0, 0, 0])
    reward = similarity_reward(similarity, paraphrase, PROMPT)
    for i in range(7):
        others = [
            similarity[i, j]
            for j in range(7)
            if PROMPT[i] == PROMPT[j] and paraphrase[i] != paraphrase[j]
        ]
        assert reward[i] == pytest.approx(sum(others) / len(others) if others else 0.0)


def test_shapes_must_agree() -> None:
    with pytest.raises(ConfigError, match="one prompt for every answer"):
        majority_reward(np.zeros(3), PROMPT)
    with pytest.raises(ConfigError, match=r"answers, 2"):
        consistency_reward(np.zeros(7), PROMPT)
    with pytest.raises(ConfigError, match="give \\[n, n\\]"):
        similarity_reward(np.zeros((7, 6)), np.zeros(7), PROMPT)
