"""Conversations as trajectories, against the conversations read token by token."""

import dataclasses
import io
import random
from collections.abc import Sequence

import pytest
import torch

from algorithms.language.models.vocabulary import ALPHABET, Characters
from algorithms.language.sampling.rollouts import demonstrated, from_plain, plain, roll_out
from algorithms.language.sampling.tokens import Sampling
from algorithms.language.tasks.base import Problem, Reply
from mbrl.errors import ConfigError
from tests.algorithms.language.small import Digits, tiny

CODEC = Characters()


class Halves(Digits):
    """Half of all texts are right."""

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        if turns[-1] and ord(turns[-1][0]) % 2:
            return Reply(1.0, True, True)
        return super().reply(problem, turns)


def sample(group: int | list[int] = 3, **options: int):
    model, task = tiny(wide=3.0), Halves()
    problems = [task.problem(4, random.Random(i)) for i in range(4)]
    g = torch.Generator().manual_seed(2)
    return roll_out(model, CODEC, task, problems, Sampling(), g, group=group, **options)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None, "1.0"])
def test_a_reward_that_is_no_number_is_told(reward: object, monkeypatch) -> None:
    """It would make every gradient of its round nothing, in silence."""
    right = Halves.reply
    monkeypatch.setattr(
        Halves, "reply", lambda self, p, t: dataclasses.replace(right(self, p, t), reward=reward)
    )
    with pytest.raises(ConfigError, match=r"the reward of a turn is .*finite numbers"):
        sample()


def test_positions_are_those_of_the_conversation() -> None:
    found, task = sample(), Halves()
    assert len({len(t) for t in found.turns}) > 1  # some end early
    t = found.data
    for b, (problem, turns, replies) in enumerate(
        zip(found.problems, found.turns, found.replies, strict=True)
    ):
        tokens = found.tokens[b].tolist()
        at = len(CODEC.opening(problem.prompt))
        assert tokens[:at] == CODEC.opening(problem.prompt)
        chosen, rewards = [], 0.0
        for k, (turn, reply) in enumerate(zip(turns, replies, strict=True)):
            assert reply == task.reply(problem, turns[: k + 1])
            start = at
            while at - start < 3 and (at == start or tokens[at - 1] != CODEC.end):
                assert t.action[b, at - 1] == t.next_obs[b, at - 1, 0] == tokens[at]
                assert t.obs[b, at - 1, 0] == tokens[at - 1]
                assert t.segments["turn"][b, at - 1] == k
                chosen.append(at - 1)
                at += 1
            assert CODEC.decode(tokens[start:at]) == turn
            assert float(t.reward[b, at - 2]) == reply.reward
            rewards += reply.reward
            if not reply.done:
                between = CODEC.between(reply.observation)
                assert tokens[at : at + len(between)] == between
                at += len(between)
        assert (found.tokens[b, at:] == CODEC.pad).all()
        assert t.mask[b].nonzero().flatten().tolist() == chosen
        assert float(t.reward[b].sum()) == rewards
        last = chosen[-1]
        ended = tokens[last + 1] == CODEC.end
        assert bool(t.terminated[b, last]) is ended and bool(t.truncated[b, last]) is not ended
        assert int((t.terminated[b] | t.truncated[b]).sum()) == 1
    assert found.success.tolist() == [r[-1].success for r in found.replies]


def test_equal_states_of_one_problem_share_a_group() -> None:
    t = (found := sample(6)).data
    names: dict[int, set[tuple[int, str]]] = {}
    for b, (problem, replies) in enumerate(zip(found.problems, found.replies, strict=True)):
        states = [problem.state, *(r.state for r in replies[:-1])]
        for k, state in enumerate(states):
            ids = t.groups["state"][b][t.mask[b] & (t.segments["turn"][b] == k)]
            assert len(ids.unique()) == 1
            names.setdefault(int(ids[0]), set()).add((b // 6, state))
    assert all(len(v) == 1 for v in names.values())
    everything = [v.copy().pop() for v in names.values()]
    assert len(set(everything)) == len(everything) < int(t.mask.any(1).sum()) * 3
    assert t.groups["prompt"][:, 0].tolist() == [i // 6 for i in range(24)]


def test_groups_may_have_sizes_and_turns_a_limit() -> None:
    assert [p.facts["secret"] for p in sample([1, 3, 2, 1]).problems] == [
        p.facts["secret"] for i, n in enumerate((1, 3, 2, 1)) for p in [sample(1).problems[i]] * n
    ]
    short = sample(3, max_turns=1)
    assert {len(t) for t in short.turns} == {1}
    unsolved = ~short.success
    assert short.data.truncated[unsolved].any(1).all()
    with pytest.raises(ConfigError, match="every problem a group of at least 1"):
        sample([1, 0, 2, 1])


def test_conversations_survive_a_checkpoint() -> None:
    found = sample()
    file = io.BytesIO()
    torch.save(plain(found), file)
    file.seek(0)
    again = from_plain(torch.load(file, weights_only=True))
    assert (again.problems, again.turns, again.replies) == (
        found.problems,
        found.turns,
        found.replies,
    )
    assert torch.equal(again.tokens, found.tokens)
    assert torch.equal(again.data.log_probs["behaviour"], found.data.log_probs["behaviour"])


def test_demonstrations_solve_their_problems() -> None:
    task = Digits()
    problems = [task.problem(9, random.Random(i)) for i in range(5)]
    found = demonstrated(CODEC, task, problems, [random.Random(i) for i in range(5)])
    assert found.success.all() and found.data.terminated.any(1).all()
    assert found.data.mask.sum(1).tolist() == [2] * 5


def test_texts_become_tokens_and_texts_again() -> None:
    assert CODEC.decode(CODEC.turn(ALPHABET)) == ALPHABET
    assert CODEC.decode([CODEC.begin, *CODEC.turn("a")]) == "\ufffda"
    assert max(CODEC.turn(ALPHABET)) == CODEC.size - 1
    with pytest.raises(ConfigError, match="'É' of 'aÉ' is not in the alphabet"):
        CODEC.opening("aÉ")
