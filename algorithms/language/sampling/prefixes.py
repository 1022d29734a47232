"""Conversations that go on from what somebody else said: from a part of a stored trace, or after a
teacher has corrected a step."""

from typing import Any

from algorithms.language.models.vocabulary import Codec
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.tasks.base import Correction, TextTask

PREFIX = "prefix"  # of a stored trace: read like a prompt, never trained on
TEACHER = "teacher"  # in the mask; a recipe says how these tokens count


def cut(row: Conversation, at: int, seed: int) -> Conversation:
    """A conversation that stands where `row`, none of whose turns was given, had not yet said its
    token at `at`."""
    turn = next(k for k, (start, stop) in enumerate(row.spans) if start <= at < stop)
    start = row.spans[turn][0]
    said = sum(stop - begin for begin, stop in row.spans[:turn]) + at - start
    spans = [*row.spans[:turn], *([(start, at)] if at > start else [])]
    parts: dict[str, Any] = {
        name: list(getattr(row, name)[:said]) for name in ("behaviour", "model", "versions")
    }
    return Conversation(
        row.problem,
        row.tokens[:at],
        seed,
        spans,
        row.turns[:turn],
        row.replies[:turn],
        kept=[list(ids) for ids in row.kept[:said]],
        **parts,
    )


def places(row: Conversation) -> list[int]:
    """Where the tokens stand that were said in `row`, its turns' ends among them."""
    return [at for span in row.spans for at in range(*span)]


def begun(trace: Conversation, count: int, seed: int) -> Conversation:
    """One that goes on from the first `count` tokens that were said in `trace`, at least one less
    than all: a prefix, of which nothing is learned."""
    row = cut(trace, places(trace)[count], seed)
    row.origins = [(start, stop, PREFIX) for start, stop in row.spans]
    return row


def corrected(
    row: Conversation,
    correction: Correction,
    codec: Codec,
    task: TextTask,
    limit: int,
    version: int,
    seed: int,
) -> Conversation | None:
    """`row` as far as its first wrong step, with what it said itself, and in place of that step the
    `correction`, which a teacher said (log-probs 0, the policy's `version`). None where that leaves
    no room for a token more in a turn of `limit` tokens."""
    start, stop = row.spans[correction.turn]
    said = row.tokens[start:stop]
    right = row.turns[correction.turn][: correction.start]
    whole = len(said) - (said[-1] == codec.end)
    count = max(n for n in range(whole + 1) if len(codec.decode(said[:n])) <= len(right))
    text = right[len(codec.decode(said[:count])) :] + correction.text
    tokens = codec.turn(text)[: None if correction.ends else -1]
    if start + count == stop or count + len(tokens) + (not correction.ends) > limit:
        return None
    new = cut(row, start + count, seed)
    taught(new, tokens, version)
    if correction.ends:
        new.finish(task, codec, task.max_turns)
    return new


def taught(row: Conversation, tokens: list[int], version: int) -> None:
    """Have a teacher say `tokens` next."""
    place = len(row.tokens)
    row.extend_turn(tokens)
    row.origins.append((place, len(row.tokens), TEACHER))
    row.behaviour += [0.0] * len(tokens)
    row.model += [0.0] * len(tokens)
    row.versions += [version] * len(tokens)
