"""Verdicts: what is believed, what speaks against it, and when nothing can be said."""

import numpy as np
import pytest

from algorithms.evaluation.support import Support
from algorithms.evaluation.valuation import Estimate, Valuation
from algorithms.evaluation.verdict import verdict


def estimate(method: str, low: float, high: float, believed: bool = True) -> Estimate:
    middle = (low + high) / 2
    return Estimate(method, middle, low, high, middle, low, high, believed, "a note")


def valuation(*estimates: Estimate, critic: float | None = None) -> Valuation:
    support = Support(0.0, 0.05, np.zeros(1))
    return Valuation(9, 90, 0.9, (0.0, -1.0, 1.0), estimates, support, critic, (-10.0, 10.0))


BETTER, WORSE, OPEN = (1.0, 3.0), (-3.0, -1.0), (-1.0, 1.0)


@pytest.mark.parametrize(
    ("fitted", "other", "believed", "word"),
    [
        (BETTER, BETTER, True, "better"),
        (BETTER, OPEN, True, "better"),
        (BETTER, WORSE, True, "cannot tell"),
        (BETTER, WORSE, False, "better"),  # a second opinion that is not believed has no voice
        (WORSE, WORSE, True, "worse"),
        (WORSE, BETTER, True, "cannot tell"),
        (WORSE, BETTER, False, "worse"),
        (OPEN, BETTER, True, "cannot tell"),
    ],
)
def test_a_believed_second_opinion_can_withhold_the_verdict(fitted, other, believed, word):
    judged = verdict(valuation(estimate("fitted Q", *fitted), estimate("DICE", *other, believed)))
    assert judged.word == word and len(judged.reasons) == 2
    if word == "cannot tell" and fitted != OPEN:
        assert "DICE finds it" in judged.sentence


def test_what_fitted_q_itself_doubts_is_never_better():
    judged = verdict(valuation(estimate("fitted Q", *BETTER, believed=False)))
    assert judged.word == "cannot tell" and "a note" in judged.sentence


def test_what_fitted_q_itself_doubts_is_never_worse():
    """Actions that nobody logged have guessed values, low ones too."""
    judged = verdict(valuation(estimate("fitted Q", *WORSE, believed=False)))
    assert judged.word == "cannot tell" and "a note" in judged.sentence


@pytest.mark.parametrize(("critic", "word"), [(10.9, "better"), (11.1, "cannot tell")])
def test_values_that_ran_away_are_a_doubt(critic, word):
    """Beyond what rewards allow by more than a twentieth of the range, which is 20 wide."""
    judged = verdict(valuation(estimate("fitted Q", *BETTER), critic=critic))
    assert judged.word == word
    assert ("values ran away" in judged.sentence) == (word == "cannot tell")
