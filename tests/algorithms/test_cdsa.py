"""CDSA's score in closed form, its steps at an exact score, and a policy that it leaves alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import algorithms
from algorithms import BC, CDSA
from algorithms.cdsa import corrected, noise_levels, score_loss
from experiments.export.agent import export
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


def moving(rows: int = 4000) -> Dataset:
    """One dimension, s' = 0.5 s + 0.8 a: s ~ N(0, 1), a ~ N(0, 0.5^2) in [-1, 1]; an eighth of the
    rows end the task and lead to 50."""
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(rows, 1, generator=generator)
    action = (0.5 * torch.randn(rows, 1, generator=generator)).clamp(-1, 1)
    ended = torch.arange(rows) % 8 == 0
    reached = torch.where(ended[:, None], torch.tensor(50.0), 0.5 * obs + 0.8 * action)
    spec = Spec("moving", 1, 1, None, (-1.0,), (1.0,), 10)
    rows_of = Transitions(obs, action, torch.zeros(rows), reached, ended, ~ended)
    return Dataset(rows_of, spec)


@pytest.mark.long
def test_state_score_is_learned_without_the_rows_that_end() -> None:
    """0.8 psi_s = -0.8 f / (t^2 + sigma^2) with f = 0.5 s + 0.8 a and t^2 = 0.25 + 0.64 Var a."""
    data = moving()
    base = {"hidden": [8], "normalise_obs": False, "batch_size": 512}
    made = agent(data, 1000, smallest=0.3, act_below=0.3, state_weight=1.0, bc=base)
    generator = torch.Generator().manual_seed(1)
    obs, action = torch.randn(200, 1, generator=generator), torch.zeros(200, 1)
    spread = 0.25 + 0.64 * float(data.transitions.action.var())
    for sigma in made.learner.sigmas[[0, 9]]:
        with torch.no_grad():
            got = made.learner.state_score(obs, action, sigma)[:, 0]
            predicted = made.learner.state_score.predicted(obs, action)
        assert float((predicted - 0.5 * obs).abs().mean()) < 0.05
        expected = -0.8 * 0.5 * obs[:, 0] / (spread + float(sigma) ** 2)
        assert float((got - expected).abs().mean()) < 0.15 * float(expected.abs().mean())


def test_update_of_the_state_score_against_a_loop() -> None:
    """Both losses over the rows that do not end the task, at normalised states."""
    data = moving(300)
    base = {"hidden": [8], "batch_size": 64, "normalise_obs": True}
    made = agent(data, 0, state_weight=0.5, bc=base)
    made.prepare(data, lambda metrics: None)
    drawn, scores, models = made.next_batch(), [], []
    part, rows = made.learner.state_score, drawn.batch
    mean, std = (float(v) for v in (part.normaliser.mean, part.normaliser.std))
    assert std == pytest.approx(float(data.transitions.obs.std(correction=0)) + 1e-3, rel=1e-4)
    for i in range(64):
        if float(rows.discount[i]) == 0:
            continue
        sigma, xi = made.learner.sigmas[drawn.level[i]], drawn.state_noise[i]
        state = (rows.next_obs[i] - mean) / std
        before = (rows.obs[i] - mean) / std
        with torch.no_grad():
            psi = part.net(torch.cat([state + sigma * xi, sigma.log()[None]])[None])[0] / sigma
            change = part.model(torch.cat([before, rows.action[i]])[None])[0]
        scores.append(float((sigma**2 * (psi + xi / sigma).square()).sum()))
        models.append(float((before + change - state).square().sum()))
    assert 40 < len(scores) < 64
    weights = [p.clone() for p in part.parameters()]
    metrics = made.update(drawn)
    assert float(metrics["score/state_loss"]) == pytest.approx(np.mean(scores), rel=1e-4)
    assert float(metrics["score/model_loss"]) == pytest.approx(np.mean(models), rel=1e-4)
    assert all((a != b).any() for a, b in zip(weights, part.parameters(), strict=True))


def test_both_scores_in_a_step_against_a_loop() -> None:
    """a <- clip(a + eta sigma^2 (psi + kappa J' psi_s)), level by level; without a weight nothing
    of states is there, and the same draws."""
    data = moving(300)
    made = agent(data, 0, state_weight=3.0, step_size=0.4, smallest=0.1, act_below=0.2)
    obs = data.transitions.obs[:6]
    with torch.no_grad():
        expected = made.policy.base(obs)
        for sigma in made.learner.sigmas[made.learner.sigmas <= 0.2]:
            psi = made.learner.score(obs, expected, sigma)
            pull = psi + 3.0 * made.learner.state_score(obs, expected, sigma)
            expected = (expected + 0.4 * sigma**2 * pull).clamp(-1, 1)
        assert torch.allclose(made.policy(obs), expected, atol=1e-6)
        assert (made.policy(obs) - made.policy.base(obs)).abs().max() > 1e-4
    plain = agent(data, 0)
    assert "state_score" not in plain.learner.modules and "state_score" in made.learner.modules
    for made_agent in (made, plain):
        made_agent.prepare(data, lambda metrics: None)
    first, second = plain.next_batch(), made.next_batch()
    assert first.state_noise is None and torch.equal(first.noise, second.noise)


def test_state_score_goes_on_bit_for_bit(tmp_path: Path) -> None:
    data = moving(300)
    made = agent(data, 5, state_weight=1.0, hidden=[8])
    made.save(tmp_path / "agent.pt")
    again = algorithms.load(tmp_path / "agent.pt")
    for copy in (made, again):
        copy.fit(data, 5, callbacks=[])
    for name, module in made.learner.modules.items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, again.learner.modules[name].state_dict()[key])
    assert torch.equal(made.generator.get_state(), again.generator.get_state())


@pytest.mark.usefixtures("one_registry")
@pytest.mark.long
def test_state_score_leaves_the_library(tmp_path: Path) -> None:
    """`export` compares what the exported policy does."""
    pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
    data = moving(300)
    made = agent(data, 5, state_weight=1.0, hidden=[8])
    card = export(made, tmp_path / "out", data)
    assert card["parity"]["rows"] > 0 and card["parity"]["action"] <= 1e-6


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"state_weight": -1.0}, "state_weight is -1.0"),
        ({"state_weight": 1.0, "td3_bc": {"gamma": 0.0}}, "gamma of td3_bc is 0"),
        ({"smallest": 0.5}, "smallest is 0.5; it must lie below largest"),
        ({"act_below": 0.001}, "act_below is 0.001, below the smallest sigma"),
        ({"step_size": -1.0}, "step_size is -1.0"),
        ({"levels": 1}, "levels is 1"),
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config("cdsa", values)
