"""Rows read where a dataset holds them, against the same rows copied into a buffer."""

from dataclasses import replace

import pytest
import torch

from mbrl.buffer import Buffer, Rows, resized, transitions
from mbrl.logged_table import LoggedTable, rows_of
from mbrl.native import gather
from mbrl.types import Spec, Transitions

SPEC = Spec("line", 3, 2, None, (-2.0, -1.0), (6.0, 1.5), 10)
CHOICES = Spec("choices", 3, 1, 4, max_episode_steps=10, action_mask=True)


def data(spec: Spec, count: int = 100, *, duration: bool = False) -> Transitions:
    draw = torch.Generator().manual_seed(0)
    obs = torch.randn(count, 3, generator=draw)
    mask = torch.ones(count, 4, dtype=torch.bool)
    mask[::3, 1] = False
    masks = {"action_mask": mask, "next_action_mask": mask.flip(0)} if spec.discrete else {}
    low, high = (-2.5, 6.5)  # beyond the bounds by a little: scaled actions are clipped
    action = torch.rand(count, 2, generator=draw) * (high - low) + low
    return Transitions(
        obs,
        torch.randint(4, (count,), generator=draw) if spec.discrete else action,
        torch.randn(count, generator=draw),
        obs + 1,
        torch.arange(count) % 7 == 6,
        torch.arange(count) % 10 == 9,
        duration=torch.rand(count, generator=draw) + 0.5 if duration else None,
        **masks,
    )


def buffer_of(spec: Spec, rows: Transitions, scale: float, **columns: torch.Tensor) -> Buffer:
    """The reference: every row scaled beforehand and copied."""
    widths = {"next_action": spec.action_dim, "has_next": 0, "halted": 0} if columns else {}
    buffer = Buffer(spec, len(rows), 0.97, columns=widths)
    buffer.append(replace(rows, reward=rows.reward * scale), **columns)
    return buffer


def tables(rows: Transitions, spec: Spec, **columns: torch.Tensor) -> list[LoggedTable]:
    """Of separate columns, and of columns that lie side by side in wider rows."""
    wide = torch.cat([rows.obs, rows.next_obs, rows.reward[:, None]], 1)
    packed = replace(rows, obs=wide[:, :3], next_obs=wide[:, 3:6], reward=wide[:, 6])
    widths = {"next_action": spec.action_dim, "has_next": 0, "halted": 0} if columns else {}
    return [LoggedTable(spec, r, 0.97, widths, columns, 1.7) for r in (rows, packed)]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kind", ["plain", "discrete", "duration", "columns"])
def test_rows_are_those_of_a_buffer(
    kind: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(gather, "library", lambda: None)
    spec = CHOICES if kind == "discrete" else SPEC
    rows = data(spec, duration=kind == "duration")
    columns = {}
    if kind == "columns":
        columns = {"next_action": rows.action.roll(-1, 0), "has_next": (~rows.ends).float()}
    buffer = buffer_of(spec, rows, 1.7, **columns)
    index = torch.randint(100, (64,), generator=torch.Generator().manual_seed(1))
    for table in tables(rows, spec, **columns):
        assert len(table) == 100 and table.width == buffer.width
        assert torch.equal(table.gather(index), buffer.gather(index))
        assert torch.equal(table.obs(index), buffer.obs(index))
        for name, ours, theirs in zip(
            table.whole()._fields, table.whole(), buffer.whole(), strict=True
        ):
            assert (ours is None) == (theirs is None), name
            if theirs is not None:
                assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), name
        draws = [torch.Generator().manual_seed(2) for _ in range(4)]
        one, other = table.sample(32, draws[0]), buffer.sample(32, draws[1])
        assert torch.equal(one.action, other.action) and torch.equal(one.obs, other.obs)
        assert torch.equal(table.sample_obs(50, draws[2]), buffer.sample_obs(50, draws[3]))


def test_nothing_is_copied() -> None:
    rows = data(SPEC)
    table = rows_of(SPEC, rows, 0.9, torch.device("cpu"))
    rows.obs[3] = 5.0  # seen by the table, which holds the same memory
    assert table.gather(torch.tensor([3]))[0, :3].tolist() == [5.0] * 3


@pytest.mark.parametrize("capacity", [30, 100, 250])
def test_a_ring_takes_over_the_newest_rows(capacity: int) -> None:
    rows = data(SPEC)
    table: Rows = LoggedTable(SPEC, rows, 0.97)
    buffer = buffer_of(SPEC, rows, 1.0)
    for one in (resized(table, capacity), resized(buffer, capacity)):
        kept = min(capacity, 100)
        assert len(one) == kept and one.position == kept % capacity
        assert torch.equal(one.rows[:kept], buffer.rows[100 - kept :])
    buffer.append(rows.select(slice(0, 20)))  # the oldest row is the 21st now
    assert torch.equal(resized(buffer, 30).rows[-20:], buffer.rows[:20])


def test_transitions_come_back_in_the_units_of_the_task() -> None:
    rows = data(SPEC)
    table = LoggedTable(SPEC, rows, 0.97, reward_scale=2.0)
    back = transitions(table)
    bounds = (torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high))
    torch.testing.assert_close(back.action, rows.action.clamp(*bounds))
    assert torch.equal(back.reward, rows.reward * 2) and torch.equal(back.obs, rows.obs)
    assert torch.equal(back.terminated, rows.terminated)
