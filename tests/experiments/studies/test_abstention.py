"""The study of abstention, on labels that are made here."""

import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import optimize

from algorithms.language.models.vocabulary import Characters
from algorithms.language.tasks import text_task
from experiments.studies import abstention as study
from mbrl.errors import ConfigError
from tests.algorithms.language.small import tiny


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    label = rng.integers(3, size=1500)
    features = rng.normal(size=(1500, 2)) + 1.5 * np.array([[0, 1], [1, -1], [-1, -1]])[label]
    monkeypatch.setattr(study.label_sets, "read", lambda name: (features, label))


def test_the_classifier_is_the_minimum() -> None:
    """Against scipy's minimiser without derivatives, two classes."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 1))
    label = (x[:, 0] + rng.normal(size=80) > 0.3).astype(int)

    def loss(w: np.ndarray) -> float:
        logits = x * w[:2] + w[2:]
        return 0.5 * float(w[:2] @ w[:2]) - sum(
            logits[i, label[i]] - np.log(np.exp(logits[i]).sum()) for i in range(80)
        )

    w = optimize.minimize(loss, np.zeros(4), method="Nelder-Mead", options={"xatol": 1e-8,
        "fatol": 1e-10, "maxiter": 20_000}).x  # fmt: skip
    logits = np.array([[0.7]]) * w[:2] + w[2:]
    expected = np.exp(logits) / np.exp(logits).sum()
    got = study.softmax_regression(x, label, 2)(np.array([[0.7]]))
    assert np.allclose(got, expected, atol=2e-3)


def test_parts_are_disjoint_and_even(labels) -> None:
    parts = study.split(study.DEFAULTS, 0, Path())
    sizes = [len(part[1]) for part in parts]
    assert sum(sizes) == 1350 and max(sizes) - min(sizes) <= 1
    rows = np.concatenate([part[0] for part in parts])
    assert len(np.unique(rows, axis=0)) == 1350


def test_test_labels_decide_nothing_but_in_the_leaking_row(labels) -> None:
    """With other labels on the test rows every honest method decides the same."""
    parts = study.split(study.DEFAULTS, 0, Path())
    probability, label = parts.test
    changed = parts._replace(test=(probability, (label + 1) % 3))
    config = study.AbstentionConfig(epochs=60)
    for method in study.METHODS:
        settings = study.DEFAULTS | {"method": method}
        one, other = (study.choose(p, settings, config, 0) for p in (parts, changed))
        same = np.array_equal(one.kind, other.kind) and np.array_equal(one.size, other.size)
        assert same == (method != "leaking"), method


def test_methods_and_the_guarantee(labels, tmp_path: Path) -> None:
    values = {}
    for method in study.METHODS:
        settings = study.DEFAULTS | {"method": method, "config": {"epochs": 50}}
        values[method] = study.measure(settings, 0, tmp_path).values
    assert abs(values["argmax"]["exact"]) < 0.006
    assert values["argmax"]["abstains"] == 0 and values["argmax"]["size"] == 1
    assert values["argmax"]["covered"] == values["argmax"]["accuracy"]
    assert values["conformal"]["covered"] > 0.85
    assert values["grid"]["cost"] <= values["learned"]["cost"]
    assert values["leaking"]["abstains"] == 0  # it counts them as answers
    with pytest.raises(ConfigError, match="method"):
        study.measure(study.DEFAULTS | {"method": "best"}, 0, tmp_path)


def test_nothing_answered_has_no_coverage() -> None:
    assert np.isnan(study._mean(np.zeros(0)))


def test_probabilities_of_a_language_models_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token by token, with one pass for every prefix."""
    model = tiny(torch.float64, wide=3.0)
    task, codec = text_task("modular"), Characters()
    agent = SimpleNamespace(model=model, codec=codec, task=task, levels=(1, 2))
    monkeypatch.setattr(study, "shared_jobs", lambda folder: {"start": tmp_path})
    monkeypatch.setattr(study.language_training, "finished", lambda start: start)
    monkeypatch.setattr(study.language_run, "load", lambda start: agent)
    probability, label = study.answers(3, 0, tmp_path)
    assert probability.shape == (3, study.REMAINDERS)
    rng = random.Random("abstention 0")
    levels = [rng.choice((1, 2)) for _ in range(3)]
    for row, right, level in zip(probability, label, levels, strict=True):
        problem = task.problem(level, rng, held_out=True)
        assert problem.held_out and int(problem.facts["answer"]) == right
        each = []
        for k in range(study.REMAINDERS):
            text, total = codec.opening(problem.prompt), 0.0
            for token in codec.turn(str(k)):
                logits = model(torch.tensor([text]))[0, -1]
                total += float(logits.log_softmax(-1)[token])
                text = [*text, token]
            each.append(total)
        whole = np.exp(each - np.max(each))
        np.testing.assert_allclose(row, whole / whole.sum(), rtol=1e-6)
