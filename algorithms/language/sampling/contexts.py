"""The same answer after other texts: a hint, a document, a teacher's note. The tokens of the turns
never change, only what stands before them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from algorithms.language.models.passes import Pass, passes, together
from algorithms.language.models.vocabulary import Codec
from algorithms.language.sampling.conversation import Conversation, padded
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.sampling.tokens import log_probs_and_entropy
from algorithms.language.tasks.base import Problem

MARK = "#"  # between a prompt and what helps with it


def opening(codec: Codec, problem: Problem, help_: str = "") -> list[int]:
    """The tokens before the first turn, with a text that helps after the prompt (""; none)."""
    return codec.opening(f"{problem.prompt}{MARK}{help_}" if help_ else problem.prompt)


def after_example(codec: Codec, problem: Problem, example: tuple[str, str]) -> list[int]:
    """The tokens before the first turn, with a solved `example`, prompt and answer, before the
    prompt."""
    return codec.opening(f"{example[0]}{example[1]}{MARK}{problem.prompt}")


def contexts(row: Conversation) -> list[list[int]]:
    """The tokens before each turn of a conversation that is over: its opening, then what follows
    each turn up to the next."""
    begins = [0, *(stop for _, stop in row.spans[:-1])]
    return [row.tokens[a:b] for a, (b, _) in zip(begins, row.spans, strict=True)]


def in_contexts(row: Conversation, texts: Sequence[Sequence[int]]) -> Conversation:
    """The turns of `row`, token for token, each after the tokens `texts` has for it. The log-probs
    stay those under the context that they were sampled in, so that a ratio to them is exact."""
    new = row.again(row.seed)
    new.tokens, new.spans, moved = [], [], []
    for text, (start, stop) in zip(texts, row.spans, strict=True):
        new.tokens += text
        moved.append(len(new.tokens) - start)
        new.spans.append((start + moved[-1], stop + moved[-1]))
        new.tokens += row.tokens[start:stop]
    new.origins = []
    for a, b, who in row.origins:
        turn = next(k for k, (start, stop) in enumerate(row.spans) if start <= a < stop)
        new.origins.append((a + moved[turn], b + moved[turn], who))
    return new


def opened_with(row: Conversation, tokens: Sequence[int]) -> Conversation:
    """The turns of `row` after another opening."""
    return in_contexts(row, [tokens, *contexts(row)[1:]])


def after_openings(
    rollouts: Rollouts, codec: Codec, openings: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Tokens [B, N + 1] and mask [B, N] of conversations, which begin with their problems' bare
    openings, with others in their place."""
    rows, masks = [], []
    for i, text in enumerate(openings):
        known = len(codec.opening(rollouts.problems[i].prompt))
        rows.append([*text, *rollouts.tokens[i, known:].tolist()])
        masks.append([False] * (len(text) - 1) + rollouts.data.mask[i, known - 1 :].tolist())
    tokens = padded(rows, codec.pad, rollouts.tokens.device)
    mask = torch.zeros(len(rows), tokens.shape[1] - 1, dtype=torch.bool)
    for place, own in zip(mask, masks, strict=True):
        place[: len(own)] = torch.tensor(own)
    return tokens, mask.to(tokens.device)


@torch.no_grad()
def distributions(
    model: Any,
    rollouts: Rollouts,
    codec: Codec,
    openings: Sequence[Sequence[int]],
    temperature: float,
    rows_at_once: int,
) -> Tensor:
    """[B, T, V]: log-probs of every token that `model` could say at the steps of `rollouts`, after
    other `openings`; 0 outside the mask. Takes B T V numbers: for small vocabularies."""

    def values(logits: Tensor, tokens: Tensor) -> Tensor:
        return (logits / temperature).log_softmax(-1)

    return _at_steps(model, rollouts, codec, openings, rows_at_once, values)


@torch.no_grad()
def log_probs(
    model: Any,
    rollouts: Rollouts,
    codec: Codec,
    openings: Sequence[Sequence[int]],
    temperature: float,
    rows_at_once: int,
) -> Tensor:
    """[B, T]: log-probs that `model` gives the tokens of `rollouts` after other `openings`; 0
    outside the mask."""

    def values(logits: Tensor, tokens: Tensor) -> Tensor:
        return log_probs_and_entropy(logits, tokens, temperature)[0][:, None]

    return _at_steps(model, rollouts, codec, openings, rows_at_once, values)[..., 0]


def _at_steps(
    model: Any,
    rollouts: Rollouts,
    codec: Codec,
    openings: Sequence[Sequence[int]],
    rows_at_once: int,
    values: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """[B, T, K]: `values` [n, K] of logits [n, V] and tokens [n] at the steps of `rollouts`."""
    tokens, mask = after_openings(rollouts, codec, openings)
    todo, pieces = passes(mask, rows_at_once), []
    for one in todo:
        pieces.append(_one_pass(model, tokens, mask, one, values))
    there = together(pieces, todo, mask.shape[1])
    here = there.new_zeros(*rollouts.data.mask.shape, there.shape[-1])
    here[rollouts.data.mask] = there[mask]  # both in the order of rows, then of steps
    return here


def _one_pass(
    model: Any,
    tokens: Tensor,
    mask: Tensor,
    one: Pass,
    values: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    rows, steps = one
    here = mask[rows, :steps]
    logits = model.logits_at(tokens[rows, :steps], here)
    own = values(logits, tokens[rows, 1 : steps + 1][here])
    out = own.new_zeros(*here.shape, own.shape[-1])
    out[here] = own
    return out
