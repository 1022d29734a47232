"""EXPO's options and targets against loops, the density of its edits, and what learns from what."""

import math
from typing import Any

import pytest
import torch
from scipy import stats

from algorithms import EXPO
from experiments.settings import build_config
from mbrl.errors import ConfigError
from mbrl.types import Dataset


def agent(data: Dataset, **values: Any) -> EXPO:
    small = {"hidden": [16], "batch_size": 16, "candidates": 4, "edited": 3, "flow": {"steps": 3}}
    config = build_config("expo", small | {"critics": 5, "normalise_obs": True} | values)
    made = EXPO(data.spec, config, seed=0)
    made.prepare(data, lambda metrics: None)
    return made


def value(made: EXPO, obs: torch.Tensor, action: torch.Tensor, members: list[int]) -> float:
    """The minimum of some target critics at one observation [S] and action [A]."""
    learner = made.learner
    x = torch.cat([learner.base.normaliser(obs), action])[None]
    return min(float(learner.critic_target.batched(x)[m]) for m in members)


def options(made: EXPO, obs: torch.Tensor, noise: torch.Tensor, edits: torch.Tensor) -> Any:
    """Samples and edits at one observation, one after the other."""
    learner, c = made.learner, made.config
    samples = [learner.base.sample(obs[None], z[None])[0] for z in noise]
    moved = []
    for a, z in zip(samples[: c.edited], edits, strict=True):
        x = torch.cat([learner.base.normaliser(obs), a])
        mean, log_std = learner.edit.net(x).chunk(2)
        step = torch.tanh(mean + log_std.clamp(-5, 2).exp() * z)
        moved.append((a + c.edit_scale * step).clamp(-1, 1))
    return samples + moved


def test_target_against_a_loop(pendulum: Dataset) -> None:
    made = agent(pendulum)
    batch = made.next_batch()
    rows = batch.batch
    assert rows.noise is not None and rows.subset is not None
    assert rows.noise.shape[0] == 4 + 3 + 2 and rows.subset.shape == (2, 2)
    first, second = rows.subset.tolist()
    got = made.learner.target(rows)
    for i in range(16):
        obs = rows.next_obs[i]
        all_of_them = options(made, obs, rows.noise[:4, i], rows.noise[4:7, i])
        assert len(all_of_them) == 7
        best = max(all_of_them, key=lambda a: value(made, obs, a, first))
        expected = float(rows.reward[i]) + float(rows.discount[i]) * value(made, obs, best, second)
        assert float(got[i]) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_pairs_of_critics_are_drawn_anew(pendulum: Dataset) -> None:
    made = agent(pendulum)
    seen = {tuple(map(tuple, made.next_batch().batch.subset.tolist())) for _ in range(30)}
    assert len(seen) > 20 and all(len(set(pair)) == 2 for both in seen for pair in both)


def test_greedy_action_is_the_best_option_and_no_worse_than_the_clones(pendulum: Dataset) -> None:
    made = agent(pendulum)
    obs = pendulum.transitions.obs[:12]
    acted = made.policy.base.scale.to_unit(made.policy(obs))
    for i in range(12):
        all_of_them = options(made, obs[i], made.policy.base.noise, torch.zeros(3, 1))
        values = [value(made, obs[i], a, [0, 1]) for a in all_of_them]
        got = value(made, obs[i], acted[i], [0, 1])
        assert got == pytest.approx(max(values), abs=1e-4)
        assert got >= max(values[:4]) - 1e-4


def test_without_edits_it_is_the_best_of_samples(pendulum: Dataset) -> None:
    made = agent(pendulum, edited=0)
    obs = pendulum.transitions.obs[:5]
    samples = made.policy.base.candidates(obs, made.policy.base.greedy_noise(obs))
    acted = made.policy.base.scale.to_unit(made.policy(obs))
    for i in range(5):
        best = max(samples[:, i], key=lambda a: value(made, obs[i], a, [0, 1]))
        assert torch.allclose(acted[i], best, atol=1e-5)
    metrics = made.update(made.next_batch())
    assert "actor/alpha" not in metrics and "actor/bc" in metrics


def test_density_of_an_edit(pendulum: Dataset) -> None:
    made = agent(pendulum, edit_scale=0.2)
    obs, noise = pendulum.transitions.obs[:6], torch.randn(1, 6, 1)
    start = torch.zeros(1, 6, 1)
    moved, log_prob = made.policy.moved(obs, start, noise)
    x = torch.cat([made.policy.base.normaliser(obs), start[0]], 1)
    mean, log_std = made.policy.edit.net(x).chunk(2, -1)
    for i in range(6):
        e = float(moved[0, i]) / 0.2
        normal = stats.norm(float(mean[i]), math.exp(float(log_std[i])))
        expected = normal.logpdf(math.atanh(e)) - math.log(1 - e * e)
        assert float(log_prob[0, i]) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_temperature_of_edits_settles(pendulum: Dataset) -> None:
    """Edits can have more entropy than the target, so the temperature falls; of scaled ones, with
    the same target, it would rise without end."""
    made = agent(pendulum, learning_rate=1e-2)
    metrics = [made.update(made.next_batch()) for _ in range(100)]
    assert float(metrics[0]["actor/entropy"]) > -0.5
    assert float(metrics[-1]["actor/alpha"]) < 0.6


@pytest.mark.parametrize("source", ["logged", "samples"])
def test_edits_climb_and_nothing_else_does(source: str, pendulum: Dataset) -> None:
    """Their gradient is that of alpha log pi - mean Q at what is edited; the clone has none."""
    made = agent(pendulum, edit_from=source, alpha=0.5)
    learner, rows = made.learner, made.next_batch().batch
    assert rows.noise is not None
    start = rows.action
    if source == "samples":
        start = learner.base.sample(rows.obs, rows.noise[-2]).detach()
    standard = learner.base.normaliser(rows.obs)
    mean, log_std = learner.edit.net(torch.cat([standard, start], 1)).chunk(2, -1)
    pre = mean + log_std.exp() * rows.noise[-1]
    normal = torch.distributions.Normal(mean, log_std.exp()).log_prob(pre)
    log_prob = (normal - torch.log(1 - torch.tanh(pre).square())).sum(1)
    action = (start + 0.3 * torch.tanh(pre)).clamp(-1, 1)
    q = learner.critic.batched(torch.cat([standard, action], 1))[..., 0].mean(0)
    edit = list(learner.edit.net.parameters())
    expected = torch.autograd.grad((0.5 * log_prob - q).mean(), edit)
    kept = {
        name: [p.clone() for p in learner.modules[name].parameters()]
        for name in ("base", "critic", "critic_target")
    }
    metrics = learner.update_edit(rows)
    for p, gradient in zip(edit, expected, strict=True):
        moment = learner.optimisers["edit"].state[p]["exp_avg"]
        assert torch.allclose(moment, 0.1 * gradient, atol=1e-5)
    for name, before in kept.items():
        for old, new in zip(before, learner.modules[name].parameters(), strict=True):
            assert torch.equal(old, new), name
    # A policy with more entropy than the target (-1/2) is worth less to have more.
    falls = float(metrics["actor/entropy"]) > -0.5
    assert (float(metrics["actor/alpha"]) < 0.5) == falls


def test_clone_and_edits_wait_for_their_turn(pendulum: Dataset) -> None:
    made = agent(pendulum, policy_every=3)
    seen = [set(made.update(made.next_batch())) for _ in range(4)]
    assert ["actor/bc" in names for names in seen] == [True, False, False, True]
    assert all("critic/loss" in names for names in seen)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"edited": 9}, r"edited is 9, it must lie in 0..8 \(candidates\)"),
        ({"min_of": 11}, r"min_of is 11, it must lie in 1..10 \(critics\)"),
        ({"edit_scale": 0.0}, "edit_scale is 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config("expo", values)


def test_an_entropy_that_no_edit_has_is_refused(pendulum: Dataset) -> None:
    config = build_config("expo", {"target_entropy": 0.7})
    with pytest.raises(ConfigError, match=r"target_entropy is 0.7, it must lie below 0.693"):
        EXPO(pendulum.spec, config, seed=0)
