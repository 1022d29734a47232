"""Text tasks of many turns, against another way to play them."""

import ast
import random
import re
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.language.tasks import Problem, text_task
from algorithms.language.tasks.expressions import Tree, operations, parse, value, written

trees = st.recursive(
    st.integers(-999, 999),
    lambda inner: st.tuples(st.sampled_from("+-*/"), inner, inner),
    max_leaves=8,
)


def exact(text: str) -> Fraction:
    """By the grammar of Python."""
    assert re.fullmatch(r"[0-9+*/()-]+", text)
    return eval(re.sub(r"([0-9]+)", r"Fraction(\1)", text))


@settings(max_examples=100, deadline=None)
@given(tree=trees)
def test_expressions_are_read_as_python_reads_them(tree: Tree) -> None:
    text = written(tree)
    assert parse(text) == tree
    try:
        expected = exact(text)
    except ZeroDivisionError:
        expected = None
    try:
        assert value(tree) == expected
    except ZeroDivisionError:
        assert expected is None


@settings(max_examples=100, deadline=None)
@given(text=st.text("0123+-*/()", max_size=10))
def test_what_is_no_expression(text: str) -> None:
    """Python also has "**", "//", "+1" and calls, and does not have "01"."""
    try:
        tree = ast.parse(re.sub(r"\b0+(?=\d)", "", text), mode="eval")
    except SyntaxError:
        assert parse(text) is None
        return
    nodes = list(ast.walk(tree))
    odd = (ast.Pow, ast.FloorDiv, ast.UAdd, ast.Call, ast.Tuple)
    assert (parse(text) is None) == any(isinstance(node, odd) for node in nodes)


def expression(text: str) -> Problem:
    return Problem(f"{text}=", 2, {"expression": text, "answer": int(exact(text))}, state=text)


def test_calculator() -> None:
    task, problem = text_task("calculator"), expression("12*(30+4)-8/4+5")
    answers = {
        "calc(30+4)": ("34", "12*34-8/4+5"),
        "calc((30+4))": ("34", "12*34-8/4+5"),
        "calc(12*(30+4))": ("408", "408-8/4+5"),
        "calc(7/14)": ("1/2", problem.state),
        "calc(-7+-1)": ("-8", problem.state),
        "calc(5)": ("5", problem.state),
    }
    for turn, (shown, state) in answers.items():
        reply = task.reply(problem, [turn])
        assert (reply.observation, reply.state, reply.done) == (shown, state, False)
        assert reply.signals == {"void": 0, "penalty": 0}
    errors = {
        "calc(1/0)": "error: division by zero",
        "calc(1/(2-2))": "error: division by zero",
        "calc(1+)": "error: syntax",
        "calc(2**3)": "error: syntax",
        "calc(1 + 1)": "error: syntax",
        "calc(0123456789)": "error: syntax",
        "calc(1+1+1+1)": "error: too long",
        f"calc({'(' * 10_000}1{')' * 10_000})": "error: too long",
        "calc(99999*99999)": "error: too large",
        "calc(1/99999/99999)": "error: too large",
        "calc(1+1": "error: syntax",
    }
    for turn, shown in errors.items():
        reply = task.reply(problem, [turn])
        assert (reply.observation, reply.state, reply.done) == (shown, problem.state, False)
        assert reply.signals == {"void": 0, "penalty": 1}
    for turn in ("", "411", "answer", "answer  411", "answer 4.0", "Calc(1)", " calc(1+1)"):
        reply = task.reply(problem, [turn])
        assert (reply.observation, reply.state, reply.done) == ("?", problem.state, False)
        assert reply.signals == {"void": 1, "penalty": 0}
    assert task.reply(problem, ["answer 411"]).success
    reply = task.reply(problem, ["answer 412"])
    assert reply.done and not reply.success and reply.reward == 0
    late = task.reply(problem, [""] * 8)
    assert late.done and late.signals["void"] == 1 and late.observation == ""


def test_calculator_problems_are_whole() -> None:
    task = text_task("calculator")
    for level in task.levels:
        for seed in range(60):
            problem = task.problem(level, random.Random(seed))
            text = problem.prompt.removesuffix("=")
            assert len(re.findall(r"[-+*/]", text)) == level
            answer = exact(text)
            assert task.reply(problem, [f"answer {answer}"]).success
            tree = parse(text)
            assert tree is not None and operations(tree) == level
            parts = [tree]
            while parts:
                part = parts.pop()
                assert value(part).denominator == 1 and value(part) >= 0
                if not isinstance(part, int):
                    parts += part[1:]


def test_calculator_goes_on_from_any_calls() -> None:
    """Calls of anything take turns from the eight, and never what is left of the expression away
    from its value."""
    task = text_task("calculator")
    for seed in range(60):
        rng = random.Random(seed)
        problem = task.problem(rng.choice(task.levels), rng)
        turns = []
        for _ in range(3):
            numbers = re.findall(r"[0-9]+", problem.prompt)
            flat = "".join(rng.choice(numbers) + rng.choice("+-*/") for _ in range(2)) + "2"
            inner = [*re.findall(r"\(([^()]*)\)", problem.prompt), flat]
            turns.append(f"calc({rng.choice(inner)})")
            reply = task.reply(problem, turns)
            assert exact(reply.state) == exact(problem.prompt.removesuffix("="))
            called = turns[-1][5:-1]
            if not reply.observation.startswith("error"):
                assert Fraction(reply.observation) == exact(called)
        while not reply.done:
            turns.append(task.demonstration(problem, turns, rng))
            reply = task.reply(problem, turns)
        assert reply.success


def test_guessing_takes_no_more_than_halving() -> None:
    """From what it is told, one who halves has a turn left over at most."""
    task = text_task("guessing")
    for level in task.levels:
        most = 0
        for seed in range(80):
            problem = task.problem(level, random.Random(seed))
            low, high, limit = map(int, re.findall("[0-9]+", problem.prompt))
            assert high - low + 1 == level and high < 200
            turns: list[str] = []
            state = problem.state
            while True:
                assert state == f"{low}-{high}"
                guess = (low + high) // 2
                assert task.demonstration(problem, turns, random.Random(0)) == str(guess)
                turns.append(str(guess))
                reply = task.reply(problem, turns)
                state = reply.state
                if reply.done:
                    break
                if reply.observation == "higher":
                    low = guess + 1
                else:
                    assert reply.observation == "lower"
                    high = guess - 1
            assert reply.success
            most = max(most, len(turns))
        assert level.bit_length() - 1 <= most <= level.bit_length() == limit - 1


def test_guesses_in_any_order() -> None:
    task, rng = text_task("guessing"), random.Random(0)
    for seed in range(100):
        problem = task.problem(rng.choice(task.levels), random.Random(seed))
        low, high, limit = map(int, re.findall("[0-9]+", problem.prompt))
        left, turns = set(range(low, high + 1)), []
        for turn in range(limit):
            guess = rng.randint(low - 3, high + 3)
            turns.append(str(guess) if rng.random() < 0.8 else rng.choice(["", "\ufffd", "higher"]))
            reply = task.reply(problem, turns)
            if reply.success:
                assert guess in left
                break
            assert reply.done == (turn == limit - 1) and reply.reward == 0
            assert reply.signals["void"] == (not turns[-1].isdigit())
            if turns[-1].isdigit():
                higher = task.reply(problem, turns[-1:]).observation == "higher"
                left = {n for n in left if (n > guess if higher else n < guess)}
            assert reply.state == f"{min(left)}-{max(left)}"
            if not reply.done:
                assert int(task.demonstration(problem, turns, rng)) in left


class Walk:
    """A grid as rows of free cells."""

    def __init__(self, problem: Problem) -> None:
        pattern = r"(?:key (\d\d) )?go (\d\d) at (\d\d)[ensw]*"
        self.key, self.goal, at = re.fullmatch(pattern, problem.prompt).groups()
        n, walls = problem.level, problem.facts["walls"]
        self.free = [[f"{x}{y}" not in walls for x in range(n)] for y in range(n)]
        self.start = (int(at[0]), int(at[1]), False)

    def step(self, at: tuple[int, int, bool], move: str) -> tuple[int, int, bool]:
        x, y, has = at
        x, y = x + (move == "e") - (move == "w"), y + (move == "n") - (move == "s")
        if min(x, y) < 0 or max(x, y) >= len(self.free) or not self.free[y][x]:
            return at
        return x, y, has or f"{x}{y}" == self.key

    def over(self, at: tuple[int, int, bool]) -> bool:
        return f"{at[0]}{at[1]}" == self.goal and (at[2] or self.key is None)

    def distance(self, at: tuple[int, int, bool]) -> int:
        edge, seen, steps = {at}, {at}, 0
        while not any(map(self.over, edge)):
            edge = {self.step(a, move) for a in edge for move in "ensw"} - seen
            assert edge
            seen |= edge
            steps += 1
        return steps


def test_grid_worlds_are_walked() -> None:
    task = text_task("grid_world")
    with_key = again = 0
    for level in task.levels:
        for seed in range(40):
            rng = random.Random(seed)
            problem = task.problem(level, rng)
            walk = Walk(problem)
            at, turns, seen = walk.start, [], {problem.state}
            with_key += walk.key is not None
            for _ in range(3):
                turns.append(rng.choice("ensw"))
                at = walk.step(at, turns[-1])
                reply = task.reply(problem, turns)
                assert reply.done == reply.success == walk.over(at)
                if reply.done:
                    break
                ways = "".join(m for m in "ensw" if walk.step(at, m)[:2] != at[:2])
                assert reply.observation == f"{at[0]}{at[1]}{ways}{'k' * at[2]}"
                assert reply.state == f"{at[0]}{at[1]}{'k' * at[2]}"
                again += reply.state in seen
                seen.add(reply.state)
            left = 0 if reply.done else walk.distance(at)
            for n in range(left):
                assert not reply.done and n < left
                turns.append(task.demonstration(problem, turns, rng))
                reply = task.reply(problem, turns)
            assert reply.success
    assert with_key > 40 and again > 40


def test_grid_worlds_are_short_enough_and_end() -> None:
    task = text_task("grid_world")
    for level in task.levels:
        limit = 2 * level + 8
        assert limit <= task.max_turns
        for seed in range(40):
            problem = task.problem(level, random.Random(seed))
            walk = Walk(problem)
            assert level - 1 <= walk.distance(walk.start) <= limit - 6
            assert not task.reply(problem, [""] * (limit - 1)).done
            last = task.reply(problem, [""] * limit)
            assert last.done and last.reward == 0 and last.observation == ""
            assert last.state == problem.state and last.signals == {"void": 1.0}
