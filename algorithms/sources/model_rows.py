"""Rows of a replay buffer with a world model that is fitted to them, for algorithms that use the
model in their updates or for planning."""

from collections.abc import Callable
from typing import Any

import torch

from algorithms.sources.imagined import RefitConfig, fit_to_logged, follow, termination_rule
from algorithms.sources.logged import LoggedRows
from mbrl.training import Metrics
from mbrl.types import Dataset, Spec, Transitions
from world_models import EnsembleConfig, EnsembleDynamics, WorldModel


class ModelRows(LoggedRows):
    """Uniform batches of rows; the model is fitted before the first, and online refitted.

    `refitted` is called with these rows after each fit, for what depends on the model. The model is
    saved with the rows unless `saves_model` is False, where the policy holds it.
    """

    mixes = False

    def __init__(
        self,
        spec: Spec,
        model: WorldModel,
        gamma: float,
        batch_size: int,
        collection: RefitConfig,
        device: torch.device,
        *,
        refitted: Callable[["ModelRows"], None] | None = None,
        saves_model: bool = True,
    ) -> None:
        widths = {"next_unknown": 0}  # no dynamics are learned from such rows
        super().__init__(spec, gamma, batch_size, device, collection=collection, widths=widths)
        self.model, self.refitted, self.saves_model = model, refitted, saves_model
        self.announced = False  # whether `refitted` knows of the present model
        self.learned = model if isinstance(model, EnsembleDynamics) else None

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Fit the world model, continuing an unfinished fit."""
        super().prepare(dataset, on_progress)
        if self.learned is not None:
            fit_to_logged(self.learned, dataset, on_progress)
        if not self.announced:
            self._announce()

    def observe(self, data: Transitions, step: int) -> None:
        """Add experience, and let the model follow it when due."""
        super().observe(data, step)
        if follow(self.learned, self, step):
            self._announce()

    def _announce(self) -> None:
        self.announced = True
        if self.refitted is not None:
            self.refitted(self)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if self.saves_model and self.learned is not None:
            state |= {"model": self.learned.state_dict(), "announced": self.announced}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.saves_model and self.learned is not None:
            self.learned.load_state_dict(state["model"])
            self.announced = state["announced"]


def own_ensemble(
    spec: Spec, config: EnsembleConfig, termination: str, device: torch.device, seed: int
) -> EnsembleDynamics:
    """A new ensemble that ends where the setting `termination` says, as `termination_rule` has it.
    Raises `ConfigError` as `termination_rule`."""
    rule = termination_rule(spec, termination, "termination")
    return EnsembleDynamics(spec, config, termination=rule, device=device, seed=seed)
