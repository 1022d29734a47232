"""The generator of windows: its loss against loops, its samples against a linear process."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mbrl.errors import ConfigError
from mbrl.types import Spec, Transitions
from world_models import DiffusionConfig, TrajectoryDiffusion, trajectory_diffusion
from world_models.denoisers import Block, TemporalUNet, WindowTransformer
from world_models.samplers import DDIM, Consistency, DPMSolverPP, edm_levels
from world_models.trajectory_diffusion import denoising_loss, precondition, rate

SPEC = Spec("toy", 1, 1, action_low=(-1.0,), action_high=(1.0,))


def linear_process(episodes: int = 400, length: int = 8, seed: int = 0) -> Transitions:
    """s' = 0.8 s + atanh(a), a = tanh(-0.3 s + 0.4 noise), r = s: Gaussian in tokens."""
    generator = torch.Generator().manual_seed(seed)
    s = torch.randn(episodes, 1, generator=generator)
    states, actions = [s], []
    for _ in range(length):
        u = -0.3 * s + 0.4 * torch.randn(episodes, 1, generator=generator)
        s = 0.8 * s + u
        states.append(s)
        actions.append(torch.tanh(u))
    obs, action = torch.stack(states, 1), torch.stack(actions, 1)
    end = torch.zeros(episodes, length, dtype=torch.bool)
    cut = end.clone()
    cut[:, -1] = True
    return Transitions(
        obs=obs[:, :-1].flatten(0, 1),
        action=action.flatten(0, 1),
        reward=obs[:, :-1, 0].flatten(),
        next_obs=obs[:, 1:].flatten(0, 1),
        terminated=end.flatten(),
        truncated=cut.flatten(),
    )


def small(**changes: object) -> DiffusionConfig:
    settings: dict[str, object] = {
        "length": 4,
        "stride": 2,
        "width": 16,
        "levels": 2,
        "updates": 30,
        "batch_size": 16,
        "steps": 6,
        "sampler": "heun",
    }
    return DiffusionConfig(**(settings | changes))  # type: ignore[arg-type]


class Constant(nn.Module):
    """F is 0.7 c_in x + c, which shows what the network is given."""

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        return 0.7 * x + c[:, None, None]


def test_preconditioning_is_table_1_of_edm() -> None:
    x = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0))
    sigma = torch.tensor([0.1, 1.0, 30.0])
    found = precondition(Constant(), x, sigma)
    for row, s in enumerate(sigma.tolist()):
        skip, out = 1 / (s * s + 1), s / math.sqrt(s * s + 1)
        inside, noise = 1 / math.sqrt(s * s + 1), math.log(s) / 4
        expected = skip * x[row] + out * (0.7 * inside * x[row] + noise)
        assert torch.allclose(found[row], expected, atol=1e-6)


def test_the_loss_is_edms_in_a_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    x, noise = torch.randn(2, 3, 4, 2, generator=generator)
    sigma = torch.tensor([0.2, 1.5, 7.0])
    total = 0.0
    for row, s in enumerate(sigma.tolist()):
        noisy = x[row] + s * noise[row]
        guess = precondition(Constant(), noisy[None], torch.tensor([s]))[0]
        weight = (s * s + 1) / (s * s)
        for t in range(4):
            for k in range(2):
                total += weight * float(guess[t, k] - x[row, t, k]) ** 2
    found = denoising_loss(Constant(), x, sigma, noise)
    assert float(found) == pytest.approx(total / (3 * 4 * 2), rel=1e-5)


def test_the_learning_rate_rises_and_falls() -> None:
    found = [rate(n, 1000, 0.1) for n in (0, 50, 100, 550, 999)]
    assert found[:4] == pytest.approx([0.1, 0.55, 1.0, 0.5]) and found[4] < 1e-4
    assert rate(0, 10, 0.0) == 1.0


def test_sampling_weights_are_the_average_of_every_tenth() -> None:
    data = linear_process(20)
    model = TrajectoryDiffusion(SPEC, small(updates=160, ema=0.25), seed=3)
    name = "out.weight"
    expected, count = torch.zeros(()), 0
    kept = model.update

    def update(windows: Tensor) -> Tensor:
        nonlocal expected, count
        loss = kept(windows)
        if model.updates % 10 == 0:
            count += 1
            share = max(0.75, min(1.0, 10 / count))
            expected = (1 - share) * expected + share * model.network.state_dict()[name].clone()
        return loss

    model.update = update  # type: ignore[method-assign]
    model.fit(data)
    assert count == 16
    assert torch.allclose(model.average.state_dict()[name], expected, atol=1e-7)


@pytest.mark.parametrize("network", ["unet", "transformer"])
def test_an_interrupted_fit_ends_where_the_whole_one_does(network: str) -> None:
    data = linear_process(40)
    config = small(network=network)
    whole = TrajectoryDiffusion(SPEC, config, seed=1)
    whole.fit(data)

    class Stop(Exception):
        pass

    def stop(metrics: dict[str, Tensor]) -> None:
        raise Stop

    first = TrajectoryDiffusion(SPEC, config, seed=1)
    with pytest.raises(Stop):
        first.fit(data, stop)
    assert 0 < first.updates < 30 and not first.fitted
    second = TrajectoryDiffusion(SPEC, config, seed=9)
    second.seed = 1  # of the split
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.fit(data)
    for a, b in zip(whole.average.parameters(), second.average.parameters(), strict=True):
        assert torch.equal(a, b)
    drawn = [m.windows(3, torch.Generator().manual_seed(0)) for m in (whole, second)]
    assert torch.equal(*drawn)


def test_another_network_may_take_the_place_of_the_fitted_one() -> None:
    """A student, say; guidance is then of the student."""
    data = linear_process(20)
    model = TrajectoryDiffusion(SPEC, small(updates=2), seed=1)
    model.fit(data)

    def student(x: Tensor, sigma: Tensor) -> Tensor:
        return torch.full_like(x, 0.25)

    found = model.windows(
        3, torch.Generator().manual_seed(0), denoise=student, sampler=Consistency()
    )
    assert torch.equal(found, torch.full_like(found, 0.25))
    sampled = model.sample(3, torch.Generator().manual_seed(0), denoise=student, sampler=DDIM())
    expected = model.tokens.trajectories(torch.full_like(found, 0.25))
    assert torch.allclose(sampled.obs, expected.obs) and torch.allclose(
        sampled.reward, expected.reward
    )


def test_progress_tells_epoch_and_both_losses() -> None:
    seen: list[dict[str, Tensor]] = []
    model = TrajectoryDiffusion(SPEC, small(updates=20, holdout_fraction=0.25))
    model.fit(linear_process(20), seen.append)
    # 15 episodes of 8 rows have 3 windows of 4 each: 45 windows, 2 batches of 16 a pass.
    assert [int(m["model/epoch"]) for m in seen] == list(range(1, 11))
    assert set(seen[0]) == {"model/epoch", "model/train_loss", "model/holdout_loss"}
    assert float(seen[-1]["model/holdout_loss"]) < float(seen[0]["model/holdout_loss"])


def test_held_out_windows_are_of_whole_episodes() -> None:
    data = linear_process(20)
    train, held = TrajectoryDiffusion(SPEC, small(holdout_fraction=0.2)).split(data)
    assert len(train) == 16 * 3 and len(held) == 4 * 3
    assert not set((train // 8).flatten().tolist()) & set((held // 8).flatten().tolist())


@pytest.fixture(scope="module")
def fitted() -> TrajectoryDiffusion:
    config = small(network="transformer", width=48, updates=700, batch_size=64, levels=2)
    model = TrajectoryDiffusion(SPEC, config, seed=0)
    model.fit(linear_process())
    return model


def test_samples_have_the_moments_of_the_data(fitted: TrajectoryDiffusion) -> None:
    """Of standardised windows of a linear process; its correlations in time are the dynamics."""
    generator = torch.Generator().manual_seed(0)
    found = fitted.windows(
        3000, generator, sampler=DPMSolverPP(2), sigmas=edm_levels(20, sigma_max=20.0)
    )[..., :2]
    data = linear_process(3000, seed=5)
    rows = fitted.tokens.normaliser(fitted.tokens.raw(data))[:, :2].view(3000, 8, 2)
    windows = torch.cat([rows[:, b : b + 4] for b in (0, 2, 4)])
    error = found.flatten(1).T.cov() - windows.flatten(1).T.cov()
    assert error.abs().max() < 0.2 and error.abs().mean() < 0.06
    assert (found.flatten(1).mean(0) - windows.flatten(1).mean(0)).abs().max() < 0.15


def test_samples_obey_the_dynamics(fitted: TrajectoryDiffusion) -> None:
    generator = torch.Generator().manual_seed(1)
    levels = edm_levels(20, sigma_max=20.0)
    steps = fitted.sample(500, generator, sampler=DPMSolverPP(2), sigmas=levels).transitions()
    assert len(steps) == 500 * 3 and not steps.terminated.any()
    pushed = 0.8 * steps.obs + torch.atanh(steps.action.clamp(-0.999, 0.999))
    unexplained = (steps.next_obs - pushed).square().mean() / steps.next_obs.var()
    assert float(unexplained) < 0.03
    assert float((steps.reward - steps.obs[:, 0]).square().mean()) < 0.05


def test_what_cannot_be_sampled_is_said() -> None:
    model = TrajectoryDiffusion(SPEC, small())
    generator = torch.Generator()
    with pytest.raises(ConfigError, match="has 0 of 30 updates"):
        model.sample(1, generator)
    model.fit(linear_process(20))
    with pytest.raises(ConfigError, match="windows of 129 steps are asked for"):
        model.sample(1, generator, length=129)
    other = TrajectoryDiffusion(SPEC, small(length=6))
    with pytest.raises(ConfigError, match="windows of 4 steps, this one has length 6"):
        other.load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    "settings",
    [
        {"length": 1},
        {"ema": 1.0},
        {"sampler": "nothing"},
        {"sigma_min": 100.0},
        {"warmup": -0.1},
        {"network": "u-net"},
        {"action_bound": 1.0},  # atanh of it is infinite
        {"noise_std": -1.0},
        {"learning_rate": 0.0},
    ],
)
def test_impossible_settings(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        small(**settings)
    with pytest.raises(ConfigError, match="multiple of 8"):
        TrajectoryDiffusion(SPEC, small(width=12))
    with pytest.raises(ConfigError, match="multiple of 4"):
        TrajectoryDiffusion(SPEC, small(width=18, network="transformer"))


@pytest.mark.parametrize("length", [2, 5, 8, 13])
def test_networks_keep_shapes_and_rows_apart(length: int) -> None:
    generator = torch.Generator().manual_seed(0)
    levels = 2 if length < 4 else 3
    networks = [
        TemporalUNet(5, 16, levels, generator),
        WindowTransformer(5, length, 16, levels, generator),
    ]
    x, c = torch.randn(3, length, 5, generator=generator), torch.tensor([-1.0, 0.0, 0.5])
    for network in networks:
        out = network(x, c)
        assert out.shape == x.shape
        alone = network(x[1:2], c[1:2])
        assert torch.allclose(out[1:2], alone, atol=1e-5)
        changed = network(x, torch.tensor([-1.0, 0.3, 0.5]))
        assert not torch.allclose(out[1], changed[1]) and torch.allclose(out[0], changed[0])
        out.square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


@pytest.mark.parametrize("length", [16, 7])
def test_the_unet_is_one_of_convolutions_over_time(length: int) -> None:
    """Written once more with convolutions, pooling and doubling in one dimension."""
    network = TemporalUNet(5, 16, 2, torch.Generator().manual_seed(0)).double()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, length, 5, generator=generator, dtype=torch.float64)
    c = torch.randn(3, generator=generator, dtype=torch.float64)
    embedded = network.embedding(c)

    def convolved(part: nn.Module, h: Tensor) -> Tensor:
        width = part.conv.weight.shape[-1]
        h = part.conv(F.pad(h, ((width - 1) // 2, width // 2)))
        if part.noise is not None:
            h = h + part.noise(embedded)[:, :, None]
        return F.group_norm(h, 8, part.norm.weight, part.norm.bias).clamp_min(0.0)

    h = x.transpose(1, 2)
    for part in network.down[0]:
        h = convolved(part, h)
    beside, h = h, F.max_pool1d(h, 2)
    for part in network.down[1]:
        h = convolved(part, h)
    first, second, third = network.up[0]
    h = convolved(first, h[:, :, torch.arange(length) * h.shape[-1] // length])
    h = convolved(third, convolved(second, torch.cat([h, beside], 1)))
    expected = network.out(h).transpose(1, 2)
    found = network(x, c)
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)
    weight = network.down[1][1].conv.weight
    assert weight.shape == (32, 32, 3) and weight.stride() == (96, 1, 32)  # as `side_by_side` says
    pairs = [torch.autograd.grad(y.square().sum(), network.parameters()) for y in (found, expected)]
    for a, b in zip(*pairs, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-10)


def test_attention_is_a_softmax_over_positions() -> None:
    generator = torch.Generator().manual_seed(0)
    block = Block(8, 2)
    for p in block.parameters():
        nn.init.normal_(p, std=0.3, generator=generator)
    x, e = (torch.randn(1, n, 8, generator=generator) for n in (5, 1))
    s, m, g, s2, m2, g2 = block.modulation(e[0]).chunk(6, -1)

    def norm(v: Tensor) -> Tensor:
        return (v - v.mean(-1, keepdim=True)) / (
            v.var(-1, correction=0, keepdim=True) + 1e-5
        ).sqrt()

    h = norm(x[0]) * (1 + s) + m
    q, k, v = block.qkv(h).chunk(3, -1)
    parts = []
    for head in (slice(0, 4), slice(4, 8)):
        share = torch.softmax(q[:, head] @ k[:, head].T / 2.0, -1)
        parts.append(share @ v[:, head])
    y = x[0] + g * block.joined(torch.cat(parts, -1))
    h = norm(y) * (1 + s2) + m2
    y = y + g2 * block.narrow(nn.functional.gelu(block.wide(h)))
    assert torch.allclose(block(x, e[0])[0], y, atol=1e-5)


def test_wide_networks_sample_and_learn_in_bfloat16_where_it_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, noise = linear_process(20), torch.Generator()
    plain = TrajectoryDiffusion(SPEC, small(width=128, levels=1, updates=3))
    plain.fit(data)
    exact = plain.windows(8, noise.manual_seed(0))
    x, sigma = torch.randn(4, 4, plain.tokens.size), torch.full((4,), 0.3)
    with torch.no_grad():
        fine = plain.denoise(x, sigma)
    monkeypatch.setattr(trajectory_diffusion, "takes_bfloat16", lambda: True)
    assert torch.equal(plain.denoise(x.requires_grad_(), sigma), fine)  # gradients are exact
    with torch.no_grad():
        coarse = plain.denoise(x, sigma)
    assert coarse.dtype == torch.float32 and 0 < float((coarse - fine).abs().max()) < 0.02
    windows = plain.windows(8, noise.manual_seed(0))
    assert 0 < float((windows - exact).abs().max()) < 0.1
    with torch.no_grad():
        for p in plain.average.parameters():
            p.zero_()  # the rounded copy is made anew
        assert not plain.sampling_network()(x, sigma).any()
    narrow = TrajectoryDiffusion(SPEC, small(width=32))
    assert not narrow.in_bfloat16
    other = TrajectoryDiffusion(SPEC, small(width=64, levels=1, updates=3))
    other.fit(data)
    monkeypatch.undo()
    again = TrajectoryDiffusion(SPEC, small(width=64, levels=1, updates=3))
    again.fit(data)
    pairs = zip(other.network.parameters(), again.network.parameters(), strict=True)
    apart = max(float((p - q).detach().abs().max()) for p, q in pairs)
    assert 0 < apart < 0.01
