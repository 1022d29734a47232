"""Trees of conversations and sets that begin in one state, against slow ways to find them."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.measures import branches, trees
from algorithms.language.measures.critics import Critic
from algorithms.language.measures.trees import DivergentTrees, divergence
from algorithms.language.policy_gradient import LanguagePolicyGradient
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import continued, learner, lenient, part_of, shake


def talking(recipe: str, task: str = "guessing", **settings: Any) -> LanguagePolicyGradient:
    levels = (8,) if task == "guessing" else ()
    agent = learner(task, recipe, **{"levels": levels, "turn_tokens": 3, "group": 6} | settings)
    agent.task = lenient(agent.task)
    return agent


def slow_divergence(logits: list[float], units: list[list[float]]) -> float:
    top = max(logits)
    total = sum(math.exp(x - top) for x in logits)
    p = [math.exp(x - top) / total for x in logits]
    entropy = -sum(x * math.log(x) for x in p if x > 0)
    best = sorted(range(len(p)), key=lambda i: -p[i])[:20]
    alike = sum(
        p[i] * p[j] * sum(a * b for a, b in zip(units[i], units[j], strict=True))
        for i in best
        for j in best
        if i != j
    )
    return -entropy * alike


def units_of(agent: LanguagePolicyGradient) -> list[list[float]]:
    rows = agent.model.embedding.weight.tolist()
    return [[x / math.sqrt(sum(y * y for y in row)) for x in row] for row in rows]


def test_divergence_by_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 30, generator=generator, dtype=torch.float64) * 3
    vectors = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    units = torch.nn.functional.normalize(vectors, dim=-1).tolist()
    wanted = [slow_divergence(row, units) for row in logits.tolist()]
    torch.testing.assert_close(divergence(logits, vectors).tolist(), wanted)


@pytest.mark.parametrize("task", ["addition", "guessing"])
def test_trees_branch_where_meanings_diverge_most(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "ROOT_CHANCE", 0.0)
    agent = talking("rose", task, prompts=1)
    part, held = part_of(agent, DivergentTrees), list[trees.Twig]()
    problem = agent.problem(0)
    units = units_of(agent)
    for i in range(4):
        twig = part.next(problem, held)
        if i:
            best = max(v for other in held for v in slow_places(agent, other, units).values())
            own = slow_places(agent, held[twig.parent], units)
            assert own[twig.start] == pytest.approx(best, rel=1e-3)
            assert twig.row.tokens == held[twig.parent].row.tokens[: twig.start]
            assert len(twig.row.behaviour) == sum(
                start <= p < min(stop, twig.start)
                for start, stop in held[twig.parent].row.spans
                for p in range(start, stop)
            )
        agent.collector.advance([twig.row], agent.collector.limits())
        (twig.divergence,) = part.divergences([twig])
        assert twig.row.done and len(twig.row.behaviour) == len(twig.row.versions)
        held.append(twig)


def slow_places(
    agent: LanguagePolicyGradient, twig: trees.Twig, units: list[list[float]]
) -> dict[int, float]:
    """One pass for each token that the model said."""
    found = {}
    for span in twig.row.spans:
        for at in range(*span):
            with torch.no_grad():
                logits = agent.model(torch.tensor([twig.row.tokens[:at]]))[0, -1].tolist()
            found[at] = slow_divergence(logits, units)
    return found


@pytest.mark.parametrize(("chance", "task"), [(0.0, "addition"), (0.5, "guessing")])
def test_steps_are_shared_by_those_that_say_the_same(
    chance: float, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "ROOT_CHANCE", chance)
    agent = talking("rose", task)
    agent.collect()
    assert agent.data is not None
    t, tokens = agent.data.rollouts.data, agent.data.rollouts.tokens
    node, total = t.groups["node"], torch.where(t.mask, t.reward, 0.0).sum(1)
    behaviour, said = t.log_probs["behaviour"], set[tuple[int, ...]]()
    advantage = agent.data.estimate.advantage
    for i, step in t.mask.nonzero().tolist():
        near = [j for j in range(len(total)) if j // 6 == i // 6]

        def same(j: int, at: int, i: int = i) -> bool:
            return bool(t.mask[j, at] and node[j, at] == node[i, at])

        for j in filter(lambda j: same(j, step), near):
            assert tokens[j, : step + 2].tolist() == tokens[i, : step + 2].tolist()
            assert behaviour[j, step] == behaviour[i, step]
        said.add((i // 6, int(node[i, step]), step))
        # The value of the step's node less that of the node before it.
        own = [j for j in near if same(j, step)]
        earlier = [s for s in t.mask[i].nonzero().flatten().tolist() if s < step]
        before = near
        for s in reversed(earlier):
            if node[i, s] != node[i, step]:
                before = [j for j in near if same(j, s)]
                break
        wanted = total[own].mean() - total[before].mean()
        assert float(advantage[i, step]) == pytest.approx(float(wanted), abs=1e-5)
    assert agent.tokens["sampled"] == len(said)  # what is shared was said once
    torch.testing.assert_close(t.log_probs["old"][t.mask], behaviour[t.mask], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("group", "sizes"), [(4, [2, 2]), (8, [4, 4]), (11, [4, 4, 3])])
def test_sets_go_on_from_one_state(group: int, sizes: list[int]) -> None:
    agent = talking("polychromic", group=group, turn_tokens=2)
    agent.collect()
    assert agent.data is not None
    found = agent.data.rollouts
    t, turn = found.data, found.data.segments["turn"]
    total = torch.where(t.mask, t.reward, 0.0).sum(1)
    kinds = [turns[-1].removeprefix("answer ") for turns in found.turns]
    for start in (0, group):
        rows = range(start, start + group)
        counts: dict[int, list[int]] = {}
        for i in rows:
            counts.setdefault(int(t.groups["set"][i, 0]), []).append(i)
        assert sorted(map(len, counts.values()), reverse=True) == sizes
        begun = [int(turn[i, t.mask[i]].min()) for i in rows]
        assert begun[0] == 0 and len(set(begun[1:])) == 1
        state = begun[1]
        for i in rows:  # the common beginning
            assert found.turns[i][:state] == found.turns[start][:state]
        worth = {
            name: float(total[own].mean()) * len({kinds[i] for i in own}) / len(own)
            for name, own in counts.items()
        }
        mean = sum(worth.values()) / len(worth)
        for i in rows:
            for step in t.mask[i].nonzero().flatten().tolist():
                inside = 0 <= int(turn[i, step]) - state < 5
                assert float(t.signals["vine_window"][i, step]) == float(inside)
                if inside:
                    wanted = worth[int(t.groups["set"][i, step])] - mean
                    assert float(agent.data.estimate.advantage[i, step]) == pytest.approx(
                        wanted, abs=1e-5
                    )


def test_outside_the_window_there_is_a_critic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "WINDOW", 1)
    agent = talking("polychromic", group=4, turn_tokens=2)
    shake(part_of(agent, Critic).heads, 1)
    agent.collect()
    assert agent.data is not None
    t = agent.data.rollouts.data
    assert t.signals["value"].abs().max() > 0.1
    for i in range(len(t.mask)):
        steps, carried = t.mask[i].nonzero().flatten().tolist(), 0.0
        for step in reversed(steps):  # as in equation 16 of arXiv 1506.02438
            goes_on = float(not t.terminated[i, step])
            after = float(t.signals["next_value"][i, step])
            error = float(t.reward[i, step]) + GAMMA * goes_on * after
            error -= float(t.signals["value"][i, step])
            carried = error + GAMMA * 0.95 * goes_on * (not t.truncated[i, step]) * carried
            if t.signals["vine_window"][i, step] < 0.5:
                found = float(agent.data.estimate.advantage[i, step])
                assert found == pytest.approx(carried, abs=1e-4)


GAMMA = 1.0  # of language


def test_the_budget_of_balanced_branches() -> None:
    def slow(k: int, first: float, later: list[float]) -> int:
        gap = first - (sum(later) / len(later) if later else first)
        return min(k, max(2, round(k / (1 + math.exp(-gap)))))

    for k in (2, 5, 8, 16):
        for first in (0.0, 0.3, 1.0):
            for later in ([], [0.2], [0.1, 0.9, 0.8]):
                assert branches.budget(k, first, later) == slow(k, first, later)
    assert branches.budget(8, 0.5, []) == 4


def test_branches_in_a_row_become_rare() -> None:
    agent = talking("aepo")
    part = part_of(agent, branches.BalancedBranches)
    row = agent.codec.opening("")
    leaf = branches.Branch(row, 0, [])  # type: ignore[arg-type]
    found = []
    for streak in range(6):
        leaf.streak = streak
        found.append(part.probability(leaf, 0.5))
    assert found == pytest.approx([0.6, 0.45, 0.3, 0.15, 0.0, 0.0])


@pytest.mark.parametrize(("base", "sure"), [(0.0, 0), (10.0, 4)])
def test_balanced_branches_fill_the_group(
    base: float, sure: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branches, "CHANCE", base)
    monkeypatch.setattr(branches, "WEIGHT", 0.0)
    agent = talking("aepo", group=8, turn_tokens=2)
    found = agent.sample_round()
    t, node = found.data, found.data.groups["node"]
    assert t.groups["prompt"][:, 0].tolist() == [0] * 8 + [1] * 8
    said = {(int(node[i, s]), s) for i, s in t.mask.nonzero().tolist()}
    assert agent.tokens["sampled"] == len(said)
    for start in (0, 8):
        first = [int(node[i, t.mask[i].nonzero()[0]]) for i in range(start, start + 8)]
        assert first[0] not in first[1:]  # that by which the budget is seen stays whole
        if sure:
            assert len(set(first)) < 8
        else:
            assert len(set(first)) == 8


@pytest.mark.parametrize("recipe", ["aepo", "rose", "polychromic"])
def test_they_resume_exactly(recipe: str, tmp_path: Path) -> None:
    continued(talking(recipe), tmp_path, 2, 1)


def test_what_they_refuse() -> None:
    with pytest.raises(ConfigError, match="group is 3: recipe polychromic compares sets"):
        learner("guessing", "polychromic", group=3)
    with pytest.raises(ConfigError, match="branches after observations, and addition has none"):
        learner("addition", "aepo")
    with pytest.raises(ConfigError, match="rounds of its own"):
        learner("addition", "rose", pool=4, scheduler="vade")
