"""Scores of language models, against enumeration."""

import itertools
import random

import numpy as np
import pytest

from algorithms.language.evaluation import cons_at, evaluate, pass_at
from algorithms.language.vocabulary import Characters
from mbrl.errors import ConfigError
from tests.algorithms.language.small import Digits, tiny


@pytest.mark.parametrize("right", [0, 1, 3, 6])
@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_pass_at_k_is_the_share_of_subsets(right: int, k: int) -> None:
    answers = [i < right for i in range(6)]
    subsets = list(itertools.combinations(answers, k))
    assert pass_at(k, 6, right) == pytest.approx(np.mean([any(s) for s in subsets]))


def test_cons_at_k_is_what_most_say() -> None:
    answers, right = ["a", "b", "b", "c", "a", "c"], [True, False, False, False, True, False]
    assert cons_at(1, answers, right) == pytest.approx(2 / 6)
    assert cons_at(3, answers, right) == pytest.approx((0 + 0) / 2)
    assert cons_at(2, answers, right) == pytest.approx((0.5 + 0 + 0.5) / 3)
    assert cons_at(6, answers, right) == pytest.approx(1 / 3)


def test_scores_are_those_of_the_texts_and_change_nothing() -> None:
    model, task = tiny(wide=2.0), Digits()
    options = {"problems": 30, "samples": 4, "rows_at_once": 16}
    first, second = (evaluate(model, Characters(), task, (4, 9), **options) for _ in range(2))
    assert first == second and [s.level for s in first] == [4, 9]
    whole = evaluate(model, Characters(), task, (4,), problems=30, samples=4, rows_at_once=999)
    assert whole[0].problems == 30 and set(whole[0].passes) == {1, 2, 4}
    assert whole[0].passes[1] == pytest.approx(whole[0].accuracy)
    assert whole[0].passes[4] >= whole[0].passes[2] >= whole[0].passes[1]
    assert whole[0].agrees == {}  # several turns have no vote
    other = evaluate(model, Characters(), task, (4,), problems=30, samples=4, seed=1)
    assert other != whole


def test_problems_of_the_evaluation_are_held_out() -> None:
    held_out = random.Random("held out 20000033 4 0").random()
    assert held_out not in {random.Random(f"{s} {i}").random() for s in range(3) for i in range(50)}
    with pytest.raises(ConfigError, match="problems is 0"):
        evaluate(tiny(), Characters(), Digits(), (4,), problems=0)
