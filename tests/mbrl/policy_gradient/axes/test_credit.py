"""Credit against independent code: stable-baselines3's advantages, n-step returns, tree values."""

import dataclasses

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

from mbrl.policy_gradient.axes.credit import GAE, ReturnToGo, TreeDifference, VTrace
from mbrl.types import Trajectories
from tests.mbrl.policy_gradient import cases


def rows_of_several_episodes(batch: int, steps: int) -> Trajectories:
    """Full rows in which episodes end (by themselves, or cut off) and begin again."""
    g = torch.Generator().manual_seed(0)
    t, _, _ = cases.batch(0)
    ends = torch.rand(batch, steps, generator=g) < 0.2
    by_itself = torch.rand(batch, steps, generator=g) < 0.5
    value, after = torch.randn(2, batch, steps, generator=g, dtype=torch.float64)
    # Inside an episode the value after a step is that of the next one.
    after[:, :-1] = torch.where(ends[:, :-1], after[:, :-1], value[:, 1:])
    return dataclasses.replace(
        t,
        reward=torch.randn(batch, steps, generator=g, dtype=torch.float64),
        terminated=ends & by_itself,
        truncated=ends & ~by_itself,
        mask=torch.ones(batch, steps, dtype=torch.bool),
        signals={"value": value, "next_value": after},
    )


def test_gae_is_that_of_stable_baselines3() -> None:
    """Its rollouts add gamma times the value to the reward of a step that was cut off."""
    batch, steps, gamma, lam = 5, 40, 0.97, 0.9
    t = rows_of_several_episodes(batch, steps)
    space = spaces.Box(-1, 1, (1,))
    theirs = RolloutBuffer(steps, space, space, "cpu", lam, gamma, batch)
    began = np.ones(batch, dtype=bool)
    zero = np.zeros((batch, 1))
    for i in range(steps):
        cut = t.truncated[:, i].numpy()
        reward = t.reward[:, i].numpy() + gamma * cut * t.signals["next_value"][:, i].numpy()
        value = t.signals["value"][:, i].float()
        theirs.add(zero, zero, reward, began, value, torch.zeros(batch))
        began = (t.terminated[:, i] | t.truncated[:, i]).numpy()
    theirs.compute_returns_and_advantage(t.signals["next_value"][:, -1].float(), began)
    mine = GAE(gamma, lam)
    np.testing.assert_allclose(mine(t.reward, t).numpy().T, theirs.advantages, atol=2e-5)
    np.testing.assert_allclose(mine.targets(t.reward, t).numpy().T, theirs.returns, atol=2e-5)


def test_vtrace_on_its_own_data_is_the_n_step_return() -> None:
    t = rows_of_several_episodes(3, 30)
    same = torch.randn(3, 30, dtype=torch.float64)
    t.log_probs.clear()
    t.log_probs.update(old=same, behaviour=same)
    targets = VTrace(0.9).targets(t.reward, t)
    for b in range(3):
        for i in range(30):
            total, weight = 0.0, 1.0
            for j in range(i, 30):
                total += weight * float(t.reward[b, j])
                weight *= 0.9
                if t.terminated[b, j]:
                    break
                if t.truncated[b, j] or j == 29:
                    total += weight * float(t.signals["next_value"][b, j])
                    break
            assert abs(float(targets[b, i]) - total) < 1e-9


def test_vtrace_at_bounds_of_zero_keeps_the_critic() -> None:
    t = rows_of_several_episodes(2, 10)
    t.log_probs.clear()
    t.log_probs.update(old=torch.full((2, 10), -60.0), behaviour=torch.zeros(2, 10))
    targets = VTrace(0.9).targets(t.reward, t)
    torch.testing.assert_close(targets, t.signals["value"], atol=1e-12, rtol=0)


def test_returns_by_segment_discount_from_turn_to_turn() -> None:
    t, _, _ = cases.batch(1)
    reward = torch.where(t.mask, torch.randn_like(t.reward), 0.0)
    found = ReturnToGo(0.5, "turn")(reward, t)
    for b in range(len(reward)):
        turns = sorted({int(t.segments["turn"][b, i]) for i in range(7) if t.mask[b, i]})
        total = {
            k: sum(float(reward[b, i]) for i in range(7) if t.segments["turn"][b, i] == k)
            for k in turns
        }
        for i in range(7):
            if t.mask[b, i]:
                rest = [k for k in turns if k >= int(t.segments["turn"][b, i])]
                wanted = sum(0.5**n * total[k] for n, k in enumerate(rest))
                assert abs(float(found[b, i]) - wanted) < 1e-12


def test_the_differences_along_a_path_of_a_tree_sum_to_its_leaf() -> None:
    """Where the last node is a sequence's own, the sum over its nodes is its reward less the mean
    of the prompt."""
    t, _, _ = cases.batch(2)
    turn, rows = t.segments["turn"], torch.arange(len(t.mask))[:, None]
    last = torch.where(t.mask, turn, -1).max(1, keepdim=True).values
    t.groups["node"] = torch.where(turn == last, 40 + rows, t.groups["node"])
    gain = TreeDifference()(t.reward, t)
    total = t.reward.sum(1)
    for b in range(len(total)):
        parts = {int(turn[b, i]): float(gain[b, i]) for i in range(7) if t.mask[b, i]}
        prompt = t.groups["prompt"][:, 0] == t.groups["prompt"][b, 0]
        wanted = float(total[b] - total[prompt].mean())
        assert abs(sum(parts.values()) - wanted) < 1e-9
