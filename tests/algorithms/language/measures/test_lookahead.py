"""Trees of answers: where they branch and which branches stay, on models written by hand."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.language.measures import lookahead
from algorithms.language.measures.lookahead import LookaheadTrees, Sprout, edits, given_up
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import (
    continued,
    kept_rows,
    learner,
    lenient,
    log_probs,
    part_of,
    rounds,
)

END, A, B, C, D = 3, 14, 15, 16, 17  # tokens: the end of a turn, "a", "b", "c", "d"


class Rows:
    """A cache of whole token lists."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows

    def select(self, at: Tensor) -> "Rows":
        return Rows([list(self.rows[i]) for i in at.tolist()])

    def put_back(self, part: "Rows", at: Tensor) -> None:
        for i, row in zip(at.tolist(), part.rows, strict=True):
            self.rows[i] = row


class ByHand(torch.nn.Module):
    """Probabilities of the next token by what was said since the mark of an answer."""

    def __init__(self, probabilities: Callable[[list[int]], dict[int, float]]) -> None:
        super().__init__()
        self.probabilities, self.weight = probabilities, torch.nn.Parameter(torch.zeros(1))

    def cache(self, rows: int, capacity: int) -> Rows:
        return Rows([[] for _ in range(rows)])

    def extend(self, tokens: Tensor, real: Tensor, cache: Rows) -> Tensor:
        logits = torch.full((len(tokens), 71), -30.0)
        for i, row in enumerate(cache.rows):
            row += [t for t, r in zip(tokens[i].tolist(), real[i].tolist(), strict=True) if r]
            said = row[row.index(2) + 1 :]
            for token, p in self.probabilities(said).items():
                logits[i, token] = math.log(p)
        return logits


def by_hand(
    probabilities: Callable[[list[int]], dict[int, float]], **settings: Any
) -> tuple[LanguagePolicyGradient, LookaheadTrees]:
    agent = learner("chain", "latr", **{"prompts": 1, "group": 8, "turn_tokens": 12} | settings)
    agent.model = ByHand(probabilities)
    return agent, part_of(agent, LookaheadTrees)


def grown(
    probabilities: Callable[[list[int]], dict[int, float]], width: int, count: int = 1, **more: Any
) -> list[list[list[int]]]:
    agent, part = by_hand(probabilities, prompts=count, **more)
    starts = agent.collector.open([agent.problem(i) for i in range(count)])
    return [[row.said for row in tree] for tree in part.trees(starts, width)]


def sure(said: Sequence[int]) -> dict[int, float]:
    """Goes on with what it said first, and ends after nine tokens."""
    return {END: 1.0} if len(said) == 9 else {said[0]: 0.99, C: 0.01}


def test_it_branches_where_the_second_token_is_likely_and_near() -> None:
    def first(p: dict[int, float]) -> Callable[[list[int]], dict[int, float]]:
        return lambda said: sure(said) if said else p

    (tree,) = grown(first({A: 0.5, B: 0.4, C: 0.1}), 4)
    assert tree == [[A] * 9 + [END], [B] * 9 + [END]]
    for p in (
        {A: 0.6, B: 0.4},  # a gap of 0.2, though a quotient of 0.67
        {A: 0.34, B: 0.24, C: 0.23, D: 0.19},  # too unlikely
        {A: 0.42, B: 0.26, C: 0.26, D: 0.06},  # a gap of 0.16
    ):
        (tree,) = grown(first(p), 4)
        assert tree == [[A] * 9 + [END]]
    (tree,) = grown(first({A: 0.4, B: 0.26, C: 0.255, D: 0.085}), 4)
    assert [row[0] for row in tree] == [A, B]  # of two candidates, never the third


def test_branches_that_join_again_are_given_up() -> None:
    """The branch, not what it branched from, after four tokens; not if it has ended by then."""

    def joins(said: list[int]) -> dict[int, float]:
        if not said:
            return {A: 0.5, B: 0.4, C: 0.1}
        return {END: 1.0} if len(said) == 9 else {C: 1.0}

    (tree,) = grown(joins, 4)
    assert tree == [[A, *[C] * 8, END]]

    def ends(said: list[int]) -> dict[int, float]:
        if not said:
            return {A: 0.5, B: 0.4, C: 0.1}
        return {END: 1.0} if len(said) == 3 else {C: 1.0}

    (tree,) = grown(ends, 4)
    assert tree == [[A, C, C, END], [B, C, C, END]]


def test_what_hangs_on_a_branch_goes_with_it() -> None:
    def twice(said: list[int]) -> dict[int, float]:
        if not said or said == [B]:
            return {A: 0.5, B: 0.4, C: 0.1}
        return {END: 1.0} if len(said) == 9 else {C: 1.0}

    (tree,) = grown(twice, 8)
    assert tree == [[A, *[C] * 8, END]]


def test_of_too_many_branches_those_of_earlier_answers_come_first() -> None:
    def always(said: list[int]) -> dict[int, float]:
        return {A: 0.5, B: 0.45, C: 0.05} if len(said) < 2 else {END: 1.0}

    (tree,) = grown(always, 3)
    assert tree == [[A, A], [B, A], [A, B]]  # it is full then, and sampling goes on
    first, second = grown(always, 2, count=2)
    assert [row[:1] for row in first] == [row[:1] for row in second] == [[A], [B]]


def test_the_likeliest_token_goes_on() -> None:
    def flat(said: list[int]) -> dict[int, float]:
        return {END: 1.0} if len(said) == 5 else {A: 0.8, B: 0.2}

    for _ in range(3):
        assert grown(flat, 4) == [[[A] * 5 + [END]]]


def test_ages_and_edits_by_hand() -> None:
    assert [edits("kitten", "sitting"), edits("", "abc"), edits("abc", "abc")] == [3, 3, 0]  # type: ignore[arg-type]
    root = Sprout(0, [A] * 6)
    near, far = Sprout(0, [A, B, A, A, A, C], [], root, 1), Sprout(0, [A, *[B] * 5], [], root, 1)
    # Born at its second token: five tokens old, then no age of a comparison.
    assert given_up([root, near, far], 6, END) == []
    cut = [Sprout(0, r.said[:5], [], root, 1) for r in (near, far)]
    root.said = [A] * 5
    assert given_up([root, *cut], 5, END) == [cut[0]]  # 1 edit of 4 against 4 of 4
    root.said = [A, A, END]
    assert given_up([root, *cut], 5, END) == []


def test_a_round_holds_trees_and_samples() -> None:
    def first(said: list[int]) -> dict[int, float]:
        return sure(said) if said else {A: 0.5, B: 0.4, C: 0.1}

    agent, part = by_hand(first, prompts=2)
    rows = kept_rows(agent)
    found = agent.collector.collect()
    assert part.acts == 1.0 and len(rows) == 16
    for place in (0, 8):
        assert [row.turns[0][0] for row in rows[place : place + 2]] == ["a", "b"]
        for row, p in zip(rows[place : place + 2], (0.5, 0.4), strict=True):
            wanted = [math.log(p), *[math.log(0.99)] * 8, 0.0]
            assert row.behaviour == pytest.approx(wanted, abs=1e-5)
    assert found.data.groups["prompt"][:, 0].tolist() == [0] * 8 + [1] * 8
    assert agent.tokens["sampled"] == sum(len(row.behaviour) for row in rows)


def test_tokens_of_branches_that_were_given_up_count() -> None:
    def joins(said: list[int]) -> dict[int, float]:
        if not said:
            return {A: 0.5, B: 0.4, C: 0.1}
        return {END: 1.0} if len(said) == 9 else {C: 1.0}

    agent, part = by_hand(joins)
    agent.collector.open([agent.problem(0)])
    part.trees(agent.collector.open([agent.problem(0)]), 4)
    assert agent.tokens["sampled"] == 10 + 4


def test_the_share_of_trees_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead, "SHARES", ((0, 1.0), (1, 0.5), (2, 0.0)))
    agent = learner("chain", "latr", group=4, prompts=1, turn_tokens=3)
    widths: list[int] = []
    part = part_of(agent, LookaheadTrees)
    usual = part.trees

    def trees(starts: Any, width: int) -> Any:
        widths.append(width)
        return usual(starts, width)

    part.trees = trees
    for _ in range(4):
        agent.sample_round()
    assert widths == [4, 2, 0, 0]


def test_log_probs_with_a_real_model() -> None:
    """Forced tokens and sampled ones, by one pass a token; greedy ones are the likeliest."""
    agent = learner("chain", "latr", group=4, prompts=2, turn_tokens=6)
    rows = kept_rows(agent)
    found = agent.sample_round()
    for i, row in enumerate(rows):
        ((start, stop),) = row.spans
        slow = log_probs(agent.model, row.tokens[:start], row.tokens[start:stop])
        assert row.behaviour == pytest.approx(slow, abs=1e-4)
        own = found.data.log_probs["old"][i, found.data.mask[i]].tolist()
        assert own == pytest.approx(slow, abs=1e-4)


def test_it_resumes_exactly(tmp_path: Path) -> None:
    agent = learner("chain", "latr", levels=(2,), turn_tokens=5, group=4)
    agent.task = lenient(agent.task)
    continued(agent, tmp_path, 2, 2, rounds)


def test_tasks_of_several_turns_are_refused() -> None:
    with pytest.raises(ConfigError, match="branches within the first turn, and calculator has"):
        LanguageConfig(task="calculator", recipe="latr")
