"""The study of a policy that goes on in a changed task."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import algorithms
from experiments.studies import finetuning
from mbrl import tasks
from mbrl.buffer import Batch
from mbrl.collector import CollectorConfig
from mbrl.errors import ConfigError
from mbrl.evaluation import evaluate

TINY: dict[str, Any] = {"before": 120, "steps": 8, "every": 4, "starts": 2}
MODEL = {"members": 2, "elites": 1, "hidden": [8], "min_epochs": 1, "max_epochs": 2}
LIFT = {
    "model": MODEL,
    "imagination": {"starts": 10},
    "online": {"warmup": 4, "refit_every": 3},
    "physics": "CartPoleSwingUp-v0",
}


@pytest.mark.parametrize("pretrained", [True, False])
def test_the_study_measures(pretrained: bool, tmp_path: Path) -> None:
    settings = finetuning.DEFAULTS | TINY | {"algorithm": "sac", "pretrained": pretrained}
    settings |= {"collection": {"warmup": 3}}
    outcome = finetuning.measure(settings, 0, tmp_path)
    scores = outcome.curves["score"]
    assert outcome.curves["step"] == [0.0, 4.0, 8.0]
    assert outcome.values["start"] == scores[0] and outcome.values["end"] == scores[-1]
    assert outcome.values["lowest"] == min(scores[1:])
    if pretrained:
        task = tasks.make(settings["changed"])
        first = algorithms.load(tmp_path / "before" / "checkpoint.pt")
        assert scores[0] == pytest.approx(float(task.spec.score(evaluate(first, task, 2).mean())))
    assert np.isnan(outcome.values["collected"])  # no episode was finished
    again = finetuning.measure(settings, 0, tmp_path)  # from what is there
    assert again.curves == outcome.curves


@pytest.mark.parametrize("lift", [False, True])
def test_a_replay_that_forgets_steps_is_refused(lift: bool, tmp_path: Path) -> None:
    """Scores of collected episodes were cut from the newest rows in the ring's order."""
    settings = finetuning.DEFAULTS | {"before": 4, "before_collection": {"warmup": 4}, "steps": 20}
    if lift:
        settings |= {"config": LIFT | {"online": {"warmup": 4, "capacity": 10}}}
    else:
        settings |= {"algorithm": "sac", "collection": {"warmup": 4, "capacity": 10}}
    with pytest.raises(ConfigError, match="capacity is 10, and the replay is to hold the 20 rows"):
        finetuning.measure(settings, 0, tmp_path)


def test_copies_of_the_task_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows stand a step of all copies after the other: two copies whose actions and rewards never
    change have no jitter, and returns of their own."""
    task, steps = tasks.make("CartPoleSwingUp-v0"), 500
    own = torch.tensor([0.2, -0.4]).repeat(steps)
    batch = Batch(torch.zeros(2 * steps, 5), own[:, None], own, torch.zeros(2 * steps, 5), own)
    source = SimpleNamespace(
        rows=SimpleNamespace(whole=lambda: batch), collection=CollectorConfig(envs=2)
    )
    agent = SimpleNamespace(source=source)
    monkeypatch.setattr(finetuning.algorithms, "load", lambda path: agent)
    values = finetuning.of_the_steps(Path(), task, 2.4)
    assert values["jitter"] == 0.0
    assert values["collected"] == pytest.approx(float(task.spec.score(500 * -0.1)), rel=1e-5)


def test_numbers_of_the_steps(tmp_path: Path) -> None:
    """Two episodes that are finished, and a third that is not: against the rows themselves."""
    settings = finetuning.DEFAULTS | TINY | {"steps": 1100, "every": 1100, "config": LIFT}
    settings |= {"config": LIFT | {"online": {"warmup": 1200}}, "limit": 0.05}
    values = finetuning.measure(settings, 0, tmp_path).values
    agent = algorithms.load(tmp_path / "online" / "checkpoint.pt")
    rows = agent.source.real.rows.whole()
    assert len(rows.reward) == 1100 and agent.updates == 0
    task = tasks.make(settings["changed"])
    returns = [float(rows.reward[k : k + 500].double().sum()) for k in (0, 500)]
    assert values["collected"] == pytest.approx(float(task.spec.score(np.mean(returns))))
    beyond = (rows.next_obs[:, 0].abs() > 0.05).float().mean()
    assert values["outside"] == pytest.approx(100 * float(beyond))
    expected = np.abs(np.diff(rows.action[:, 0].numpy())).mean() / 2
    assert values["jitter"] == pytest.approx(expected, rel=1e-4)
    first = algorithms.load(tmp_path / "before" / "checkpoint.pt")
    greedy = first.policy.scale.to_unit(first.policy(rows.obs)).detach()
    assert np.allclose(rows.action, greedy, atol=1e-5)  # the policy as it came, without noise
