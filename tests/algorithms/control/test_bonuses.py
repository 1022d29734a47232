"""Exploration bonuses: visits in literal numbers, the elliptical form against inverses of matrices,
an agent that is stopped and goes on."""

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from algorithms import PolicyGradient, PolicyGradientConfig
from algorithms.control.bonuses import Bonus, BonusConfig, elliptical
from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.types import Spec, Trajectories
from tests.algorithms.continued import continued

SPEC = Spec("grid", 3, num_actions=2)
A, B, C = (torch.eye(3)[k] for k in range(3))


def episodes(*visits: list[Tensor]) -> Trajectories:
    """Episodes that reach these states, padded with a state that no step reached."""
    steps = max(map(len, visits))
    reached = torch.full((len(visits), steps, 3), 7.0)
    mask = torch.zeros(len(visits), steps, dtype=torch.bool)
    for row, states in enumerate(visits):
        reached[row, : len(states)] = torch.stack(states)
        mask[row, : len(states)] = True
    zero = torch.zeros(mask.shape)
    return Trajectories(
        reached.roll(1, 1), zero.long(), zero, reached, mask & False, mask & False, mask
    )


def bonus(spec: Spec = SPEC, **settings: Any) -> Bonus:
    config = BonusConfig(weight=1.0, **settings)
    return Bonus(spec, config, torch.device("cpu"), torch.Generator().manual_seed(0))


ROOT = 1 / math.sqrt(2)


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("episodic", [1, 1, 0], [1, 0, 0]),
        ("global", [1, 1, ROOT], [1 / math.sqrt(3), 0, 0]),
        ("product", [1, 1, 0], [1 / math.sqrt(3), 0, 0]),
        ("sum", [2, 2, ROOT], [1 + 1 / math.sqrt(3), 0, 0]),
    ],
)
def test_visits(kind: Any, first: list[float], second: list[float]) -> None:
    """A, B, A in the first episode, A in the second, which is of a later round."""
    counted = bonus(kind=kind)
    one = counted(episodes([A, B, A]))
    two = counted(episodes([A]))
    torch.testing.assert_close(one[0], torch.tensor(first).float(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(two[0], torch.tensor(second[:1]).float(), rtol=1e-6, atol=1e-6)


def test_copies_of_a_round_count_together_in_the_order_of_time() -> None:
    value = bonus(kind="global")(episodes([A, B], [A, A, A]))
    expected = [[1, 1, 0], [ROOT, 1 / math.sqrt(3), 0.5]]
    torch.testing.assert_close(value, torch.tensor(expected).float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["global", "noveld"])
def test_minus_0_is_the_state_that_0_is(kind: Any) -> None:
    zero = torch.zeros(3)
    paid = [bonus(kind=kind)(episodes([A, state, B, A])) for state in (zero, -zero)]
    twice = bonus(kind="global")(episodes([zero, -zero]))
    assert torch.equal(*paid) and twice[0].tolist() == pytest.approx([1, ROOT])


def test_only_the_chosen_columns_count() -> None:
    counted = bonus(kind="episodic", columns=(2,))
    assert counted(episodes([A, B, C, B])).tolist() == [[1, 0, 1, 0]]
    with pytest.raises(ConfigError, match="0 to 2"):
        bonus(kind="global", columns=(3,))


def test_sherman_and_morrison() -> None:
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(50, 2, 4, generator=draw, dtype=torch.float64)
    inverse = (torch.eye(4, dtype=torch.float64) / 0.1).expand(2, -1, -1)
    for k, feature in enumerate(features):
        for row in range(2):
            past = features[:k, row]
            direct = np.linalg.inv(0.1 * np.eye(4) + (past.T @ past).numpy())
            expected = feature[row].numpy() @ direct @ feature[row].numpy()
            assert elliptical(feature, inverse)[0][row].item() == pytest.approx(expected, rel=1e-9)
        inverse = elliptical(feature, inverse)[1]


def test_elliptical_bonuses_of_one_hot_features_are_counts() -> None:
    """1 / (lambda + n) after n visits, of the episode and of training; both begin at 1 / lambda."""
    settings: dict[str, Any] = {"novelty": "elliptical", "ridge": 0.1}
    visits = [A, A, A, B]
    for kind, later in (("episodic", 10.0), ("global", 1 / 3.1)):
        counted = bonus(kind=kind, **settings)
        value = counted(episodes(visits))[0]
        expected = torch.tensor([10, 1 / 1.1, 1 / 2.1, 10])
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
        assert counted(episodes([A]))[0, 0].item() == pytest.approx(later, rel=1e-6)
    value = bonus(kind="product", **settings)(episodes([A], [A]))
    torch.testing.assert_close(value[:, 0], torch.tensor([100.0, 10 / 1.1]), rtol=1e-6, atol=1e-6)


def test_normalised_bonuses_have_the_deviation_of_all_so_far() -> None:
    counted, plain = bonus(kind="global", normalised=True), bonus(kind="global")
    rounds = [episodes([A, B, A], [B]), episodes([A, C])]
    known: list[float] = []
    for t in rounds:
        raw, scaled = plain(t), counted(t)
        known += raw[t.mask].tolist()
        torch.testing.assert_close(scaled, raw / float(np.std(known)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"novelty": "elliptical", "ridge": 0.3}])
def test_bonuses_that_are_all_alike_stay_as_they_are(settings: dict[str, Any]) -> None:
    """Where every state is new, as on a continuous task, nothing varies that is a unit."""
    counted, plain = (bonus(kind="episodic", normalised=n, **settings) for n in (True, False))
    for t in (episodes([A], [B]), episodes([C], [A])):
        assert torch.equal(counted(t), plain(t))


def test_a_learned_encoder_tells_actions() -> None:
    """Two moves on a line: features that tell them apart are learned from the rounds."""
    counted = bonus(kind="episodic", novelty="elliptical", features="inverse", learning_rate=1e-2)
    encoder, draw = counted.encoder, torch.Generator().manual_seed(0)
    assert encoder is not None
    obs = torch.randn(8, 20, 3, generator=draw)
    action = torch.randint(2, (8, 20), generator=draw)
    after = obs + torch.stack([2.0 * action - 1, 0 * action, 0 * action], -1)
    mask = torch.ones(8, 20, dtype=torch.bool)
    t = Trajectories(obs, action, torch.zeros(8, 20), after, ~mask, ~mask, mask)
    for _ in range(60):
        assert torch.isfinite(counted(t)).all()
    features = torch.cat([encoder.features(obs), encoder.features(after)], -1)
    predicted = encoder.head(features).argmax(-1)
    assert (predicted == action).float().mean() > 0.95


CASES: list[dict[str, Any]] = [
    {"kind": "product", "normalised": True},
    {"kind": "sum", "novelty": "elliptical", "features": "inverse", "hidden": [8]},
]


@pytest.mark.parametrize("settings", CASES, ids=["counts", "encoder"])
def test_an_agent_that_is_stopped_goes_on_as_if_it_had_not(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    task = make("ContextGrid-v0,size=3,contexts=2")
    config = PolicyGradientConfig(
        hidden=(8,), envs=4, group=1, bonus=BonusConfig(**settings | {"hidden": (8,)})
    )
    agent: Any = PolicyGradient(task.spec, config, seed=1)
    again = continued(agent, task, tmp_path / "a.pt", 47, 90)
    assert again.bonus.counts.table == agent.bonus.counts.table
    assert torch.equal(again.bonus.inverse, agent.bonus.inverse)
    assert torch.equal(again.bonus.seen, agent.bonus.seen)


def test_a_bonus_adds_to_the_rewards_that_are_learned_from() -> None:
    task = make("ContextGrid-v0,size=3,contexts=2")
    plain = PolicyGradientConfig(hidden=(8,), envs=4, group=1)
    config = PolicyGradientConfig(
        hidden=(8,), envs=4, group=1, bonus=BonusConfig(kind="episodic", weight=0.25)
    )
    rewards = []
    for chosen in (plain, config):
        agent = PolicyGradient(task.spec, chosen, seed=1)
        agent.learn(task, 18, callbacks=[])
        rewards.append(agent.rounds[0].reward)
    added = rewards[1] - rewards[0]
    assert set(added.flatten().tolist()) == {0.0, 0.25}
    assert (added[:, 0] == 0.25).all()  # whatever is reached first is new


def test_noveld_pays_growth_of_novelty_at_first_visits() -> None:
    """By hand, with counts: in the first round A, B, A from a state that was never met (1); in the
    second B and C from A, which was reached twice."""
    own = bonus(kind="noveld", before=0.5)
    t = episodes([A, B, A])
    start = dataclasses.replace(t, obs=torch.stack([C, A, B])[None])
    one = own(start)[0]
    # Reached: 1, 1, 1/sqrt(2); before: C unmet 1, A once 1, B once 1; A again is no first visit.
    torch.testing.assert_close(one, torch.tensor([0.5, 0.5, 0.0]))
    t = dataclasses.replace(episodes([B, C]), obs=torch.stack([A, A])[None])
    two = own(t)[0]
    # B for the second time; C for the first; half of A's 1/sqrt(2) before both.
    torch.testing.assert_close(two, torch.tensor([ROOT - ROOT / 2, 1 - ROOT / 2]))
    steep = bonus(kind="noveld", before=1.0)
    t = dataclasses.replace(episodes([A, A]), obs=torch.stack([A, A])[None])
    assert not steep(t).any()
    t = dataclasses.replace(episodes([A]), obs=B[None, None])
    assert not steep(t).any()  # 1/sqrt(3) less 1 of B, which was never met, is not paid


@pytest.mark.parametrize("kind", ["global", "product", "noveld"])
def test_errors_of_a_random_network(kind: Any) -> None:
    """The definition, from the two networks; errors fall where it has been."""
    own = bonus(kind=kind, random_network=True, before=0.25)
    assert own.random is not None
    target, first = own.random.target, copy.deepcopy(own.random.predictor)
    t = dataclasses.replace(episodes([A, B, A]), obs=torch.stack([C, A, B])[None])

    def error(state: Tensor) -> float:
        return float((first(state) - target(state)).square().sum().detach())

    a, b, c = map(error, (A, B, C))
    want = {
        "global": [a, b, a],
        "product": [a, b, 0.0],
        "noveld": [max(0.0, a - c / 4), max(0.0, b - a / 4), 0.0],
    }[kind]
    torch.testing.assert_close(own(t)[0], torch.tensor(want), rtol=1e-5, atol=1e-6)
    for _ in range(300):
        own(t)
    later = own.random.errors(torch.stack([A, B, C]))
    assert float(later[0]) < 0.3 * a and float(later[1]) < 0.3 * b


def test_elliptical_novelty_times_errors_of_a_random_network() -> None:
    plain = bonus(kind="episodic", novelty="elliptical")(episodes([A, A, B]))
    own = bonus(kind="product", novelty="elliptical", random_network=True)
    assert own.random is not None
    errors = own.random.errors(torch.stack([A, A, B])).float()
    torch.testing.assert_close(own(episodes([A, A, B]))[0], plain[0] * errors)


def test_a_random_network_is_kept_with_the_state() -> None:
    one, other = (bonus(kind="global", random_network=True) for _ in range(2))
    for _ in range(3):
        one(episodes([A, B]))
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for _ in range(2):
        assert torch.equal(one(episodes([A, C])), other(episodes([A, C])))


def test_noveld_counts() -> None:
    with pytest.raises(ConfigError, match="novelty at count"):
        BonusConfig(kind="noveld", novelty="elliptical")
