"""Guidance of windows by a policy: gradients, the schedule, and what it does to a Gaussian law."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.learners.recurrent_actor_critic import (
    MemoryConfig,
    RecurrentLearnerConfig,
    RecurrentPolicy,
)
from mbrl.errors import ConfigError
from mbrl.networks import DeterministicPolicy, SquashedGaussianPolicy, TanhMeanGaussianPolicy
from mbrl.types import Spec
from world_models import PolicyGuidance
from world_models.guidance import log_prob, reward_guided, weight_for, window_log_prob
from world_models.samplers import Churn, DPMSolverPP, FeynmanKac, edm_levels
from world_models.windows import Tokens

SPEC = Spec("toy", 1, 1, action_low=(-1.0,), action_high=(1.0,))
WIDE = Spec("toy", 3, 2, action_low=(-1.0, -2.0), action_high=(1.0, 2.0))


def unfitted(spec: Spec) -> Tokens:
    tokens = Tokens(spec).double()
    with torch.no_grad():
        tokens.normaliser.mean.copy_(torch.linspace(-0.2, 0.3, tokens.size))
        tokens.normaliser.std.copy_(torch.linspace(0.5, 1.5, tokens.size))
    return tokens


def policies() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    kinds = (SquashedGaussianPolicy, TanhMeanGaussianPolicy, DeterministicPolicy)
    return [kind(WIDE, (8,), generator=generator).double() for kind in kinds]


def with_memory(kind: Any) -> RecurrentPolicy:
    memory = MemoryConfig(kind, width=8, layers=2, states=4)
    config = RecurrentLearnerConfig(memory=memory, hidden=(8,))
    return RecurrentPolicy(WIDE, config, torch.Generator().manual_seed(3)).double()


@pytest.mark.parametrize(
    "policy", [*policies(), with_memory("lru")], ids=lambda p: type(p).__name__
)
def test_the_gradient_is_that_of_the_actions_alone(policy: Any) -> None:
    tokens, guidance = unfitted(WIDE), PolicyGuidance(policy)
    x = torch.randn(2, 4, tokens.size, generator=torch.Generator().manual_seed(1)).double()
    found = guidance.gradient(tokens, x)
    assert found.shape == (2, 4, 2)
    for row, t, k in ((0, 0, 0), (1, 3, 1), (0, 2, 1)):
        step = torch.zeros_like(x)
        step[row, t, 3 + k] = 1e-5
        change = guidance.log_likelihood(tokens, x + step) - guidance.log_likelihood(
            tokens, x - step
        )
        expected = float(change[row].detach()) / 2e-5
        assert float(found[row, t, k]) == pytest.approx(expected, rel=1e-4)


def test_the_density_is_that_of_the_policy_in_raw_observations() -> None:
    tokens, policy = unfitted(WIDE), policies()[0]
    x = torch.randn(1, 3, tokens.size, generator=torch.Generator().manual_seed(1)).double()
    raw = x * tokens.normaliser.std + tokens.normaliser.mean
    total = 0.0
    for t in range(3):
        mean, log_std = policy.distribution(raw[0, t, :3])
        pre = raw[0, t, 3:5]
        normal = torch.distributions.Normal(mean, log_std.exp())
        density = normal.log_prob(pre) - torch.log1p(-torch.tanh(pre).square())
        total += float(density.detach().sum())
    found = PolicyGuidance(policy).log_likelihood(tokens, x)
    assert float(found[0].detach()) == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("kind", ["lru", "gru", "none"])
def test_a_memory_is_led_along_the_window_from_its_start(kind: Any) -> None:
    """Against a policy that takes the steps one by one, each window alone, and hears of them."""
    policy, generator = with_memory(kind), torch.Generator().manual_seed(1)
    obs, reward = torch.randn(3, 5, 3, generator=generator).double(), torch.rand(3, 5).double()
    action = 1.8 * torch.rand(3, 5, 2, generator=generator).double() - 0.9
    found = window_log_prob(policy, obs, action, reward)
    size = policy.encoder.state_size
    for b in range(3):
        state = torch.zeros(1, policy.carried_size).double()
        for t in range(5):
            now = obs[b, t][None]
            features = policy.encoder.step(torch.cat([now, state[:, size:]], -1), state[:, :size])
            mean, log_std = policy.distribution(features[0])
            law = torch.distributions.TransformedDistribution(
                torch.distributions.Normal(mean, log_std.exp()),
                [torch.distributions.transforms.TanhTransform()],
            )
            expected = float(law.log_prob(action[b, t][None]).sum().detach())
            assert float(found[b, t].detach()) == pytest.approx(expected, rel=1e-9)
            taken = policy.scale.to_task(action[b, t][None])
            _, state = policy.step(now, state, None)
            state = policy.observe_reward(state, reward[b, t][None], taken)


def test_windows_of_a_policy_with_memory_are_apart_and_in_order() -> None:
    policy = with_memory("lru")
    obs, action = torch.randn(2, 6, 3).double(), torch.rand(2, 6, 2).double()
    reward = torch.randn(2, 6).double()
    found = window_log_prob(policy, obs, action, reward)
    assert torch.allclose(window_log_prob(policy, obs[1:], action[1:], reward[1:]), found[1:])
    reward[0, 3] += 1.0  # is heard of before the fifth action
    changed = window_log_prob(policy, obs, action, reward) != found
    assert changed[0].tolist() == [False] * 4 + [True] * 2 and not bool(changed[1].any())


def test_a_policy_with_memory_guides_windows() -> None:
    tokens, policy = unfitted(WIDE), with_memory("gru")
    guidance = PolicyGuidance(policy, 3.0)
    x = torch.randn(64, 5, tokens.size, generator=torch.Generator().manual_seed(1)).double()

    def likelihood(before: Any) -> float:
        levels = edm_levels(10, sigma_max=10.0, sigma_min=0.01)
        y = DPMSolverPP()(
            lambda x, sigma: x / (1 + sigma.square()[:, None, None]),
            10.0 * x,
            levels,
            torch.Generator(),
            before=before,
        )
        return float(guidance.log_likelihood(tokens, y).mean().detach())

    _, before = guidance.attach(tokens, lambda x, sigma: x)
    assert likelihood(before) > likelihood(None) + 0.5


def test_a_deterministic_policy_is_a_unit_gaussian_around_its_action() -> None:
    policy = policies()[2]
    obs, action = torch.randn(2, 5, 3).double()[0], torch.rand(5, 2).double()
    expected = torch.distributions.Normal(policy.unit(obs), 1.0).log_prob(action).sum(-1)
    assert torch.allclose(log_prob(policy, obs, action), expected)


def test_the_schedule_is_the_papers() -> None:
    guidance = PolicyGuidance(None, weight=2.0, cosine=0.3)
    assert guidance.schedule(0, 256) == pytest.approx(2 * (1 + 0.3 * math.sin(math.pi / 256)))
    assert guidance.schedule(127, 256) == pytest.approx(2 * (1 - 127 / 256 + 0.3))
    assert guidance.schedule(254, 256) > 0 and guidance.schedule(255, 256) == 0.0


class Slope:
    """A policy whose log-density is a given multiple of the action."""

    def __init__(self, size: float) -> None:
        self.size = size

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.size * torch.atanh(action).sum(-1)


def moved(guidance: PolicyGuidance, x: Tensor) -> Tensor:
    _, before = guidance.attach(Tokens(WIDE).double(), lambda x, sigma: 0.5 * x)
    assert before is not None
    return before(x, 0, [1.0, 0.5, 0.0]) - x


def test_the_move_is_normalised_over_the_window() -> None:
    x = 0.1 * torch.randn(2, 4, 7, generator=torch.Generator().manual_seed(0)).double()
    size = PolicyGuidance(None).schedule(0, 2)
    plain = moved(PolicyGuidance(Slope(3.0), normalise=False), x)
    assert torch.allclose(plain[..., 3:5], torch.full((2, 4, 2), 3.0 * size).double())
    assert plain[..., :3].abs().sum() == 0 and plain[..., 5:].abs().sum() == 0
    normal = moved(PolicyGuidance(Slope(3.0)), x)
    assert torch.allclose(normal.flatten(1).norm(dim=1), torch.full((2,), size).double())
    assert torch.equal(moved(PolicyGuidance(Slope(0.0)), x), torch.zeros_like(x))


def test_no_weight_is_no_guidance() -> None:
    tokens = Tokens(WIDE)

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        return x

    assert PolicyGuidance(Slope(1.0), weight=0.0).attach(tokens, denoise) == (denoise, None)


def test_a_guided_denoiser_is_that_of_the_tilted_normal() -> None:
    """Of N(0, 1) times exp(w a.x), which is N(w a, 1): exact for data of deviation 1."""
    direction = torch.tensor([0.5, -1.0, 2.0]).double()

    def plain(x: Tensor, sigma: Tensor) -> Tensor:
        return x / (1.0 + sigma.square())[:, None]

    guided = reward_guided(plain, lambda x: x @ direction, 0.7)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    sigma = torch.tensor([0.1, 0.3, 1.0, 2.0, 5.0, 20.0]).double()
    mean, share = 0.7 * direction, (1.0 / (1.0 + sigma.square()))[:, None]
    assert torch.allclose(guided(x, sigma), mean + share * (x - mean), atol=1e-12)


def test_the_slope_of_a_reward_is_read_at_the_denoised_window() -> None:
    x = torch.tensor([[2.0, -4.0]]).double()
    guided = reward_guided(lambda x, sigma: 0.5 * x, lambda x: 0.5 * x.square().sum(1), 0.1)
    expected = torch.tensor([[1.0, -2.0]]).double() * (1.0 + 0.1 * 9.0 / 10.0)
    assert torch.allclose(guided(x, torch.tensor([3.0]).double()), expected)


def test_policies_without_a_density_are_refused() -> None:
    class Planner:
        def step(self) -> None: ...
        def observe_reward(self) -> None: ...

    with pytest.raises(ConfigError, match="Planner carries a memory or a plan"):
        log_prob(Planner(), torch.zeros(1), torch.zeros(1))
    with pytest.raises(ConfigError, match="object has no density"):
        log_prob(object(), torch.zeros(1), torch.zeros(1))
    with pytest.raises(ConfigError, match="weight is -1"):
        PolicyGuidance(None, weight=-1.0)
    with pytest.raises(ConfigError, match="weight is nan"):
        PolicyGuidance(None, weight=float("nan"))
    with pytest.raises(ConfigError, match=r"unknown PolicyGuidance.mode 'scores'"):
        PolicyGuidance(None, mode="scores")  # type: ignore[arg-type]


# A linear world: windows of three steps, s' = 0.8 s + u, behaviour u = -0.3 s + 0.4 noise, target
# policy u ~ N(0.5 - 0.2 s, 0.6^2) on the action before the squash. Products stay Gaussian.

LENGTH, TARGET = 3, (0.5, -0.2, 0.6)


class LinearTokens(Tokens):
    """Tokens [s, u, 0, 0] whose action is not squashed."""

    def unit_actions(self, tokens: Tensor) -> Tensor:
        return tokens[..., self.actions]


class LinearPolicy:
    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        offset, gain, deviation = TARGET
        return -0.5 * ((action - offset - gain * obs) / deviation).square().sum(-1)


def behaviour() -> Tensor:
    """Covariance [12, 12] of a window, by pushing its noise through the process."""
    columns = []
    for index in range(1 + LENGTH):
        noise = torch.zeros(1 + LENGTH).double()
        noise[index] = 1.0
        s, rows = noise[0], []
        for t in range(LENGTH):
            u = -0.3 * s + 0.4 * noise[1 + t]
            rows += [s, u, torch.tensor(0.0).double(), torch.tensor(0.0).double()]
            s = 0.8 * s + u
        columns.append(torch.stack(rows))
    matrix = torch.stack(columns, 1)
    return matrix @ matrix.T


COVARIANCE = behaviour()
VALUES, VECTORS = torch.linalg.eigh(COVARIANCE)


def denoise(x: Tensor, sigma: Tensor) -> Tensor:
    share = VALUES.clamp_min(0) / (VALUES.clamp_min(0) + sigma.square()[:, None])
    return ((x.flatten(1) @ VECTORS * share) @ VECTORS.T).view_as(x)


def product(weight: float) -> tuple[Tensor, Tensor]:
    """Mean and covariance of behaviour times target^weight: Gaussian conditioning on 0 = u - 0.5 +
    0.2 s with noise of variance 0.36 / weight, a step after the other."""
    offset, gain, deviation = TARGET
    mean, covariance = torch.zeros(4 * LENGTH).double(), COVARIANCE.clone()
    for t in range(LENGTH):
        h = torch.zeros(4 * LENGTH).double()
        h[4 * t + 1], h[4 * t] = 1.0, -gain
        s = h @ covariance @ h + deviation**2 / weight
        k = covariance @ h / s
        mean = mean + k * (offset - h @ mean)
        covariance = covariance - torch.outer(k, h @ covariance)
    return mean, covariance


def samples(guidance: PolicyGuidance, sampler: Any, count: int = 2000) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    levels = edm_levels(48, sigma_max=10.0, sigma_min=0.01)
    x = levels[0] * torch.randn(count, LENGTH, 4, generator=generator, dtype=torch.double)
    law, before = guidance.attach(LinearTokens(SPEC).double(), denoise)
    found: Tensor = sampler(law, x, levels, generator, before=before)
    return found


@pytest.mark.parametrize(
    ("mode", "normalise", "denoised"),
    [
        ("paper", True, False),
        ("paper", True, True),
        ("paper", False, False),
        ("score", False, False),
        ("score", False, True),
    ],
)
def test_actions_move_towards_the_target_with_the_weight(
    mode: Any, normalise: bool, denoised: bool
) -> None:
    weights = [0.0, 0.25, 0.5, 1.0] if normalise else [0.0, 0.05, 0.2, 0.5]
    means = []
    for weight in weights:
        guidance = PolicyGuidance(LinearPolicy(), weight, mode, normalise, denoised=denoised)
        means.append(float(samples(guidance, Churn(noise=1.0), 1000)[..., 1].mean()))
    assert abs(means[0]) < 0.05
    assert all(b > a + 0.005 for a, b in zip(means, means[1:], strict=False))


def test_the_score_at_low_noise_is_sigma_squared_times_the_gradient() -> None:
    guidance = PolicyGuidance(Slope(3.0), 0.5, "score")
    law, before = guidance.attach(Tokens(WIDE).double(), lambda x, sigma: 0.5 * x)
    x = 0.1 * torch.ones(2, 4, 7).double()
    sigma = torch.tensor([0.01, 2.0]).double()
    found = law(x, sigma) - 0.5 * x
    expected = torch.zeros_like(x)
    expected[0, :, 3:5], expected[1, :, 3:5] = 1.5e-4 / (1 + 1e-4), 1.5 * 0.8
    assert before is None and torch.allclose(found, expected)


def test_neither_mode_is_exact_and_the_correctors_are() -> None:
    """Mean and covariance of actions against the product law at weight 1."""
    mean, covariance = product(1.0)
    actions = [1, 5, 9]

    def away(x: Tensor) -> float:
        found = x.flatten(1)[:, actions]
        first = (found.mean(0) - mean[actions]).abs().max()
        second = (found.T.cov() - covariance[actions][:, actions]).abs().max()
        return float(torch.maximum(first, second))

    for mode in ("paper", "score"):
        guidance = PolicyGuidance(LinearPolicy(), 1.0, mode, normalise=False)
        assert away(samples(guidance, DPMSolverPP())) > 0.08
    tokens, policy = LinearTokens(SPEC).double(), PolicyGuidance(LinearPolicy())
    sampler = FeynmanKac(reward=lambda x: policy.log_likelihood(tokens, x), tilt=1.0)
    generator = torch.Generator().manual_seed(2)
    levels = edm_levels(150, sigma_max=10.0, sigma_min=0.01)
    runs = []
    for _ in range(5):
        x = torch.randn(2000, LENGTH, 4, generator=generator, dtype=torch.double)
        particles = sampler.particles(denoise, levels[0] * x, levels, generator)
        w, u = particles.log_weights.exp(), particles.x.flatten(1)[:, actions]
        first = w @ u
        second = (u * w[:, None]).T @ u - torch.outer(first, first)
        runs.append(torch.cat([first, second.flatten()]))
    found = torch.stack(runs)
    exact = torch.cat([mean[actions], covariance[actions][:, actions].flatten()])
    error = found.std(0) / len(runs) ** 0.5
    assert ((found.mean(0) - exact).abs() < 4.5 * error + 0.01).all()


@pytest.mark.parametrize("start", [0.01, 1.0, 300.0])
@pytest.mark.parametrize("goal", [0.25, 0.5, 0.75])
def test_the_weight_of_a_level_in_closed_form(start: float, goal: float) -> None:
    """Where the level is w / (1 + w), it is goal / (1 - goal)."""
    found = weight_for(lambda weight: weight / (1.0 + weight), goal, start)
    assert found == pytest.approx(goal / (1.0 - goal), rel=0.045)


def test_levels_that_no_weight_has() -> None:
    assert weight_for(lambda weight: 0.6, 0.5, 1.0) == 0.0
    assert weight_for(lambda weight: weight * (4.0 - weight) / 10.0, 0.9, 0.5) == 2.0
    assert weight_for(lambda weight: 0.4 - 0.1 / (1.0 + weight), 0.9, 1.0) == 4096.0
