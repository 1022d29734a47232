"""What an evaluation begins in."""

import pytest
import torch

from algorithms import SAC, SACConfig
from mbrl.errors import ConfigError
from mbrl.evaluation import evaluate
from mbrl.tasks import make


@pytest.mark.parametrize("rows", [2, 5])
def test_there_are_as_many_states_as_episodes(rows: int) -> None:
    task = make("Pendulum-v1,max_episode_steps=2")
    agent = SAC(task.spec, SACConfig())
    state = task.reset(rows, torch.Generator().manual_seed(0))
    assert len(evaluate(agent, task, rows, state=state)) == rows
    with pytest.raises(ConfigError, match=f"state has {rows} rows for 3 episodes"):
        evaluate(agent, task, 3, state=state)
