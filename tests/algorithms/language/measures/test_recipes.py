"""Every recipe that can be trained on text tasks learns, resumes exactly, or is refused by name."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language import measures
from algorithms.language.imitation import Imitation, ImitationConfig
from algorithms.language.learner import ModelConfig
from algorithms.language.measures import utterances
from algorithms.language.policy_gradient import (
    LanguageConfig,
    LanguagePolicyGradient,
)
from algorithms.language.settings import FIELDS, FULFILS
from mbrl.errors import ConfigError
from mbrl.policy_gradient.measure import wanted
from mbrl.policy_gradient.recipes import RECIPES
from tests.algorithms.language.cases import MODEL, continued, learner, lenient

ONE_TURN = ("addition", "formatted", "chain", "retrieval", "rating", "intervals")
MORE_TURNS = ("guessing", "calculator", "grid_world", "planned", "kernels")
TINY: dict[str, Any] = {
    "prompts": 2, "group": 3, "minibatches": 1, "turn_tokens": 3, "pool": 4, "logged": 8,
}  # fmt: skip
# Recipes of joint tasks and of further attempts, with what they need.
OTHER = (
    "addition+chain",
    "again-addition",
    "addition+judged-addition",
    "routed-chain",
    "addition+varied-addition",
)
NEEDED: dict[str, dict[str, Any]] = {
    "nemotron_cascade": {"stages": ("chain", "addition"), "pool": 0},
    "a2fm": {"group": 4},
    "apriel": {"shares_of": "learned", "pool": 0},
}


def accepted(name: str) -> bool:
    try:
        measures.check(RECIPES[name], FIELDS, FULFILS)
    except ConfigError:
        return False
    return True


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> str:
    taught = Imitation(None, ImitationConfig(task="addition", model=MODEL, rows=4))
    path = tmp_path_factory.mktemp("expert") / "expert.pt"
    taught.save(path)
    return str(path)


def tiny(name: str, tasks: tuple[str, ...], expert: str) -> LanguagePolicyGradient | None:
    """A learner on the first of `tasks` that has what the recipe reads."""
    for task in tasks:
        levels = {"guessing": (8,), "grid_world": (3,), "planned": (3,)}.get(task, ())
        settings = TINY | ({"group": 4} if name == "polychromic" else {}) | NEEDED.get(name, {})
        if name in ("mini_rl_r2", "mini_rl_r3"):
            sizes = dataclasses.replace(MODEL.transformer, experts=3)
            settings |= {"model": ModelConfig(transformer=sizes)}
        try:
            agent = learner(task, name, expert=expert, levels=levels, **settings)
        except ConfigError:
            continue
        agent.task = lenient(agent.task)
        return agent
    return None


def trained(agent: LanguagePolicyGradient, rounds: int) -> None:
    for _ in range(rounds):
        for _ in range(agent.collect()):
            metrics = agent.update(agent.next_batch())
            assert torch.isfinite(metrics["policy/loss"]), agent.recipe.name
    assert all(torch.isfinite(p).all() for p in agent.model.parameters()), agent.recipe.name


@pytest.mark.parametrize("name", [name for name in RECIPES if accepted(name)])
def test_recipes_learn(name: str, expert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utterances, "WARM_UP", 0)
    monkeypatch.setattr(utterances, "STEPS", 2)
    agents = [tiny(name, tasks, expert) for tasks in (ONE_TURN, MORE_TURNS, OTHER)]
    assert any(agents)
    for agent in filter(None, agents):
        before = [p.clone() for p in agent.model.parameters()]
        trained(agent, 1)
        fields = {f"{k}.{n}" for k in ("signals", "groups", "log_probs") for n in _has(agent, k)}
        lacking = {n for n in wanted(agent.recipe) if "." in n} - fields
        assert {n for n in lacking if not n.startswith("segments.")} == set()
        assert agent.data is not None
        worth = (agent.data.estimate.advantage * agent.data.estimate.weight).abs().sum()
        # Some objectives compare right with wrong answers to one prompt.
        if worth > 0 and agent.of_round["rollout/mixed_groups"] > 0:
            moved = zip(before, agent.model.parameters(), strict=True)
            assert any(not torch.equal(a, b) for a, b in moved)


def test_small_minibatches_of_many_prompts() -> None:
    """Ids of groups are below the number of steps, also where an update sees one row."""
    small = TINY | {"prompts": 16, "group": 1, "minibatches": 16, "turn_tokens": 1}
    agent = learner("addition", "drpo_decoupled", levels=(1,), **small)
    trained(agent, 1)


def _has(agent: LanguagePolicyGradient, field: str) -> set[str]:
    assert agent.data is not None
    return set(getattr(agent.data.rollouts.data, field))


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("riskpo", "addition"),
        ("mssr", "addition"),
        ("v_half", "addition"),
        ("weighted_grpo", "addition"),
        ("a_lol_ref_free", "addition"),
        ("calibrl", "addition"),
        ("ps_grpo", "retrieval"),
        ("epo", "guessing"),
        ("spae", "guessing"),
        ("hiper", "planned"),
        ("dr_kernel", "kernels"),
        ("remix", "guessing"),
    ],
)
def test_they_save_and_continue_bit_for_bit(
    name: str, task: str, expert: str, tmp_path: Path
) -> None:
    agent = tiny(name, (task,), expert)
    assert agent is not None
    again = continued(agent, tmp_path, 2, 1, trained)
    assert agent.data is not None and again.data is not None
    for field in ("signals", "groups", "log_probs"):
        mine, theirs = (getattr(x.data.rollouts.data, field) for x in (agent, again))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[k], theirs[k]) for k in mine)


def test_what_no_recipe_needs_is_not_made() -> None:
    assert learner("addition", "grpo").measures == []
    kinds = {kind for name in RECIPES for kind in measures.kinds(RECIPES[name])}
    assert kinds == set(measures.MEASURES)
    known = {sentence for objective in RECIPES.values() for sentence in objective.requirements}
    covered = [sentence for kind in measures.MEASURES for sentence in kind.fulfils]
    assert known >= {*covered, *FULFILS} and len(covered) == len(set(covered))


@pytest.mark.parametrize(
    ("name", "part"), [("igpo", "AnswerGain"), ("a2tgpo", "AnswerGain"), ("infopo", "Observation")]
)
def test_one_name_can_mean_two_things(name: str, part: str) -> None:
    (kind,) = measures.kinds(RECIPES[name])
    assert kind.__name__.startswith(part)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("reinforce_ada", "needs rounds of sampling until both kinds"),
        ("cj_grpo", r"segments\.decode: models here write from left to right.*train grpo"),
    ],
)
def test_recipes_that_need_more_are_refused(name: str, reason: str) -> None:
    if accepted(name):
        pytest.skip("a part gives it")
    with pytest.raises(ConfigError, match=reason):
        LanguageConfig(recipe=name)
