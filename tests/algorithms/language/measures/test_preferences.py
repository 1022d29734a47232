"""Judgements of a policy's own answers, and pairs of them."""

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.measures.preferences import JudgedAnswers, PreferencePairs
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.tasks.judged import inside
from mbrl.errors import ConfigError
from mbrl.policy_gradient import RECIPES, estimate, loss
from mbrl.policy_gradient.axes.preference import MixedPreference
from tests.algorithms.language.cases import (
    continued,
    kept_rows,
    learner,
    lenient,
    log_probs,
    part_of,
    scripted,
    shake,
)


def spark(**settings: Any) -> LanguagePolicyGradient:
    given = {"levels": (4, 1004), "prompts": 8, "group": 4} | settings
    return learner("addition+judged-addition", "spark", **given)


def answering(agent: LanguagePolicyGradient, share: float) -> None:
    """Right on sums with probability `share` (drawn by the seed), and "y" and "b" else."""

    def speak(row: Conversation) -> str:
        kind = row.problem.facts.get("kind")
        if kind in ("one", "two"):
            return {"one": "y", "two": "b"}[kind]
        if random.Random(row.seed).random() < share:
            return agent.task.demonstration(row.problem, row.turns, random.Random(0))
        return str(90 + row.seed % 3)

    scripted(agent, speak)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_judgements_are_of_the_rounds_own_answers(share: float) -> None:
    agent = spark()
    answering(agent, share)
    rows = kept_rows(agent)
    kinds: Counter[str] = Counter()
    for _ in range(12):
        found = agent.sample_round()
        own, items = rows[:32], rows[32:]
        assert all(row.problem.task == "addition" for row in own)
        said = {row.problem.prompt: [] for row in own}  # type: ignore[var-annotated]
        for row in own:
            said[row.problem.prompt].append((row.turns[0], row.replies[0].success))
        groups = [items[i : i + 4] for i in range(0, len(items), 4)]
        assert len(groups) <= 8 and len({row.problem.prompt for row in items}) == len(groups)
        for row, *rest in groups:
            assert all(other.problem == row.problem for other in rest)
            assert row.problem.task == "judged-addition" and row.problem.level == 1004
            kind, label = row.problem.facts["kind"], row.problem.facts["label"]
            inner = inside(row.problem).prompt
            shown = row.problem.prompt[:-1].split("|")[1:]
            good = [(text, True) in said[inner] for text in shown]
            assert all((text, side) in said[inner] for text, side in zip(shown, good, strict=True))
            expected = {
                "one": [[label == "y"]],
                "two": [[label == "a", label == "b"]],
                "again": [[False]],
            }[kind]
            assert [good] == expected
            mixed = 0 < sum(side for _, side in said[inner]) < 4
            assert kind != "two" or mixed
            kinds[kind] += 1
            if kind == "one" and not mixed:
                kinds[label] += 1
            if kind == "two":
                kinds[label] += 1
        aided = found.data.signals["aided"][:, 0]
        assert aided.tolist() == [0.0] * 32 + [1.0] * len(items)
        assert found.data.groups["prompt"][:, 0].tolist() == [i // 4 for i in range(len(rows))]
        assert part_of(agent, JudgedAnswers).acts == 0.0  # all four judge alike
    if share == 0.0:
        assert kinds["n"] == kinds["one"] > 0 == kinds["two"] and kinds["again"] == 48
    elif share == 1.0:
        assert kinds["y"] == kinds["one"] == 48 and kinds["two"] == kinds["again"] == 0
    else:
        assert kinds["two"] > kinds["one"] > 0 and kinds["again"] > 40
        assert 0.25 < kinds["a"] / kinds["two"] < 0.75


def test_judgements_act_where_they_differ_and_are_right_where_the_label_is() -> None:
    agent = spark()

    def speak(row: Conversation) -> str:
        if row.problem.facts.get("kind") == "one":
            return "y" if row.seed % 2 else "n"
        return "99"

    scripted(agent, speak)
    rows = kept_rows(agent)
    agent.sample_round()
    part = part_of(agent, JudgedAnswers)
    judged = [row for row in rows if row.problem.facts.get("kind") == "one"]
    right = [row.turns[0] == "n" for row in judged]
    assert [row.replies[0].success for row in judged] == right
    groups = [right[i : i + 4] for i in range(0, len(right), 4)]
    assert part.acts == sum(0 < sum(g) < 4 for g in groups) / len(groups) > 0
    assert part.rates == {"judging/accuracy": sum(right) / len(right), "judging/right": 0.0}


def test_reflection_shows_the_whole_answer_for_half_of_the_problems() -> None:
    agent = learner(
        "chain+judged-chain", "spark", levels=(2, 1002), prompts=8, group=2, turn_tokens=20
    )
    scripted(agent, lambda row: "1+1=2;5" if row.problem.task == "chain" else "1")
    rows = kept_rows(agent)
    part, shown = part_of(agent, JudgedAnswers), list[str]()
    part.some = lambda items, most: [item for item in items if item is not None]
    agent.sample_round()
    for row in rows[::2]:
        if row.problem.facts.get("kind") == "again":
            shown.append(row.problem.prompt.split("|")[1])
    assert shown == ["1+1=2;5!"] * 4 + ["5!"] * 4
    ones = [r.problem.prompt for r in rows if r.problem.facts.get("kind") == "one"]
    assert len(ones) == 16 and all(text.endswith("|5?") for text in ones)


def test_a_right_end_of_an_answer_in_another_form_is_not_shown_as_wrong() -> None:
    """ "x;5" is wrong, and "5" after it is not."""
    agent = learner("chain+judged-chain", "spark", levels=(1, 1001), prompts=8, group=2)

    def speak(row: Conversation) -> str:
        end = agent.task.demonstration(row.problem, [], random.Random(0)).rpartition(";")[2]
        return f"x;{end}" if row.problem.task == "chain" else "n"

    scripted(agent, speak)
    rows = kept_rows(agent)
    part_of(agent, JudgedAnswers).some = lambda items, most: [i for i in items if i is not None]
    agent.sample_round()
    assert not any(row.replies[0].success for row in rows[:16])
    shown = [row.problem.prompt.split("|")[1:] for row in rows[16::2]]
    assert len(shown) == 4 and all(one[0].startswith("x;") for one in shown)


def mpo(**settings: Any) -> LanguagePolicyGradient:
    given = {"levels": (1,), "prompts": 3, "group": 4, "turn_tokens": 3} | settings
    agent = learner("addition", "mpo", **given)
    agent.task = lenient(agent.task)
    return agent


def test_pairs_are_of_one_problem_right_and_wrong() -> None:
    agent = learner("addition", "mpo", levels=(1,), prompts=4, group=5, minibatches=2)
    plan = iter([1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0])

    def speak(row: Conversation) -> str:
        right = agent.task.demonstration(row.problem, [], random.Random(0))
        return right if next(plan) else "x"

    scripted(agent, speak)
    found = agent.sample_round()
    # Pairs: 2, 1, 0 and 2 of the problems; of five one does not fit into two minibatches.
    assert part_of(agent, PreferencePairs).acts == 5 / 4
    trained = found.data.signals["trained"][:, 0]
    assert trained.sum() == 8 and len(found) == 20
    for i in range(0, 8, 2):
        assert found.problems[i] == found.problems[i + 1]
        assert found.success[i : i + 2].tolist() == [True, False]
        assert found.data.groups["prompt"][i : i + 2, 0].tolist() == [i // 2] * 2
    assert found.data.signals["chosen"][:8, 0].tolist() == [1.0, 0.0] * 4
    agent.take_in(found)
    assert agent.data is not None and len(agent.data.data.mask) == 8
    for _ in range(agent.left):
        batch = agent.next_batch()
        ids = batch.data.groups["prompt"][:, 0]
        assert ids.bincount().tolist() == [2, 2]
        agent.update(batch)


def test_losses_at_the_reference_are_those_of_the_paper() -> None:
    """At pi = pi_ref and delta 0: DPO is log 2, BCO 2 log 2, and each counts by its weight."""
    agent = mpo(minibatches=1)
    rollouts = agent.sample_round()
    batch = agent.estimated(rollouts)
    t = batch.data
    log_prob = t.log_probs["old"]
    assert torch.allclose(log_prob[t.mask], t.log_probs["reference"][t.mask])
    advantage = torch.zeros_like(log_prob)

    def value(**weights: float) -> float:
        return float(MixedPreference(**weights)(log_prob, None, advantage, t)[0, 0])

    assert value(dpo=1.0, bco=0.0, sft=0.0) == pytest.approx(math.log(2), rel=1e-5)
    assert value(dpo=0.0, bco=1.0, sft=0.0) == pytest.approx(2 * math.log(2), rel=1e-5)
    chosen = t.mask & (t.signals["chosen"] > 0.5)
    nll = float(-log_prob[chosen].mean())
    assert value(dpo=0.0, bco=0.0, sft=1.0) == pytest.approx(nll, rel=1e-5)
    total, _ = loss(RECIPES["mpo"], log_prob, t, estimate(RECIPES["mpo"], t))
    assert float(total) == pytest.approx(0.8 * math.log(2) + 0.4 * math.log(2) + nll, rel=1e-5)


def test_delta_is_the_running_mean_of_rewards() -> None:
    agent = mpo()
    part, means = part_of(agent, PreferencePairs), list[float]()
    rows = kept_rows(agent)
    for seed in range(4):
        shake(agent.model, seed)
        found = agent.sample_round()
        values = []
        for i, row in enumerate(rows):
            (start, stop), own = row.spans[0], found.data.signals["trained"][i, 0]
            if (
                own
                and sum(found.data.groups["prompt"][:, 0] == found.data.groups["prompt"][i, 0]) == 2
            ):
                now, then = (
                    sum(log_probs(m, row.tokens[:start], row.tokens[start:stop]))
                    for m in (agent.model, agent.anchors["reference"])
                )
                values.append(0.1 * (now - then))
        if values:
            means.append(sum(values) / len(values))
        batch = agent.estimated(found)
        wanted = sum(means) / len(means) if means else 0.0
        assert part.mean == pytest.approx(wanted, rel=1e-3, abs=1e-5)
        assert batch.data.signals["shift"][0, 0] == pytest.approx(part.mean)
    assert len(means) >= 2


@pytest.mark.parametrize("name", ["spark", "mpo"])
def test_they_resume_exactly(name: str, tmp_path: Path) -> None:
    agent = mpo() if name == "mpo" else spark(prompts=2, group=2, turn_tokens=3)
    agent.task = lenient(agent.task)
    continued(agent, tmp_path, 2, 2)


def test_a_task_without_judgements_is_refused() -> None:
    for task in ("addition", "addition+chain", "chain+judged-addition"):
        with pytest.raises(ConfigError, match=r"such as addition\+judged-addition"):
            LanguageConfig(task=task, recipe="spark")
