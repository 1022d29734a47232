"""The sequence buffer: episodes come back whole and in order, the oldest leave first, memory is
what is promised."""

import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.sequences import SequenceBuffer, bytes_at_most
from mbrl.types import Spec

SPEC = Spec("t", obs_dim=2, action_dim=1, action_low=(-1.0,), action_high=(1.0,))


def episode(number: int, steps: int) -> tuple[torch.Tensor, ...]:
    """Observations (number, t); action t / 100, reward 10 number + t; the last step terminates."""
    t = torch.arange(steps + 1.0)
    obs = torch.stack([torch.full_like(t, float(number)), t], 1)
    ended = torch.arange(steps) == steps - 1
    real = torch.arange(steps) < 2
    return obs, t[:steps, None] / 100, 10.0 * number + t[:steps], ended, real


def test_a_tape_holds_whole_episodes_with_what_came_before() -> None:
    buffer = SequenceBuffer(SPEC, 100, 0.9)
    for number, steps in enumerate((3, 1, 5)):
        buffer.append(*episode(number, steps))
    tape = buffer.sample(40, torch.Generator().manual_seed(0))
    assert bool(tape.first[0]) and len(tape.x) == 40
    number, time = -1, 0
    steps = {0: 3, 1: 1, 2: 5}
    for i in range(40):
        if tape.first[i]:
            assert number < 0 or time == steps[number] + 1
            number, time = int(tape.x[i, 0]), 0
        assert tape.x[i, :2].tolist() == [number, time]
        before = [0.0, 0.0] if time == 0 else [(time - 1) / 100, 10.0 * number + time - 1]
        assert tape.x[i, 2:].tolist() == pytest.approx(before)
        last = time == steps[number]
        assert bool(tape.mask[i]) == (not last and i < 39)
        if not last:
            assert float(tape.reward[i]) == 10 * number + time
            assert float(tape.discount[i]) == pytest.approx(
                0.0 if time == steps[number] - 1 else 0.9
            )
            assert bool(tape.real[i]) == (time < 2)
        time += 1


def test_episodes_are_drawn_uniformly() -> None:
    buffer = SequenceBuffer(SPEC, 100, 0.9)
    buffer.append(*episode(0, 1))
    buffer.append(*episode(1, 20))
    tape = buffer.sample(30_000, torch.Generator().manual_seed(1))
    share = float((tape.x[tape.first, 0] == 1).double().mean())
    assert share == pytest.approx(0.5, abs=0.03)


def test_the_oldest_leave_first_and_the_rest_stay_whole() -> None:
    """Against a list of episodes that forgets from the front while they would not fit."""
    buffer, generator = SequenceBuffer(SPEC, 50, 0.9), torch.Generator().manual_seed(2)
    lengths = torch.randint(1, 12, (200,), generator=generator).tolist()
    for number, steps in enumerate(lengths):
        buffer.append(*episode(number, steps))
        table = list(buffer.episodes)
        numbers = [int(buffer.rows[start, 0]) for start, _ in table]
        assert numbers == list(range(number - len(table) + 1, number + 1))
        taken: set[int] = set()
        for (start, length), n in zip(table, numbers, strict=True):
            assert length == lengths[n] + 1
            assert buffer.rows[start : start + length, 1].tolist() == list(range(length))
            rows = set(range(start, start + length))
            assert not rows & taken and max(rows) < 50
            taken |= rows
        assert buffer.size == len(taken)


def test_episodes_that_just_fit_all_stay() -> None:
    buffer = SequenceBuffer(SPEC, 12, 0.9)
    for number in range(3):
        buffer.append(*episode(number, 3))
    assert list(buffer.episodes) == [(0, 4), (4, 4), (8, 4)]
    buffer.append(*episode(3, 3))
    assert list(buffer.episodes) == [(4, 4), (8, 4), (0, 4)]


def test_state_comes_back_and_goes_on_the_same() -> None:
    first, second = SequenceBuffer(SPEC, 40, 0.9), SequenceBuffer(SPEC, 40, 0.9)
    for number in range(8):
        first.append(*episode(number, 7))
    second.load_state_dict(first.state_dict())
    for buffer in (first, second):
        buffer.append(*episode(9, 4))
    a, b = (x.sample(64, torch.Generator().manual_seed(3)) for x in (first, second))
    assert all(torch.equal(x, y) for x, y in zip(a[:7], b[:7], strict=True))


def test_histories_are_all_that_came_before_a_random_step() -> None:
    """Every step of every episode as often as any other; with ends, every position."""
    buffer, generator = SequenceBuffer(SPEC, 100, 0.9), torch.Generator().manual_seed(4)
    lengths = (3, 1, 6)
    for number, steps in enumerate(lengths):
        buffer.append(*episode(number, steps))
    tape, rows = buffer.histories(20_000, generator)
    begins = torch.nonzero(tape.first).flatten()
    assert len(begins) == len(rows) == 20_000 and int(begins[0]) == 0
    assert torch.equal(begins[1:], rows[:-1] + 1) and int(rows[-1]) == len(tape.x) - 1
    time = torch.arange(len(tape.x)) - begins.repeat_interleave(rows - begins + 1)
    torch.testing.assert_close(tape.x[:, 1], time.float())
    ends = torch.stack([tape.x[rows, 0], tape.x[rows, 1]], 1).long().tolist()
    steps = [(n, t) for n, length in enumerate(lengths) for t in range(length)]
    counts = dict.fromkeys(steps, 0)
    for number, t in ends:
        counts[number, t] += 1  # never the position after the last step
    assert all(abs(c - 2000) < 5 * 2000**0.5 for c in counts.values())
    starts, sizes, times = buffer.places(13_000, generator, ends=True)
    assert sizes.unique().tolist() == [2, 4, 7]
    found = torch.bincount(starts + times, minlength=13)
    assert len(found) == 13 and bool(((found - 1000).abs() < 5 * 1000**0.5).all())


def test_a_penalised_buffer_teaches_less_than_was_heard() -> None:
    buffer = SequenceBuffer(SPEC, 100, 0.9, penalised=True)
    obs, action, reward, ended, real = episode(2, 5)
    buffer.append(obs, action, reward - 7.0, ended, real, reward)
    buffer.append(obs, action, reward, ended, real)
    tape, _ = buffer.beginnings(torch.tensor([0, 6]), torch.tensor([6, 6]))
    for begin, penalty in ((0, 7.0), (6, 0.0)):
        torch.testing.assert_close(tape.reward[begin : begin + 5], reward - penalty)
        torch.testing.assert_close(tape.x[begin + 1 : begin + 6, 3], reward)
    assert buffer.rows.nbytes == bytes_at_most(SPEC, 100, penalised=True) == 100 * 4 * 8


def test_memory_and_bad_input() -> None:
    assert bytes_at_most(SPEC, 1000) == SequenceBuffer(SPEC, 1000, 0.9).rows.nbytes
    with pytest.raises(ConfigError, match="larger capacity"):
        SequenceBuffer(SPEC, 5, 0.9).append(*episode(0, 5))
    with pytest.raises(ConfigError, match="empty"):
        SequenceBuffer(SPEC, 5, 0.9).sample(4, torch.Generator())
    with pytest.raises(ConfigError, match="capacity is 1"):
        SequenceBuffer(SPEC, 1, 0.9)
