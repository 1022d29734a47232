"""ExIt's buffer of starting points and PivotRL's choice of turns."""

import io

import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.policy_gradient.schedulers.partial_episodes import ExIt, pivots
from tests.mbrl.policy_gradient.schedulers.simulated import generator


def group(right: int, size: int = 8) -> torch.Tensor:
    return (torch.arange(size) < right).double()


def test_starts_are_drawn_in_proportion_to_variance() -> None:
    one, g = ExIt(capacity=4, probability=0.75), generator()
    keys = [one.add(("task", right), group(right)) for right in (0, 1, 4, 8)]
    drawn = [one.draw(g) for _ in range(4000)]
    found = [start for start in drawn if start is not None]
    assert len(found) / 4000 == pytest.approx(0.75, abs=0.02)
    counts = {right: sum(start == ("task", right) for _, start in found) for right in (0, 1, 4, 8)}
    assert counts[0] == counts[8] == 0  # all alike: nothing to learn there
    weight = (1 / 8 * 7 / 8) / (1 / 4)
    assert counts[1] / counts[4] == pytest.approx(weight, rel=0.1)
    assert {key for key, _ in found} == {keys[1], keys[2]}
    one.update(keys[2] or 0, group(8))  # solved by now
    assert all(s is None or s[1] == ("task", 1) for s in (one.draw(g) for _ in range(200)))


def test_the_buffer_keeps_the_highest_priorities() -> None:
    one = ExIt(capacity=3, probability=1.0)
    for right in (1, 2, 3):
        assert one.add(right, group(right)) is not None
    assert one.add(0, group(0)) is None and one.add(10, group(1)) is None
    assert one.add(4, group(4)) is not None and len(one) == 3
    assert sorted(one.starts.values()) == [2, 3, 4]
    one.update(99, group(4))  # a start that is gone
    assert ExIt().draw(generator()) is None
    for settings in ({"capacity": 0}, {"probability": 1.5}):
        with pytest.raises(ConfigError):
            ExIt(**settings)


def test_a_resumed_buffer_draws_the_same() -> None:
    one, g = ExIt(capacity=5, probability=0.9), generator(4)
    for right in range(8):
        one.add({"task": right, "history": [torch.full((2,), float(right))]}, group(right))
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    other = ExIt(capacity=5, probability=0.9)
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    h = generator()
    h.set_state(g.get_state())
    for _ in range(20):
        mine, theirs = one.draw(g), other.draw(h)
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert mine[0] == theirs[0] and mine[1]["task"] == theirs[1]["task"]
    assert one.add(9, group(4)) == other.add(9, group(4))


def test_one_step_training_reaches_further_than_it_trained() -> None:
    """A text of eight bits, an episode turns one of them. New tasks start from nothing; starts from
    the buffer are half repaired. What is trained is one step at each number of bits that are wrong;
    only with the buffer are all of them practised."""

    def train(probability: float) -> torch.Tensor:
        skill = torch.full((9,), 0.3)  # chance of repairing one bit with k wrong
        one, g = ExIt(64, probability), generator(6)
        for _ in range(400):
            start = one.draw(g)
            wrong = 8 if start is None else start[1]
            returns = (torch.rand(8, generator=g) < skill[wrong]).double()
            if start is not None:
                one.update(start[0], returns)
            skill[wrong] += 0.1 * returns.std(correction=0)
            skill[wrong] = skill[wrong].clamp_max(0.99)
            if wrong > 1 and bool((returns > 0).any()):
                one.add(wrong - 1, returns)
        return skill[1:]

    with_buffer, without = train(0.7), train(0.0)
    assert float(without.log().sum().exp()) < 0.001  # eight repairs in a row
    assert float(with_buffer.log().sum().exp()) > 0.5


def test_pivots_are_the_junctions_of_a_corridor() -> None:
    """A trace through a corridor: at most cells every action that the policy samples goes on, at
    the wall none does, at three junctions some do."""
    chance = torch.ones(12)
    chance[5], chance[2], chance[7], chance[10] = 0.0, 0.5, 0.2, 0.8
    rewards = (torch.rand(12, 64, generator=generator()) < chance[:, None]).double()
    assert pivots(rewards).tolist() == [7, 2, 10]
    assert pivots(rewards, limit=2).tolist() == [7, 2]


def test_pivots_with_missing_samples_and_ties() -> None:
    nan = float("nan")
    rewards = torch.tensor(
        [[1.0, nan, 1.0], [0.0, 1.0, nan], [nan, nan, nan], [1.0, 0.0, 0.5], [0.5, 0.5, 0.5]]
    )
    assert pivots(rewards).tolist() == [1, 3]  # the same mean: the larger variance first
    with pytest.raises(ValueError, match=r"give \[T, K\]"):
        pivots(torch.ones(3))
