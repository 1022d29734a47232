"""The scripted corrector of DoorChain-v0."""

import torch
from torch import Tensor

from mbrl.errors import DataError
from mbrl.tasks.door_chain import SPEED, door_chain_expert

HELD, STALLED = 3, 25  # steps at a wall, and without getting closer to the next door, that fail
NEAR, RADIUS, DENSE = 0.05, 0.1, 5  # what is familiar: this near a state with so many around it


class DoorCorrector:
    """Takes over where the point has been held for 3 steps or has not come closer to the door for
    25; recovers by the way back to the nearest familiar state, corrects by the task's expert.

    Familiar are states within 0.05 of one of the `known` observations [N, 8] that has at least 5 of
    them within 0.1, itself among them; distances are in x from the wall and y from the door. Raises
    `DataError` where no known observation has.
    """

    def __init__(self, known: Tensor) -> None:
        places = _place(known[known[:, 3] == 0])
        dense = (torch.cdist(places, places) <= RADIUS).sum(1) >= DENSE
        if not bool(dense.any()):
            raise DataError(
                f"none of the {len(known)} known rows has {DENSE} others within {RADIUS}; record "
                "more demonstrations"
            )
        self.places = places[dense]

    def failing(self, seen: list[Tensor]) -> bool:
        held = all(bool(obs[3] > 0) for obs in seen[-HELD:]) and len(seen) >= HELD
        if len(seen) <= STALLED:
            return held
        gap = (_place(torch.stack(seen)) - torch.tensor([1.0, 0.0])).norm(dim=-1)
        return held or bool(gap[-STALLED:].min() >= gap[:-STALLED].min())

    def familiar(self, obs: Tensor) -> bool:
        return bool(obs[3] == 0) and bool(self._nearest(obs)[1] <= NEAR)

    def _nearest(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest familiar place [2] and the distance to it."""
        distance = (self.places - _place(obs)).norm(dim=-1)
        index = distance.argmin()
        return self.places[index], distance[index]

    def recover(self, obs: Tensor) -> Tensor:
        if bool(obs[3] > 0):
            return torch.tensor([-1.0, 0.0])
        place, _ = self._nearest(obs)
        return ((place - _place(obs)) / SPEED).clamp(-1, 1)

    def correct(self, obs: Tensor) -> Tensor:
        return door_chain_expert(obs[None])[0]

    def over(self, obs: Tensor, next_obs: Tensor) -> bool:
        return bool((obs[4:] != next_obs[4:]).any())


def _place(obs: Tensor) -> Tensor:
    """[..., 2] x from the last wall and y from the next door."""
    return torch.stack([obs[..., 0], obs[..., 1] - obs[..., 2]], -1)
