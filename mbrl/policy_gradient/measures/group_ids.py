"""Which steps are compared: ids for `groups` from observations, alike, nearly alike, or with alike
histories. Of steps as flat rows [n], each with its `prompt` [n]."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mbrl.errors import ConfigError

BUNDLE = 5  # questions of a bundle, about


class Bundled(NamedTuple):
    """Of every sequence its bundle's id and its paper's within it; the papers' scores [P]."""

    bundle: list[int]
    paper: list[int]
    scores: np.ndarray


def bundled(prompt: Sequence[int], earned: Sequence[float]) -> Bundled:
    """Bundles of about five neighbouring prompts, as evenly as it goes. The paper i of a bundle is
    the i-th sequence of each of its prompts, its score the sum of what these have `earned`. RiskPO,
    arXiv 2510.00911. `prompt` holds numbers from 0 on."""
    count = max(prompt) + 1
    bundles = max(1, round(count / BUNDLE))
    bundle = [question * bundles // count for question in prompt]
    seen: dict[int, int] = {}
    paper, scores = [], dict[tuple[int, int], float]()
    for question, own, reward in zip(prompt, bundle, earned, strict=True):
        paper.append(seen.get(question, 0))
        seen[question] = paper[-1] + 1
        scores[own, paper[-1]] = scores.get((own, paper[-1]), 0.0) + reward
    return Bundled(bundle, paper, np.array(list(scores.values())))


def equal_ids(obs: np.ndarray, prompt: np.ndarray) -> np.ndarray:
    """[n] ids from 0: steps of one prompt with equal observations [n, ...] share one. The anchor
    states of GiGPO, arXiv 2505.10978."""
    rows = np.column_stack([np.asarray(prompt), np.reshape(obs, (len(prompt), -1))])
    ids: np.ndarray = np.unique(rows, axis=0, return_inverse=True)[1]
    return ids.reshape(-1)


def similar_ids(similarity: np.ndarray, prompt: np.ndarray, least: float = 0.95) -> np.ndarray:
    """[n] ids from 0: a step joins the first group of its prompt to whose first step it has at
    least the `similarity` [n, n] `least`, or begins one. GiGPO's variant for texts."""
    if np.shape(similarity) != (len(prompt), len(prompt)):
        raise ConfigError(
            f"similarity is {np.shape(similarity)} for {len(prompt)} steps; give [n, n]"
        )
    ids = np.zeros(len(prompt), dtype=np.int64)
    heads: list[int] = []
    for i in range(len(prompt)):
        near = [
            k for k, j in enumerate(heads) if prompt[i] == prompt[j] and similarity[i, j] >= least
        ]
        ids[i] = near[0] if near else len(heads)
        if not near:
            heads.append(i)
    return ids


def history_ids(state: np.ndarray, sequence: np.ndarray, prompt: np.ndarray, k: int) -> np.ndarray:
    """[n] ids from 0: steps of one prompt share one if their last `k` states are equal, this one
    among them; near a sequence's begin, all that there are. `state` [n] int, `sequence` [n], steps
    of one in their order. The nested groups of HGPO."""
    if k < 1:
        raise ConfigError(f"k = {k}: a history holds at least the state itself")
    seen: dict[int, list[int]] = {}
    keys: dict[tuple[int, ...], int] = {}
    ids = np.zeros(len(state), dtype=np.int64)
    for i, (s, row, p) in enumerate(zip(state, sequence, prompt, strict=True)):
        past = seen.setdefault(int(row), [])
        past.append(int(s))
        ids[i] = keys.setdefault((int(p), *past[-k:]), len(keys))
    return ids
