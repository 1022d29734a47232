"""Which states are out of reach: they can end an imagined rollout, and be bootstrapped from, but no
transition that a critic is trained on starts in them.

The edge of reach is the set of Sims et al., "The Edge-of-Reach Problem in Offline Model-Based
Reinforcement Learning", arXiv 2402.12527; the nearest-neighbour measure of it is this library's.
"""

import torch
from torch import Tensor

SHARE = 0.01  # of trained states that count as outside: the measure's false alarms
CHUNK = 1000  # rows whose distances are held at a time


def nearest_distance(points: Tensor, reference: Tensor) -> Tensor:
    """Euclidean distance [B] of `points` [B, S] to the nearest row of `reference` [M, S]."""
    parts = [torch.cdist(part, reference).min(1).values for part in torch.split(points, CHUNK)]
    return torch.cat(parts)


def outside(ends: Tensor, trained: Tensor) -> Tensor:
    """[B] bool: which of the states `ends` [B, S] lie farther from the `trained` states [M, S],
    M of at least 4, than all but `SHARE` of trained states lie from each other.

    Distances are in standard deviations of the trained states. Half of these are the reference
    and the other half set the threshold, so that a state drawn like them is outside with
    probability `SHARE`. Cost: (B + M / 2) M / 2 distances.
    """
    if len(trained) < 4:
        raise ValueError(f"{len(trained)} trained states are given; at least 4 are needed")
    scale = trained.std(0, correction=0).clamp_min(1e-6)
    # From their mean: distances by squares of numbers far from 0 are mostly rounding.
    centre = trained.mean(0)
    reference, others = ((part - centre) / scale for part in (trained[::2], trained[1::2]))
    threshold = nearest_distance(others, reference).quantile(1 - SHARE)
    return nearest_distance((ends - centre) / scale, reference) > threshold
