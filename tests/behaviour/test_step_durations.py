"""Steps of different length: a row's discount is gamma to the power of its duration, wherever
values are learned or estimated, and what cannot take them says so."""

import numpy as np
import pytest
import torch

from algorithms import IQL, MOPO
from algorithms.evaluation.dice import correct
from algorithms.evaluation.fqe import FQEConfig, evaluate_policies, return_moments
from mbrl.data import from_arrays, load, save_npz
from mbrl.errors import ConfigError, DataError

GAMMA = 0.9


def chain(n=600, seed=0):
    """One state that pays 1 a row; the time to the next row is 0.5, 1 or 4."""
    duration = np.random.default_rng(seed).choice([0.5, 1.0, 4.0], n)
    return from_arrays(
        obs=np.ones((n, 2)),
        next_obs=np.ones((n, 2)),
        action=np.zeros((n, 1)),
        reward=np.ones(n),
        terminated=np.zeros(n, bool),
        truncated=np.arange(n) % 20 == 19,
        duration=duration,
    )


def test_fitted_q_evaluation_gives_the_closed_form():
    data = chain()
    # V = 1 + E[gamma ** duration] V over the durations in the data
    expected = 1 / (1 - float(np.mean(GAMMA ** data.transitions.duration.numpy().astype(float))))
    config = FQEConfig(steps=1500, gamma=GAMMA, tau=0.05, hidden=(32,))
    value = evaluate_policies([lambda obs: obs[:, :1] * 0], data, config).values[0]
    assert value == pytest.approx(expected, rel=0.03)
    assert expected < 0.9 / (1 - GAMMA)  # not what steps of one length would give


def test_moments_of_returns_follow_the_rows_own_discounts():
    data = chain(40)
    rows, reward = data.transitions, 1.0
    discounts = GAMMA ** rows.duration.double().numpy()
    endless = reward / (1 - discounts.mean())  # steps go on as long as the logged ones
    returns = []
    for first, stop in rows.episodes():
        for t in range(first, stop):
            steps = np.cumsum([0, *rows.duration[t:stop].double().tolist()])
            returns.append(float((GAMMA ** steps[:-1]).sum()) + GAMMA ** steps[-1] * endless)
    mean, scale = return_moments(rows, GAMMA)
    assert mean == pytest.approx(np.mean(returns)) and scale == pytest.approx(np.std(returns))


def test_durations_survive_a_file_and_reach_the_batches(tmp_path):
    data = load(save_npz(chain(), tmp_path / "mine.npz"))
    agent = IQL(data.spec).fit(data, 2, callbacks=[])
    batch = agent.next_batch()
    gamma = agent.config.gamma
    allowed = torch.tensor([gamma**0.5, gamma, gamma**4])
    assert bool(((batch.discount[:, None] - allowed).abs().amin(1) < 1e-6).all())
    assert len(batch.discount.unique()) == 3


def test_world_models_and_dice_refuse_them():
    data = chain()
    with pytest.raises(ConfigError, match="predicts steps of one length; use an algorithm"):
        MOPO(data.spec, model=object()).fit(data, 1)
    with pytest.raises(DataError, match="differ in length"):
        correct(lambda obs, _: obs[:, :1], data)
