"""Choices of baselines, credit and selection that undo each other are refused."""

import pytest

from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe, Term
from mbrl.policy_gradient.axes import baseline, scale, selection
from mbrl.policy_gradient.axes.credit import GAE, BundleRisk, NestedGroups, TokenWeighted
from mbrl.policy_gradient.axes.credit_hierarchical import HierarchicalGAE

ZERO, ONE = baseline.Zero(), scale.One()


@pytest.mark.parametrize("which", ["all", "wrong"])
@pytest.mark.parametrize(
    "term", [Term(baseline=baseline.VirtualMean()), Term(scale=scale.VirtualStd())]
)
def test_a_virtual_best_answer_needs_the_groups_of_wrong_ones(which: str, term: Term) -> None:
    drop = (selection.ZeroVariance(which),)
    with pytest.raises(ConfigError, match="virtual best answer"):
        Recipe("x", "", terms=(term,), selection=drop)
    with pytest.raises(ConfigError, match="virtual best answer"):
        Recipe("x", "", terms=(term,), sampling=drop)
    Recipe("x", "", terms=(term,), selection=(selection.ZeroVariance("right"),))


def test_the_pivot_is_the_medians() -> None:
    with pytest.raises(ConfigError, match="belongs to the median"):
        Recipe(
            "x",
            "",
            terms=(Term(baseline=baseline.LeaveOneOut()),),
            selection=(selection.DropMedian(),),
        )


@pytest.mark.parametrize(
    "term",
    [
        Term(credit=GAE(), baseline=ZERO, scale=ONE, key=("prompt", "state")),
        Term(credit=HierarchicalGAE(), baseline=ZERO, scale=ONE, key=("state",)),
        Term(baseline=baseline.SignalBaseline("value"), key=("prompt", "state")),
    ],
)
def test_states_and_a_critic_are_two_baselines(term: Term) -> None:
    with pytest.raises(ConfigError, match="two baselines"):
        Recipe("x", "", terms=(term,))


@pytest.mark.parametrize(
    "credit", [BundleRisk(), HierarchicalGAE(), NestedGroups(), TokenWeighted()]
)
def test_what_was_compared_is_not_compared_again(credit: object) -> None:
    for term in (Term(credit=credit, scale=ONE), Term(credit=credit, baseline=ZERO)):
        with pytest.raises(ConfigError, match="compared already"):
            Recipe("x", "", terms=(term,))
    Recipe("x", "", terms=(Term(credit=credit, baseline=ZERO, scale=ONE),))


def test_what_comes_before_the_statistics_reads_no_advantages_and_counts_once() -> None:
    for option in (selection.DropMedian(), selection.Outliers()):
        with pytest.raises(ConfigError, match="put it into `selection`"):
            Recipe("x", "", sampling=(option,))
    finished = selection.Finished()
    with pytest.raises(ConfigError, match="counts once"):
        Recipe("x", "", sampling=(finished,), selection=(finished,))
