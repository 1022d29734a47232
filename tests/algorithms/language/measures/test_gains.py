"""What turns told, against one forward pass for every token."""

import math

import pytest
import torch

from algorithms.language.measures.gains import PROBES, AnswerGain, ObservationGain, Probes
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks import Problem
from tests.algorithms.language.cases import (
    at_turns,
    ends,
    learner,
    log_probs,
    part_of,
    starts,
    told,
)

RANGE = Problem("guess 1-8 in 5", 8, {"low": 1, "high": 8, "sought": 6, "limit": 5}, state="1-8")
PRODUCT = Problem("2*3+4=", 2, {"expression": "2*3+4", "answer": 10}, state="2*3+4")
CHATS = {
    "guessing": [(RANGE, ["4", "x", "7", "6"]), (RANGE, ["6"]), (RANGE, ["1", "6"])],
    "calculator": [(PRODUCT, ["calc(2*3)", "calc(6+4)", "answer 10"]), (PRODUCT, ["answer 7"])],
}
RIGHT = {"guessing": "6", "calculator": "answer 10"}
both = pytest.mark.parametrize("task", ["guessing", "calculator"])


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@both
def test_how_much_likelier_the_right_answer_became(task: str) -> None:
    agent = learner(task, "igpo", rows_at_once=3)
    found = part_of(agent, AnswerGain).measure(told(agent, CHATS[task]))
    answer = agent.codec.turn(RIGHT[task])
    wanted = []
    for i, (problem, turns) in enumerate(CHATS[task]):
        context, likely = agent.codec.opening(problem.prompt), []
        for turn, reply in zip(turns, found.replies[i], strict=True):
            likely.append(math.exp(mean(log_probs(agent.model, context, answer))))
            context += agent.codec.turn(turn) + agent.codec.between(reply.observation)
        gains = [b - a for a, b in zip(likely, likely[1:], strict=False)]
        wanted.append(pytest.approx([*gains, 0.0], abs=1e-6))
    rows = ends(found, found.data.signals["information_gain"])
    assert rows == wanted and any(abs(x) > 1e-4 for x in rows[0])


@both
def test_what_an_observation_told(task: str) -> None:
    agent = learner(task, "infopo", rows_at_once=3)
    found = part_of(agent, ObservationGain).measure(told(agent, CHATS[task]))
    wanted = []
    for i, (problem, turns) in enumerate(CHATS[task]):
        context, gains = agent.codec.opening(problem.prompt), []
        for turn, reply, after in zip(turns, found.replies[i], turns[1:], strict=False):
            context += agent.codec.turn(turn)
            said, without = agent.codec.turn(after), agent.codec.between("")
            blind = mean(log_probs(agent.model, context + without, said))
            context += agent.codec.between(reply.observation)
            gains.append(mean(log_probs(agent.model, context, said)) - blind)
        wanted.append(pytest.approx([*gains, 0.0], abs=1e-5))
    rows = ends(found, found.data.signals["information_gain"])
    assert rows == wanted and any(abs(x) > 1e-3 for x in rows[0])


def drawn(agent, context: list[int], chance: list[float], limit: int) -> tuple[list[int], float]:
    """One turn by the inverse of the distribution function, and its mean log-prob."""
    said: list[int] = []
    logs = []
    for u in chance[:limit]:
        with torch.no_grad():
            logits = agent.model(torch.tensor([context + said]))[0, -1]
        log_p = logits.double().log_softmax(-1)
        said.append(int((log_p.exp().cumsum(0) <= u).sum()))
        logs.append(float(log_p[said[-1]]))
        if said[-1] == agent.codec.end:
            break
    return said, mean(logs)


def own_turn(agent, found: Rollouts, row: int) -> float:
    start, stop = starts(found, row)[-1]
    tokens = found.tokens[row].tolist()
    return math.exp(mean(log_probs(agent.model, tokens[:start], tokens[start:stop])))


@both
def test_answers_asked_for_after_every_turn(task: str) -> None:
    agent = learner(task, "spae", rows_at_once=2 * PROBES, turn_tokens=5)
    found = told(agent, CHATS[task])
    log_prob = found.data.log_probs["old"]  # as if the model had said it
    found.data.log_probs["behaviour"].copy_(log_prob)
    generator = torch.Generator().manual_seed(5)
    agent.generator.set_state(generator.get_state())
    found = part_of(agent, Probes).measure(found)
    states = sum(len(turns) - 1 for _, turns in CHATS[task])
    chance = torch.rand((states, PROBES, 5), dtype=torch.float64, generator=generator).tolist()
    word = "answer " if task == "calculator" else ""
    accuracy, confidence = [], []
    for i, (problem, turns) in enumerate(CHATS[task]):
        context = agent.codec.opening(problem.prompt)
        right, sure = [], []
        for k, reply in enumerate(found.replies[i][:-1]):
            context += agent.codec.turn(turns[k]) + agent.codec.between(reply.observation)
            start = context + agent.codec.turn(word)[:-1]
            probes = [drawn(agent, start, u, 5) for u in chance.pop(0)]
            texts = [word + agent.codec.decode(said) for said, _ in probes]
            hits = [agent.task.reply(problem, [*turns[: k + 1], x]).success for x in texts]
            right.append(mean([float(hit) for hit in hits]))
            sure.append(mean([math.exp(log) for _, log in probes]))
        accuracy.append([*right, float(found.replies[i][-1].success)])
        confidence.append([*sure, own_turn(agent, found, i)])
    for name, rows in (("accuracy", accuracy), ("confidence", confidence)):
        for got, row in zip(at_turns(found, found.data.signals[name]), rows, strict=True):
            assert [set(turn) for turn in got] == [{turn[0]} for turn in got]
            assert [turn[0] for turn in got] == pytest.approx(row, abs=1e-5)


def test_probes_can_be_right() -> None:
    """A model that says 6 whatever was said before."""
    agent = learner("guessing", "spae")
    six, end = agent.codec.turn("6")
    extend = agent.model.extend

    def says_six(tokens, real, cache):
        logits = extend(tokens, real, cache)
        said = torch.full_like(logits, -50.0)
        said[torch.arange(len(said)), torch.where(tokens[:, -1] == six, end, six)] = 50.0
        return said

    agent.model.extend = says_six
    found = part_of(agent, Probes).measure(told(agent, CHATS["guessing"]))
    rows = at_turns(found, found.data.signals["accuracy"])
    assert all(turn[0] == 1.0 for row in rows for turn in row)
    assert at_turns(found, found.data.signals["confidence"])[0][0][0] == pytest.approx(1.0)
