"""The pretrained value model: what it is made of, and that it knows policies that it never saw."""

import math
import random
from pathlib import Path

import pytest
import torch

from algorithms.language import value_model
from algorithms.language.tasks import text_task
from algorithms.language.value_model import (
    PolicyValue,
    ValueConfig,
    calibration,
    embedded,
    measured,
    policies,
    pretrained,
)
from mbrl import checkpoint
from mbrl.errors import CheckpointError, ConfigError
from tests.algorithms.language.cases import MODEL

SMALL = ValueConfig(
    model=MODEL, levels=(1, 2), runs=2, snapshots=2, every=1, rows=4, prompts=16, samples=2,
    context=4, steps=3,
)  # fmt: skip


def test_policies_are_snapshots_of_runs() -> None:
    seen, last = [], None
    for run, learner in policies(SMALL):
        seen.append((run, learner.updates))
        assert run or learner.config.levels == (1, 2)
        assert set(learner.config.levels) <= {1, 2}
        last = learner
    assert seen == [(0, 1), (0, 2), (1, 1), (1, 2)] and last is not None


def test_embeddings_are_means_over_the_prompt() -> None:
    value = pretrained(SMALL)
    task = text_task("addition")
    problems = [task.problem(level, random.Random(level)) for level in (1, 2)]
    found = embedded(value.model, value.codec, problems)
    for problem, row in zip(problems, found, strict=True):
        tokens = torch.tensor([value.codec.opening(problem.prompt)])
        with torch.no_grad():
            wanted = value.model.features(tokens)[0].mean(0)
        torch.testing.assert_close(row, wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(value.features(problems), (found - value.centre) / value.scale)


def test_a_file_holds_all(tmp_path: Path) -> None:
    value = pretrained(SMALL)
    value.save(tmp_path / "value.pt")
    again = PolicyValue.load(tmp_path / "value.pt")
    task = text_task("addition")
    problems = [task.problem(1, random.Random(i)) for i in range(5)]
    assert torch.equal(value.features(problems), again.features(problems))
    assert again.measures == value.measures and again.config == value.config
    names = {"brier", "brier_less", "constant", "brier_seen", "by_prompt", "calibration"}
    assert names <= set(value.measures)
    (tmp_path / "other.pt").write_bytes((tmp_path / "value.pt").read_bytes()[:500])
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        PolicyValue.load(tmp_path / "other.pt")
    checkpoint.save(tmp_path / "other.pt", {"x": 1})
    with pytest.raises(CheckpointError, match="no file of `language fit-value`"):
        PolicyValue.load(tmp_path / "other.pt")
    with pytest.raises(ConfigError, match="a context below three quarters"):
        ValueConfig(prompts=80, context=60)


@pytest.mark.long
def test_it_knows_policies_that_it_never_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies that solve a level or do not: a few scores tell which, and more tell it better."""
    rng = random.Random(0)
    skills = [(rng.random(), rng.random()) for _ in range(24)]

    def made(config):  # a run of one policy each
        for run in range(config.runs):
            yield run, Skilled(run)

    class Skilled:
        def __init__(self, run: int) -> None:
            self.run = run
            self.model, self.codec = value_model.build_model(
                MODEL, torch.Generator().manual_seed(0), torch.device("cpu")
            )

    def score(config, learner, problems, seed):
        g = torch.Generator().manual_seed(seed)
        rate = torch.tensor([skills[learner.run][p.level - 1] for p in problems])
        return torch.bernoulli(rate.expand(8, -1), generator=g).mean(0)

    monkeypatch.setattr(value_model, "policies", made)
    monkeypatch.setattr(value_model, "scores", score)
    config = ValueConfig(
        model=MODEL, levels=(1, 2), runs=24, snapshots=1, prompts=160, steps=400, context=32,
        rate=1e-2,
    )  # fmt: skip
    measures = pretrained(config).measures
    assert measures["brier"] < measures["constant"]
    assert measures["brier_seen"] < measures["by_prompt"]
    assert measures["brier"] < measures["brier_less"]
    assert measures["calibration"] < 0.15


def test_a_prompt_that_was_drawn_again_is_not_new() -> None:
    """Of 16 prompts 12 are learned from; features are their numbers, scores are wrong by those."""
    same = torch.tensor([*range(8), 0, 1, 2, 3, 2, 8, 9, 9])
    asked: list[tuple[list[float], list[float]]] = []

    def value(known: torch.Tensor, scores: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        asked.append((known[:, 0].tolist(), new[:, 0].tolist()))
        return new[:, 0] / 10

    table, own = torch.zeros(2, 16), torch.tensor([True, False])
    measures = measured(value, same.float()[:, None], table, own, 12, same, SMALL)
    assert measures["brier"] == pytest.approx((0.8**2 + 2 * 0.9**2) / 3)
    assert all(not set(known) & set(new) for known, new in asked)
    assert {x for _, new in asked for x in new} == set(range(10))
    measures = measured(value, torch.zeros(16, 1), table, own, 12, 0 * same, SMALL)
    assert math.isnan(measures["brier"]) and math.isnan(measures["calibration"])


def test_predictions_do_not_depend_on_the_order_of_what_is_known() -> None:
    value = pretrained(SMALL)
    features, scores = torch.randn(6, 16), torch.rand(6)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    with torch.no_grad():
        a = value.value(features, scores, features[:2])
        b = value.value(features[order], scores[order], features[:2])
    torch.testing.assert_close(a, b)


def test_calibration_by_hand() -> None:
    guess = torch.tensor([0.11, 0.13, 0.55, 1.0])
    truth = torch.tensor([0.0, 1.0, 0.5, 1.0])
    assert calibration(guess, truth) == pytest.approx((2 * 0.38 + 0.05 + 0.0) / 4, abs=1e-6)
