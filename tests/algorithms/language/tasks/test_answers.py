"""Right answers of text tasks of one turn, against another way to find them."""

import itertools
import math
import random
import re

import pytest

from algorithms.language.tasks import Problem, TextTask, text_task
from algorithms.language.tasks.retrieval import Retrieval


def problems(task: TextTask, each: int) -> list[Problem]:
    return [task.problem(v, random.Random(seed)) for v in task.levels for seed in range(each)]


def right(task: TextTask, problem: Problem, turn: str) -> bool:
    return task.reply(problem, [turn]).success


@pytest.mark.parametrize("name", ["addition", "subtraction", "multiplication", "modular", "chain"])
def test_arithmetic(name: str) -> None:
    task = text_task(name)
    for problem in problems(task, 50):
        answer = eval(problem.prompt.removesuffix("="))
        assert right(task, problem, str(answer))
        sign = "-" if answer < 0 else ""
        assert right(task, problem, f"{sign}00{abs(answer)}")
        for wrong in (answer + 1, answer - 1, -answer or 7, answer + 10):
            assert not right(task, problem, str(wrong))


@pytest.mark.parametrize("name", ["addition", "subtraction", "multiplication"])
def test_level_is_the_number_of_digits(name: str) -> None:
    task = text_task(name)
    for problem in problems(task, 50):
        digits = len(re.sub("[^0-9]", "", problem.prompt))
        assert digits == problem.level * (1 if name == "multiplication" else 2)


def steps_again(text: str, turn: str) -> list[bool]:
    """The steps of a chain on the text of its expression: a step may be taken where brackets
    around it change nothing, whatever the numbers are."""
    found = []
    *steps, answer = turn.split(";")
    for step in [*steps, answer] if answer else steps:
        tokens = re.findall(r"[0-9]+|[+*]", text)
        match = re.fullmatch(r"([0-9]+)([+*])([0-9]+)=([0-9]+)", step)
        if not match:
            found.append(step is answer and int(step) == eval(text))
            continue
        result = False
        for i in range(0, len(tokens) - 2, 2):
            if [int(tokens[i]), tokens[i + 1], int(tokens[i + 2])] == [
                int(match[1]),
                match[2],
                int(match[3]),
            ]:
                names = [t if t in "+*" else p for t, p in zip(tokens, PRIMES, strict=False)]
                bracketed = [*names[:i], "(", *names[i : i + 3], ")", *names[i + 3 :]]
                if eval("".join(names)) == eval("".join(bracketed)):
                    result = eval("".join(tokens[i : i + 3])) == int(match[4])
                    text = "".join([*tokens[:i], str(int(match[4])), *tokens[i + 3 :]])
                    break
        found.append(result)
    return found


PRIMES = ["101", "", "1009", "", "10007", "", "100003", "", "1000003", "", "10000019"]


def test_steps_of_a_chain() -> None:
    task = text_task("chain")
    problem = Problem("3+4*2=", 2, {"expression": "3+4*2", "answer": 11})
    cases = {
        "4*2=8;3+8=11;11": [True, True, True],
        "4*2=8;3+8=11;12": [True, True, False],
        "4*2=9;3+9=12;12": [False, True, True],  # right given what stands before
        "4*2=8;3+9=12;12": [True, False, False],
        "3+4=7;7*2=14;14": [False, False, False],
        "4*2=8;11": [True, True],
        "11": [True],
        "4*2=8": [True],
        "4*2=8;": [True],
        "x;4*2=8;2+2=4;11": [False, True, False, True],
        "": [],
    }
    for turn, expected in cases.items():
        found = task.steps(problem, [turn])
        assert [step.right for step in found] == expected, turn
        pieces = [turn[a:b] for a, b in itertools.pairwise([0, *(step.end for step in found)])]
        assert "".join(pieces) == turn
        assert all(piece.endswith(";") for piece in pieces[:-1])
        assert right(task, problem, turn) == (turn.endswith("11") and "x" not in turn)
    assert steps_again("3+4*2", "4*2=9;3+9=12;12") == [False, True, True]


def test_steps_of_a_chain_with_errors() -> None:
    task, wrong_then_right = text_task("chain"), 0
    for problem in problems(task, 60):
        rng = random.Random(problem.prompt)
        turn = task.demonstration(problem, [], rng)
        assert all(step.right for step in task.steps(problem, [turn]))
        text = problem.prompt.removesuffix("=")
        assert steps_again(text, turn) == [step.right for step in task.steps(problem, [turn])]
        for _ in range(4):
            i = rng.choice([i for i, c in enumerate(turn) if c.isdigit()])
            broken = turn[:i] + rng.choice("0123456789") + turn[i + 1 :]
            found = [step.right for step in task.steps(problem, [broken])]
            assert found == steps_again(text, broken), (text, broken)
        # The first step is wrong and all that follow reckon with its result.
        first, value = re.match(r"([^=]*)=([0-9]+);", turn).groups()
        tokens = re.findall(r"[0-9]+|[+*]", text)
        at = next(i for i in range(len(tokens)) if "".join(tokens[i : i + 3]) == first)
        carried = "".join([*tokens[:at], str(int(value) + 1), *tokens[at + 3 :]])
        rest = str(int(value) + 1)
        if problem.level > 1:
            facts = {"expression": carried, "answer": eval(carried)}
            rest = task.demonstration(Problem(carried, 1, facts), [], rng)
        broken = f"{first}={int(value) + 1};{rest}"
        found = [step.right for step in task.steps(problem, [broken])]
        assert found == steps_again(text, broken)
        assert not found[0] and all(found[1:]) and not right(task, problem, broken)
        wrong_then_right += 1
    assert wrong_then_right == 60 * len(task.levels)


def test_sorting() -> None:
    task = text_task("sorting")
    for problem in problems(task, 50):
        way, *items = problem.prompt.removesuffix(":").split(" ")
        assert len(items) == problem.level
        values = [int(i) if i.isdigit() else i for i in items]
        answer = " ".join(map(str, sorted(values, reverse=way == "down")))
        assert right(task, problem, answer)
        assert not right(task, problem, answer[:-2])
        assert not right(task, problem, answer.replace(" ", "  ", 1))
        assert not right(task, problem, answer.replace(" ", ""))
        if answer != " ".join(items):
            assert not right(task, problem, " ".join(items))


def balanced(length: int) -> list[str]:
    if length == 0:
        return [""]
    return [
        f"{pair[0]}{inside}{pair[1]}{after}"
        for size in range(0, length, 2)
        for inside in balanced(size)
        for after in balanced(length - 2 - size)
        for pair in ("()", "[]", "{}")
    ]


def test_brackets_accept_every_shortest_repair() -> None:
    task = text_task("brackets")
    texts = {n: balanced(n) for n in (2, 4, 6, 8)}
    for level, seed in itertools.product((3, 4), range(25)):
        problem = task.problem(level, random.Random(seed))
        broken = problem.prompt.removeprefix("fix ").removesuffix(":")
        assert len(broken) == level
        pattern = re.compile(".*".join(["", *map(re.escape, broken), ""]))
        fit = {n: {t for t in texts[n] if pattern.fullmatch(t)} for n in texts}
        shortest = min(n for n in texts if fit[n])
        assert shortest > level
        for n in texts:
            expected = fit[n] if n == shortest else set()
            assert {t for t in texts[n] if right(task, problem, t)} == expected
        assert not right(task, problem, broken)


def least_length(text: str) -> int:
    """By intervals."""
    n = len(text)
    need = [[0] * (n + 1) for _ in range(n + 1)]
    for width in range(1, n + 1):
        for i in range(n - width + 1):
            j = i + width
            options = [need[i][k] + need[k][j] for k in range(i + 1, j)]
            options += [2] if width == 1 else []
            if width > 1 and text[i] + text[j - 1] in ("()", "[]", "{}"):
                options.append(2 + need[i + 1][j - 1])
            need[i][j] = min(options)
    return need[0][n]


def test_long_brackets_are_repaired_with_the_fewest() -> None:
    task = text_task("brackets")
    for problem in problems(task, 40):
        broken = problem.prompt.removeprefix("fix ").removesuffix(":")
        answer = task.demonstration(problem, [], random.Random(0))
        assert len(answer) == least_length(broken) > problem.level
        assert right(task, problem, answer)
        assert not right(task, problem, answer + "()")


def fits(kind: str, names: str, clues: list[str], answer: str) -> bool:
    if kind == "order":
        return all(re.search(f"{c[0]}.*{c[2]}", answer) for c in clues)
    value = {name: answer[names.index(name)] for name in names}
    if kind == "color":
        told = {c[0]: c[1] for c in clues if len(c) == 2}
        links = [c for c in clues if len(c) == 3]
        return value | told == value and not any(value[c[0]] == value[c[2]] for c in links)
    for clue in clues:
        if len(clue) == 2:
            if value[clue[0]] != clue[1]:
                return False
            continue
        told_true = value[clue[2]] == clue[3]
        if told_true is not (value[clue[0]] == "+"):
            return False
    return True


def test_puzzles_accept_exactly_what_fits() -> None:
    task, kinds = text_task("puzzles"), set()
    for problem in problems(task, 12):
        kind, *clues = problem.prompt.removesuffix(":").split(" ")
        names = "".join(sorted(set(re.findall("[a-h]", "".join(clues)))))
        assert len(names) == problem.level
        kinds.add(kind)
        orders = {"".join(p) for p in itertools.permutations(names)}
        colors = {"".join(p) for p in itertools.product("123", repeat=len(names))}
        truths = {"".join(p) for p in itertools.product("+-", repeat=len(names))}
        own = {"order": orders, "color": colors, "liars": truths}[kind]
        expected = {a for a in own if fits(kind, names, clues, a)}
        assert expected
        assert {a for a in orders | colors | truths if right(task, problem, a)} == expected
        if kind == "liars":
            assert [c[0] for c in clues if len(c) == 4] == list(names)
        answer = min(expected)
        assert not right(task, problem, answer[:-1])
        assert not right(task, problem, answer + answer[-1])
    assert kinds == {"order", "color", "liars"}


def read(prompt: str) -> str:
    """The answer, from the words of the prompt."""
    told, question = prompt.split(". ", 1)
    facts = [(a, int(n), b) for a, n, b in re.findall(r"(\w+) has (\d+) (\w+)", told)]
    words = set(re.findall(r"\w+", question))
    if "many" in words or "count" in words or "what" in words:
        (number,) = [n for a, n, b in facts if {a, b} <= words]
        return str(number)
    (name,) = [a for a, n, b in facts if {str(n), b} <= words]
    return name


def test_retrieval_and_its_paraphrases() -> None:
    task = text_task("retrieval")
    assert isinstance(task, Retrieval)
    families: dict[str, set[str]] = {}
    for problem in problems(task, 40):
        answer = read(problem.prompt)
        assert right(task, problem, answer)
        assert not right(task, problem, "tom" if answer != "tom" else "ann")
        assert not right(task, problem, "1")
        same = task.paraphrases(problem)
        assert problem in same
        assert len({p.prompt for p in same}) == len(same) == 4
        for other in same:
            assert other.family == problem.family != "" and other.level == problem.level
            assert len(other.prompt) <= task.prompt_length
            assert read(other.prompt) == answer and right(task, other, answer)
            assert task.paraphrases(other) == same
        families.setdefault(problem.family, set()).add(answer)
    assert all(len(answers) == 1 for answers in families.values())


def test_ratings_count_large_digits() -> None:
    task = text_task("rating")
    for problem in problems(task, 60):
        digits = problem.prompt.removeprefix("rate ").removesuffix(":")
        share = sum(d in "56789" for d in digits) / len(digits)
        score = min(range(1, 6), key=lambda k: (abs(k - 1 - 4 * share), k % 2))
        for answer in range(7):
            reply = task.reply(problem, [str(answer)])
            assert reply.reward == pytest.approx(math.e ** (-abs(answer - score) / 0.3))
            assert reply.success == (answer == score)
        assert not task.reply(problem, [f"{score}.0"]).reward


def test_raised_parts_of_series() -> None:
    task = text_task("intervals")
    for problem in problems(task, 60):
        digits = [int(d) for d in problem.prompt.removeprefix("raised ").removesuffix(":")]
        start, stop = problem.facts["start"], problem.facts["stop"]
        if problem.level < 16:
            assert [i for i, d in enumerate(digits) if d >= 5] == list(range(start, stop))
        places = set(range(start, stop))
        for a in range(problem.level):
            for b in range(a, problem.level):
                own = set(range(a, b + 1))
                overlap = len(own & places) / len(own | places)
                reply = task.reply(problem, [f"{a}-{b}"])
                assert reply.reward == pytest.approx(overlap)
                assert reply.success == (overlap >= 0.5 - 1e-12)
        for junk in (f"0-{problem.level}", "2-1", "1", "0-", "00-001"):
            assert task.reply(problem, [junk]).reward == 0


def test_formatted_rewards() -> None:
    task = text_task("formatted")
    problem = Problem("4+7+5 in 10:", 3, {"numbers": [4, 7, 5], "target": 10})
    cases = {  # reward, form, length
        "<11;16><16>": (1, 1, 0.9),
        "<4+12=16><16>": (1, 1, 0.7),
        "<16><16>": (1, 1, 0.8),
        "<16>": (1, 0.5, 0.4),
        "16": (1, 0, 0.2),
        "<11;17><17>": (0, 1, 0.9),
        "<17>": (0, 0.5, 0.4),
        "": (0, 0, 0),
        "<><16>": (0, 0, 0.6),
        "<x><16>": (0, 0, 0.7),
        "<16><16": (0, 0, 0.7),
        "<11;16>\ufffd16>": (0, 0, 0.9),
        "<4+7=11;11+5=16><16>": (1, 1, 0),
        "<4+7=11;11+5=16;16=16><16>": (1, 1, 0),
        "aaaaaaaaaa": (0, 0, 1),
    }
    for turn, (reward, form, length) in cases.items():
        reply = task.reply(problem, [turn])
        assert (reply.reward, reply.signals["format_reward"]) == (reward, form), turn
        assert reply.signals["length_reward"] == pytest.approx(length), turn
    for problem in problems(task, 40):
        turn = task.demonstration(problem, [], random.Random(0))
        expression, target = problem.prompt.removesuffix(":").split(" in ")
        assert len(turn) == int(target)
        assert turn.endswith(f"><{eval(expression)}>")
        assert set(task.reply(problem, [turn]).signals.values()) == {1.0}
