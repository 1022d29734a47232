"""RO2O's three terms against closed forms, torch's distributions and loops in double precision."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from algorithms import RO2O, SACN
from algorithms.ro2o import SmoothnessConfig, policy_smoothness, unseen_loss, value_smoothness
from experiments.settings import build_config
from mbrl.errors import ConfigError
from mbrl.types import Spec
from tests.algorithms.batches import double_batch

D = torch.float64
SPEC = Spec("small", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)
SMALL = {"hidden": [8, 8], "critics": 3, "gamma": 0.9, "normalise_obs": True}


def learner(in_task: str = "paper", **smooth: Any) -> Any:
    """One in double precision whose observations are standardised."""
    values = {"learner": SMALL, "smooth": {"perturbations": 4} | smooth, "in_task": in_task}
    made = RO2O(SPEC, build_config("ro2o", values), seed=0).learner
    for module in made.modules.values():
        module.double()
    for module in (made.actor, made.critic, made.target):
        module.normaliser.mean.copy_(torch.tensor([0.5, -1.0, 0.0]))
        module.normaliser.std.copy_(torch.tensor([1.0, 10.0, 0.1]))
    return made


def test_linear_values_are_worst_in_a_corner() -> None:
    """Q(s) = c s: of all perturbations the one that rises most counts, since rises weigh more."""
    c, radius, falling = torch.tensor([2.0, -3.0], dtype=D), 0.1, 0.2
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=D)
    states = torch.randn(6, 2, dtype=D)
    moved = (states + radius * corners[:, None]) @ c
    q = (states @ c)[None]
    rise = radius * 5.0
    assert float(value_smoothness(moved[None], q, falling)) == pytest.approx(0.8 * rise**2)
    fall = moved[None, 2:3]  # the corner where it falls most, alone
    assert float(value_smoothness(fall, q, falling)) == pytest.approx(0.2 * rise**2)


def test_policy_term_is_both_divergences_of_torch() -> None:
    mean, log_std = torch.randn(2, 5, 2, dtype=D)
    moved_mean, moved_log_std = torch.randn(2, 3, 5, 2, dtype=D)
    one, other = Normal(mean, log_std.exp()), Normal(moved_mean, moved_log_std.exp())
    both = (kl_divergence(one, other) + kl_divergence(other, one)).sum(-1)
    got = policy_smoothness(mean, log_std, moved_mean, moved_log_std)
    assert float(got) == pytest.approx(float(both.max(0).values.mean()))
    same = [v.expand(3, 5, 2) for v in (mean, log_std)]
    assert float(policy_smoothness(mean, log_std, *same)) == pytest.approx(0.0, abs=1e-12)


def test_unseen_actions_lose_their_deviation_and_no_more() -> None:
    """The gradient presses every critic down by the deviation; equal critics stay as they are."""
    q = torch.randn(3, 4, 5, dtype=D).requires_grad_()
    loss = unseen_loss(q, 2.0)
    deviation = q.detach().numpy().std(0, ddof=1)
    assert float(loss) == pytest.approx(float((4 * deviation**2).mean()))
    (gradient,) = torch.autograd.grad(loss, q)
    assert np.allclose(gradient.numpy(), 2 * 2.0 * deviation[None] / q.numel())
    assert float(unseen_loss(torch.ones(3, 4, 5, dtype=D), 2.0)) == 0.0


def test_pessimism_falls_to_its_least() -> None:
    """The published schedule: from 1 by 5e-7 an update, at 0.1 after 1.8 million."""
    c = SmoothnessConfig(pessimism=1.0, pessimism_decay=5e-7)
    assert c.pessimism_at(0) == 1.0
    assert c.pessimism_at(900_000) == pytest.approx(0.55)
    assert c.pessimism_at(1_800_000) == pytest.approx(0.1)
    assert c.pessimism_at(10**9) == 0.1


def q(made: Any, n: int, obs: torch.Tensor, action: torch.Tensor) -> float:
    x = torch.cat([made.critic.normaliser(obs), action])
    for layer, (w, b) in enumerate(zip(made.critic.weights, made.critic.biases, strict=True)):
        x = x @ w[n] + b[n, 0]
        if layer < len(made.critic.weights) - 1:
            x = x.relu()
    return float(x)


def test_critics_loss_against_a_loop() -> None:
    """State after state, draw after draw and critic after critic, as the paper writes it."""
    made = learner(pessimism=1.5, value_radius=0.3, value_weight=0.7, unseen_radius=0.2)
    batch, target = double_batch(made, 5), torch.randn(5, dtype=D)
    assert batch.noise is not None and batch.shift is not None
    got, metrics = made.critic_loss(made, batch, target)
    deviation, errors, smooth, unseen = torch.tensor([1.0, 10.0, 0.1]), [], [], []
    for i in range(5):
        s, a = batch.obs[i], batch.action[i]
        values = [q(made, n, s, a) for n in range(3)]
        errors.append(sum((v - float(target[i])) ** 2 for v in values))
        worst = 0.0
        for k in range(4):
            moved = s + 0.3 * deviation * batch.shift[k]
            rises = [q(made, n, moved, a) - values[n] for n in range(3)]
            worst = max(worst, np.mean([(0.8 if u > 0 else 0.2) * u**2 for u in rises]))
            beside = s + 0.2 * deviation * batch.shift[8 + k]
            action, _ = made.actor.sample(beside[None], batch.noise[2 + k, i : i + 1])
            of = [q(made, n, beside, action[0]) for n in range(3)]
            unseen += [(1.5 * np.std(of, ddof=1)) ** 2] * 3
        smooth.append(worst)
    assert float(metrics["critic/smooth"]) == pytest.approx(np.mean(smooth))
    assert float(metrics["critic/unseen"]) == pytest.approx(np.mean(unseen))
    whole = np.mean(errors) + 0.7 * np.mean(smooth) + 0.1 * np.mean(unseen)
    assert float(got) == pytest.approx(whole)


def test_actor_moves_along_draws_of_its_own() -> None:
    made = learner(policy_radius=0.3, policy_weight=2.0)
    batch = double_batch(made, 5)
    assert batch.shift is not None
    term, _ = made.actor_term(made, batch)
    deviation = torch.tensor([1.0, 10.0, 0.1], dtype=D)
    moved = [batch.obs + 0.3 * deviation * batch.shift[4 + k] for k in range(4)]
    apart = []
    mean, log_std = made.actor.distribution(batch.obs)
    for obs in moved:
        other_mean, other_std = made.actor.distribution(obs)
        one, other = Normal(mean, log_std.exp()), Normal(other_mean, other_std.exp())
        apart.append((kl_divergence(one, other) + kl_divergence(other, one)).sum(-1))
    assert float(term) == pytest.approx(2.0 * float(torch.stack(apart).max(0).values.mean()))


def test_without_radius_it_is_sac_n() -> None:
    """Of three terms the one about unseen actions stays; without its weight nothing does."""
    none = {f"{term}_radius": 0.0 for term in ("value", "policy", "unseen")}
    made = learner(**none, unseen_weight=0.0)
    batch, target = double_batch(made, 5), torch.randn(5, dtype=D)
    plain = SACN(SPEC, build_config("sac_n", {"learner": SMALL})).learner
    for name, module in plain.modules.items():
        module.double().load_state_dict(made.modules[name].state_dict())
    expected, _ = plain.critic_loss(plain, batch, target)
    assert float(made.critic_loss(made, batch, target)[0]) == pytest.approx(float(expected))
    assert float(made.actor_term(made, batch)[0]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("in_task", ["paper", "released"])
def test_in_a_task_the_terms_stay_or_go(in_task: str) -> None:
    made = learner(in_task, pessimism=3.0, pessimism_least=0.5)
    batch, target = double_batch(made, 5), torch.randn(5, dtype=D)
    _, before = made.critic_loss(made, batch, target)
    made.offline = False
    loss, after = made.critic_loss(made, batch, target)
    if in_task == "paper":
        ratio = float(after["critic/unseen"] / before["critic/unseen"])
        assert ratio == pytest.approx((0.5 / 3.0) ** 2)
    else:
        assert "critic/unseen" not in after and float(loss) == float(after["critic/loss"])
        assert float(made.actor_term(made, batch)[0]) == 0.0


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least pessimism_least"):
        SmoothnessConfig(pessimism=0.05)
    with pytest.raises(ConfigError, match="needs at least two"):
        build_config("ro2o", {"learner": {"critics": 1}})
    with pytest.raises(ConfigError, match="no diversity term"):
        build_config("ro2o", {"learner": {"eta": 1.0}})
