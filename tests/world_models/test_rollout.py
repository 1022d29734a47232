"""The rollout engine with models whose answers are known."""

import pytest
import torch
from torch import Tensor

from mbrl.errors import ConfigError, DataError
from mbrl.tasks import make
from mbrl.types import Spec
from world_models import Prediction, RolloutConfig, TrueDynamics, rollout
from world_models.rollout import HaltingRollout


class Counter:
    """obs counts up by 1 + member; ends above `end`; disagreement equals obs."""

    spec = Spec("count", 1, 1, None, (-1.0,), (1.0,), 100)
    device = torch.device("cpu")

    def __init__(self, members: int = 1, end: float = 1e9, invalid_at: float = 1e9) -> None:
        self.num_members, self.end, self.invalid_at = members, end, invalid_at
        self.asked: list[Tensor | None] = []

    def predict(self, obs, action, generator, *, member=None, state=None, measure=None):
        self.asked.append(member)
        step = 1.0 if member is None else 1.0 + member.float()[:, None]
        following = obs + step
        level = obs[:, 0] if measure else None
        valid = obs[:, 0] < self.invalid_at
        ended = following[:, 0] > self.end
        return Prediction(following, obs[:, 0] * 0 + 1.0, ended, level, None, valid)

    def disagreement(self, obs, action, name):
        return obs[:, 0]


def still(obs: Tensor, generator: torch.Generator) -> Tensor:
    return torch.zeros_like(obs)


def go(model, config: RolloutConfig, starts=(0.0, 5.0, 8.0)):
    obs = torch.tensor(starts)[:, None]
    return rollout(model, still, obs, config, torch.Generator().manual_seed(0))


def test_starts_are_finite() -> None:
    with pytest.raises(DataError, match="start 1 is"):
        go(Counter(), RolloutConfig(horizon=5), (0.0, float("nan"), 8.0))


def test_stops_at_termination_and_masks_the_rest() -> None:
    out = go(Counter(end=8.5), RolloutConfig(horizon=5))
    assert out.lengths.tolist() == [5, 4, 1]
    assert out.terminated.tolist()[1] == [False, False, False, True, False]
    flat = out.transitions()
    assert len(flat) == 10
    # nothing after a termination is recorded, and the cut at the horizon is a truncation
    assert flat.terminated.tolist() == [False] * 5 + [False] * 3 + [True] + [True]
    assert flat.truncated.tolist() == [False] * 4 + [True] + [False] * 5
    assert flat.next_obs[:5, 0].tolist() == [1, 2, 3, 4, 5]


def test_a_terminated_last_step_is_not_also_truncated() -> None:
    out = go(Counter(end=1.5), RolloutConfig(horizon=2), starts=(0.0,))
    assert out.terminated[0].tolist() == [False, True]
    assert out.truncated[0].tolist() == [False, False]


def test_stop_measure_keeps_the_crossing_step_as_truncated() -> None:
    config = RolloutConfig(horizon=10, stop="epistemic_mean", stop_above=6.5)
    out = go(Counter(), config)
    assert out.lengths.tolist() == [8, 3, 1]
    assert out.truncated[0].tolist()[:8] == [False] * 7 + [True]
    assert not out.terminated.any()


def test_halt_ends_the_task_with_its_own_reward() -> None:
    """The step that passes the threshold is terminated and pays what HALT pays, whether or not the
    model says that the task ended, and without a penalty; the others are as without HALT."""
    values = {"horizon": 10, "stop": "epistemic_mean", "stop_above": 6.5}
    penalty = {"penalty": "epistemic_mean", "penalty_weight": 0.5}
    for end in (1e9, 8.5):
        out = go(Counter(end=end), HaltingRollout(**values, **penalty, halt_reward=-40.0))
        assert out.lengths.tolist() == [8, 3, 1]
        assert out.reward[0].tolist()[:8] == [1 - 0.5 * s for s in range(7)] + [-40.0]
        assert out.terminated[0].tolist()[:8] == [False] * 7 + [True]
        assert [out.reward[i, n - 1].item() for i, n in ((1, 3), (2, 1))] == [-40.0, -40.0]
        assert not out.truncated.any()
    short = go(Counter(), HaltingRollout(**(values | {"horizon": 4}), halt_reward=-40.0))
    assert short.truncated[0].tolist() == [False, False, False, True]
    with pytest.raises(ConfigError, match="name the measure"):
        HaltingRollout(halt_reward=-1.0)
    with pytest.raises(ConfigError, match=r"penalty_weight is 0\.5 and penalty None"):
        RolloutConfig(penalty_weight=0.5)


def test_penalty_is_subtracted() -> None:
    config = RolloutConfig(horizon=3, penalty="max_aleatoric", penalty_weight=0.5)
    out = go(Counter(), config)
    assert out.reward[1].tolist() == pytest.approx([1 - 2.5, 1 - 3.0, 1 - 3.5])


def test_member_choice() -> None:
    starts = [0.0] * 40
    model = Counter(members=4)
    out = go(model, RolloutConfig(horizon=6, member="per_rollout"), starts)
    steps = (out.next_obs - out.obs)[..., 0]
    assert (steps == steps[:, :1]).all()
    assert torch.bincount(steps[:, 0].long())[1:].tolist() == [10] * 4
    out = go(model, RolloutConfig(horizon=6, member="per_step"), starts)
    steps = (out.next_obs - out.obs)[..., 0]
    assert not (steps == steps[:, :1]).all()
    for t in range(6):
        assert torch.bincount(steps[:, t].long())[1:].tolist() == [10] * 4
    model.asked.clear()
    go(model, RolloutConfig(horizon=2, member="mean"), starts)
    assert model.asked == [None, None]


def test_unpredictable_rows_are_not_recorded() -> None:
    out = go(Counter(invalid_at=7.5), RolloutConfig(horizon=4))
    assert out.lengths.tolist() == [4, 3, 0]


def test_true_dynamics_reproduce_the_task() -> None:
    """An imagined Pendulum trajectory is the task's own, step for step."""
    task = make("Pendulum-v1", dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    state = task.reset(6, generator)

    def push(obs: Tensor, generator: torch.Generator) -> Tensor:
        return torch.sign(obs[:, 2:3]) * 1.5

    config = RolloutConfig(horizon=20)
    out = rollout(TrueDynamics(task), push, task.observe(state), config, generator)
    for t in range(20):
        action = push(task.observe(state), generator)
        step = task.step(state, action)
        assert torch.allclose(out.next_obs[:, t], step.obs, atol=1e-9)
        assert torch.allclose(out.reward[:, t], step.reward, atol=1e-9)
        state = step.state


def test_clear_errors() -> None:
    with pytest.raises(ConfigError, match="horizon is 0"):
        RolloutConfig(horizon=0)
    with pytest.raises(ConfigError, match="give both or neither"):
        RolloutConfig(stop="ensemble_std")
    with pytest.raises(ConfigError, match="did you mean 'max_aleatoric'"):
        RolloutConfig(penalty="max_aleatoric_")
