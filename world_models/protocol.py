"""What a one-step world model is: a `Prediction` for each (obs, action) row, and the protocol that
learned ensembles and the true dynamics share."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from mbrl.types import Spec


class Prediction(NamedTuple):
    """One imagined step of B rows.

    `next_obs` [B, S] and `reward` [B] in the task's own units; `terminated` [B] bool;
    `disagreement` [B], larger where the members differ more, None where there is one answer;
    `state` [B, K], the simulator state at `next_obs`, None for a learned model; `valid` [B] bool,
    False where the row could not be predicted at all (its numbers mean nothing), None if all are.
    """

    next_obs: Tensor
    reward: Tensor
    terminated: Tensor
    disagreement: Tensor | None = None
    state: Tensor | None = None
    valid: Tensor | None = None


class WorldModel(Protocol):
    """A batched one-step model. All randomness comes from the generator."""

    @property
    def spec(self) -> Spec: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def num_members(self) -> int:
        """Members that `member` can name; 1 for a model without an ensemble."""
        ...

    def predict(
        self,
        obs: Tensor,
        action: Tensor,
        generator: torch.Generator,
        *,
        member: Tensor | None = None,
        state: Tensor | None = None,
        measure: str | None = None,
    ) -> Prediction:
        """Predict B rows from `obs` [B, S] and `action` [B, A] (or [B] int64 where discrete).

        `member` [B] int64 chooses the ensemble member of each row (None: the mean, or whatever
        the model has in its place); `state` [B, K] is the simulator state at `obs`, for the
        models that carry one and ignored by the others. `measure` names the disagreement
        measure to report (0 for a model that is not an ensemble).
        """
        ...

    def disagreement(self, obs: Tensor, action: Tensor, name: str) -> Tensor:
        """The disagreement measure `name` [B] of B rows."""
        ...
