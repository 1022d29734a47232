"""An agent that acts, saved on the way and gone on with."""

from pathlib import Path
from typing import Any

import torch

import algorithms
from mbrl.tasks import Task
from mbrl.training import train


def continued(agent: Any, task: Task, path: Path, first: int, last: int) -> Any:
    """`agent` after `last` steps, and the same saved after `first` and trained on to there: all
    weights are the same bit for bit. The one that was saved."""
    source = agent.collector(task)
    train(agent, first, [], source)
    agent.save(path)
    again = algorithms.load(path)
    other = again.collector(task)
    other.load_state_dict(source.state_dict())
    train(agent, last, [], source)
    train(again, last, [], other)
    for name, module in agent.modules.items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, again.modules[name].state_dict()[key]), f"{name}.{key}"
    assert source.returns == other.returns
    assert getattr(source, "owed", None) == getattr(other, "owed", None)
    return again
