"""The buffer against a plain list, and the exact mixing ratio."""

import pytest
import torch

from mbrl.buffer import Buffer, sample_mixed
from mbrl.errors import ConfigError
from mbrl.types import Spec, Transitions

SPEC = Spec("line", 2, 1, None, (-2.0,), (6.0,), 10)


def rows(first: int, count: int) -> Transitions:
    index = torch.arange(first, first + count)
    obs = torch.stack([index, index], 1).float()
    return Transitions(
        obs, torch.full((count, 1), 4.0), index.float(), obs + 1, index % 3 == 0, index % 5 == 0
    )


def test_ring_keeps_the_newest() -> None:
    buffer, kept = Buffer(SPEC, 10, 0.9), []
    for first, count in ((0, 4), (4, 5), (9, 7), (16, 25), (41, 1)):
        buffer.append(rows(first, count))
        kept = (kept + list(range(first, first + count)))[-10:]
        assert sorted(buffer.rows[: len(buffer), 0].tolist()) == kept


def test_fields_units_and_discount() -> None:
    buffer = Buffer(SPEC, 10, 0.9)
    buffer.append(rows(0, 6))
    batch = buffer.batch(buffer.rows[:6])
    assert batch.action[:, 0].tolist() == pytest.approx([0.5] * 6)  # 4 in [-2, 6]
    assert batch.discount.tolist() == pytest.approx([0, 0.9, 0.9, 0, 0.9, 0.9])
    assert batch.reward.tolist() == [0, 1, 2, 3, 4, 5]
    assert torch.equal(batch.next_obs, batch.obs + 1)


def test_mixing_ratio_is_exact() -> None:
    real, imagined = Buffer(SPEC, 100, 0.9), Buffer(SPEC, 100, 0.9)
    real.append(rows(0, 50))
    imagined.append(rows(1000, 50))
    generator = torch.Generator().manual_seed(0)
    for ratio, expected in ((0.05, 12), (0.5, 128), (1.0, 256), (0.0, 0)):
        batch = sample_mixed(real, imagined, 256, ratio, generator)
        assert int((batch.obs[:, 0] < 1000).sum()) == expected == batch.real
        assert (batch.obs[:expected, 0] < 1000).all()


def test_columns_come_back_with_the_rows() -> None:
    """Next actions are scaled as actions are, a number a row is flat, a column that is not given is
    0, and rows that were saved without columns are read."""
    buffer = Buffer(SPEC, 4, 0.9, columns={"next_action": 1, "halted": 0})
    given = torch.tensor([-2.0, 2.0, 6.0])
    buffer.append(rows(0, 3), next_action=given[:, None], halted=torch.tensor([0.0, 1.0, 0.0]))
    buffer.append(rows(3, 1))
    batch = buffer.batch(buffer.rows)
    assert batch.next_action is not None and batch.halted is not None
    assert batch.next_action[:, 0].tolist() == [-1, 0, 1, -0.5]
    assert batch.halted.tolist() == [0, 1, 0, 0] and batch.penalty is None
    assert torch.equal(batch.next_obs, batch.obs + 1)
    plain = Buffer(SPEC, 4, 0.9)
    plain.append(rows(0, 4))
    buffer.load_state_dict(plain.state_dict())
    again = buffer.batch(buffer.rows)
    assert torch.equal(again.obs, batch.obs) and not again.halted.any()  # type: ignore[union-attr]


def test_state_round_trip_and_starts() -> None:
    buffer, again = Buffer(SPEC, 10, 0.9), Buffer(SPEC, 10, 0.9)
    buffer.append(rows(0, 13))
    again.load_state_dict(buffer.state_dict())
    for b in (buffer, again):
        b.append(rows(20, 3))
    assert torch.equal(buffer.rows, again.rows)
    generator = torch.Generator().manual_seed(0)
    starts = buffer.sample_obs(10, generator)
    assert len(set(starts[:, 0].tolist())) == 10  # without replacement
    assert len(buffer.sample_obs(25, generator)) == 25
    with pytest.raises(ConfigError, match="empty"):
        Buffer(SPEC, 5, 0.9).sample(2, generator)
