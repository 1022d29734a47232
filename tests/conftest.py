"""Small datasets that the tests make themselves."""

import functools
import os
from collections.abc import Iterator
from importlib.util import find_spec

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from mbrl.tasks import make
from mbrl.types import Dataset, Provenance, Transitions

# Tests kill processes, not the machine: what was written is there without waiting for the disk.
os.fsync = lambda descriptor: None


def random_dataset(task_id: str, rows: int, seed: int = 0) -> Dataset:
    """Uniform actions in a task, one copy, episodes cut at the task's limit."""
    task = make(task_id)
    generator = torch.Generator().manual_seed(seed)
    spec, limit = task.spec, task.spec.max_episode_steps
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
