"""Passes over padded sequences that spend little on padding: rows of like length go together, as
far as the last step that anyone reads."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

TOKENS = 2048  # in a pass at least, where there are as many: products run at full speed by then


class Pass(NamedTuple):
    """`rows` [b] of a batch, and the `steps` of its columns that they need."""

    rows: Tensor
    steps: int


def passes(mask: Tensor, rows_at_once: int) -> list[Pass]:
    """All rows of `mask` [B, T], longest first, at most `rows_at_once` in a pass. A pass goes as
    far as the last step in the mask of any of its rows; a row without one needs one step."""
    place = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    needed = torch.where(mask, place, 1).amax(1)
    order = needed.argsort(descending=True, stable=True)
    result, begin, lengths = [], 0, needed[order].tolist()
    for end in range(1, len(lengths) + 1):
        rows, steps = end - begin, lengths[begin]
        if end == len(lengths) or rows == rows_at_once or rows * steps >= TOKENS:
            result.append(Pass(order[begin:end], steps))
            begin = end
    return result


def together(pieces: Sequence[Tensor], done: Sequence[Pass], columns: int) -> Tensor:
    """[B, columns, ...] of what `pieces` [b, steps, ...] say of their passes' rows, which are all
    rows; 0 where they say nothing."""
    whole = torch.cat([filled(piece, columns) for piece in pieces])
    return whole[torch.cat([one.rows for one in done]).argsort()]


def filled(piece: Tensor, columns: int) -> Tensor:
    """[b, columns, ...]: `piece` [b, n, ...], then zeros."""
    blank = piece.new_zeros(len(piece), columns - piece.shape[1], *piece.shape[2:])
    return torch.cat([piece, blank], 1)
