"""The study of verdicts: its truth is that of the task, and its counts are those of its curves."""

import numpy as np
import pytest
import torch

from algorithms.evaluation.valuation import discounted_returns
from experiments.studies import verdicts
from mbrl import data, tasks
from mbrl.errors import ConfigError
from mbrl.evaluation import evaluate

TINY = {"algorithms": ["bc"], "budgets": [2, 4], "updates": 20, "resamples": 2, "dice": 0}


def test_the_truth_is_paired_with_the_logged_episodes(tmp_path):
    """From the starts of the episodes themselves, minus what each of them earned."""
    dataset = data.load("pendulum/expert")
    task = tasks.make_for(dataset.spec)
    rows = dataset.transitions
    starts = [a for a, _ in rows.episodes()]
    state, possible = task.state_from_obs(rows.obs[starts])
    assert bool(possible.all())
    outcome = verdicts.measure(
        verdicts.DEFAULTS | TINY | {"data": "pendulum/expert", "algorithms": ["iql"]}, 0, tmp_path
    )
    assert outcome.values["policies"] == 2 and len(outcome.curves["truth"]) == 2
    logged = discounted_returns(rows, 0.99)
    # an untrained policy from the same starts: the difference of the means, and its error

    class Still:
        spec = dataset.spec
        policy = torch.nn.Linear(3, 1)

    with torch.no_grad():
        Still.policy.weight.zero_(), Still.policy.bias.zero_()
    lead = evaluate(Still, task, len(starts), gamma=0.99, state=state) - logged
    assert lead.mean() < -100  # hanging down
    assert np.isfinite(outcome.curves["truth_error"]).all()


def test_counts_follow_from_the_curves(tmp_path):
    outcome = verdicts.measure(verdicts.DEFAULTS | TINY, 1, tmp_path)
    v, said = outcome.values, np.array(outcome.curves["said"])
    assert v["better"] + v["worse"] + v["cannot_tell"] == v["policies"] == len(said)
    truth, error = (np.array(outcome.curves[k]) for k in ("truth", "truth_error"))
    assert v["wrong_better"] == ((said == 1) & (truth < -2 * error)).sum()
    assert v["truly_better"] == (truth > 2 * error).sum()


def test_a_dataset_whose_starts_are_no_states_is_refused(tmp_path, monkeypatch):
    task = tasks.make("Pendulum-v1")
    nowhere = lambda self, obs: (obs[:, :2], torch.zeros(len(obs), dtype=torch.bool))  # noqa: E731
    monkeypatch.setattr(type(task), "state_from_obs", nowhere)
    with pytest.raises(ConfigError, match="are no states of its task"):
        verdicts.measure(verdicts.DEFAULTS | TINY, 0, tmp_path)
