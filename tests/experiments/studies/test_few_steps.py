"""The study of samplers against evaluations: its measures against plain loops, and a tiny run."""

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from experiments.studies import few_steps, prerequisites
from experiments.studies.few_steps import Method, MethodQuality, Quality
from experiments.tables import conclusions, plan, summary
from mbrl import data
from mbrl.errors import ConfigError
from world_models import DiffusionConfig, TrajectoryDiffusion
from world_models.samplers import DDIM, SAMPLERS, Heun, Plan, TimeShift, edm_levels
from world_models.samplers.consistency import teacher_step

MODEL = {"updates": 4, "width": 8, "levels": 1, "batch_size": 8, "holdout_fraction": 0.3}
TINY = few_steps.DEFAULTS | {
    "data": "pendulum/medium",
    "length": 4,
    "model": MODEL | {"sampler": "heun", "steps": 3},
    "windows": 12,
    "reference": 6,
    "evaluations": [2, 5],
    "searched": [2],
    "distilled": [1, 2],
    "finetuned": [2],
    "rounds": 1,
    "distillation": 2,
    "finetuning": 2,
}


@pytest.fixture(scope="module")
def model() -> TrajectoryDiffusion:
    """A denoiser that shrinks its input, for nothing is learned in no update."""
    dataset = data.load("pendulum/medium")
    values: dict[str, Any] = MODEL | {"length": 4, "updates": 1}
    made = TrajectoryDiffusion(dataset.spec, DiffusionConfig(**values), seed=2)
    made.fit(dataset.transitions)
    return made


@pytest.fixture(scope="module")
def quality(model: TrajectoryDiffusion) -> Quality:
    return Quality(TINY, data.load("pendulum/medium"), model, 0)


def test_the_sliced_distance_is_the_mean_of_those_along_lines() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(7, 3)), 0.5 * generator.normal(size=(11, 3)) + 0.2
    order, gaps = few_steps.merged(x, y)
    weights = np.stack([np.ones(7), generator.integers(0, 4, 7).astype(float)])
    others = np.stack([generator.integers(0, 3, 11).astype(float), np.ones(11)])
    result = few_steps.sliced(order, gaps, weights, others)
    for row, other, value in zip(weights, others, result, strict=True):
        lines = [stats.wasserstein_distance(x[:, k], y[:, k], row, other) for k in range(3)]
        assert value == pytest.approx(np.mean(lines))


def test_the_distance_is_from_windows_in_standard_units_to_held_out_ones(
    quality: Quality, model: TrajectoryDiffusion
) -> None:
    """Of the same noise, led by one step to the network's guess."""
    method = Method("x", 1, model.denoise, DDIM(), [5.0, 0.0])
    result = quality.of(method)
    noise = torch.randn(12, 4, 6, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        x = model.denoise(5.0 * noise, torch.full((12,), 5.0))
    x[..., -1] = 0.0  # no task ends in the data
    along = x.flatten(1) @ quality.directions
    assert quality.directions.norm(dim=0).allclose(torch.ones(few_steps.DIRECTIONS))
    lines = [
        stats.wasserstein_distance(along[:, k].numpy(), quality.held[:, k])
        for k in range(few_steps.DIRECTIONS)
    ]
    assert result.slice == pytest.approx(np.mean(lines), rel=1e-4)
    assert result.error == pytest.approx(result.sums.sum() / (12 * 3))


def test_held_out_windows_are_of_episodes_that_the_fit_has_not_seen(
    model: TrajectoryDiffusion,
) -> None:
    dataset = data.load("pendulum/medium")
    rows = dataset.transitions
    seen = set(model.split(rows)[0].flatten().tolist())
    fitted, held = few_steps.dense(model, dataset)
    first = held[:, 0].tolist()
    assert torch.equal(held, held[:, :1] + torch.arange(4))
    every = [s for a, b in rows.episodes() for s in range(a, b - 3)]
    assert sorted([*fitted[:, 0].tolist(), *first]) == every  # the floor's windows and these
    assert not seen & set(held.flatten().tolist())
    within = [[a <= s and s + 4 <= b for a, b in rows.episodes()].count(True) for s in first]
    assert set(within) == {1}
    length = rows.episodes()[0][1]
    assert len(held) % (length - 3) == 0 and len(held) > 0  # one window at every row
    result = few_steps.windows_at(model, dataset, held[:1])[0]
    raw = model.tokens.raw(rows)[first[0] : first[0] + 4]
    expected = (raw - model.tokens.normaliser.mean) / model.tokens.normaliser.std
    assert torch.allclose(result, expected, atol=1e-5)


def test_the_ends_of_intervals_are_those_of_a_loop(quality: Quality) -> None:
    generator = np.random.default_rng(1)

    def made() -> tuple[MethodQuality, np.ndarray]:
        x = generator.normal(size=(12, few_steps.DIRECTIONS))
        order, gaps = few_steps.merged(x, quality.held)
        sums, counts = generator.random(12), generator.integers(1, 4, 12)
        return MethodQuality(sums, counts, order, gaps, float(generator.random()), 0.5), x

    (result, x), (base, y) = made(), made()
    errors, slices = [], []
    draw = np.random.default_rng(0)
    samples = [draw.integers(12, size=12) for _ in range(few_steps.DRAWS)]
    for rows, held in zip(samples, quality.drawn_held, strict=True):
        quotient = result.sums[rows].sum() / result.counts[rows].sum()
        errors.append(quotient / (base.sums[rows].sum() / base.counts[rows].sum()))
        some = range(0, few_steps.DIRECTIONS)
        distances = [
            np.mean(
                [
                    stats.wasserstein_distance(z[rows, k], quality.held[:, k], None, held)
                    for k in some
                ]
            )
            for z in (x, y)
        ]
        slices.append(distances[0] / distances[1])
    error, distance = result.error / base.error, result.slice / base.slice
    expected = 2 * error - np.quantile(errors, 0.025), 2 * distance - np.quantile(slices, 0.025)
    both = quality.resampled(result), quality.resampled(base)
    own = (result.error, result.slice)
    assert few_steps.tops(own, both[0], base, both[1]) == pytest.approx(expected)
    assert few_steps.tops((base.error, base.slice), both[1], base, both[1]) == (1.0, 1.0)


def test_held_out_windows_are_drawn_by_episodes(
    quality: Quality, model: TrajectoryDiffusion
) -> None:
    """Windows of one episode are in a bootstrap sample equally often, those of two are not."""
    dataset = data.load("pendulum/medium")
    index = few_steps.dense(model, dataset)[1]
    some = torch.randperm(len(index), generator=torch.Generator().manual_seed(0))[:12]
    length = dataset.transitions.episodes()[0][1]  # all are as long
    episode = [int(s) // length for s in index[some, 0]]
    assert quality.drawn_held.shape == (few_steps.DRAWS, 12) and len(set(episode)) < 12
    for a, b in itertools.combinations(range(12), 2):
        alike = bool((quality.drawn_held[:, a] == quality.drawn_held[:, b]).all())
        assert alike == (episode[a] == episode[b])


def test_the_floor_is_the_distance_of_training_windows(
    quality: Quality, model: TrajectoryDiffusion
) -> None:
    dataset = data.load("pendulum/medium")
    windows = few_steps.windows_at(model, dataset, model.split(dataset.transitions)[0])[:12]
    along = (windows.flatten(1) @ quality.directions).numpy()
    lines = [
        stats.wasserstein_distance(along[:, k], quality.held[:, k])
        for k in range(few_steps.DIRECTIONS)
    ]
    assert quality.floor(windows) == pytest.approx(np.mean(lines), rel=1e-4)


def test_a_searched_plan_is_no_worse_than_ddim_on_its_noise(model: TrajectoryDiffusion) -> None:
    result = few_steps.searched(model, 3, 1, torch.Generator().manual_seed(0))
    assert isinstance(result.plan, Plan) and len(result.plan.choices) == 3
    shape = (few_steps.BATCH, 4, 6)
    x = 80.0 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    ends = Heun()(model.denoise, x, edm_levels(64), torch.Generator())
    errors = [
        float((sampler(model.denoise, x, sigmas, torch.Generator()) - ends).square().mean())
        for sampler, sigmas in ((result.plan, result.sigmas), (DDIM(), edm_levels(3)))
    ]
    assert errors[0] <= errors[1]


def test_a_tiny_measurement(tmp_path: Path) -> None:
    result = few_steps.measure(TINY, 0, tmp_path)
    record = {"values": result.values, "curves": result.curves}
    names = few_steps.names(record)
    plain = [*(name for name in SAMPLERS if name != "euler"), "time_shift"]
    assert names[: len(plain)] == plain
    fitted = ["searched plan", "consistency", "SCott", "MMD fine-tuned"]
    assert names[len(plain) :] == [*fitted, few_steps.AGAIN]
    assert result.curves[f"{few_steps.AGAIN}/evaluations"] == [11.0]
    assert result.curves[f"{few_steps.AGAIN}/error"][0] != result.values["error"]
    for name in names:
        lengths = {len(result.curves[f"{name}/{m}"]) for m in ("evaluations", *few_steps.MEASURED)}
        assert len(lengths) == 1
    assert result.curves["heun/evaluations"] == [1.0, 5.0]
    assert result.curves["SCott/evaluations"] == [1.0, 2.0]
    # The preset here is Heun's method with 3 steps on EDM's levels, as in the curve.
    quotient = result.curves["heun/error"][1] / result.values["error"]
    assert result.values["default_error"] == pytest.approx(quotient, rel=1e-3)
    assert result.values["floor"] == pytest.approx(floor_of_every_row(tmp_path), rel=1e-4)
    files = few_steps.draw({"pendulum, ten times": [record, record]}, tmp_path, "-1")
    assert [f.name for f in files] == ["few-steps-error-1.png", "few-steps-slice-1.png"]
    assert all(f.exists() and f.with_suffix(".csv").exists() for f in files)
    with files[0].with_suffix(".csv").open() as lines:
        panels = {line["panel"] for line in csv.DictReader(lines)}
    assert panels == {f"pendulum ten times: {f}" for f in ("one step", "multistep", "learned")}


def floor_of_every_row(folder: Path) -> float:
    """Of windows that begin at any row of the episodes which the tiny fit was on."""
    model = prerequisites.generator_of_windows(TINY, 0, folder / "model")
    dataset = data.load("pendulum/medium")
    rows = dataset.transitions
    held = set(few_steps.dense(model, dataset)[1][:, 0].tolist())
    every = [s for a, b in rows.episodes() for s in range(a, b - 3) if s not in held]
    windows = few_steps.windows_at(model, dataset, torch.tensor(every)[:, None] + torch.arange(4))
    return Quality(TINY, dataset, model, 0).floor(windows)


def curves(tops: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """A record whose samplers have these upper ends at 5, 10, 20 evaluations."""
    result: dict[str, list[float]] = {}
    for name, pairs in tops.items():
        result[f"{name}/evaluations"] = [5.0, 10.0, 20.0][: len(pairs)]
        for m, column in zip(("error_top", "slice_top"), zip(*pairs, strict=True), strict=True):
            result[f"{name}/{m}"] = list(column)
        result[f"{name}/error"] = [1.0] * len(pairs)
    return {"curves": result}


def test_the_default_is_the_cheapest_that_is_equal_everywhere() -> None:
    good, bad = (1.04, 1.0), (1.0, 1.06)
    tops = [
        {"deis_2": [bad, good, good], "ddim": [bad, bad, good], "SCott": [good]},
        {"deis_2": [bad, good, good], "ddim": [bad, bad, good], "SCott": [good]},
        {"deis_2": [bad, bad, good], "ddim": [good, bad, good], "SCott": [good]},
    ]
    one, two, three = (curves(t) for t in tops)
    rows = (plan.Row("a"), plan.Row("b"))
    column = plan.Column("error")
    block = plan.Block("", rows, (column,), (0, 1), "few_steps")
    entries = {
        ("a", "error"): summary.Entry(records=[one, two]),
        ("b", "error"): summary.Entry(records=[three, three]),
    }
    table = plan.Plan("x", "x", (block,))
    result = summary.Summary(table, (summary.BlockSummary(block, entries),))
    assert conclusions.few_steps(result) == [
        "deis_2, least evaluations at equal quality: 10 (a), 20 (b).",
        "ddim, least evaluations at equal quality: 20 (a), 5 (b).",
        "SCott, least evaluations at equal quality: 5 (a), 5 (b).",
        "Of equal quality everywhere with the fewest evaluations: SCott with 5.",
        "Of those that a configuration names, the default: ddim with 20.",
    ]
    none = curves({"deis_2": [bad]})
    entries = {(label, "error"): summary.Entry(records=[none, none]) for label in "ab"}
    result = summary.Summary(table, (summary.BlockSummary(block, entries),))
    assert conclusions.few_steps(result)[-1].endswith("the default: none.")
    entries["b", "error"] = summary.Entry(records=[none])  # a seed is missing
    result = summary.Summary(table, (summary.BlockSummary(block, entries),))
    assert conclusions.few_steps(result) == []


@pytest.mark.parametrize(
    "settings", [{"windows": 1}, {"reference": 0}, {"evaluations": [0]}, {"distilled": [-1]}]
)
def test_impossible_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        few_steps.measure(few_steps.DEFAULTS | settings, 0, tmp_path)


def test_each_sampler_is_asked_for_what_it_is_meant_to_use(model: TrajectoryDiffusion) -> None:
    settings = few_steps.DEFAULTS
    windows = torch.randn(20, 4, 6, generator=torch.Generator().manual_seed(0)) * 2.0
    plain = itertools.islice(
        few_steps.methods(settings, windows, model, 0),
        (len(few_steps.PLAIN) + 1) * len(settings["evaluations"]),
    )
    for method in plain:
        if method.name == "time_shift":
            assert isinstance(method.sampler, TimeShift)
            variance = float(np.mean([np.var(w.flatten().numpy()) for w in windows]))
            assert method.sampler.data_variance == pytest.approx(variance, rel=1e-5)
        steps = len(method.sigmas) - 1
        assert method.sampler.evaluations(steps) == method.evaluations
        assert method.sigmas == edm_levels(steps)
        assert any(abs(method.evaluations - n) <= 1 for n in settings["evaluations"])


def test_both_teachers_have_as_many_evaluations(
    model: TrajectoryDiffusion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between neighbouring levels; counted on the denoiser that is distilled."""
    counts = []

    def distil(denoise, network, windows, config, generator):
        calls = []

        def counted(x, sigma):
            calls.append(sigma)
            return denoise(x, sigma)

        x = torch.randn(1, 4, model.tokens.size, generator=torch.Generator().manual_seed(0))
        teacher_step(counted, x, 1.0, 0.5, config, generator)
        counts.append(len(calls))
        return network

    monkeypatch.setattr(few_steps, "distil", distil)
    windows = torch.zeros(1, 4, model.tokens.size)
    settings = few_steps.DEFAULTS | {"distillation": 1}
    list(few_steps.students(settings, model, windows, torch.Generator().manual_seed(0)))
    assert counts == [2, 2]
