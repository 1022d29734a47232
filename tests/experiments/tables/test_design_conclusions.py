"""What trials at random say of choices, by hand-made records whose answer is plain."""

from experiments.tables import design_conclusions
from experiments.tables.records import Record
from tests.experiments.tables.test_bandit_conclusions import record, summary


def trials(seed: int, sampler: str = "random", **curves: list[float]) -> Record:
    made = record(seed, found=0.0)
    named = {name if name == "score" else f"choice {name}": v for name, v in curves.items()}
    return made | {"key": made["key"] | {"settings": {"sampler": sampler}}, "curves": named}


def test_kinds_have_their_mean_scores_and_numbers_their_correlations() -> None:
    """Means of 15 and 25 of one kind; the other kind has trials in one seed alone. Ranks of the
    horizon are those of the score in one seed and the reverse in the other."""
    first = trials(
        0,
        score=[10.0, 20.0, 60.0],
        horizon=[1.0, 2.0, 3.0],
        **{"penalty=a": [1.0, 1.0, 0.0], "penalty=b": [0.0, 0.0, 1.0]},
    )
    second = trials(
        1, score=[20.0, 30.0, 25.0], horizon=[3.0, 1.0, 2.0], **{"penalty=a": [1.0, 1.0, 1.0]}
    )
    rows = {"at random": [first, second], "tpe": [trials(0, "tpe", score=[1.0], horizon=[1.0])]}
    kinds, numbers = design_conclusions.designs(summary(rows, "found"))
    assert kinds.startswith("at random, mean score of trials: penalty=a 20.0 [")
    assert kinds.endswith("penalty=b 60.0.")
    assert "at random, rank correlation with the score over trials: horizon 0.00 [" in numbers


def test_records_without_choices_say_nothing() -> None:
    assert design_conclusions.designs(summary({"a": [trials(0, score=[1.0])]}, "found")) == []
    other = trials(0, score=[1.0]) | {"key": {"seed": 0, "settings": {}}}  # of another study
    assert design_conclusions.designs(summary({"a": [other]}, "found")) == []
