"""Learners on logs of others: unbiased where the answer can be enumerated."""

import numpy as np
import pytest
import torch

from algorithms.bandits import (
    EpsilonGreedy,
    EpsilonGreedyConfig,
    OracleConfig,
    Rows,
    SquareCB,
    SquareCBConfig,
    progressive,
    rejection,
)
from algorithms.evaluation.bandit import evaluate
from mbrl.errors import ConfigError, DataError

RIDGE = OracleConfig(kind="ridge")
LOGGED = torch.tensor([0.2, 0.3, 0.5])
MEAN = torch.tensor([[0.9, 0.1, 0.4], [0.2, 0.6, 0.3]])  # by sign of the context


def log(count: int, seed: int) -> Rows:
    g = torch.Generator().manual_seed(seed)
    context = torch.randint(2, (count, 1), generator=g) * 2.0 - 1
    action = torch.multinomial(LOGGED, count, replacement=True, generator=g)
    mean = MEAN[(context[:, 0] > 0).long(), action]
    reward = (torch.rand(count, generator=g) < mean).float()
    return Rows(context, action, reward, LOGGED[action])


def test_weights_and_expectations_are_those_of_the_learner_before_it_learns() -> None:
    rows = log(30, 0)
    config = SquareCBConfig(oracle=RIDGE)
    result = progressive(SquareCB(1, 3, config), rows, batch=1)
    again = SquareCB(1, 3, config)
    for i in range(30):
        one = Rows(*(column[i : i + 1] for column in rows))
        p = again.probabilities(one.context)[0].double()
        q = again.oracle.predict(one.context)[0, 0].double()
        a = int(one.action)
        assert result.weight[i] == pytest.approx(float(p[a]) / float(LOGGED[a]))
        assert result.q[i] == pytest.approx(float(q[a]))
        assert result.v[i] == pytest.approx(sum(float(p[k] * q[k]) for k in range(3)))
        again.update(one)


def test_a_fixed_policy_is_valued_right() -> None:
    """Epsilon 1 decides evenly: its value is the mean of all means, whatever the log's policy."""
    rows = log(4000, 1)
    learner = EpsilonGreedy(1, 3, EpsilonGreedyConfig(oracle=RIDGE, epsilon=1.0))
    decisions = progressive(learner, rows, batch=50)
    for estimator in ("ipw", "snipw", "dr"):
        result = evaluate(decisions, estimator)
        assert result.low < float(MEAN.mean()) < result.high, estimator


def test_rows_that_are_taken_are_as_the_learner_would_act() -> None:
    """Actions of a uniform learner are uniform among the rows taken, though the log's are not; the
    rate is the least probability over 3 actions' mean of 1 / b, times b."""
    rows = log(6000, 2)
    learner = EpsilonGreedy(1, 3, EpsilonGreedyConfig(oracle=RIDGE, epsilon=1.0))
    taken = rejection(learner, rows, torch.Generator().manual_seed(0))
    shares = torch.bincount(taken.action, minlength=3) / len(taken.action)
    assert torch.allclose(shares, torch.full((3,), 1 / 3), atol=0.04)
    assert len(taken.action) / 6000 == pytest.approx(0.2, abs=0.02)
    assert learner.learned == len(taken.action)
    assert float(taken.reward.mean()) == pytest.approx(float(MEAN.mean()), abs=0.04)


def test_a_learner_improves_on_the_log() -> None:
    rows = log(4000, 3)
    learner = SquareCB(1, 3, SquareCBConfig(oracle=RIDGE))
    value = evaluate(progressive(learner, rows, batch=10), "dr")
    assert value.low > float(rows.reward.mean())
    assert value.value == pytest.approx(0.73, abs=0.06)  # the best policy's is 0.75
    p = learner.probabilities(torch.tensor([[-1.0], [1.0]]))
    assert p.argmax(1).tolist() == [0, 1]


@pytest.mark.parametrize("bad", [0.0, 1.2, float("nan")])
def test_probabilities_that_are_none_are_refused(bad: float) -> None:
    rows = log(5, 0)
    rows.probability[2] = bad
    learner = SquareCB(1, 3, SquareCBConfig())
    with pytest.raises(DataError, match="log the probability"):
        progressive(learner, rows)
    with pytest.raises(DataError, match="log the probability"):
        rejection(learner, rows, torch.Generator())
    assert np.isfinite(learner.learned) and learner.learned == 0


@pytest.mark.parametrize("use", [progressive, rejection])
def test_a_log_that_cannot_be_is_refused_before_it_is_gone_through(use) -> None:
    learner, given = EpsilonGreedy(1, 3, EpsilonGreedyConfig(oracle=RIDGE)), log(5, 0)
    extra = [torch.Generator()] if use is rejection else []
    for changed, text in (
        ({"action": given.action + 3}, r"must lie in 0\.\.2"),
        ({"reward": given.reward[:3]}, "rows have shapes"),
        ({"reward": 10 * given.reward + 5}, "scale them by their range"),
    ):
        with pytest.raises(DataError, match=text):
            use(learner, given._replace(**changed), *extra)
    assert learner.learned == 0


@pytest.mark.parametrize("batch", [0, 2.5])
def test_a_batch_that_is_no_count_is_named(batch) -> None:
    with pytest.raises(ConfigError, match=f"batch is {batch}"):
        progressive(EpsilonGreedy(1, 3, EpsilonGreedyConfig(oracle=RIDGE)), log(5, 0), batch)
