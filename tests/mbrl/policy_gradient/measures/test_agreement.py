"""Rewards from the answers themselves, against hand-written ones and loops."""

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


def test_consistency_is_confidence_times_likeness_to_the_mean() -> None:
    prediction = np.random.default_rng(0).uniform(size=(7, 2))
    variances = {}
    for p in set(PROMPT):
        rows = [i for i in range(7) if PROMPT[i] == p]
        mean = [sum(prediction[i][d] for i in rows) / len(rows) for d in (0, 1)]
        variances[p] = (
            sum((prediction[i][d] - mean[d]) ** 2 for i in rows for d in (0, 1)) / len(rows) / 2
        )
    reward = consistency_reward(prediction, PROMPT)
    for i in range(7):
        rows = [j for j in range(7) if PROMPT[j] == PROMPT[i]]
        mean = prediction[rows].mean(0)
        likeness = 1 - (abs(prediction[i][0] - mean[0]) + abs(prediction[i][1] - mean[1])) / 2
        confidence = 1 - variances[PROMPT[i]] / max(variances.values())
        assert reward[i] == pytest.approx(confidence * likeness)
    assert consistency_reward(np.full((7, 2), 0.5), PROMPT).tolist() == [1.0] * 7


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
    with pytest.raises(ConfigError, match="answers, numbers"):
        consistency_reward(np.zeros(7), PROMPT)
    with pytest.raises(ConfigError, match="give \\[n, n\\]"):
        similarity_reward(np.zeros((7, 6)), np.zeros(7), PROMPT)
