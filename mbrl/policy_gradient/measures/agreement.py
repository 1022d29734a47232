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


def consistency_reward(interval: np.ndarray, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[n] in [0, 1]: (c IoU(y, mean y) + 1) / 2 of predictions `interval` [n, 2], from and up to in
    [0, 1], against the mean of their prompt's, 0 for those that are NaN, which count in no mean;
    and of every prompt its confidence c = e^-u, u the sum of both ends' deviations (0 where no
    answer is an interval). After URPA, arXiv 2508.06317."""
    interval, prompt = aligned(interval, prompt)
    if interval.ndim != 2 or interval.shape[1] != 2:
        raise ConfigError(f"intervals are of shape {interval.shape}; give [answers, 2]")
    reward, confidences = np.zeros(len(interval)), []
    for rows in members(prompt):
        given = rows[~np.isnan(interval[rows]).any(1)]
        if not len(given):
            confidences.append(0.0)
            continue
        confidences.append(float(np.exp(-interval[given].std(0).sum())))
        overlap = interval_overlap(interval[given], interval[given].mean(0))
        reward[given] = (confidences[-1] * overlap + 1) / 2
    return reward, np.array(confidences)


def interval_overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[...]: the common part of intervals `a` [..., 2] and `b` [..., 2] over what they cover
    together; 0 where that is nothing."""
    low, high = np.maximum(a[..., 0], b[..., 0]), np.minimum(a[..., 1], b[..., 1])
    common = np.maximum(high - low, 0.0)
    whole = (a[..., 1] - a[..., 0]) + (b[..., 1] - b[..., 0]) - common
    overlap: np.ndarray = np.where(whole > 0, common / np.where(whole > 0, whole, 1.0), 0.0)
    return overlap


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
