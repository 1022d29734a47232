"""Where episodes start: a bounded buffer of partial histories (ExIt) and the turns of recorded
traces that are worth practising (PivotRL)."""

from typing import Any

import torch
from torch import Tensor

from mbrl.errors import ConfigError


class ExIt:
    """A bounded buffer of starting points, (task, partial history) as the caller made them: with
    `probability` an episode starts from one of them instead of a new task, drawn in proportion to
    its priority, the variance of its group's returns. A full buffer drops the lowest priority.

    For exact resume, histories hold plain tensors, numbers, strings and lists. "Bootstrapping Task
    Spaces for Self-Improvement", arXiv 2509.04575.
    """

    def __init__(self, capacity: int = 512, probability: float = 0.5) -> None:
        if capacity < 1 or not 0 <= probability <= 1:
            raise ConfigError(
                f"capacity {capacity}, probability {probability:g}; give at least 1 place and a "
                "probability from 0 to 1"
            )
        self.capacity, self.probability = capacity, probability
        self.starts: dict[int, Any] = {}
        self.priorities: dict[int, float] = {}
        self.next_key = 0

    def __len__(self) -> int:
        return len(self.starts)

    def add(self, start: Any, returns: Tensor) -> int | None:
        """Takes in a starting point whose group earned `returns` [G]; its key, or None where all in
        a full buffer have at least its priority."""
        priority = variance(returns)
        if len(self.starts) >= self.capacity:
            least = min(self.priorities, key=lambda key: (self.priorities[key], key))
            if self.priorities[least] >= priority:
                return None
            self.drop(least)
        key, self.next_key = self.next_key, self.next_key + 1
        self.starts[key], self.priorities[key] = start, priority
        return key

    def drop(self, key: int) -> None:
        del self.starts[key], self.priorities[key]

    def update(self, key: int, returns: Tensor) -> None:
        """A new group from a starting point, if it is still there."""
        if key in self.priorities:
            self.priorities[key] = variance(returns)

    def draw(self, generator: torch.Generator) -> tuple[int, Any] | None:
        """(key, start), or None: start a new task."""
        fresh = float(torch.rand((), generator=generator)) >= self.probability
        keys = list(self.priorities)
        weights = torch.tensor([self.priorities[key] for key in keys], dtype=torch.float64)
        if fresh or not keys or float(weights.sum()) <= 0:
            return None
        key = keys[int(torch.multinomial(weights, 1, generator=generator))]
        return key, self.starts[key]

    def state_dict(self) -> dict[str, Any]:
        return {
            "starts": dict(self.starts),
            "priorities": dict(self.priorities),
            "next_key": self.next_key,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.starts, self.priorities = dict(state["starts"]), dict(state["priorities"])
        self.next_key = int(state["next_key"])


def variance(returns: Tensor) -> float:
    """Of a group; 0 for a group of one."""
    return float(returns.double().var(correction=0)) if len(returns) > 1 else 0.0


def pivots(rewards: Tensor, *, limit: int | None = None) -> Tensor:
    """int64 [P]: the turns to practise, hardest first (smallest mean reward, then largest
    variance, then the earlier turn): those whose samples did not all earn the same. `rewards`
    [T, K] are of K actions sampled by the policy at each of T turns of recorded traces, checked for
    what they do, not for how they are written; NaN where there are fewer. At most `limit`.

    Offline profiling of "PivotRL: High Accuracy Agentic Post-Training at Low Compute Cost".
    """
    if rewards.ndim != 2 or (limit is not None and limit < 1):
        raise ValueError(
            f"rewards have shape {tuple(rewards.shape)}, limit is {limit}; give [T, K] and a limit "
            "of at least 1"
        )
    value = rewards.double()
    mean = value.nanmean(1)
    spread = ((value - mean[:, None]) ** 2).nanmean(1).nan_to_num(0.0)
    order = torch.argsort(spread, descending=True, stable=True)
    order = order[torch.argsort(mean[order].nan_to_num(torch.inf), stable=True)]
    mixed = value.nan_to_num(-torch.inf).amax(1) > value.nan_to_num(torch.inf).amin(1)
    return order[mixed[order]][:limit]
