"""Recorded answers: what they are drawn by, and what a prompt is worth."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.measures.logged import LoggedAnswers, PromptValue
from algorithms.language.policy_gradient import LanguageConfig
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import continued, learner, lenient, part_of, rounds, shake

SMALL = {"prompts": 4, "group": 4, "logged": 24, "turn_tokens": 3}


def test_the_first_policy_answers_once() -> None:
    agent = learner("addition", "a_lol", **SMALL)
    agent.task = lenient(agent.task)
    part = part_of(agent, LoggedAnswers)
    found = agent.sample_round()
    said = agent.tokens["sampled"]
    assert part.recorded == 24 * 4 and 0 < len(part.rows) < part.recorded
    assert part.acts == len(part.rows) / part.recorded
    assert all(a > 0 for a in part.advantages)
    rounds(agent, 2)
    assert agent.tokens["sampled"] == said and part.recorded == 24 * 4
    again = agent.sample_round()
    # Log-probs of recording stay, those of the ratio are to the first policy: 1 at the start.
    reference = agent.measured(agent.anchors["reference"], found)[0]
    torch.testing.assert_close(reference, found.data.log_probs["behaviour"], atol=1e-4, rtol=0)
    torch.testing.assert_close(found.data.log_probs["old"], reference)
    assert not torch.allclose(again.data.log_probs["old"], again.data.log_probs["behaviour"])
    batch = agent.estimated(found)
    value = found.data.signals["reference_value"]
    earned = found.data.reward.sum(1, keepdim=True)
    wanted = torch.where(found.data.mask, earned - value, 0.0)
    torch.testing.assert_close(batch.estimate.advantage, wanted)
    assert float(wanted[found.data.mask].min()) > 0


def test_draws_are_in_proportion_to_the_advantage() -> None:
    agent = learner("addition", "a_lol_ref_free", **SMALL)
    part = part_of(agent, LoggedAnswers)
    part.advantages = [0.1, 0.4, 0.2, 0.3]
    counts, n = Counter(part.draw(20_000)), 20_000
    for i, p in enumerate(part.advantages):
        assert counts[i] / n == pytest.approx(p, abs=4 * (p * (1 - p) / n) ** 0.5)


def test_prompt_values_by_hand() -> None:
    value = PromptValue(5).double()
    shake(value, 0)
    features = torch.randn(3, 4, 5, dtype=torch.float64)
    real = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).bool()
    found = value(features, real)
    for i in range(3):
        rows = [features[i, j] for j in range(4) if real[i, j]]
        scores = [float(value.attention(x)) for x in rows]
        weights = [torch.tensor(s).exp() for s in scores]
        wanted = sum(float(w) * float(value.value(x)) for w, x in zip(weights, rows, strict=True))
        assert float(found[i]) == pytest.approx(wanted / float(sum(weights)), rel=1e-5)


def test_the_value_is_of_the_best_epoch() -> None:
    """On prompts whose rewards their length gives away it comes nearer than the mean."""
    agent = learner("addition", "a_lol", **SMALL)
    part = part_of(agent, LoggedAnswers)
    problems = [agent.problem(i) for i in range(160)]
    rewards = [float(len(p.prompt) > 5) for p in problems]

    class Row:
        def __init__(self, reward: float) -> None:
            self.replies = [self]
            self.reward = reward

    fitted = part.fit(problems[:120], [[Row(r)] for r in rewards[:120]])
    prices = part.priced(fitted, problems[120:])
    errors = [(a - b) ** 2 for a, b in zip(prices, rewards[120:], strict=True)]
    mean = sum(rewards[:120]) / 120
    assert sum(errors) < sum((mean - b) ** 2 for b in rewards[120:]) / 2


def test_none_is_better_than_its_value() -> None:
    agent = learner("addition", "a_lol", **SMALL)  # nothing is ever right
    with pytest.raises(ConfigError, match="none of 96 recorded answers earns more"):
        agent.collect()


@pytest.mark.parametrize("recipe", ["a_lol", "a_lol_kl"])
def test_it_resumes_exactly(recipe: str, tmp_path: Path) -> None:
    agent = learner("addition", recipe, **SMALL)
    agent.task = lenient(agent.task)
    again = continued(agent, tmp_path, 1, 2)
    assert part_of(again, LoggedAnswers).rows


@pytest.mark.parametrize("changes", [{"stages": ("chain", "brackets")}, {"shares_of": "learned"}])
def test_what_is_recorded_at_first_knows_no_later_stage(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a_lol has its problems before the first round"):
        LanguageConfig(task="chain+brackets", recipe="a_lol", **changes)
