"""Learning by acting: the base of the algorithms that gather experience in a task."""

from dataclasses import dataclass
from typing import Any

import torch

from algorithms.offline import Offline
from mbrl import agent as shared
from mbrl.buffer import Buffer
from mbrl.collector import Collector
from mbrl.errors import ConfigError
from mbrl.networks import ActionScale
from mbrl.tasks import Task
from mbrl.types import Transitions


@dataclass(frozen=True)
class GatheringConfig:
    """How experience is gathered."""

    envs: int = 1  # parallel tasks; each loop step advances all of them once
    warmup: int = 100  # uniform random rows before the first update
    capacity: int = 1_000_000  # rows of experience kept

    def __post_init__(self) -> None:
        for name, low in {"envs": 1, "warmup": 0, "capacity": 1}.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be at least {low}")
        if self.capacity < self.warmup:
            raise ConfigError(
                f"capacity is {self.capacity}, below the warmup of {self.warmup} rows"
            )


class Online(Offline):
    """An algorithm that learns from logged data and by acting; logged data are then its first
    experience."""

    learn = shared.learn
    updates_per_step = 1
    experience: Buffer | None = None

    @property
    def gathering(self) -> GatheringConfig:
        """The settings of gathering: the config's own, or those it has under `online`."""
        found: GatheringConfig = getattr(self.config, "online", self.config)
        return found

    def collector(self, task: Task) -> Collector:
        """What acts in `task` with the agent's exploration."""
        c = self.gathering
        return Collector(task, envs=c.envs, warmup=c.warmup, seed=self.seed)

    def observe(self, data: Transitions) -> None:
        """Add experience (the collector calls this)."""
        if self.experience is None:
            logged = self.real
            self._start_experience()
            if logged is not None:
                self.data_buffer().append(transitions(logged))
        self.data_buffer().append(data)

    def _start_experience(self) -> None:
        capacity = self.gathering.capacity
        self.experience = Buffer(self.spec, capacity, self.config.gamma, self.device)
        self.real = self.experience

    def state_dict(self) -> dict[str, Any]:
        experience = None if self.experience is None else self.experience.state_dict()
        return super().state_dict() | {"experience": experience}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if state["experience"] is not None:
            self._start_experience()
            self.data_buffer().load_state_dict(state["experience"])


def transitions(buffer: Buffer) -> Transitions:
    """A buffer's rows, actions in the task's units; without the episodes' boundaries, which a
    buffer does not keep."""
    batch = buffer.batch(buffer.rows[: buffer.size])
    action = batch.action
    if not buffer.spec.discrete:
        action = ActionScale(buffer.spec).to(action.device).to_task(action)
    ended = batch.discount == 0
    return Transitions(
        batch.obs, action, batch.reward, batch.next_obs, ended, torch.zeros_like(ended)
    )
