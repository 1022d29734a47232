"""CDSA's score in closed form, its steps at an exact score, and a policy that it leaves alone."""

from typing import Any

import numpy as np
import pytest
import torch

from algorithms import BC, CDSA
from algorithms.cdsa import corrected, noise_levels, score_loss
from experiments.settings import build_config
from mbrl.errors import ConfigError
from mbrl.types import Dataset, Spec, Transitions


def gaussian(rows: int = 4000, deviation: float = 0.2) -> Dataset:
    """One state; actions N(0, deviation^2) in a task whose bounds are +-2."""
    generator = torch.Generator().manual_seed(0)
    action = 2 * deviation * torch.randn(rows, 1, generator=generator)
    obs, ends = torch.zeros(rows, 2), torch.ones(rows, dtype=torch.bool)
    spec = Spec("one state", 2, 1, None, (-2.0,), (2.0,), 1)
    return Dataset(Transitions(obs, action, torch.zeros(rows), obs, ends, ~ends), spec)


def agent(data: Dataset, steps: int, **values: Any) -> CDSA:
    small = {"hidden": [64, 64], "learner": "bc", "bc": {"hidden": [8], "normalise_obs": False}}
    config = build_config("cdsa", small | {"learning_rate": 3e-3} | values)
    return CDSA(data.spec, config, seed=0).fit(data, steps, callbacks=[])


def test_levels_are_geometric() -> None:
    assert noise_levels(0.01, 0.04, 3).tolist() == pytest.approx([0.04, 0.02, 0.01])


def test_loss_of_nothing_is_the_number_of_actions() -> None:
    noise = torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0))
    assert float(score_loss(torch.zeros_like(noise), noise)) == pytest.approx(3.0, rel=0.03)
    two = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, -1.0]])
    assert float(score_loss(*two)) == pytest.approx(1.5**2 + 1.0)


def test_learned_score_is_that_of_a_normal_distribution() -> None:
    """psi(a, sigma) = -a / (s^2 + sigma^2), by its slope over two deviations and its bend."""
    base = {"hidden": [8], "normalise_obs": False, "batch_size": 1024}
    made = agent(gaussian(), 2500, smallest=0.1, learning_rate=1e-3, bc=base)
    action = torch.linspace(-0.4, 0.4, 41)[:, None]
    for sigma in made.learner.sigmas[[0, 4, 9]]:
        with torch.no_grad():
            got = made.learner.score(torch.zeros(41, 2), action, sigma)
        slope = float((got * action).sum() / action.square().sum())
        assert slope == pytest.approx(-1 / (0.2**2 + float(sigma) ** 2), rel=0.1)
        assert float((got - slope * action).abs().mean()) < 0.15 * abs(slope) * 0.4


def test_steps_at_an_exact_score_against_a_loop() -> None:
    """From three deviations the action moves to 0 level by level, by 1 - eta sigma^2 / (s^2 +
    sigma^2) each."""
    sigmas, s = noise_levels(0.05, 0.4, 5), 0.2

    def score(action: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        return -action / (s**2 + sigma**2)

    start = torch.tensor([[3 * s]])
    expected, before = 3 * s, 3 * s
    for k in range(5):
        expected -= 0.7 * float(sigmas[k]) ** 2 * expected / (s**2 + float(sigmas[k]) ** 2)
        got = float(corrected(start, score, sigmas[: k + 1], 0.7))
        assert got == pytest.approx(expected, rel=1e-5) and 0 < got < before
        before = got
    outward = corrected(torch.tensor([[0.9]]), lambda a, sigma: a / sigma**2, sigmas, 1.0)
    assert float(outward) == 1.0


def test_it_moves_an_action_to_the_data_and_nothing_at_step_size_0() -> None:
    """The clone alone, updates and all, bit for bit; and from far away towards 0."""
    data = gaussian()
    still = agent(data, 30, step_size=0.0)
    own = {"hidden": [8], "normalise_obs": False}
    alone = BC(data.spec, build_config("bc", own), seed=0)
    alone.prepare(data, lambda metrics: None)
    assert torch.equal(
        CDSA(data.spec, still.config, seed=0).policy(data.transitions.obs[:5]),
        alone.policy(data.transitions.obs[:5]),
    )
    assert torch.equal(
        still.policy(data.transitions.obs[:5]), still.policy.base(data.transitions.obs[:5])
    )
    made = agent(data, 1500, act_below=0.5)
    with torch.no_grad():
        far = torch.full((4, 1), 1.6)  # 0.8 in [-1, 1], four deviations
        moved = made.policy.correct(torch.zeros(4, 2), far)
    assert (moved < 1.0).all() and (moved > -0.5).all()
    assert np.abs(made.act(np.zeros(2))[0]).max() < 0.2


def test_update_of_the_score_against_a_loop() -> None:
    data = gaussian(200)
    made = agent(data, 0)
    made.prepare(data, lambda metrics: None)
    drawn = made.next_batch()
    terms = []
    for i in range(len(drawn.noise)):
        sigma = made.learner.sigmas[drawn.level[i]]
        moved = drawn.batch.action[i] + sigma * drawn.noise[i]
        with torch.no_grad():
            psi = made.learner.score(drawn.batch.obs[i][None], moved[None], sigma)[0]
        terms.append(float(sigma**2 * (psi + drawn.noise[i] / sigma).square().sum()))
    assert set(drawn.level.tolist()) == set(range(10))
    metrics = made.update(drawn)
    assert float(metrics["score/loss"]) == pytest.approx(np.mean(terms), rel=1e-4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"smallest": 0.5}, "smallest is 0.5; it must lie below largest"),
        ({"act_below": 0.001}, "act_below is 0.001, below the smallest sigma"),
        ({"step_size": -1.0}, "step_size is -1.0"),
        ({"levels": 1}, "levels is 1"),
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config("cdsa", values)
