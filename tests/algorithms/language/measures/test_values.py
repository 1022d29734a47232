"""What prompts are worth, against stepping by hand."""

import pytest
import torch

from algorithms.language.measures.values import (
    GreedyReturn,
    PriorValue,
    TrackedValue,
)
from algorithms.language.tasks import Problem
from tests.algorithms.language.cases import learner, lenient, part_of, told, whole


def greedily(agent, model, problem: Problem) -> float:
    """What a conversation by the likeliest tokens earns, a whole pass for every token."""
    tokens, turns, earned = agent.codec.opening(problem.prompt), [], 0.0
    limit = agent.config.turn_tokens or agent.task.turn_length + 1
    while True:
        said: list[int] = []
        while len(said) < limit and agent.codec.end not in said:
            said.append(int(model(torch.tensor([tokens + said]))[0, -1].argmax()))
        tokens = tokens + said
        turns.append(agent.codec.decode(said))
        reply = agent.task.reply(problem, turns)
        earned += reply.reward
        if reply.done:
            return earned
        tokens = tokens + agent.codec.between(reply.observation)


@pytest.mark.parametrize("task", ["addition", "guessing"])
def test_greedy_returns(task: str) -> None:
    agent = learner(task, "remax", prompts=6, group=2, turn_tokens=4)
    agent.task = lenient(agent.task)
    found = agent.sample_round()
    sampled = agent.tokens["sampled"]
    found = part_of(agent, GreedyReturn).measure(found)
    wanted = [greedily(agent, agent.model, problem) for problem in found.problems]
    assert whole(found, found.data.signals["greedy_return"]) == wanted
    assert agent.tokens["sampled"] > sampled  # they cost what they cost


def test_greedy_returns_are_of_the_same_words_and_turns() -> None:
    agent = learner(
        "guessing", "remax", prompts=6, group=2, turn_tokens=4, templates=8, horizon=(2, 3)
    )
    agent.task, talked = lenient(agent.task), []
    plain = agent.task.reply
    agent.task.reply = lambda problem, turns: talked.append(list(turns)) or plain(problem, turns)
    found = agent.sample_round()
    talked.clear()
    with torch.no_grad():
        agent.model.embedding.weight *= 20  # what it says depends on the words around a prompt
    found = part_of(agent, GreedyReturn).measure(found)
    assert max(map(len, talked)) == 2
    heard, said_here = {tuple(turns) for turns in talked}, set()
    for i, value in enumerate(whole(found, found.data.signals["greedy_return"])):
        start = int(found.data.mask[i].nonzero()[0]) + 1
        tokens, turns, earned = found.tokens[i, :start].tolist(), [], 0.0
        for _ in range(2):
            said: list[int] = []
            while len(said) < 4 and agent.codec.end not in said:
                said.append(int(agent.model(torch.tensor([tokens + said]))[0, -1].argmax()))
            turns.append(agent.codec.decode(said))
            said_here.add(tuple(turns))
            reply = plain(found.problems[i], turns)
            earned += reply.reward
            if reply.done:
                break
            tokens = tokens + said + agent.codec.between(reply.observation)
        assert value == earned
    assert heard == said_here and len(heard) > 4


def test_greedy_returns_are_of_turns_as_long_as_the_stages() -> None:
    agent = learner("addition+chain", "remax", levels=(1, 1001), stages=("chain:turn_tokens=2",))
    found, longest = agent.sample_round(), []
    plain = agent.task.reply
    agent.task.reply = lambda problem, turns: longest.append(turns[-1]) or plain(problem, turns)
    part_of(agent, GreedyReturn).measure(found)
    assert max(map(len, longest)) <= 2 < agent.task.turn_length


def test_tracked_success_rates() -> None:
    agent = learner("addition", "mssr", pool=4)
    part = part_of(agent, TrackedValue)
    a, b = Problem("2+3=", 1, {"answer": 5}), Problem("2+4=", 1, {"answer": 6})
    found = part.measure(told(agent, [(a, ["5"]), (a, ["4"]), (b, ["6"])]))
    assert whole(found, found.data.signals["tracked_value"]) == [0.5, 0.5, 0.5]
    found = part.measure(told(agent, [(a, ["5"]), (b, ["6"])]))
    # Right and wrong counts 1, 1; then 1.9, 0.9; then 1.71, 1.81.
    wanted = [1.71 / 3.52, 1.9 / 2.8]
    assert whole(found, found.data.signals["tracked_value"]) == pytest.approx(wanted)


def test_the_prior_is_the_success_rate_of_the_level() -> None:
    agent = learner("addition", "v_half", pool=4)
    part = part_of(agent, PriorValue)
    a, b, c = (Problem(f"2+{i}=", 1 + i // 5, {"answer": 2 + i}) for i in (3, 4, 5))
    part.measure(told(agent, [(a, ["5"]), (b, ["6"]), (c, ["8"])]))
    found = part.measure(told(agent, [(a, ["5"]), (b, ["6"]), (c, ["8"])]))
    right, wrong = (1 * 0.99 + 1) * 0.99 + 1, 1 * 0.99**2
    easy, hard = right / (right + wrong), 0.99 / (0.99 + 1.99)
    assert whole(found, found.data.signals["prior_value"]) == pytest.approx([easy, easy, hard])
