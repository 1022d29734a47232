"""Small datasets that the tests make themselves."""

import copy
import dataclasses
import functools
import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from experiments.runs import launchers, pool
from mbrl.tasks import make
from mbrl.tasks.classic import Pendulum
from mbrl.types import Dataset, Provenance, Transitions
from tests.forked import ForkedServer

# Tests kill processes, not the machine: what was written is there without waiting for the disk.
os.fsync = lambda descriptor: None


def random_dataset(task_id: str, rows: int, seed: int = 0) -> Dataset:
    """Uniform actions in a task, one copy, episodes cut at the task's limit. Each call gives rows
    of its own."""
    limit = make(task_id).spec.max_episode_steps  # which a fixture may have changed
    return copy.deepcopy(_random_dataset(task_id, rows, seed, limit))


@functools.cache
def _random_dataset(task_id: str, rows: int, seed: int, limit: int) -> Dataset:
    task = make(task_id)
    generator = torch.Generator().manual_seed(seed)
    spec = task.spec
    state, age = task.reset(1, generator), 0
    fields: list[list[torch.Tensor]] = [[] for _ in range(6)]
    for _ in range(rows):
        if spec.discrete:
            action = torch.randint(spec.num_actions, (1,), generator=generator)
        else:
            low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
            action = low + (high - low) * torch.rand(1, spec.action_dim, generator=generator)
        obs, step = task.observe(state), task.step(state, action)
        age += 1
        truncated = torch.tensor([age >= limit]) & ~step.terminated
        row = (obs, action, step.reward, step.obs, step.terminated, truncated)
        for column, value in zip(fields, row, strict=True):
            column.append(value)
        state = step.state
        if bool(step.terminated | truncated):
            state, age = task.reset(1, generator), 0
    obs, action, reward, next_obs, terminated, truncated = (torch.cat(f) for f in fields)
    truncated[-1] |= ~terminated[-1]
    data = Transitions(obs, action, reward, next_obs, terminated, truncated)
    return Dataset(data, spec, Provenance(card=f"test/{task_id}"))


@pytest.fixture
def quick_halting_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """`HaltingModel`, by which `solve` chooses, is fitted for a moment: for tests of what goes on
    around it."""
    monkeypatch.setattr("world_models.learned_ends.UPDATES", 100)
    monkeypatch.setattr("world_models.reached_rewards.MOST_PASSES", 2)


def shorten_episodes(patch: pytest.MonkeyPatch) -> None:
    """Pendulum's episodes end after 20 steps and not 200, of which evaluations else are most of a
    short run."""
    begun = Pendulum.__init__

    def short(self: Pendulum, **options: Any) -> None:
        begun(self, **options)
        self.spec = dataclasses.replace(self.spec, max_episode_steps=20)

    patch.setattr(Pendulum, "__init__", short)


@pytest.fixture
def short_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what goes on around episodes."""
    shorten_episodes(monkeypatch)


@pytest.fixture
def quick_jobs(short_episodes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that run side by side have short episodes, are forked from this process and are soon
    seen to have ended."""
    monkeypatch.setattr(launchers, "ForkServer", ForkedServer)
    monkeypatch.setattr(pool, "PAUSE", 0.01)


@pytest.fixture
def quick_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm starts of the studies of language models make two updates, solve nothing and are looked
    at on three problems of each level."""
    from experiments.studies import language_training

    few = functools.partial(language_training.LanguageSettings, eval_problems=3)
    monkeypatch.setattr(language_training, "MOST", 2)
    monkeypatch.setattr(language_training, "LanguageSettings", few)


@pytest.fixture(scope="session")
def one_registry() -> Iterator[None]:
    """PyTorch reads the source of all its 500 translations to ONNX at every export, which takes as
    long as half of the rest. Here once is enough."""
    if find_spec("onnxscript") is None:
        yield
        return
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(ONNXRegistry.from_torchlib)
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(once))
        yield


@pytest.fixture(scope="session")
def pendulum() -> Dataset:
    return random_dataset("Pendulum-v1", 600)


@pytest.fixture(scope="session")
def cartpole() -> Dataset:
    return random_dataset("CartPole-v1", 400)
