"""Which measures a recipe takes, and what a run lacks for it."""

from typing import Any

from mbrl.policy_gradient import RECIPES
from mbrl.policy_gradient.axes.option import CURRENT_ENTROPY
from mbrl.policy_gradient.measure import Measure, chosen, unmet, wanted
from mbrl.policy_gradient.requirements import Requirement


class First(Measure[Any]):
    provides = ("signals.information_gain",)
    fulfils = (Requirement.ANSWER_PROBABILITY,)


class Second(Measure[Any]):
    provides = ("signals.information_gain",)
    fulfils = (Requirement.OBSERVATION_GAIN,)


class Third(Measure[Any]):
    fulfils = (Requirement.MASKED_POLICY,)


ALL = (Third, Second, First)


def test_of_several_the_one_that_fulfils_a_requirement_is_taken() -> None:
    assert chosen(RECIPES["igpo"], ALL) == [First]
    assert chosen(RECIPES["infopo"], ALL) == [Second]
    assert chosen(RECIPES["infopo"], (First,)) == [First]  # the field is there all the same


def test_one_that_provides_nothing_is_taken_for_its_requirement() -> None:
    assert chosen(RECIPES["nlpo"], ALL) == [Third]
    assert chosen(RECIPES["grpo"], ALL) == []


def test_what_a_run_lacks_is_named_in_words() -> None:
    fields = ("segments.turn", "log_probs.old", "log_probs.reference", "groups.prompt")
    fields = (*fields, CURRENT_ENTROPY)
    assert unmet(RECIPES["igpo"], ALL, fields, ()) == []
    assert unmet(RECIPES["igpo"], (), fields, ()) == [
        "signals.information_gain",
        "the probability of the right answer after every turn",
    ]
    assert unmet(RECIPES["igpo"], (Second,), fields, ()) == [str(Requirement.ANSWER_PROBABILITY)]
    assert unmet(RECIPES["truncated_is_grpo"], (), wanted(RECIPES["truncated_is_grpo"]), ()) == [
        "log-probs of the engine that sampled"
    ]


def test_ids_of_groups_are_wanted_too() -> None:
    assert "groups.state" in wanted(RECIPES["gigpo"])
    assert "groups.turn" not in wanted(RECIPES["trloo"])
