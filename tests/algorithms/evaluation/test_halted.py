"""Values that end where the data end: against closed forms in a world whose steps are known."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.evaluation.halted import (
    Halted,
    HaltedValues,
    HaltingModel,
    Range,
    halted_values,
    lead,
)
from mbrl.errors import DataError
from mbrl.types import Dataset, Provenance, Spec, Transitions

SPEC = Spec("line", 1, 1, None, (-1.0,), (1.0,), 20)


def walk(episodes: int, seed: int) -> Dataset:
    """s' = s + 0.1 a from 0, with actions in [-0.5, 0.5] that drift one way; r = s'."""
    g = torch.Generator().manual_seed(seed)
    obs = torch.zeros(episodes)
    drift = 0.6 * torch.rand(episodes, generator=g) - 0.3
    rows = []
    for t in range(20):
        action = drift + 0.2 * (2 * torch.rand(episodes, generator=g) - 1)
        reached = obs + 0.1 * action
        end = torch.full((episodes,), t == 19)
        rows.append((obs[:, None], action[:, None], reached, reached[:, None], end & ~end, end))
        obs = reached
    columns = [torch.stack(c, 1).flatten(0, 1) for c in zip(*rows, strict=True)]
    return Dataset(Transitions(*columns), SPEC, Provenance("walk"))


def still(obs):
    return torch.zeros(len(obs), 1)


def gentle(obs):
    return torch.full((len(obs), 1), 0.2)


def strong(obs):
    return torch.full((len(obs), 1), 0.45)


def reckless(obs):
    return torch.ones(len(obs), 1)


@pytest.fixture(scope="module")
def fitted() -> dict[str, Any]:
    """The state of a model of `walk(60, 0)`, of which neither what is held out nor a rule of ends
    is a part: fitted once for all tests that differ in these."""
    return HaltingModel(walk(60, 0), walk(8, 1), None).state_dict()


def values_in(
    state: dict[str, Any], policies: Sequence[Any], held: Dataset, rule: Any, **options: int
) -> HaltedValues:
    """`halted_values` of `walk(60, 0)`."""
    model = HaltingModel(walk(60, 0), held, rule, state=state, **options)
    return HaltedValues(tuple(map(model.value, policies)), model.ended, model.spread)


@pytest.fixture(scope="module")
def values(fitted) -> dict[str, Halted]:
    held = walk(8, 1)
    policies = {"still": still, "gentle": gentle, "reckless": reckless}
    all_of_them = values_in(fitted, list(policies.values()), held, None, horizon=10, windows=60)
    assert all_of_them.ended == 0.0 and all_of_them.credible(0)
    reward = held.transitions.reward.double().numpy().reshape(8, 20)
    sums = np.stack([reward[:, k : k + 10].sum(1) for k in range(11)], 1).flatten()
    kept = sums[np.unique(np.linspace(0, len(sums) - 1, 60).astype(int))]
    assert all_of_them.spread == pytest.approx(kept.std())
    return dict(zip(policies, all_of_them.each, strict=True))


def test_inside_the_data_it_is_the_return_of_the_known_world(values):
    held = walk(8, 1).transitions
    starts = np.concatenate([np.arange(20 * e, 20 * e + 11) for e in range(8)])
    starts = starts[np.unique(np.linspace(0, len(starts) - 1, 60).astype(int))]
    wanted = [10 * held.obs[starts][starts // 20 == e].mean() for e in range(8)]
    assert values["still"].value == pytest.approx(np.array(wanted), abs=0.05)
    assert values["still"].inside == 1.0 and values["still"].horizon == 10


def test_leaving_the_data_ends_with_the_worst_reward(values):
    """By the dynamics alone the reckless policy earns the most."""
    plain = {name: own.plain for name, own in values.items()}
    assert plain["reckless"] > plain["gentle"] > plain["still"]
    assert values["reckless"].inside < 0.5 < values["gentle"].inside
    assert values["reckless"].value.mean() < values["still"].value.mean()


def test_what_the_log_has_shown_has_an_edge_each_way():
    """Observations in [0, 1] of deviation 0.5, rewards in [-1, 1], disagreement up to 0.1 on 99 %
    of the held-out rows: beyond by a twentieth of a deviation, and by three times, is not shown."""
    low, high = torch.zeros(1), torch.ones(1)
    known = Range(low, high, torch.tensor([0.5]), -1.0, 1.0, -0.9, 0.1)
    obs = torch.tensor([0.5, 1.02, 1.03, -0.02, -0.03, 0.5, 0.5, 0.5, 0.5])[:, None]
    reward = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.1, -1.1, 0.0, 0.0])
    level = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.29, 0.31])
    expected = [True, True, False, True, False, False, False, True, False]
    assert known.shown(obs, reward, level).tolist() == expected


def test_ends_of_the_log_must_be_known_to_the_model(fitted):
    """Half of the held-out episodes end by a rule; a model without one never ends, and one that
    ends at once does so too often."""
    held = walk(8, 1)
    rows = held.transitions
    last = (torch.arange(160) % 40 == 39) & rows.truncated
    ends = replace(rows, terminated=last, truncated=rows.truncated & ~last)
    cut = Dataset(ends, SPEC, held.provenance)
    never = values_in(fitted, [still], cut, None, horizon=10, windows=400)
    # 4 episodes of 20 starts, 10 of them within 10 steps of the end; 4 of 11, none ended
    assert never.ended == pytest.approx(40 / 124) and not never.credible(0)
    always = values_in(fitted, [still], cut, lambda o, a, n: o[:, 0] < 9, horizon=10)
    assert always.each[0].ended == 1.0 and not always.credible(0)


def test_nothing_is_left_after_an_end(fitted):
    held = walk(8, 1)
    rules = (None, lambda o, a, n: o[:, 0] < 9)  # the second ends all at the first step
    goes_on, ended = (values_in(fitted, [strong], held, r, horizon=19).each[0] for r in rules)
    assert goes_on.inside < 0.95 < ended.inside


def test_leads_are_paired(values):
    mean, low, high = lead(values["gentle"], values["still"], 0.9)
    # 10 steps of 0.02 more each: 0.02 (1 + ... + 10) = 1.1, wherever it starts
    assert low <= mean <= high and mean == pytest.approx(1.1, abs=0.25)
    assert lead(values["still"], values["still"], 0.9) == (0.0, 0.0, 0.0)


def test_one_held_out_episode_is_refused():
    with pytest.raises(DataError, match="two at least"):
        halted_values([still], walk(4, 0), walk(1, 1), None)


def test_episodes_of_many_lengths_are_judged_over_what_half_of_them_have(fitted):
    """Lengths 3, 4, 5, 6, 7, 8, 20: four of seven have 6 steps, and none but one has 20."""
    lengths = (5, 20, 3, 8, 4, 7, 6)
    whole = walk(len(lengths), 1).transitions
    kept = torch.cat([20 * k + torch.arange(n) for k, n in enumerate(lengths)])
    last = torch.tensor(np.cumsum(lengths) - 1)
    columns = {
        name: getattr(whole, name)[kept]
        for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    }
    columns["truncated"][last] = True
    held = Dataset(Transitions(**columns), SPEC, Provenance("ragged"))
    (of,) = values_in(fitted, [still], held, None).each
    assert of.horizon == 6 and len(of.value) == 4
    assert lead(of, replace(of, value=of.value - np.arange(4)), 0.9)[1] > -np.inf


def ended_at_random(episodes: int, seed: int, pays: float, known: bool) -> Dataset:
    """Every step pays 1 and ends the episode with probability 0.1, whatever is done, where it pays
    `pays`; `known`: whether the log has the observations that ended episodes led to."""
    rows = walk(episodes, seed).transitions
    draw = torch.Generator().manual_seed(seed + 5)
    ends = torch.rand(episodes, 20, generator=draw) < 0.1
    kept = ((ends.cumsum(1) - ends.int()) == 0).flatten()  # up to the first end
    ends, truncated = ends.flatten(), (torch.arange(20) == 19).repeat(episodes)
    columns = {"obs": rows.obs, "action": rows.action, "next_obs": rows.next_obs}
    columns |= {"reward": torch.where(ends, pays, 1.0), "terminated": ends}
    columns |= {"truncated": truncated & ~ends} | ({} if known else {"next_known": ~ends})
    transitions = Transitions(**{name: values[kept] for name, values in columns.items()})
    return Dataset(transitions, SPEC, Provenance("ends"))


@pytest.mark.parametrize(
    ("pays", "known"), [pytest.param(1.0, True, marks=pytest.mark.long), (-4.0, False)]
)
def test_learned_ends_are_expected_ones(pays: float, known: bool) -> None:
    """Ten steps earn (1 - 0.9^10) / 0.1 = 6.51, a tenth of which are the last ones of the 65 % of
    the windows that end; what these pay counts though the dynamics see no row of theirs."""
    data = [ended_at_random(100, 0, pays, known), ended_at_random(300, 1, pays, known)]
    values = halted_values([still, reckless], *data, "learned", horizon=10, windows=400)
    ended = 1 - 0.9**10
    own, leaves = values.each
    assert own.horizon == 10 and values.credible(0)
    assert own.ended == pytest.approx(ended, abs=0.06)
    assert values.ended == pytest.approx(ended, abs=0.12)  # of the windows in the log
    assert own.plain == pytest.approx(0.9 * ended / 0.1 + ended * pays, abs=0.4)
    assert own.value.mean() == pytest.approx(own.plain, abs=0.2)
    # To leave the data is worth no more than an end, after which nothing is paid.
    assert leaves.inside < 0.5 and leaves.value.mean() < own.value.mean() - 1


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param(None, marks=pytest.mark.long),
        2.0,
        pytest.param(torch.inf, marks=pytest.mark.long),
    ],
)
def test_leaving_the_data_is_no_prize_where_every_step_is_paid(limit: float | None) -> None:
    """A reward of 1 a step and ends far from the data: who leaves them earns nothing more. Without
    ends the worst reward goes on."""
    data = []
    for seed, episodes in ((0, 60), (1, 8)):
        rows = walk(episodes, seed)
        paid = replace(rows.transitions, reward=torch.ones_like(rows.transitions.reward))
        data.append(replace(rows, transitions=paid))

    def beyond(obs, action, reached):
        return reached[:, 0].abs() > limit

    rule = None if limit is None else beyond
    stays, leaves = halted_values([still, reckless], *data, rule, horizon=10, windows=60).each
    assert stays.value.mean() == pytest.approx(10, rel=0.01) and stays.ended == leaves.ended == 0
    if limit == 2.0:
        assert leaves.inside < 0.5 and leaves.value.mean() < 7
    else:
        assert leaves.value.mean() == pytest.approx(10, rel=0.01)
