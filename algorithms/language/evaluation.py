"""How good a language model is at a task: accuracy by difficulty, pass@k, cons@k."""

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import torch

from algorithms.language.measures.answers import meanings
from algorithms.language.sampling.rollouts import Rollouts, roll_out
from algorithms.language.sampling.tokens import Sampling
from algorithms.language.tasks.base import TextTask
from mbrl.errors import ConfigError

SEED = 20_000_033  # by which held-out problems are drawn


@dataclass(frozen=True)
class Score:
    """Of problems of one difficulty: the share of solved answers (`accuracy`; its standard error
    over different problems, `error`, is None where there is one alone), of problems that one of k
    answers solves (`passes[k]`), of those that the commonest of k answers solves (`agrees[k]`; none
    where there are several turns), and the mean number of tokens of an answer."""

    level: int
    problems: int
    accuracy: float
    error: float | None
    passes: dict[int, float]
    agrees: dict[int, float]
    length: float


def evaluate(
    model: Any,
    codec: Any,
    task: TextTask,
    levels: Sequence[int],
    *,
    problems: int = 200,
    samples: int = 1,
    sampling: Sampling | None = None,
    seed: int = SEED,
    turn_tokens: int | None = None,
    max_turns: int | None = None,
    rows_at_once: int = 512,
) -> list[Score]:
    """`samples` answers to each of `problems` problems of every level, drawn with `seed` from those
    that are held out from training (`Problem.held_out`), of which a level with few has some more
    than once. Conversations that are not over after `max_turns` turns (None: the task's) are not
    solved. Deterministic; draws from no generator of the caller's. Raises `ConfigError` for
    counts below 1."""
    scores = []
    for level in levels:
        parts = answers(
            model,
            codec,
            task,
            level,
            problems=problems,
            samples=samples,
            sampling=sampling,
            seed=seed,
            turn_tokens=turn_tokens,
            max_turns=max_turns,
            rows_at_once=rows_at_once,
        )
        scores.append(score(level, parts, samples, task.max_turns == 1))
    return scores


def answers(
    model: Any,
    codec: Any,
    task: TextTask,
    level: int,
    *,
    problems: int,
    samples: int = 1,
    sampling: Sampling | None = None,
    seed: int = SEED,
    turn_tokens: int | None = None,
    max_turns: int | None = None,
    rows_at_once: int = 512,
) -> list[Rollouts]:
    """The conversations that `evaluate` scores on one level, in groups of `samples` that stand in
    the order of the problems; the same problems for every model. Raises as `evaluate` does."""
    if problems < 1 or samples < 1:
        raise ConfigError(f"problems is {problems} and samples {samples}; both are at least 1")
    device = next(model.parameters()).device
    drawn = [
        task.problem(level, random.Random(f"held out {seed} {level} {i}"), held_out=True)
        for i in range(problems)
    ]
    generator = torch.Generator(device=device).manual_seed(seed + level)
    at_once = max(1, rows_at_once // samples)
    return [
        roll_out(
            model,
            codec,
            task,
            drawn[i : i + at_once],
            sampling or Sampling(),
            generator,
            group=samples,
            turn_tokens=turn_tokens,
            max_turns=max_turns,
        )
        for i in range(0, problems, at_once)
    ]


def solved(parts: Sequence[Rollouts], samples: int) -> np.ndarray:
    """[problems, samples] bool: which answers of `answers` are right."""
    return np.concatenate([p.success.numpy() for p in parts]).reshape(-1, samples)


def score(level: int, parts: Sequence[Rollouts], samples: int, votes: bool) -> Score:
    """The scores of rollouts in groups of `samples`."""
    right = solved(parts, samples)
    lengths = np.concatenate([p.data.lengths.cpu().numpy() for p in parts])
    said = [answer for p in parts for answer in meanings(p)]
    rates = right.mean(1)
    counts = [k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256) if k <= samples]
    agrees = {}
    if votes:
        groups = [said[i : i + samples] for i in range(0, len(said), samples)]
        for k in counts:
            agrees[k] = float(
                np.mean([cons_at(k, a, r) for a, r in zip(groups, right.tolist(), strict=True)])
            )
    return Score(
        level,
        len(right),
        float(rates.mean()),
        standard_error(rates, [p.asked for part in parts for p in part.problems][::samples]),
        {k: float(np.mean([pass_at(k, samples, int(r.sum())) for r in right])) for k in counts},
        agrees,
        float(lengths.mean()),
    )


def standard_error(rates: np.ndarray, asked: Sequence[str]) -> float | None:
    """Of the mean of `rates` [problems], where those of problems that were `asked` more than once
    (`Problem.asked`) are no new evidence: the clustered one of "Adding Error Bars to Evals", arXiv
    2411.00640, whose variance is here times G / (G - 1) for G different problems, so that it is
    the usual one where all differ. None where there is one alone, of which nobody can say."""
    numbers = {text: i for i, text in enumerate(dict.fromkeys(asked))}
    if len(numbers) < 2:
        return None
    sums = np.bincount([numbers[text] for text in asked], rates - rates.mean())
    variance = len(sums) / (len(sums) - 1) * np.square(sums).sum()
    return float(np.sqrt(variance) / len(rates))


def with_error(accuracy: float, error: float | None) -> str:
    """An accuracy as people read it: "0.330 ± 0.018"."""
    return f"{accuracy:.3f} ± {'unknown' if error is None else f'{error:.3f}'}"


def pass_at(k: int, samples: int, right: int) -> float:
    """The share of the subsets of k of `samples` answers that hold one of the `right` ones:
    "Evaluating Large Language Models Trained on Code", arXiv 2107.03374, equation 1."""
    return 1.0 - comb(samples - right, k) / comb(samples, k)


def cons_at(k: int, answers: Sequence[Hashable], right: Sequence[bool]) -> float:
    """The share of disjoint runs of k `answers` whose commonest answer is right; of equally common
    ones each counts for its part, and so does each that has it where some that do are not right
    (they mean the same, but one is not in the form that is asked for)."""
    runs = [range(i, i + k) for i in range(0, len(answers) - k + 1, k)]
    total = 0.0
    for run in runs:
        votes = Counter(answers[i] for i in run)
        most = max(votes.values())
        winners = [a for a, n in votes.items() if n == most]
        shares = [np.mean([right[i] for i in run if answers[i] == a]) for a in winners]
        total += float(np.mean(shares))
    return total / len(runs)
