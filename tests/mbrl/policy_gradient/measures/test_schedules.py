"""Weights that change with training, against values worked out from the authors' code."""

import dataclasses

import pytest
import torch

from mbrl.policy_gradient import RECIPES
from mbrl.policy_gradient.axes.modulation_lengths import LongerRight, common
from mbrl.policy_gradient.axes.regulariser import EntropyBand, EntropyBonus
from mbrl.policy_gradient.measures.schedules import faded, grown, phase_weight
from tests.mbrl.policy_gradient import cases


@pytest.mark.parametrize(
    ("step", "weight"),
    [(0, 1), (37.5, 0.8736), (74.9999, 0.8271), (75, 0.8), (112.5, 0.1785), (150, 0.0398)],
)
def test_phases_of_epo(step: float, weight: float) -> None:
    assert phase_weight(step) == pytest.approx(weight, abs=1e-4)  # type: ignore[arg-type]
    assert phase_weight(1000) == phase_weight(150)


def test_growing_and_fading() -> None:
    assert [grown(k, 4) for k in (0, 1, 4, 9)] == [0, 0.25, 1, 1]
    assert [faded(k, 4) for k in (0, 2, 4, 9)] == pytest.approx([1, 0.5, 0, 0])


def test_a_count_moves_the_value_and_a_hinge_the_gradient() -> None:
    t, log_prob, entropy = cases.batch(0)
    t.signals["entropy_phase"] = torch.ones_like(t.reward)
    past = t.signals["entropy_history"]
    (band,) = RECIPES["epo_hinge"].regularisers
    assert isinstance(band, EntropyBand)
    gradients = {}
    for name, option in (
        ("bonus", EntropyBonus(0.001)),
        ("count", EntropyBand()),
        ("hinge", band),
    ):
        total = option(log_prob, entropy, torch.zeros_like(past), t)[t.mask].sum()
        gradients[name] = torch.autograd.grad(total, entropy)[0]
    assert torch.equal(gradients["bonus"], gradients["count"])
    low, high = entropy < 0.8 * past, entropy > 1.2 * past
    wanted = torch.where(low, -0.002, torch.where(high, 0.0, -0.001)) * t.mask
    torch.testing.assert_close(gradients["hinge"], wanted.double())


def test_what_a_longer_right_answer_loses() -> None:
    """Lengths 10 and 20 that part at 4; the third is wrong."""
    t, _, _ = cases.batch(0)
    steps, rows = 20, 3
    at = torch.arange(steps)
    mask = at < torch.tensor([[10], [20], [15]])
    node = torch.where(at < 4, 0, torch.tensor([[1], [2], [3]]))
    reward = torch.zeros(rows, steps, dtype=torch.float64)
    reward[0, 9] = reward[1, 19] = 1.0
    t = dataclasses.replace(
        t, mask=mask, reward=reward, groups={"prompt": torch.zeros_like(node), "node": node}
    )
    for power, f in ((1.0, 0.625), (0.5, 0.387628)):
        for sign in (1.0, -1.0):
            advantage = sign * mask.double()
            changed = LongerRight(power)(advantage, mask, t)
            assert torch.equal(changed[[0, 2]], advantage[[0, 2]])
            assert torch.equal(changed[1, :4], advantage[1, :4])
            assert changed[1, 4:].tolist() == pytest.approx([sign - f] * 16, abs=1e-6)


def test_what_is_common_ends_where_sequences_part() -> None:
    node = torch.tensor([[0, 1, 5, 5], [0, 2, 5, 5], [0, 1, 5, 5]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 1, 1]]).bool()
    shared = common(node, mask, torch.tensor([0, 0, 0]))
    assert shared.int().tolist() == [[1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]]
