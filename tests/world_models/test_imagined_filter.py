"""What filters of imagined rows score, what they keep, and what they cannot see."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mbrl.data import from_arrays
from mbrl.errors import ConfigError, DataError
from mbrl.types import Dataset
from world_models.ensemble import EnsembleDynamics
from world_models.imagined_filter import never_changes, score_imagined, standardised_distance


def linear(
    episodes: int, seed: int, context: float = 0.0, low: float = -1.0, wrong: float = 0.0
) -> tuple[Dataset, np.ndarray]:
    """A point x' = 0.9 x + 0.3 a with a fixed context beside it, episodes of 20 steps; a share
    `wrong` of the rows jumps elsewhere. Also which rows do."""
    rng = np.random.default_rng(seed)
    obs, action, following, jumps = [], [], [], []
    for _ in range(episodes):
        x = rng.uniform(low, low + 2, 2)
        for _ in range(20):
            a = rng.uniform(-1, 1, 2)
            jump = rng.random() < wrong
            after = rng.uniform(low, low + 2, 2) if jump else 0.9 * x + 0.3 * a
            obs.append([*x, context])
            following.append([*after, context])
            action.append(a)
            jumps.append(jump)
            x = after
    count = len(obs)
    dataset = from_arrays(
        np.array(obs, np.float32),
        np.array(action, np.float32),
        np.full(count, 100 * context, np.float32),  # rewards that no real row has
        next_obs=np.array(following, np.float32),
        terminated=np.zeros(count, bool),
        truncated=np.arange(1, count + 1) % 20 == 0,
    )
    return dataset, np.array(jumps)


def test_the_distance_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=(3, 4, 2)), rng.uniform(0.1, 2, (3, 4, 2))
    target = rng.normal(size=(4, 2))
    expected = []
    for b in range(4):
        total = 0.0
        for d in range(2):
            centre = sum(mean[e, b, d] for e in range(3)) / 3
            # E[y^2] - E[y]^2 of the mixture
            second = sum(variance[e, b, d] + mean[e, b, d] ** 2 for e in range(3)) / 3
            total += (target[b, d] - centre) ** 2 / (second - centre**2)
        expected.append((total / 2) ** 0.5)
    score = standardised_distance(*(torch.tensor(v) for v in (mean, variance, target)))
    assert np.allclose(score.numpy(), expected, rtol=1e-12)


def test_consistency_drops_jumps_and_keeps_what_happens_for_a_new_instruction() -> None:
    real, _ = linear(100, 0)
    other, jumps = linear(50, 1, context=20.0, wrong=0.3)
    scored = score_imagined(real, other, "consistency")
    keep = scored.keep.numpy()
    assert keep[~jumps].mean() > 0.95
    assert keep[jumps].mean() < 0.1
    honest, _ = linear(50, 1, context=20.0)
    assert score_imagined(real, honest, "consistency", quantile=0.9).keep.double().mean() < 0.95


def test_disagreement_drops_what_the_real_rows_do_not_know_and_no_jump() -> None:
    real, _ = linear(100, 0)
    far, _ = linear(50, 1, low=4.0)
    near, jumps = linear(50, 2, wrong=0.3)
    distance = far.transitions.obs.abs().amax(1)  # many come back on their own
    keep = score_imagined(real, far, "disagreement").keep
    assert keep[distance > 2].double().mean() < 0.05
    assert keep[distance < 0.8].double().mean() > 0.8
    keep = score_imagined(real, near, "disagreement").keep.numpy()
    assert abs(keep[jumps].mean() - keep[~jumps].mean()) < 0.05 and keep.mean() > 0.9


def test_an_end_of_which_nobody_recorded_what_followed_contradicts_nothing() -> None:
    real, _ = linear(20, 0)
    rows = real.transitions
    end = rows.ends
    rows = replace(
        rows,
        obs=rows.obs + torch.arange(20).repeat(20)[:, None],  # steps of length 1, unlike the ends'
        next_obs=rows.next_obs + torch.arange(1, 21).repeat(20)[:, None],
    )
    rows = replace(
        rows,
        next_obs=torch.where(end[:, None], rows.obs, rows.next_obs),
        terminated=end,
        truncated=torch.zeros_like(end),
        next_known=~end,
    )
    real = real.with_transitions(rows)
    assert bool(score_imagined(real, real, "consistency").keep[end].all())
    known = real.with_transitions(replace(rows, next_known=None))
    assert not bool(score_imagined(real, known, "consistency").keep[end].any())


def test_an_instruction_that_changes_on_the_way_is_inconsistent() -> None:
    real, _ = linear(30, 0)
    other, _ = linear(2, 1)
    rows = other.transitions
    rows.next_obs[3, 2] = 5.0
    assert never_changes(real.transitions).tolist() == [False, False, True]
    scored = score_imagined(real, other, "consistency")
    assert scored.score[3] == torch.inf and scored.score.isinf().sum() == 1
    assert not scored.keep[3]


def test_the_threshold_is_that_quantile_of_rows_held_out() -> None:
    real, _ = linear(100, 0)
    again, _ = linear(200, 5)
    for quantile in (0.5, 0.9):
        kept = score_imagined(real, again, "consistency", quantile).keep.double().mean()
        assert abs(float(kept) - quantile) < 0.05


@pytest.mark.parametrize("name", ["consistency", "disagreement"])
def test_rewards_do_not_count_and_the_held_rows_are_not_fitted_to(
    name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, _ = linear(20, 0)
    other, _ = linear(5, 1)
    fitted, fit = [], EnsembleDynamics.fit
    monkeypatch.setattr(
        EnsembleDynamics, "fit", lambda model, rows: (fitted.append(len(rows)), fit(model, rows))
    )
    score = score_imagined(real, other, name).score
    noise = torch.randn(400, generator=torch.Generator().manual_seed(0))
    paid = real.with_transitions(replace(real.transitions, reward=noise))
    assert torch.equal(score_imagined(paid, other, name).score, score)
    assert fitted == [16 * 20] * 2


def test_what_cannot_be_filtered_is_refused() -> None:
    real, _ = linear(30, 0)
    with pytest.raises(ConfigError, match="it must be consistency or disagreement"):
        score_imagined(real, real, "novelty")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"quantile is 0, it must lie in \(0, 1\]"):
        score_imagined(real, real, "consistency", 0)
    single, _ = linear(1, 0)
    with pytest.raises(DataError, match="1 episodes"):
        score_imagined(single, real, "consistency")
    rows = real.transitions
    still = real.with_transitions(
        type(rows)(rows.obs, rows.action, rows.reward, rows.obs, rows.terminated, rows.truncated)
    )
    with pytest.raises(DataError, match="no observation of arrays ever changes"):
        score_imagined(still, real, "consistency")
