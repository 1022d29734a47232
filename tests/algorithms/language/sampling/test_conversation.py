"""Conversations that stop and go on."""

import copy
import dataclasses
import io
import random

import pytest
import torch

from algorithms.language.models.vocabulary import Characters
from algorithms.language.sampling.conversation import Conversation, GenerationLimits, advance
from algorithms.language.sampling.rollouts import to_rollouts
from algorithms.language.sampling.tokens import Sampling, log_probs_and_entropy
from tests.algorithms.language.small import Digits, tiny

CODEC, TASK = Characters(), Digits()


def rows(count: int = 6) -> list[Conversation]:
    problems = [TASK.problem(9, random.Random(i // 2)) for i in range(count)]
    return [Conversation(p, CODEC.opening(p.prompt), seed=40 + i) for i, p in enumerate(problems)]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, 0.6)], ids=str)
@pytest.mark.parametrize("budget", [1, 2, 4])
def test_pieces_make_the_whole(sampling: Sampling, budget: int) -> None:
    model, whole, pieces = tiny(), rows(), rows()
    advance(model, CODEC, TASK, whole, GenerationLimits(sampling))
    rounds = 0
    while not all(row.done for row in pieces):
        before = [len(row.behaviour) for row in pieces]
        advance(model, CODEC, TASK, pieces, GenerationLimits(sampling), budget=budget)
        pieces = [Conversation.from_plain(row.plain()) for row in pieces]
        said = [len(row.behaviour) - n for row, n in zip(pieces, before, strict=True)]
        assert max(said) <= budget
        rounds += 1
    assert rounds >= 9 // budget
    for a, b in zip(whole, pieces, strict=True):
        assert (a.tokens, a.turns, a.spans, a.replies) == (b.tokens, b.turns, b.spans, b.replies)
        assert a.behaviour == pytest.approx(b.behaviour, abs=1e-12) and a.kept == b.kept


def test_another_end_shares_nothing_that_changes() -> None:
    model, going = tiny(), rows(2)
    advance(model, CODEC, TASK, going, GenerationLimits(Sampling(0.9, 0.6)), budget=2)
    before = [row.plain() for row in going]
    others = [row.again(7) for row in going]
    assert [o.plain() for o in others] == [values | {"seed": 7} for values in before]
    advance(model, CODEC, TASK, others, GenerationLimits(Sampling(0.9, 0.6)))
    assert [row.plain() for row in going] == before and all(o.done for o in others)


def test_every_token_has_the_log_prob_of_the_policy_that_said_it() -> None:
    models = [tiny(), tiny(wide=6.0), tiny(wide=4.0)]
    going = rows()
    for version, model in enumerate(models):
        last = version == len(models) - 1
        advance(
            model,
            CODEC,
            TASK,
            going,
            GenerationLimits(),
            version=version,
            budget=None if last else 2,
        )
    found = to_rollouts(going, CODEC.pad, torch.zeros(0, dtype=torch.float64))
    t, seen = found.data, set()
    for version, model in enumerate(models):
        log_prob, _, _ = log_probs_and_entropy(model(found.tokens)[:, :-1], found.tokens[:, 1:])
        here = t.mask & (t.policy_version == version)
        seen |= {version} if here.any() else set()
        torch.testing.assert_close(
            log_prob[here], t.log_probs["behaviour"][here], rtol=0, atol=1e-9
        )
    assert seen == {0, 1, 2}


def test_a_conversation_survives_a_checkpoint_half_way() -> None:
    model, going = tiny(), rows(2)
    advance(model, CODEC, TASK, going, GenerationLimits(), budget=2)
    file = io.BytesIO()
    torch.save([row.plain() for row in going], file)
    file.seek(0)
    again = [Conversation.from_plain(v) for v in torch.load(file, weights_only=True)]
    assert again == going and all(row.turn_length_so_far == 2 for row in again)
    for part in (going, again):
        advance(model, CODEC, TASK, part, GenerationLimits())
    assert again == going


def test_a_checkpoint_shares_nothing_that_changes() -> None:
    """What is written has the numbers of `asdict`; one that is over changes neither it nor what it
    was read from."""
    (row,) = rows(1)
    advance(tiny(), CODEC, TASK, [row], GenerationLimits(Sampling(0.9, 0.6)))
    row.origins.append((0, 1, "teacher"))
    values = row.plain()
    assert values == dataclasses.asdict(row) and values["kept"]
    before = copy.deepcopy(values)
    for changed in (row, Conversation.from_plain(values)):
        for field in dataclasses.fields(Conversation):
            part = getattr(changed, field.name)
            if isinstance(part, list):
                part.append(part[0])
        changed.kept[0].append(0)
        changed.problem.facts["more"] = 1  # type: ignore[index]
        changed.replies[0].signals["more"] = 1.0  # type: ignore[index]
        assert values == before


def test_limits_end_turns_and_conversations() -> None:
    going = rows()
    advance(tiny(), CODEC, TASK, going, GenerationLimits(turn_tokens=1, max_turns=2))
    for row in going:
        assert row.done and all(stop - start == 1 for start, stop in row.spans)
        assert len(row.turns) <= 2
