"""Stationary distribution correction against exact ratios of small worlds."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from algorithms.evaluation.dice import DICE, DICEConfig, correct, correct_all
from mbrl.errors import ConfigError, DataError
from mbrl.types import Dataset, Spec, Transitions

STATES, ACTIONS, GAMMA = 4, 2, 0.8


class World:
    """Random chances, rewards and two policies; a step ends the episode with probability `end`."""

    def __init__(self, seed: int, end: float) -> None:
        g = torch.Generator().manual_seed(seed)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=g, dtype=torch.float64)

        self.chance = (3 * uniform(STATES, ACTIONS, STATES)).softmax(-1)
        self.reward = uniform(STATES, ACTIONS)
        self.behaviour = (2 * uniform(STATES, ACTIONS)).softmax(-1)
        self.target = (4 * uniform(STATES, ACTIONS)).softmax(-1)
        self.end, self.generator = end, g
        self.start = torch.full((STATES,), 1 / STATES, dtype=torch.float64)

    def occupancy(self) -> Tensor:
        """(1 - gamma) sum_t gamma^t P(s_t, a_t) [S, A] of the target policy, before any end."""
        move = torch.einsum("sa,sat->st", self.target, self.chance) * (1 - self.end)
        inverse = torch.linalg.inv(torch.eye(STATES, dtype=torch.float64) - GAMMA * move.T)
        return (1 - GAMMA) * (inverse @ self.start)[:, None] * self.target

    def value(self) -> float:
        return float((self.occupancy() * self.reward).sum() / (1 - GAMMA))

    def dataset(self, episodes: int, length: int) -> Dataset:
        def draw(p: Tensor) -> Tensor:
            return torch.multinomial(p, 1, generator=self.generator)[:, 0]

        state = draw(self.start.expand(episodes, -1))
        live = torch.ones(episodes, dtype=torch.bool)
        columns: list[tuple[Tensor, ...]] = []
        for t in range(length):
            action = draw(self.behaviour[state])
            after = draw(self.chance[state, action])
            ended = torch.rand(episodes, generator=self.generator) < self.end
            cut = ~ended & torch.tensor(t == length - 1)
            columns.append((state, action, self.reward[state, action], after, ended, cut, live))
            live, state = live & ~ended, after
        kept = torch.stack([c[6] for c in columns], 1)
        fields = [torch.stack([c[i] for c in columns], 1)[kept] for i in range(6)]
        obs, action, reward, after, ended, cut = fields
        seen = torch.eye(STATES)
        data = Transitions(seen[obs], action, reward.float(), seen[after], ended, cut)
        return Dataset(data, Spec("world", STATES, 1, ACTIONS, (0.0,), (1.0,), length))

    def acts(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        law = self.target[obs.argmax(-1)]
        return torch.multinomial(law, 1, generator=generator)[:, 0]


@pytest.mark.parametrize(
    "end", [pytest.param(0.0, marks=pytest.mark.long), 0.1], ids=["endless", "ending"]
)
def test_weights_and_value_are_the_exact_ones(end: float) -> None:
    world = World(3, end)
    data = world.dataset(800, 30)
    config = DICEConfig(
        hidden=(32,), nu_rate=3e-3, zeta_rate=3e-3, steps=1500, gamma=GAMMA, average_every=10
    )
    several = correct_all(world.acts, [data] * 3, config)  # fits differ by some 1 %
    assert np.mean([r.value for r in several]) == pytest.approx(world.value(), rel=0.02)
    found = several[0]
    t = data.transitions
    state, action = t.obs.argmax(-1).numpy(), t.action.numpy()
    share = np.zeros((STATES, ACTIONS))
    np.add.at(share, (state, action), 1 / len(t))
    exact = (world.occupancy().numpy() / share)[state, action]
    assert found.value == pytest.approx(world.value(), rel=0.06)
    assert found.value == pytest.approx((found.weights * t.reward.numpy()).mean() / (1 - GAMMA))
    assert np.corrcoef(found.weights, exact)[0, 1] > 0.95
    assert np.abs(found.weights - exact).mean() < 0.1
    plain = float(t.reward.mean()) / (1 - GAMMA)
    assert abs(found.value - world.value()) < 0.3 * abs(plain - world.value())
    assert 0.3 < found.effective_share <= 1
    # The interval, of the weights as they are, against the delta method for a ratio of sums.
    earned = found.weights * t.reward.double().numpy()
    left = found.weights * (1 - GAMMA * (~t.terminated).double().numpy())
    off = np.array([(earned[a:b] - found.value * left[a:b]).sum() for a, b in t.episodes()])
    reach = stats.t.ppf(0.975, len(off) - 1) * np.sqrt((off**2).sum()) / left.sum()
    assert found.high - found.value == pytest.approx(reach, rel=0.1)
    assert found.value - found.low == pytest.approx(found.high - found.value)


@pytest.mark.long
def test_datasets_side_by_side_have_nothing_in_common() -> None:
    """Of different lengths, the shorter one padded; what the other holds does not matter."""
    world = World(3, 0.1)
    first, second = world.dataset(800, 30), world.dataset(400, 30)
    config = DICEConfig(
        hidden=(32,), nu_rate=3e-3, zeta_rate=3e-3, steps=1000, gamma=GAMMA, average_every=10
    )
    found = correct_all(world.acts, [first, second], config)
    for result, data in zip(found, (first, second), strict=True):
        assert result.weights.shape == (len(data),)
        assert result.value == pytest.approx(world.value(), rel=0.05)
    t = second.transitions
    changed = dataclasses.replace(t, reward=1 - t.reward, obs=t.obs.flip(-1))
    again = correct_all(world.acts, [first, second.with_transitions(changed)], config)
    np.testing.assert_array_equal(again[0].weights, found[0].weights)
    assert abs(again[1].value - found[1].value) > 0.1


def test_every_dataset_is_drawn_from_and_standardised_by_itself() -> None:
    """Observations that count rows, of 90 and 30 of them, from 100 and 1000 on."""
    spec = Spec("counted", 1, 1, 2, (0.0,), (1.0,), 10)

    def counted(first: int, rows: int) -> Dataset:
        obs = torch.arange(first, first + rows, dtype=torch.float32)[:, None]
        ends = torch.arange(rows) % 10 == 9
        none = torch.zeros(rows, dtype=torch.bool)
        action = torch.arange(rows) % 2
        return Dataset(Transitions(obs, action, obs[:, 0], obs, none, ends), spec)

    seen = []

    def acts(obs: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(obs.view(2, -1))
        return torch.zeros(len(obs), dtype=torch.int64)

    config = DICEConfig(hidden=(4,), batch_size=64)
    fit = DICE(acts, [counted(100, 90), counted(1000, 30)], config, "cpu")
    for _ in range(20):
        fit.update()
    later, starts = torch.cat(seen[0::2], 1), torch.cat(seen[1::2], 1)
    assert [set(x.tolist()) for x in later] == [set(range(100, 190)), set(range(1000, 1030))]
    assert [set(x.tolist()) for x in starts] == [set(range(100, 190, 10)), {1000, 1010, 1020}]
    for e, rows in ((0, 90), (1, 30)):
        features = fit.logged[e, :rows, 0]
        assert abs(float(features.mean())) < 1e-5
        assert float(features.std(correction=0)) == pytest.approx(1.0, abs=1e-5)


def test_wrong_input_is_named() -> None:
    with pytest.raises(ConfigError, match="gamma is 1"):
        DICEConfig(gamma=1.0)
    with pytest.raises(ConfigError, match="nu_rate is 0"):
        DICEConfig(nu_rate=0.0)
    world = World(0, 0.0)
    data = world.dataset(2, 3)
    with pytest.raises(DataError, match="no transitions"):
        correct(world.acts, data.with_transitions(data.transitions.select(slice(0, 0))))
    with pytest.raises(ConfigError, match="no dataset"):
        correct_all(world.acts, [])
    with pytest.raises(ConfigError, match="two kinds of one task"):
        correct_all(world.acts, [data, world.dataset(2, 4)])
