"""Subgoals and their critic, and programs with a profiler, against slow loops."""

import random

import pytest
import torch

from algorithms.language.measures.subgoals import Subgoals
from algorithms.language.policy_gradient import LanguagePolicyGradient
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks import Problem, text_task
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import (
    features,
    learner,
    lenient,
    part_of,
    rounds,
    shake,
    starts,
    told,
)

FREE = {"size": 3, "walls": [], "goal": "22", "key": "", "start": "00"}
PROBLEM = Problem("go 22 at 00en", 3, FREE, state="00")
CHATS = [  # with the turns at which a subgoal is new
    (["+22n", "=n", "=e", "=e"], [0]),
    (["+02n", "+02n", "+22e", "x", "=e"], [0, 1, 2]),
    (["=n", "", "+22n", "=n", "=e", "=e"], [0, 2]),
]


def walked() -> tuple[LanguagePolicyGradient, Rollouts]:
    agent = learner("planned", "hiper", levels=(3,))
    shake(part_of(agent, Subgoals).heads, 3)
    found = told(agent, [(PROBLEM, turns) for turns, _ in CHATS])
    return agent, part_of(agent, Subgoals).measure(found)


def slow_turns(agent: LanguagePolicyGradient, found: Rollouts, i: int) -> list[dict[str, float]]:
    """Of every turn: reward, the three values, whether it opens an option, its steps by kind."""
    rows, heads = [], part_of(agent, Subgoals).heads
    tokens = found.tokens[i].tolist()
    for k, (start, stop) in enumerate(starts(found, i)):  # where turns stand
        text = CHATS[i][0][k]
        planned = 3 if text.startswith("+") and len(text) == 4 else int(text != "")
        acts = start + planned
        rows.append(
            {
                "reward": found.replies[i][k].reward,
                "low": float(features(heads, tokens[:acts])[0]),
                "high": float(features(heads, tokens[:start])[1]),
                "switch": float(features(heads, tokens[:start])[2]),
                "new": k in CHATS[i][1],
                "start": start,
                "stop": stop,
                "planned": planned,
            }
        )
    return rows


def test_what_turns_say_of_their_subgoals() -> None:
    agent, found = walked()
    t = found.data
    for i in range(len(found)):
        option = -1
        for turn in slow_turns(agent, found, i):
            option += int(turn["new"])
            first, last = int(turn["start"]) - 1, int(turn["stop"]) - 1
            assert set(t.segments["option"][i, first:last].tolist()) == {option}
            steps = last - first
            switch = [float(turn["planned"] > 0)] + [0.0] * (steps - 1)
            named = 2 if turn["planned"] == 3 else 0
            subgoal = [0.0] + [1.0] * named + [0.0] * (steps - 1 - named)
            assert t.signals["switch"][i, first:last].tolist() == switch
            assert t.signals["subgoal"][i, first:last].tolist() == subgoal[:steps]
            for name, key in (("value", "low"), ("value_high", "high"), ("value_switch", "switch")):
                at = t.signals[name][i, first:last].tolist()
                assert at == pytest.approx([turn[key]] * steps, abs=1e-4)


def slow_targets(rows: list[dict[str, float]]) -> list[tuple[float, float | None, float]]:
    """Of every turn what the three heads are to be: gamma 1, lambda 1 and 0.95, an episode that
    ended."""
    opens = [k for k, row in enumerate(rows) if row["new"]]
    ends = [*opens[1:], len(rows)]
    found: list[list[float | None]] = [[0.0, None, 0.0] for _ in rows]
    carried = 0.0
    for begin, end in reversed(list(zip(opens, ends, strict=True))):
        beyond = rows[end]["high"] if end < len(rows) else 0.0
        total = sum(row["reward"] for row in rows[begin:end])
        carried = total + beyond - rows[begin]["high"] + 0.95 * carried
        found[begin][1] = carried + rows[begin]["high"]
        for k in range(begin, end):
            rest = sum(row["reward"] for row in rows[k:end]) + beyond
            found[k][0] = found[k][2] = rest
    return [(a or 0.0, b, c or 0.0) for a, b, c in found]


def test_targets_of_the_three_heads() -> None:
    agent, found = walked()
    targets = part_of(agent, Subgoals).targets(found)
    for i in range(len(found)):
        rows = slow_turns(agent, found, i)
        for row, wanted in zip(rows, slow_targets(rows), strict=True):
            at = int(row["start"]) - 1
            assert float(targets["turns"][i, at]) == pytest.approx(wanted[0], abs=1e-4)
            assert float(targets["switches"][i, at]) == pytest.approx(wanted[2], abs=1e-4)
            if wanted[1] is not None:
                assert float(targets["options"][i, at]) == pytest.approx(wanted[1], abs=1e-4)


def test_the_loss_of_the_three_heads() -> None:
    agent, found = walked()
    part = part_of(agent, Subgoals)
    errors: list[list[float]] = [[], [], []]
    for i in range(len(found)):
        rows = slow_turns(agent, found, i)
        for row, wanted in zip(rows, slow_targets(rows), strict=True):
            errors[0].append((row["low"] - wanted[0]) ** 2)
            errors[2].append((row["switch"] - wanted[2]) ** 2)
            if wanted[1] is not None:
                errors[1].append((row["high"] - wanted[1]) ** 2)
    metrics = part.learn(found, part.targets(found))
    total = sum(sum(e) / len(e) for e in errors)
    assert float(metrics["subgoals/loss"]) == pytest.approx(total, rel=1e-3)


def test_subgoals_learn() -> None:
    agent = learner("planned", "hiper", levels=(3,), minibatches=1)
    agent.task = lenient(agent.task)
    before = [p.clone() for p in part_of(agent, Subgoals).heads.parameters()]
    rounds(agent, 2)
    after = part_of(agent, Subgoals).heads.parameters()
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    with pytest.raises(ConfigError, match="a task whose turns do: planned"):
        learner("grid_world", "hiper")


def test_who_walks_for_subgoals_walks_as_in_the_grid_world() -> None:
    bare, planned, rng = text_task("grid_world"), text_task("planned"), random.Random(0)
    for number in range(40):
        level = (3, 5)[number % 2]
        problem = planned.problem(level, random.Random(number))
        assert problem == bare.problem(level, random.Random(number))
        turns: list[str] = []
        walked: list[str] = []
        while not turns or not planned.reply(problem, turns).done:
            turn = rng.choice([planned.demonstration(problem, turns, rng), "=e", "+11s", "w"])
            turns.append(turn)
            known = any(t.startswith("+") for t in turns)
            walked.append(turn[-1] if turn[0] == "+" or (turn[0] == "=" and known) else "?")
            mine, theirs = planned.reply(problem, turns), bare.reply(problem, walked)
            assert mine == theirs
            assert planned.plan(turns).new == (turn[0] == "+" or len(turns) == 1)


def cycles(program: str) -> tuple[int, int, int]:
    """By the words of the task: the value, own cycles, cycles of the reference."""
    value, own, called = 1, 0, 0
    for step in program:
        value = {"d": value * 2, "a": value + 1}.get(step) or value + int(step)
        own += step in "da"
        called += 0 if step in "da" else int(step) + 1
    return value, own, called


def test_programs_are_paid_for_speed_and_coverage() -> None:
    task, rng = text_task("kernels"), random.Random(1)
    for number in range(300):
        problem = task.problem((7, 8, 9, 10)[number % 4], rng)
        n = problem.facts["n"]
        assert problem.prompt == f"{n}x in {n - 1}" and n.bit_length() == problem.level
        program = "".join(rng.choice("da2359") for _ in range(rng.randint(1, 4)))
        if number % 3 == 0:
            program = task.demonstration(problem, [], rng)
        value, own, called = cycles(program)
        reply = task.reply(problem, [program])
        if number % 3 == 0:
            assert value == n
        if value != n:
            assert (reply.reward, reply.observation) == (0.0, f"got {value}")
            assert reply.signals == {"void": 0.0, "coverage": 0.0}
        else:
            total = own + called
            speed = min(3.0, (n - 1) / total)
            assert reply.reward == pytest.approx((speed + 0.5 * own / total) / 10.5)
            assert reply.observation == f"ok {total}"
            assert reply.signals["coverage"] == pytest.approx(own / total)
            last = task.reply(problem, ["", "x1", program])
            assert last.done and last.success == (total < n - 1)
    void = task.reply(problem, ["1"])
    assert void.observation == "?" and void.signals == {"void": 1.0, "coverage": 0.0}


def test_who_lets_the_reference_do_the_work_is_not_trained_on() -> None:
    """Kept with the chance (c - 0.3) / 0.1; wrong programs are kept."""
    agent = learner("kernels", "dr_kernel", levels=(7,))
    seven = Problem("7x in 6", 7, {"n": 7})
    found = told(agent, [(seven, ["6", "dada", "d5"]), (seven, ["da4", "aaa4", "a"])])
    coverage = [[0.0, 1.0, 1 / 7], [2 / 7, 0.0, 0.0]]
    uniform = torch.full_like(found.data.reward, 0.5)
    found.data.signals["uniform"] = uniform
    for part in agent.measures:
        found = part.measure(found)
    chosen = agent.recipe.selection[0](torch.ones_like(uniform), found.data)
    t = found.data
    for i, row in enumerate(coverage):
        for k, c in enumerate(row):
            own = t.mask[i] & (t.segments["turn"][i] == k)
            assert t.signals["coverage"][i, own].tolist() == pytest.approx([c] * int(own.sum()))
            right = found.replies[i][k].reward > 0
            kept = not right or (c - 0.3) / 0.1 > 0.5
            assert set(chosen[i, own].tolist()) == {float(kept)}
