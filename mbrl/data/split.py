"""Whole episodes to learn from, and whole episodes held out."""

import torch

from mbrl.errors import DataError
from mbrl.types import Dataset


def hold_out(dataset: Dataset, share: float, seed: int = 0) -> tuple[Dataset, Dataset]:
    """`dataset` without a random `share` of its episodes, and those; the order of rows is kept. The
    same seed holds out the same episodes. Raises `DataError` where either part would be empty."""
    spans = dataset.transitions.episodes()
    count = round(share * len(spans))
    if not 0 < count < len(spans):
        raise DataError(
            f"{dataset.provenance.card} has {len(spans)} episodes; holding out {share:g} of them "
            f"is {count}, and both parts need one at least"
        )
    order = torch.randperm(len(spans), generator=torch.Generator().manual_seed(seed))
    held = set(order[:count].tolist())
    parts = []
    for inside in (False, True):
        rows = [torch.arange(a, b) for i, (a, b) in enumerate(spans) if (i in held) == inside]
        parts.append(dataset.with_transitions(dataset.transitions.select(torch.cat(rows))))
    return parts[0], parts[1]
