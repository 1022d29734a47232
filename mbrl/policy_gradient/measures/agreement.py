"""Rewards from answers themselves, without a right one: the majority, agreement with the mean,
likeness among paraphrases. `prompt` [n] says which answers belong together."""

import numpy as np

from mbrl.errors import ConfigError


def majority_reward(answer: np.ndarray, prompt: np.ndarray) -> np.ndarray:
    """[n]: 1 for answers ([n] ids) equal to the commonest of their prompt, else 0; of equally
    common ones the one that came first. Test-time reinforcement learning, as in ETTRL."""
    answer, prompt = aligned(answer, prompt)
    reward = np.zeros(len(answer))
    for rows in members(prompt):
        kinds, first, counts = np.unique(answer[rows], return_index=True, return_counts=True)
        common = counts == counts.max()
        winner = kinds[common][np.argmin(first[common])]
        reward[rows] = answer[rows] == winner
    return reward


def consistency_reward(prediction: np.ndarray, prompt: np.ndarray) -> np.ndarray:
    """[n]: c (1 - mean |y - mean y|) of predictions [n, D] in [0, 1] against their prompt's mean,
    with confidence c = 1 - u / max u, u the prompt's variance and its largest over the prompts (1
    if none varies). After URPA."""
    prediction, prompt = aligned(prediction, prompt)
    if prediction.ndim != 2:
        raise ConfigError(f"predictions are of shape {prediction.shape}; give [answers, numbers]")
    groups = members(prompt)
    variances = np.array([prediction[rows].var(0).mean() for rows in groups])
    largest = variances.max(initial=0.0)
    reward = np.zeros(len(prediction))
    for rows, variance in zip(groups, variances, strict=True):
        apart = np.abs(prediction[rows] - prediction[rows].mean(0)).mean(1)
        confidence = 1 - variance / largest if largest > 0 else 1.0
        reward[rows] = confidence * (1 - apart)
    return reward


def similarity_reward(
    similarity: np.ndarray, paraphrase: np.ndarray, prompt: np.ndarray
) -> np.ndarray:
    """[n]: the mean `similarity` [n, n] of an answer to the answers to other paraphrases of its
    prompt; 0 where there is no other. After PS-GRPO."""
    paraphrase, prompt = aligned(paraphrase, prompt)
    if np.shape(similarity) != (len(prompt), len(prompt)):
        raise ConfigError(
            f"similarity is {np.shape(similarity)} for {len(prompt)} answers; give [n, n]"
        )
    others = (prompt[:, None] == prompt) & (paraphrase[:, None] != paraphrase)
    total = (np.asarray(similarity, dtype=np.float64) * others).sum(1)
    reward: np.ndarray = total / np.maximum(others.sum(1), 1)
    return reward


def members(prompt: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(prompt == i) for i in np.unique(prompt)]


def aligned(values: np.ndarray, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, prompt = np.asarray(values), np.asarray(prompt)
    if prompt.ndim != 1 or values.shape[:1] != prompt.shape:
        raise ConfigError(
            f"{values.shape} values and {prompt.shape} prompts: give one prompt for every answer"
        )
    return values, prompt
