"""Windows of tokens and back."""

import math

import pytest
import torch
from torch import Tensor

from mbrl.errors import ConfigError, DataError
from mbrl.types import Spec, Transitions
from world_models.windows import Tokens, window_rows

SPEC = Spec("toy", 2, 1, action_low=(-2.0,), action_high=(4.0,))


def episodes(*lengths: tuple[int, bool]) -> Transitions:
    """Episodes of so many steps that end the task or are cut; obs tell row and episode."""
    rows, terminated, truncated = [], [], []
    for index, (length, ends) in enumerate(lengths):
        for t in range(length):
            rows.append([float(t), float(index)])
            terminated.append(ends and t == length - 1)
            truncated.append(not ends and t == length - 1)
    obs = torch.tensor(rows)
    n = len(obs)
    return Transitions(
        obs=obs,
        action=torch.linspace(-1.5, 3.5, n)[:, None],
        reward=torch.arange(n).float() / 10,
        next_obs=obs + torch.tensor([1.0, 0.0]),
        terminated=torch.tensor(terminated),
        truncated=torch.tensor(truncated),
    )


def tokens(data: Transitions) -> Tokens:
    made = Tokens(SPEC)
    made.fit(made.raw(data))
    return made


def test_windows_keep_to_episodes() -> None:
    data = episodes((10, False), (3, False), (11, False), (5, False))
    # 0..9 and 13..23 are cut; 10..12 is too short; 24..28.
    assert window_rows(data, 5, 4)[:, 0].tolist() == [0, 4, 13, 17, 24]
    assert window_rows(data, 5, 3)[:, 0].tolist() == [0, 3, 13, 16, 19, 24]
    assert window_rows(data, 11, 4).tolist() == [list(range(13, 24))]


def test_the_last_row_fills_windows_that_the_tasks_end_is_in() -> None:
    data = episodes((6, False), (3, True), (5, True))
    assert window_rows(data, 4, 2).tolist() == [
        [0, 1, 2, 3], [2, 3, 4, 5],
        [6, 7, 8, 8], [8, 8, 8, 8],
        [9, 10, 11, 12], [11, 12, 13, 13], [13, 13, 13, 13],
    ]  # fmt: skip


def test_ends_are_as_frequent_among_windows_as_in_the_data() -> None:
    """Of the data's own windows as steps, where episodes of 1 to 60 steps all end the task."""
    data = episodes(*((n, True) for n in range(1, 61)))
    made = tokens(data)
    windows = made.normaliser(made.raw(data))[window_rows(data, 8, 1)]
    steps = made.trajectories(windows).transitions()
    logged, own = data.terminated.double().mean(), steps.terminated.double().mean()
    # A row near the start of an episode is in fewer windows, and an end in as many as its row.
    assert 1.0 <= float(own / logged) < 1.3
    assert set(steps.obs[steps.terminated][:, 0].tolist()) == set(
        data.obs[data.terminated][:, 0].tolist()
    )


def test_windows_say_when_no_episode_is_long_enough() -> None:
    with pytest.raises(DataError, match="no episode has 12 steps or ends the task"):
        window_rows(episodes((11, False), (4, False)), 12, 1)
    with pytest.raises(ConfigError, match="length is 1"):
        window_rows(episodes((11, True)), 1, 1)


def test_tokens_are_standardised_and_come_back() -> None:
    data = episodes((12, False))
    made = tokens(data)
    standard = made.normaliser(made.raw(data))
    assert torch.allclose(standard.mean(0), torch.zeros(5), atol=1e-6)
    varying = standard.std(0, correction=0)
    assert torch.allclose(varying[[0, 2, 3]], torch.ones(3), atol=1e-6)
    back = made.trajectories(standard[None])
    assert back.obs.shape == (1, 12, 2) and back.mask.sum() == 11
    rows = back.transitions()
    assert torch.allclose(rows.obs, data.obs[:11], atol=1e-5)
    assert torch.allclose(rows.action, data.action[:11], atol=1e-4)
    assert torch.allclose(rows.reward, data.reward[:11], atol=1e-6)
    assert torch.allclose(rows.next_obs, data.next_obs[:11], atol=1e-5)
    assert rows.truncated.tolist() == [False] * 10 + [True] and not rows.terminated.any()
    assert torch.allclose(made.observations(standard), data.obs, atol=1e-5)
    unit = (data.action - 1.0) / 3.0
    assert torch.allclose(made.unit_actions(standard), unit, atol=1e-5)


def test_actions_at_the_bounds_stay_finite() -> None:
    data = episodes((4, False))
    data = Transitions(**{**vars(data), "action": torch.tensor([[-2.0], [4.0], [9.0], [1.0]])})
    raw = Tokens(SPEC).raw(data)[:, 2]
    limit = math.atanh(0.999)
    assert raw.tolist() == pytest.approx([-limit, limit, limit, 0.0], abs=1e-3)


def window(*ended: float) -> Tensor:
    raw = torch.zeros(1, len(ended), 5)
    raw[0, :, 0] = torch.arange(len(ended)).float()
    raw[0, :, 4] = torch.tensor(ended)
    return raw


def test_the_end_of_the_task_ends_the_window() -> None:
    made = Tokens(SPEC)  # an identity before it is fitted
    found = made.trajectories(window(0.1, 0.2, 0.7, 0.9, 0.0))
    assert found.mask[0].tolist() == [True, True, True, False, False]
    assert found.terminated[0].tolist() == [False, False, True, False, False]
    assert not found.truncated.any()
    found = made.trajectories(window(0.0, 0.0, 0.0, 0.6))
    assert found.mask[0].tolist() == [True] * 4
    assert found.terminated[0].tolist() == [False, False, False, True]
    assert not found.truncated.any()  # the step before leads on to the last
    assert found.next_obs[0, :, 0].tolist() == [1.0, 2.0, 3.0, 3.0]
    found = made.trajectories(window(0.0, 0.0, 0.0, 0.4))
    assert found.mask[0].tolist() == [True, True, True, False]
    assert found.truncated[0].tolist() == [False, False, True, False]
    rows = found.transitions()
    assert rows.episodes() == [(0, 3)]


def test_nothing_is_earned_after_the_end_of_the_task() -> None:
    """The row that fills a window up repeats the last reward."""
    data = episodes((6, False), (3, True))
    made = tokens(data)
    standard = made.normaliser(made.raw(data))[window_rows(data, 5, 1)]
    earned = made.rewards(standard).sum(1)
    wanted = [data.reward[a:b].sum() for a, b in ((0, 5), (1, 6), (6, 9), (7, 9), (8, 9))]
    torch.testing.assert_close(earned, torch.stack(wanted), rtol=1e-4, atol=1e-4)


def test_what_never_varies_in_the_data_never_varies() -> None:
    data = episodes((12, False))  # one episode: its number and the end of the task are constant
    made = tokens(data)
    noise = 5.0 * torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
    found = made.trajectories(noise)
    assert not found.terminated.any() and found.mask.sum() == 15
    assert (found.obs[..., 1] == 0).all() and found.obs[..., 0].std() > 1
    assert torch.equal(made.observations(noise), found.obs)  # what a policy is asked at


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(ConfigError, match="discrete actions"):
        Tokens(Spec("toy", 2, num_actions=3))
