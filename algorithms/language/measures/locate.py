"""Where numbers of sequences and turns stand in the trajectories, and how likely texts are."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algorithms.language.models.protocol import LanguageModel
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.sampling.tokens import log_probs_and_entropy


def spans(rollouts: Rollouts) -> list[list[tuple[int, int]]]:
    """Of every conversation where its turns stand in `tokens`: from, up to."""
    mask, turn = rollouts.data.mask.cpu(), rollouts.data.segments["turn"].cpu()
    rows = []
    for i in range(len(rollouts)):
        at = mask[i].nonzero().flatten()
        ids = turn[i, at].tolist()
        own: dict[int, tuple[int, int]] = {}
        for k, step in zip(ids, at.tolist(), strict=True):
            own[k] = (own.get(k, (step + 1, 0))[0], step + 2)
        rows.append([own[k] for k in sorted(own)])
    return rows


def lines(rollouts: Rollouts) -> list[list[int]]:
    """The conversations' tokens as lists; what follows the last turn is padding."""
    rows: list[list[int]] = rollouts.tokens.tolist()
    return rows


def whole(rollouts: Rollouts, values: Any) -> Tensor:
    """[B, T]: one number (or id) of every conversation, at each of its steps."""
    like = rollouts.data.reward
    numbers = torch.as_tensor(values, device=like.device)
    numbers = numbers.to(like.dtype) if numbers.is_floating_point() else numbers
    return numbers[:, None].expand(like.shape).clone()


def of_turns(rollouts: Rollouts, values: Sequence[Sequence[float]]) -> Tensor:
    """[B, T]: one number (or id) of every turn, at each of its steps."""
    like = rollouts.data.reward
    most = max(len(row) for row in values)
    table = torch.tensor([[*row, *([0] * (most - len(row)))] for row in values])
    table = table.to(like.dtype) if table.is_floating_point() else table
    return table.to(like.device).gather(1, rollouts.data.segments["turn"])


def at_ends(rollouts: Rollouts, values: Sequence[Sequence[float]]) -> Tensor:
    """[B, T]: one number of every turn, at its last step, 0 elsewhere."""
    out = torch.zeros(rollouts.data.reward.shape, dtype=torch.float64)
    for i, (row, places) in enumerate(zip(values, spans(rollouts), strict=True)):
        for value, (_, stop) in zip(row, places, strict=True):
            out[i, stop - 2] = value
    return out.to(rollouts.data.reward)


def prompts(rollouts: Rollouts) -> list[int]:
    """[B]: which conversations are about one prompt, ids from 0."""
    ids: list[int] = rollouts.data.groups["prompt"][:, 0].tolist()
    return ids


def firsts(rollouts: Rollouts) -> dict[int, int]:
    """The first conversation of every prompt."""
    rows: dict[int, int] = {}
    for i, prompt in enumerate(prompts(rollouts)):
        rows.setdefault(prompt, i)
    return rows


def outcomes(rollouts: Rollouts) -> list[float]:
    """[B]: the whole reward of every conversation."""
    return [sum(reply.reward for reply in row) for row in rollouts.replies]


@torch.no_grad()
def scored(
    model: LanguageModel,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    temperature: float,
    pad: int,
    rows_at_once: int,
) -> list[Tensor]:
    """Log-probs [n] of the tokens of every continuation, given its context: one pass over each text
    that differs. They are of the full distribution, whatever `top_p`: nobody drew these texts."""
    place: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    which = [place.setdefault((tuple(a), tuple(b)), len(place)) for a, b in pairs]
    texts, device = list(place), next(model.parameters()).device
    order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]) + len(texts[i][1]))
    by_text: dict[int, Tensor] = {}
    for i in range(0, len(order), rows_at_once):
        chunk = order[i : i + rows_at_once]
        joint = [[*texts[j][0], *texts[j][1]] for j in chunk]
        longest = max(map(len, joint))
        tokens = torch.tensor([[*t, *([pad] * (longest - len(t)))] for t in joint], device=device)
        counts = [len(texts[j][1]) for j in chunk]
        here = torch.zeros(len(chunk), longest - 1, dtype=torch.bool)
        for own, t, count in zip(here, joint, counts, strict=True):
            own[len(t) - 1 - count : len(t) - 1] = True
        here = here.to(device)
        log_prob = log_probs_and_entropy(
            model.logits_at(tokens[:, :-1], here), tokens[:, 1:][here], temperature
        )[0]
        for j, own in zip(chunk, log_prob.split(counts), strict=True):
            by_text[j] = own
    return [by_text[j] for j in which]
