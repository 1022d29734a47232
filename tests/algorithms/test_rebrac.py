"""ReBRAC's next actions and target against loops."""

from typing import Any

import pytest
import torch

from algorithms import ALGORITHMS
from algorithms.learners.critics import q_values
from algorithms.rebrac import actor_loss, cloning_penalty, next_actions
from experiments.settings import build_config
from mbrl.types import Dataset, Transitions

D = torch.float64


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def prepared(name: str, data: Dataset, **values: Any) -> Any:
    agent = ALGORITHMS[name][0](data.spec, build_config(name, values), seed=0)
    agent.prepare(data, lambda metrics: None)
    return agent


def test_rebrac_actor_loss_by_hand() -> None:
    q = torch.tensor([2.0, -4.0])
    action = torch.tensor([[0.5, 0.0], [0.0, 1.0]])
    logged = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    assert cloning_penalty(action, logged).tolist() == pytest.approx([0.25, 2.0])
    loss, metrics = actor_loss(q, action, logged, 0.4, True)
    assert float(loss) == pytest.approx(0.4 * 1.125 - (1 / 3) * -1.0)
    assert float(metrics["actor/bc"]) == pytest.approx(1.125)
    loss, _ = actor_loss(q, action, logged, 0.4, False)
    assert float(loss) == pytest.approx(0.4 * 1.125 + 1.0)


def test_rebrac_next_actions_stay_inside_an_episode() -> None:
    obs = torch.zeros(5, 1)
    action = torch.arange(1.0, 6.0)[:, None]
    terminated = torch.tensor([False, True, False, False, False])
    truncated = torch.tensor([False, False, False, True, False])
    data = Transitions(obs, action, torch.zeros(5), obs, terminated, truncated)
    got = next_actions(data)
    assert got["next_action"].flatten().tolist() == [2, 0, 4, 0, 0]
    assert got["has_next"].tolist() == [1, 0, 1, 0, 0]


def test_rebrac_target_against_a_loop(pendulum: Dataset) -> None:
    """Bounds of +-2 are scaled away, the cut episode's last row has no penalty."""
    agent = prepared("rebrac", pendulum, hidden=[16, 16], batch_size=600, critic_bc=0.5)
    buffer, data = agent.source.rows, pendulum.transitions
    rows, learner = buffer.whole(), agent.learner
    action = 2 * torch.rand(600, 1, generator=torch.Generator().manual_seed(0)) - 1
    with torch.no_grad():
        q = q_values(learner.critic_target, rows.next_obs, action)
        got = q - agent.next_penalty(rows, action)
        for row in (0, 57, 198, 199, 200, 399, 598, 599):
            x = torch.cat([data.next_obs[row], action[row]])[None]
            last = bool(data.ends[row])
            penalty = 0.0 if last else float(action[row] - data.action[row + 1] / 2) ** 2
            for n in range(2):
                expected = float(learner.critic_target.member(x, n)) - 0.5 * penalty
                assert float(got[n, row]) == pytest.approx(expected, abs=1e-5)
    assert data.ends.sum() == 3
    assert torch.allclose(rows.action, data.action / 2)
