"""Masked action spaces: a policy that may choose only what an earlier copy of it finds likely.
"Is Reinforcement Learning (Not) for Natural Language Processing", arXiv 2210.01241 (NLPO)."""

import torch
from torch import Tensor


def top_p(logits: Tensor, share: float = 0.9, least: int = 1) -> Tensor:
    """[..., A] bool: the likeliest actions of `logits` [..., A] that together have at least the
    probability `share`, and no fewer than `least`. The action that crosses `share` is in."""
    ordered, order = logits.sort(-1, descending=True)
    probability = ordered.softmax(-1)
    before = probability.cumsum(-1) - probability
    place = torch.arange(logits.shape[-1], device=logits.device)
    kept = (before <= share) | (place < least)
    return torch.zeros_like(kept).scatter(-1, order, kept)


def masked_log_probs(logits: Tensor, allowed: Tensor) -> Tensor:
    """[..., A]: log-probs over the `allowed` actions, -inf for the others. Where none is allowed
    (a copy that disagrees in everything cannot be, but a mask may be) all are."""
    some = allowed.any(-1, keepdim=True)
    return logits.masked_fill(some & ~allowed, -torch.inf).log_softmax(-1)
