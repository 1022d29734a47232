"""Windows from coarse to fine: scales against loops, what sees what, and the refinement's loss."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mbrl.errors import ConfigError, DataError
from world_models.scales import RefinementConfig, ScaleConfig, ScaleModel, finer

SMALL = ScaleConfig(scales=(2, 4, 8), bins=8, width=8, levels=1, heads=2, batch_size=4)


def windows(count: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(count, 8, 3, generator=torch.Generator().manual_seed(seed))


def test_bins_hold_the_nearest_centre() -> None:
    model = ScaleModel(3, SMALL)
    x = torch.linspace(-6, 6, 101)
    centres = -4 + (torch.arange(8) + 0.5)
    assert torch.equal(model.centres(torch.arange(8)), centres)
    inside = x.clamp(-3.999, 3.999)
    nearest = (inside[:, None] - centres).abs()
    got = nearest.gather(1, model.bins(x)[:, None])[:, 0]
    torch.testing.assert_close(got, nearest.min(1).values)


def test_scales_are_means_of_stretches_and_lines_between_their_middles() -> None:
    model, x = ScaleModel(3, SMALL), windows()
    for n, bins in zip((2, 4, 8), model.scaled(x), strict=True):
        means = torch.stack([part.mean(1) for part in x.split(8 // n, 1)], 1)
        assert torch.equal(bins, model.bins(means))
    coarse = windows()[:, :4]
    middles, points = (np.arange(4) + 0.5) / 4, (np.arange(8) + 0.5) / 8
    for row, got in zip(coarse, finer(coarse, 8), strict=True):
        for f in range(3):
            want = np.interp(points, middles, row[:, f].numpy())
            np.testing.assert_allclose(got[:, f].numpy(), want, rtol=1e-5, atol=1e-6)


def test_a_scale_sees_itself_and_earlier_ones() -> None:
    model = ScaleModel(3, SMALL)
    given = torch.randn(1, 12, 3)
    logits = model.network(given)
    assert logits.shape == (1, 14, 3, 8)
    for changed, unseen in ((0, 2), (3, 2), (4, 6), (11, 6)):  # 0 to 3 stand before the second
        other = given.clone()
        other[0, changed] += 1.0
        moved = (model.network(other) - logits).abs().amax((0, 2, 3)) > 0
        assert not bool(moved[:unseen].any()) and bool(moved[unseen:].all())
    begun = model.network(given[:, :4], scales=2)
    torch.testing.assert_close(begun, logits[:, :6])
    torch.testing.assert_close(model.network(None, scales=1, count=1), logits[:, :2])


@pytest.mark.parametrize("target", ["prediction", "data"])
@pytest.mark.parametrize(("scales", "first"), [("last", 6), ("all", 2)])
def test_refinement_learns_on_what_was_drawn(
    target: Any, scales: Any, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss once more, point by point."""
    model, x = ScaleModel(3, SMALL), windows()
    twin = copy.deepcopy(model)
    state = model.generator.get_state()
    loss = model.refine(x, RefinementConfig(weight=0.7, target=target, scales=scales))
    data = [twin.bins(torch.stack([p.mean(1) for p in x.split(8 // n, 1)], 1)) for n in (2, 4, 8)]

    def read(bins: list[Tensor]) -> Tensor:
        return torch.cat([finer(twin.centres(bins[0]), 4), finer(twin.centres(bins[1]), 8)], 1)

    logits = twin.network(read(data))
    twin.generator.set_state(state)
    drawn = torch.multinomial(logits.softmax(-1).flatten(0, 2), 1, generator=twin.generator)
    said = list(drawn.view(6, 14, 3).split((2, 4, 8), 1))
    own = twin.network(read(said))
    wanted = torch.cat(said if target == "prediction" else data, 1)

    def surprise(made: Tensor, bins: Tensor, begin: int) -> Tensor:
        each = made.log_softmax(-1).gather(-1, bins[..., None])[..., 0]
        return -each[:, begin:].mean()

    want = surprise(logits, torch.cat(data, 1), 0) + 0.7 * surprise(own, wanted, first)
    torch.testing.assert_close(loss, want.detach())
    twin.optimiser.zero_grad()
    want.backward()
    twin.optimiser.step()
    for p, q in zip(model.network.parameters(), twin.network.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_a_perfect_model_says_the_same_of_its_own_windows() -> None:
    model, x = ScaleModel(3, SMALL), windows()
    sure = 50.0 * F.one_hot(torch.cat(model.scaled(x), 1), 8)
    model.network.forward = lambda given, **_: sure  # type: ignore[method-assign]
    given, own = model.errors(x, torch.Generator())
    torch.testing.assert_close(given, own)
    assert float(given.max()) < 1e-6


def test_samples_follow_the_chances_scale_by_scale() -> None:
    """A model that knows: the first scale is evenly -1 or 1, later ones repeat it."""
    config = ScaleConfig(scales=(1, 2), bins=2, reach=2.0, width=8, levels=1, heads=2)
    model = ScaleModel(1, config)

    def knows(given: Tensor | None, scales: int | None = None, count: int = 1) -> Tensor:
        first = torch.zeros(count if given is None else len(given), 1, 1, 2)
        if given is None:
            return first
        later = torch.stack([-20.0 * given, 20.0 * given], -1)
        return torch.cat([first, later], 1)

    model.network.forward = knows  # type: ignore[method-assign]
    got = model.sample(4000, torch.Generator().manual_seed(0))
    assert got.shape == (4000, 2, 1) and set(got.flatten().tolist()) == {-1.0, 1.0}
    assert torch.equal(got[:, 0], got[:, 1])
    assert abs(float(got.mean())) < 3 / 4000**0.5


def test_a_fit_that_was_stopped_goes_on_alike() -> None:
    def some(model: ScaleModel, steps: Callable[[ScaleModel], None]) -> ScaleModel:
        steps(model)
        return model

    def both(model: ScaleModel) -> None:
        model.update(windows(seed=1))
        model.refine(windows(seed=2))

    whole = some(some(ScaleModel(3, SMALL), both), both)
    begun = some(ScaleModel(3, SMALL), both)
    again = ScaleModel(3, SMALL, seed=5)
    again.load_state_dict(copy.deepcopy(begun.state_dict()))
    some(again, both)
    for p, q in zip(whole.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(p, q)
    with pytest.raises(ConfigError, match="bins"):
        ScaleModel(3, ScaleConfig(scales=(2, 4, 8), bins=9)).load_state_dict(begun.state_dict())


def test_a_fit_learns_the_windows() -> None:
    """Windows that are one number throughout: the coarse scale says all."""
    config = ScaleConfig(scales=(1, 4), bins=4, reach=2.0, width=16, levels=1, heads=2)
    model = ScaleModel(1, config)
    x = torch.tensor([-1.5, -0.5, 0.5, 1.5])[:, None, None].expand(4, 4, 1)
    for _ in range(300):
        model.update(x)
    given, _ = model.errors(x, torch.Generator())
    assert abs(float(given[0]) - np.log(4)) < 0.05 and float(given[1]) < 0.1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scales": (4, 2)}, "rising"),
        ({"scales": ()}, "rising"),
        ({"bins": 1}, "bins"),
        ({"width": 10}, "multiple of heads"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ScaleConfig(**values)


def test_windows_of_another_length_are_refused() -> None:
    with pytest.raises(ConfigError, match="9 points"):
        ScaleModel(3, SMALL).update(torch.zeros(2, 9, 3))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_windows_that_are_not_finite_are_refused(value: float) -> None:
    """No bin stands for them: NaN went into the first one, and so did infinity."""
    x = windows()
    x[1, 2, 0] = value
    for learn in (ScaleModel(3, SMALL).update, ScaleModel(3, SMALL).refine):
        with pytest.raises(DataError, match="not finite"):
            learn(x)


def test_one_scale_alone() -> None:
    """Bins are drawn each by itself: what is fitted is their frequencies."""
    config = ScaleConfig(scales=(8,), bins=2, width=8, levels=1, heads=2, learning_rate=0.05)
    model, draw = ScaleModel(3, config), torch.Generator().manual_seed(0)
    x = torch.where(torch.rand(64, 8, 3, generator=draw) < 0.8, 1.0, -1.0)
    for _ in range(60):
        model.update(x)
    assert float((model.sample(200, draw) > 0).float().mean()) == pytest.approx(0.8, abs=0.05)
    given, own = model.errors(x, draw)
    assert given.shape == (1,) and torch.equal(given, own)
    with pytest.raises(ConfigError, match="give two scales or more"):
        model.refine(x)
