"""Parts of a joint task: shares of what is drawn or learned from, stages, forgetting."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.domains import (
    Domains,
    Stage,
    forgetting,
    learned_groups,
    stage,
    trained_levels,
)
from algorithms.language.imitation import Imitation, ImitationConfig
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.tasks import text_task
from mbrl.errors import ConfigError
from mbrl.policy_gradient.schedulers.partial_episodes import ExIt
from tests.algorithms.language.cases import MODEL, continued, learner, lenient, rounds

TASK = text_task("addition+sorting")


def drawn(domains: Domains, count: int) -> Counter[int]:
    return Counter(domains.draw(random.Random(f"{i}")) for i in range(count))


def test_without_shares_levels_are_even_and_one_task_is_as_ever() -> None:
    levels = (1, 2, 1003)
    assert all(abs(n - 1000) < 100 for n in drawn(Domains(TASK, levels), 3000).values())
    rng, same = random.Random(3), random.Random(3)
    assert Domains(text_task("chain"), (4, 1, 2)).draw(rng) == same.choice((4, 1, 2))


def test_shares_are_of_parts() -> None:
    counts = drawn(Domains(TASK, (1, 2, 1003), (3.0, 1.0)), 8000)
    assert [counts[x] for x in (1, 2, 1003)] == pytest.approx([3000, 3000, 2000], rel=0.06)


@pytest.mark.parametrize("learned", [False, True])
def test_learned_shares_hold_although_parts_are_used_at_different_rates(learned: bool) -> None:
    """Of one part every fifth group is learned from, of the other all: 50:50 within 2 % after 200
    groups, and 17:83 where shares are of what is drawn. A round is four groups."""
    domains = Domains(TASK, (1, 1003), (1.0, 1.0), learned=learned)
    rng, used = random.Random(0), [0, 0]
    while sum(used) < 400:
        parts = [domains.draw(rng) // 1000 for _ in range(4)]
        kept = [k for k in parts if k == 1 or rng.random() < 0.2]
        domains.count(kept)
        for k in kept:
            used[k] += 1
    share = used[0] / sum(used)
    assert share == pytest.approx(0.5, abs=0.02) if learned else abs(share - 1 / 6) < 0.05
    assert domains.counts == used


def test_weights_of_learned_shares() -> None:
    domains = Domains(TASK, (1, 1003), (3.0, 1.0), learned=True)
    assert domains.weights() == [0.75, 0.25]
    domains.count([0, 0, 0, 1, 1, 1])  # wanted 4.5 and 1.5
    low = 0.01 * 0.25
    assert domains.weights() == pytest.approx([1.5 / (1.5 + low), low / (1.5 + low)])


def test_learned_groups_are_those_with_an_advantage() -> None:
    prompts, worth = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0.0, 0, 0, 2, 1, 1])
    assert learned_groups(prompts, worth, [1, 1, 1003, 1003, 2, 2]) == [1, 0]


def test_rounds_count_what_they_learn_from() -> None:
    agent = learner(
        "addition+chain", "grpo", shares_of="learned", prompts=8, levels=(1, 1001), turn_tokens=3
    )
    agent.task = lenient(agent.task)
    for _ in range(3):
        before = list(agent.domains.counts)
        agent.collect()
        assert agent.data is not None
        e, t = agent.data.estimate, agent.data.data
        wanted = [0, 0]
        for prompt in range(8):
            rows = (t.groups["prompt"][:, 0] == prompt).nonzero().flatten().tolist()
            if any(float((e.advantage[i] * e.weight[i]).abs().sum()) > 0 for i in rows):
                wanted[agent.data.rollouts.problems[rows[0]].level // 1000] += 1
        assert [a - b for a, b in zip(agent.domains.counts, before, strict=True)] == wanted
        while agent.left:
            agent.update(agent.next_batch())
    assert sum(agent.domains.counts) > 0


def test_a_stage_as_it_is_written() -> None:
    assert stage("sorting", TASK, 7) == Stage(1, 7)
    text = "sorting:levels=3/4,learning_rate=1e-4,turn_tokens=9,tokens=5"
    assert stage(text, TASK, 7) == Stage(1, 5, (3, 4), 1e-4, 9)
    for wrong, reason in (
        ("chain", "part of addition.sorting"),
        ("sorting:level=3", "did you mean 'levels'"),
        ("sorting:tokens=x", "tokens is 'x'; give a number above 0"),
        ("sorting:learning_rate=-1", "learning_rate is '-1'"),
        ("sorting:levels=2", "sorting has no level 2, it has 3"),
    ):
        with pytest.raises(ConfigError, match=reason):
            stage(wrong, TASK, 7)


@pytest.mark.parametrize(
    ("stages", "levels"),
    [
        ((), (1, 4, 1001)),
        (("addition", "chain"), (1, 4, 1001)),
        (("addition:levels=2", "chain:levels=3/1"), (2, 1001, 1003)),
        (("addition:levels=2", "addition"), (1, 2, 4, 1001)),  # a part without a stage as it was
        (("chain:levels=2", "addition:tokens=9", "chain:levels=5"), (1, 4, 1002, 1005)),
    ],
)
def test_levels_of_all_stages_are_trained_on(stages: tuple[str, ...], levels: Any) -> None:
    config = LanguageConfig(
        task="addition+chain", levels=(1, 4, 1001), stages=stages, model=MODEL, prompts=2
    )
    assert trained_levels(config, text_task(config.task)) == levels
    agent = LanguagePolicyGradient(config=config)
    assert agent.levels == levels and agent.domains.levels == [[1, 4], [1001]]
    assert trained_levels(
        ImitationConfig(task="addition", levels=(3, 1)), text_task("addition")
    ) == (3, 1)


def staged(**settings: Any) -> LanguagePolicyGradient:
    stages = (
        "chain:levels=2,learning_rate=0.01,turn_tokens=2",
        "addition:tokens=60",
        "chain:tokens=9",
    )
    agent = learner(
        "addition+chain",
        "grpo",
        stages=stages,
        stage_tokens=20,
        turn_tokens=4,
        prompts=2,
        warm_up=1,
        **settings,
    )
    agent.task = lenient(agent.task)
    return agent


@pytest.mark.parametrize(
    ("recipe", "task", "stages", "place"),
    [
        ("fission_grpo", "calculator", ("calculator:levels=2", "calculator:levels=3"), "waiting"),
        ("syn_grpo", "addition+varied-addition", ("addition:levels=2", "addition"), "pool"),
        ("archer", "chain+calculator", ("chain", "calculator"), "replay"),
        ("remix", "addition+chain", ("addition", "chain"), "recent.groups"),
        ("grpo", "chain+calculator", ("chain", "calculator"), "buffer.starts"),
    ],
)
def test_nothing_of_a_stage_comes_again_in_the_next(
    recipe: str, task: str, stages: tuple[str, ...], place: str
) -> None:
    share = {"starts_share": 0.5} if place == "buffer.starts" else {}
    agent = learner(task, recipe, stages=stages, **share)
    first, *inner = place.split(".")
    holder = next(x for x in (*agent.measures, agent.collector) if hasattr(x, first))
    for name in [first, *inner][:-1]:
        holder = getattr(holder, name)
    name = [first, *inner][-1]
    if isinstance(holder, ExIt):
        holder.add("a conversation", torch.tensor([0.0, 1.0]))
    else:
        setattr(holder, name, ["a conversation"])
    agent.begin_stage()
    assert len(getattr(holder, name)) == 0


def test_stages_follow_each_other_with_their_settings() -> None:
    agent, seen = staged(), []
    for _ in range(12):
        rates = []
        for _ in range(agent.collect()):
            agent.update(agent.next_batch())
            rates.append(agent.optimisers["model"].param_groups[0]["lr"])
        assert agent.data is not None
        problems = agent.data.rollouts.problems
        longest = int(agent.data.data.mask.sum(1).max())
        seen.append((agent.domains.at, {p.task for p in problems}, set(rates), longest))
        if agent.domains.at == 0:
            assert {p.level for p in problems} == {1002} and longest <= 2
        assert agent.stage_over == (
            agent.domains.at < 2
            and agent.tokens["sampled"] - agent.domains.since >= (20, 60, 9)[agent.domains.at]
        )
    stages = [s for s, *_ in seen]
    assert stages == sorted(stages) and set(stages) == {0, 1, 2} and stages.count(1) > 1
    for at, names, rates, _ in seen:
        assert names == {("chain", "addition", "chain")[at]}
        assert rates == {(0.01, 3e-4, 3e-4)[at]}
    assert any(longest > 2 for at, _, _, longest in seen if at == 1)


@pytest.mark.parametrize("reset", [False, True])
def test_the_optimiser_begins_anew_where_it_is_to(reset: bool) -> None:
    agent = staged(stage_reset=reset)
    steps = []
    while agent.domains.at < 1:
        for _ in range(agent.collect()):
            agent.update(agent.next_batch())
        state = next(iter(agent.optimisers["model"].state.values()))
        steps.append((agent.domains.at, float(state["step"])))
    before, (_, after) = steps[-2][1], steps[-1]
    assert after == (2 if reset else before + 2)


@pytest.mark.parametrize("before", [1, 2, 3, 4, 5])
def test_it_resumes_at_any_border(before: int, tmp_path: Path) -> None:
    again = continued(staged(stage_reset=True), tmp_path, before, 3)
    assert again.domains.at > 0 or before < 2


def test_learned_shares_resume(tmp_path: Path) -> None:
    agent = learner("addition+chain", "grpo", shares_of="learned", turn_tokens=3)
    agent.task = lenient(agent.task)
    again = continued(agent, tmp_path, 2, 2)
    assert again.domains.state_dict() == agent.domains.state_dict()


def test_demonstrations_of_all_parts_are_shown() -> None:
    config = ImitationConfig(task="addition+chain", model=MODEL, rows=64, shares=(1.0, 3.0))
    agent = Imitation(config=config)
    names = Counter(p.task for p in agent.next_batch().problems)
    assert 8 <= names["addition"] <= 24
    agent.update(agent.next_batch())


def test_what_was_forgotten() -> None:
    scores = torch.tensor([[0.5, 0.2, 0.1], [0.7, 0.6, 0.1], [0.4, 0.5, 0.3]])
    assert forgetting(scores).tolist() == pytest.approx([0.3, 0.1, -0.2])
    assert forgetting(scores[:1]).isnan().all()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"shares": (1.0,)}, "has 1 parts; give each part"),
        ({"task": "addition+chain", "shares": (1.0,)}, "has 2 parts"),
        ({"task": "addition+chain", "levels": (1, 2)}, "levels has none of chain"),
        ({"shares_of": "learned"}, "has to be a joint task"),
        ({"task": "addition+chain", "stages": ("chain",), "shares": (1.0, 1.0)}, "leave shares"),
        ({"task": "addition+chain", "stages": ("chain",), "pool": 5}, "leave pool and pivots"),
        ({"stage_reset": True}, "there are no stages"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LanguageConfig(**settings)


def test_rounds_of_a_joint_task_learn() -> None:
    agent = learner("guessing+chain", "grpo", prompts=4, turn_tokens=3)
    agent.task = lenient(agent.task)
    rounds(agent, 2)
