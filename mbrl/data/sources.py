"""Datasets of several sources, real and imagined rows say: each source's share of the batches, and
rows of it that are never drawn."""

from dataclasses import replace

import torch
from torch import Tensor

from mbrl.data.loading import joined_rows
from mbrl.errors import ConfigError, DataError
from mbrl.types import Dataset, Transitions


def with_source(
    dataset: Dataset, other: Dataset, share: float | None = 0.5, keep: Tensor | None = None
) -> Dataset:
    """`dataset` and behind it `other`, with weights by which `other` has the `share`, in [0, 1],
    of the rows drawn, and each of its rows as much of that as the next; None: every row of both is
    drawn as often (a row of `dataset` in the mean, where it has weights). Rows where `keep` [N]
    bool is False have weight 0, but stay, so that the rows around them keep their neighbours.
    Weights that `dataset` has (of an earlier call) stay in proportion; the end of each part is the
    end of an episode. Columns that one of the two does not have, such as `behaviour_prob`, are left
    out.

    Raises `ConfigError` for a share outside [0, 1], `DataError` where the two are not of the same
    task or nothing is left to draw from.
    """
    if share is not None and not 0 <= share <= 1:
        raise ConfigError(f"share is {share}, it must lie in [0, 1], or None for equal rows")
    _require_same(dataset, other)
    rows, added = _closed(dataset.transitions), _closed(other.transitions)
    own = torch.ones(len(rows)) if rows.weight is None else rows.weight
    theirs = torch.ones(len(added)) if keep is None else keep.float()
    if float(theirs.sum()) == 0 and share != 0:
        raise DataError(
            f"no row of {other.provenance.card} is kept (of {len(added)}); filter less, or leave "
            "the source out"
        )
    if share is None:
        own = own * ((own > 0).sum() / own.double().sum())  # 1 in the mean of the rows drawn
    else:
        own = own * ((1 - share) / own.double().sum())
        theirs = theirs * (share / theirs.double().sum().clamp_min(1.0))
    columns = replace(rows, weight=own.float()), replace(added, weight=theirs.float())
    names = (dataset.provenance.card, other.provenance.card)
    hashes = "+".join(str(d.provenance.sha256) for d in (dataset, other))
    provenance = replace(dataset.provenance, card=" + ".join(names), sha256=hashes)
    joined = replace(dataset, transitions=joined_rows(list(columns)), provenance=provenance)
    return joined


def _require_same(dataset: Dataset, other: Dataset) -> None:
    """Raise `DataError` where rows of the two cannot stand in one batch."""
    sizes = [(d.spec.obs_dim, d.spec.action_dim, d.spec.num_actions) for d in (dataset, other)]
    cards = [d.provenance.card for d in (dataset, other)]
    if sizes[0] != sizes[1]:
        raise DataError(
            f"{cards[0]} and {cards[1]} differ in (obs_dim, action_dim, num_actions): {sizes[0]} "
            f"against {sizes[1]}; give rows of the same task"
        )
    for name in ("duration", "next_known", "action_mask"):
        if (getattr(dataset.transitions, name) is None) != (
            getattr(other.transitions, name) is None
        ):
            raise DataError(f"one of {cards[0]} and {cards[1]} has the column {name}, one has not")
    if len(other) == 0:
        raise DataError(f"{cards[1]} has no transitions")


def _closed(rows: Transitions) -> Transitions:
    """`rows` whose last one ends its episode."""
    if bool(rows.ends[-1]):
        return rows
    truncated = rows.truncated.clone()
    truncated[-1] = True
    return replace(rows, truncated=truncated)
