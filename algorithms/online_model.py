"""What PETS, MBPO and COPlanner share when they learn online: the experience, the world model that
is fitted to it anew every so many steps, and for the latter two the loop around it."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from algorithms.model_based import ModelBased, ModelBasedConfig
from algorithms.online import GatheringConfig, Online, transitions
from mbrl.buffer import Batch, Buffer
from mbrl.errors import ConfigError
from mbrl.training import Metrics
from mbrl.types import Spec, Transitions
from world_models import EnsembleDynamics, RolloutConfig, WorldModel


@dataclass(frozen=True)
class OnlineConfig(GatheringConfig):
    """How experience is gathered, and how the model follows it."""

    warmup: int = 5000  # uniform random rows before the first fit of the model
    refit_every: int = 250  # loop steps between refits of the model
    refit_epochs: int = 20  # passes over the experience a refit makes at most

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"warmup": 3, "refit_every": 1, "refit_epochs": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be at least {low}")


@dataclass(frozen=True)
class DynaConfig(OnlineConfig):
    """Online learning on imagined rows; rollouts are refreshed after each refit of the model."""

    updates_per_step: int = 20  # of the learner, a loop step
    horizons: tuple[int, int] = (1, 15)  # of rollouts, at first and in the end
    growth: tuple[int, int] = (20_000, 150_000)  # loop steps between which the horizon grows

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.updates_per_step < 1:
            raise ConfigError(f"updates_per_step is {self.updates_per_step}, it must be at least 1")
        if min(self.horizons) < 1:
            raise ConfigError(f"horizons is {self.horizons}, both must be at least 1")
        if not 0 <= self.growth[0] < self.growth[1]:
            raise ConfigError(f"growth is {self.growth}, it must be (first step, later step)")

    def horizon(self, step: int) -> int:
        """Whole part of the linear growth from the first horizon to the last."""
        (low, high), (first, last) = self.horizons, self.growth
        share = min(max((step - first) / (last - first), 0.0), 1.0)
        return int(low + share * (high - low))


@dataclass(frozen=True)
class OnlineModelBasedConfig(ModelBasedConfig):
    """The settings of an algorithm that imagines, offline and online."""

    online: DynaConfig = field(default_factory=DynaConfig)


def follow(model: WorldModel, experience: Buffer, config: OnlineConfig, step: int) -> bool:
    """Fit the model to all experience where loop step `step` is due, and tell whether it was: from
    scratch once the warm-up is over, and then from where it is. A model that is not learned stays
    as it is."""
    if len(experience) < config.warmup:
        return False
    fitted = not isinstance(model, EnsembleDynamics) or model.fitted
    if fitted and step % config.refit_every != 0:
        return False
    if isinstance(model, EnsembleDynamics):
        data = transitions(experience)
        if model.fitted:
            model.refit(data, config.refit_epochs)
        else:
            model.fit(data)
    return True


def resized(buffer: Buffer, capacity: int) -> Buffer:
    """A buffer of another capacity with the newest rows, as many as fit."""
    new = Buffer(buffer.spec, capacity, buffer.gamma, buffer.rows.device)
    rows = buffer.rows[: buffer.size].roll(-buffer.position if len(buffer) else 0, 0)[-capacity:]
    new.load_state_dict({"rows": rows, "position": len(rows) % capacity})
    return new


class OnlineModelBased(Online, ModelBased):
    """A learner on imagined rows that also learns online, in the way of MBPO: act, add to the
    experience, refit the model when due and imagine from the experience, update several times."""

    def __init__(
        self,
        spec: Spec,
        config: OnlineModelBasedConfig,
        model: WorldModel | None,
        device: str,
        seed: int,
    ) -> None:
        super().__init__(spec, config, model, device, seed)
        self.updates_per_step = config.online.updates_per_step
        self.refreshed = -1  # the step that last imagined; one of them starts with its updates

    def observe(self, data: Transitions) -> None:
        """Add experience, and let the model follow it when due."""
        super().observe(data)
        follow(self.learned or self.model, self.data_buffer(), self.config.online, self.step)

    def refresh(self) -> None:
        """Online, imagine anew at the steps at which the model follows the experience."""
        if self.experience is None:
            return super().refresh()
        due = self.step % self.config.online.refit_every == 0 or len(self.imagined) == 0
        if due and self.refreshed != self.step:
            self.refreshed = self.step
            self.imagined = resized(self.imagined, self.imagined_capacity())
            self.imagine()

    def rollout_config(self) -> RolloutConfig:
        config = super().rollout_config()
        if self.experience is None:
            return config
        return replace(config, horizon=self.config.online.horizon(self.step))

    def imagined_capacity(self) -> int:
        """Rows of the refreshes that are kept, at the present horizon."""
        imagination = self.config.imagination
        return int(imagination.starts * self.rollout_config().horizon * imagination.retain)

    def update_learner(self, batch: Batch) -> Metrics:
        metrics = super().update_learner(batch)
        if self.experience is None:
            return metrics
        metrics["model/horizon"] = torch.tensor(float(self.rollout_config().horizon))
        if self.learned is not None and self.learned.holdout_mse is not None:
            metrics["model/holdout_mse"] = self.learned.holdout_mse.mean()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"imagined_capacity": self.imagined.capacity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.imagined = resized(self.imagined, state["imagined_capacity"])
        super().load_state_dict(state)
