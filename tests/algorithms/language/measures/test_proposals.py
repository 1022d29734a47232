"""Problems that the policy writes: what is valid, what it earns, what comes again."""

import random
from pathlib import Path
from typing import Any

import pytest

from algorithms.language.measures.proposals import ProposedProblems
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.tasks import TASKS, text_task
from algorithms.language.tasks.base import Problem
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import (
    continued,
    kept_rows,
    learner,
    lenient,
    part_of,
    scripted,
)


@pytest.mark.parametrize("name", ["addition", "chain", "brackets"])
def test_tasks_read_their_own_prompts(name: str) -> None:
    task = TASKS[name]
    for level in task.levels:
        for seed in range(40):
            problem = task.problem(level, random.Random(seed))
            assert task.posed(problem.prompt) == problem


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("addition", "1+23= 01+23= 1+2 +1=2 1+2=3 1234567+1234567= 1-2= ١+٢="),
        ("chain", "3= 3+= 3*4*5= 0+1= 12+3= 3+4 1+1+1+1+1+1+1= 3+4=7"),
        ("brackets", "fix: fix_():  fix_(: fix_((((((((((: fix_(a: (()"),
    ],
)
def test_what_they_would_not_pose_is_none(name: str, texts: str) -> None:
    for text in texts.split(" "):
        assert TASKS[name].posed(text.replace("_", " ")) is None, text


def test_valid_is_what_is_new_trained_on_and_not_held_out() -> None:
    task: Any = text_task("varied-addition")
    seen = 0
    for seed in range(60):
        problem = task.problem(2, random.Random(seed))
        inner = TASKS["addition"].problem(2, random.Random(seed))
        assert problem.prompt == f"{inner.prompt}&"
        shown = task.demonstration(problem, [], random.Random(seed))
        assert task.reply(problem, [shown]).success
        for wrong in (inner.prompt, "1+2", "123+456=", ""):  # level 3 is not trained on
            assert not task.reply(problem, [wrong]).success
        other = TASKS["addition"].problem(2, random.Random(seed), held_out=True)
        assert not task.reply(problem, [other.prompt]).success
        seen += task.valid(problem, shown) == TASKS["addition"].posed(shown)
    assert seen == 60
    with pytest.raises(ConfigError, match="take addition, chain or brackets"):
        text_task("varied-sorting")


def syn(**settings: Any) -> LanguagePolicyGradient:
    given = {"levels": (2, 1002), "prompts": 8, "group": 4} | settings
    return learner("addition+varied-addition", "syn_grpo", **given)


def some(count: int) -> list[Problem]:
    """Problems that may be trained on."""
    task = TASKS["addition"]
    return [task.problem(2, random.Random(f"x{i}"), held_out=False) for i in range(count)]


def test_texts_earn_what_their_problems_bring() -> None:
    agent = syn()
    made = some(2)
    written = iter([made[0].prompt, made[0].prompt, made[1].prompt, "1+2"])
    counts: dict[str, int] = {}

    def speak(row: Conversation) -> str:
        prompt = row.problem.prompt
        if prompt.endswith("&"):
            return next(written)
        counts[prompt] = counts.get(prompt, -1) + 1
        right = str(row.problem.facts["answer"])
        if prompt == made[0].prompt:  # one of four
            return right if counts[prompt] == 0 else "x"
        return right

    scripted(agent, speak)
    rows = kept_rows(agent)
    found = agent.sample_round()
    asked, texts, answered = rows[:32], rows[32:36], rows[36:]
    assert all(row.problem.task == "addition" and row.problem.level == 2 for row in asked)
    assert [row.problem.prompt for row in texts] == [f"{rows[28].problem.prompt}&"] * 4
    assert [row.problem.prompt for row in answered] == [p.prompt for p in made for _ in range(4)]
    assert {row.problem.task for row in answered} == {"addition"}
    paid = [row.replies[-1].reward for row in texts]
    assert paid == [4 * 0.25 * 0.75] * 2 + [0.0, 0.0]
    assert found.data.reward[32:36].sum(1).tolist() == pytest.approx(paid)
    part = part_of(agent, ProposedProblems)
    assert part.acts == pytest.approx(sum(paid) / 4)
    assert found.data.signals["aided"][:, 0].tolist() == [0.0] * 32 + [1.0] * 12
    assert found.data.groups["prompt"][:, 0].tolist() == [i // 4 for i in range(44)]
    assert [p["prompt"] for p in part.pool] == [p.prompt for p in made]


def test_what_was_posed_comes_again() -> None:
    agent = syn()
    made = some(1)[0].prompt
    scripted(agent, lambda row: made if row.problem.prompt.endswith("&") else "5")
    rows = kept_rows(agent)
    agent.sample_round()
    assert part_of(agent, ProposedProblems).acts == 0.0  # nobody solves it
    agent.sample_round()
    prompts = [rows[i].problem.prompt for i in range(0, 32, 4)]
    assert prompts[:2] == [made] * 2 and made not in prompts[2:]


def test_it_resumes_exactly(tmp_path: Path) -> None:
    agent = syn(prompts=4, group=3, turn_tokens=4)
    agent.task = lenient(agent.task)
    part_of(agent, ProposedProblems).pool = [{**vars(p), "task": "addition"} for p in some(3)]
    continued(agent, tmp_path, 2, 2)


def test_a_task_without_problems_as_answers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"such as addition\+varied-addition"):
        LanguageConfig(task="addition", recipe="syn_grpo")
