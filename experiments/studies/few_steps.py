"""Samplers of windows against the number of network evaluations: how well few steps obey the task's
dynamics and how near they come to held-out windows, beside 256 steps of Heun's method."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.reports import figures
from experiments.studies import Outcome, prerequisites
from experiments.studies.window_quality import one_step, rounded, steps_of
from mbrl import config as configs
from mbrl import data, tasks
from mbrl.config import Count, Several
from mbrl.errors import ConfigError
from mbrl.precision import has_tiles, matmul_precision
from mbrl.types import Dataset
from world_models import TrajectoryDiffusion
from world_models.denoisers import TemporalUNet
from world_models.samplers import (
    DDIM,
    DEIS,
    SAMPLERS,
    Consistency,
    Denoiser,
    DistillationConfig,
    DPMSolverPP,
    Heun,
    Sampler,
    Schedule,
    SearchConfig,
    TimeShift,
    consistency_function,
    distil,
    edm_levels,
    finetune_by_mmd,
    radial_kernel,
    search,
)
from world_models.trajectory_diffusion import AT_ONCE, precondition

VERSION = 1
DEFAULTS: dict[str, Any] = {
    # Episodes of one policy: those of a replay differ so much that the few which are held out are
    # far from the others' distribution, and a distance to them hardly tells samples from noise.
    "data": "swingup/medium",
    "length": 32,  # observations of a window
    "model": {"holdout_fraction": 0.4},  # settings over those of PGD's preset
    "windows": 1000,  # of each sampler; as many held-out ones at most
    "reference": 256,  # steps of Heun's method
    "evaluations": [5, 10, 20, 40, 80],  # of the network, for samplers of many steps
    "searched": [5, 10, 20],  # evaluations for which a schedule is searched
    "distilled": [1, 2, 4],  # and of the students
    "finetuned": [5],  # and of the chains that are fine-tuned
    "bfloat16": [],  # and of the preset's sampler with a network in bfloat16
    "rounds": 4,  # of the search for a schedule
    "distillation": 2000,  # updates of a student
    "finetuning": 200,  # and of a chain
}
RANGES = (
    {"windows": Several}
    | dict.fromkeys(("reference", "rounds", "distillation", "finetuning"), Count)
    | dict.fromkeys(
        ("evaluations", "searched", "distilled", "finetuned", "bfloat16"), tuple[Count, ...]
    )
)
# By the name that a configuration gives; Euler's method, DEIS of degree 0 and DPM-Solver++ of order
# 1 are DDIM.
PLAIN: dict[str, Sampler] = {name: build() for name, build in SAMPLERS.items() if name != "euler"}
MEASURED = ("error", "slice", "error_top", "slice_top")
AGAIN = "heun with other noise"
DIRECTIONS = 64  # of the sliced distance
DRAWS = 200  # bootstrap samples
BATCH = 64  # windows of an update, and of a measurement in the search
WITHIN = 1.05  # equal quality: upper ends of both intervals of the quotient at most this


class Method(NamedTuple):
    """A sampler at a number of steps, with the network that it is for."""

    name: str
    evaluations: int
    denoise: Denoiser
    sampler: Sampler
    sigmas: Sequence[float]
    start: int = 0  # which noise it begins with; methods of one number are compared in pairs


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """For every sampler, at each number of network evaluations: `error`, the mean square one-step
    error of windows in deviations of the data's observations; `slice`, their sliced Wasserstein
    distance to held-out windows; and the upper ends of the 95 % bootstrap intervals, over windows,
    of both divided by those of the reference (`error_top`, `slice_top`).

    Curves are called `NAME/evaluations` and so on. "heun with other noise" is the reference begun
    anew, which is how near to 1 the quotients of a perfect sampler can come that does not follow
    the same paths. The values are the reference's numbers (`error`, `slice`), the distance of as
    many training windows to the held-out ones (`floor`), and the numbers of PGD's preset over the
    reference's (`default_error`, `default_slice`).
    """
    configs.check(settings, RANGES)
    dataset = data.load(settings["data"])
    model = prerequisites.generator_of_windows(settings, seed, folder / "model")
    quality = Quality(settings, dataset, model, seed)
    steps = settings["reference"]
    reference = Method("", 2 * steps - 1, model.denoise, Heun(), edm_levels(steps))
    base = quality.of(reference)
    drawn = quality.resampled(base)
    windows = windows_at(model, dataset, model.split(dataset.transitions)[0])
    again = reference._replace(name=AGAIN, start=1)
    curves: dict[str, list[float]] = {}
    for method in (*methods(settings, windows, model, seed), again):
        measured = quality.of(method)
        ends = tops((measured.error, measured.slice), quality.resampled(measured), base, drawn)
        numbers = (measured.error, measured.slice, *ends)
        curves.setdefault(f"{method.name}/evaluations", []).append(float(method.evaluations))
        for name, value in zip(MEASURED, numbers, strict=True):
            curves.setdefault(f"{method.name}/{name}", []).append(rounded(value))
    default = quality.of(preset_method(model))
    values = {
        "error": base.error,
        "slice": base.slice,
        "floor": quality.floor(windows_at(model, dataset, dense(model, dataset)[0])),
        "default_error": default.error / base.error,
        "default_slice": default.slice / base.slice,
    }
    return Outcome({name: rounded(value) for name, value in values.items()}, curves)


def preset_method(model: TrajectoryDiffusion) -> Method:
    """What the model samples with by default."""
    sampler, sigmas = SAMPLERS[model.config.sampler](), model.config.sigmas
    return Method("", sampler.evaluations(len(sigmas) - 1), model.denoise, sampler, sigmas)


# The samplers.


def methods(
    settings: dict[str, Any], windows: Tensor, model: TrajectoryDiffusion, seed: int
) -> Iterator[Method]:
    """Every sampler at each of its numbers of evaluations; `windows` [N, L, F] are those that the
    model was fitted on."""
    own = float(windows.flatten(1).var(1, correction=0).mean())
    for name, sampler in {**PLAIN, "time_shift": TimeShift(data_variance=own)}.items():
        each = sampler.evaluations(2) - sampler.evaluations(1)
        for count in settings["evaluations"]:
            steps = (count + each - 1) // each
            used = sampler.evaluations(steps)
            yield Method(name, used, model.denoise, sampler, edm_levels(steps))
    for count in settings["bfloat16"]:
        sampler, network = SAMPLERS[model.config.sampler](), in_bfloat16(model)
        yield Method("bfloat16", count, network, sampler, edm_levels(count))
    generator = torch.Generator().manual_seed(seed + 1)
    for count in settings["searched"]:
        plan, sigmas = searched(model, count, settings["rounds"], generator)
        yield Method("searched plan", count, model.denoise, plan, sigmas)
    for name, student in students(settings, model, windows, generator):
        config = DistillationConfig()
        for count in settings["distilled"]:
            levels = config.schedule()
            some = [levels[(len(levels) - 1) * i // count] for i in range(count)]
            yield Method(name, count, student, Consistency(), [*some, 0.0])
    for count in settings["finetuned"]:
        denoise = finetuned(settings, model, windows, count, generator)
        yield Method("MMD fine-tuned", count, denoise, DDIM(), edm_levels(count))


def in_bfloat16(model: TrajectoryDiffusion) -> Denoiser:
    """The denoiser in medium precision. Raises `ConfigError` where nothing would be rounded."""
    if not isinstance(model.average, TemporalUNet) or not has_tiles():
        raise ConfigError(
            f"bfloat16 is for the U-Net, model.network is {model.config.network}, and for "
            "processors that multiply it; leave bfloat16 empty"
        )

    def rounded(x: Tensor, sigma: Tensor) -> Tensor:
        with matmul_precision("medium"):
            return model.denoise(x, sigma)

    return rounded


def searched(
    model: TrajectoryDiffusion, count: int, rounds: int, generator: torch.Generator
) -> Schedule:
    """The schedule of `count` evaluations whose ends are nearest to those of 64 steps of Heun's
    method from the same noise."""
    shape = (BATCH, model.config.length, model.tokens.size)
    fine = edm_levels(64)
    x = fine[0] * torch.randn(shape, generator=generator)
    ends = Heun()(model.denoise, x, fine, generator)

    def away(schedule: Schedule) -> float:
        samples = schedule.plan(model.denoise, x, schedule.sigmas, generator)
        return float((samples - ends).square().mean())

    return search(away, count, generator, SearchConfig(rounds=rounds)).schedule


def students(
    settings: dict[str, Any],
    model: TrajectoryDiffusion,
    windows: Tensor,
    generator: torch.Generator,
) -> Iterator[tuple[str, Denoiser]]:
    """Consistency functions of both teachers, learned on `windows` [N, L, F]; two evaluations of
    either between neighbouring levels."""
    begin = copy.deepcopy(model.average).requires_grad_(True)
    plain = DistillationConfig(updates=settings["distillation"], batch_size=BATCH)
    sde = replace(plain, teacher="sde", substeps=2)
    for name, config in (("consistency", plain), ("SCott", sde)):
        network = distil(model.denoise, begin, windows, config, generator)
        yield name, _consistency(network, config.sigma_min)


def _consistency(network: torch.nn.Module, sigma_min: float) -> Denoiser:
    return lambda x, sigma: consistency_function(network, x, sigma, sigma_min)


def finetuned(
    settings: dict[str, Any],
    model: TrajectoryDiffusion,
    windows: Tensor,
    count: int,
    generator: torch.Generator,
) -> Denoiser:
    """A copy of the denoiser whose chain of `count` DDIM steps is tuned on `windows` [N, L, F],
    similar ones being those nearer than the median distance, half or twice of it."""
    network = copy.deepcopy(model.average).requires_grad_(True)

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        return precondition(network, x, sigma)

    median = float(torch.pdist(windows[:200].flatten(1)).median())
    kernel = radial_kernel(*(median * part for part in (0.5, 1.0, 2.0)))
    finetune_by_mmd(
        denoise,
        list(network.parameters()),
        DDIM(),
        edm_levels(count),
        windows,
        kernel,
        generator,
        updates=settings["finetuning"],
        batch_size=BATCH,
    )
    return denoise


# The measures.


class MethodQuality(NamedTuple):
    """Windows' sums of one-step errors [N] and their counts of steps [N], and for each direction
    of the sliced distance the merged order of generated and held-out windows with its gaps."""

    sums: np.ndarray
    counts: np.ndarray
    order: np.ndarray
    gaps: np.ndarray
    error: float
    slice: float


class Quality:
    """Both measures of windows, along fixed directions. Bootstrap samples draw generated
    windows, and whole episodes of the held-out ones."""

    def __init__(
        self, settings: dict[str, Any], dataset: Dataset, model: TrajectoryDiffusion, seed: int
    ) -> None:
        self.count, self.model, self.seed = settings["windows"], model, seed
        self.task = tasks.make_for(dataset.spec)
        self.scale = dataset.transitions.obs.std(0, correction=0).clamp_min(1e-6)
        index = dense(model, dataset)[1]
        held = windows_at(model, dataset, index)
        generator = torch.Generator().manual_seed(seed)
        some = torch.randperm(len(held), generator=generator)[: self.count]
        size = held[0].numel()
        directions = torch.randn(size, DIRECTIONS, generator=generator)
        self.directions = directions / directions.norm(dim=0)
        self.held = (held[some].flatten(1) @ self.directions).double().numpy()
        ends = torch.tensor([end for _, end in dataset.transitions.episodes()])
        episode = torch.searchsorted(ends, index[some, 0], right=True)
        _, group = np.unique(episode.numpy(), return_inverse=True)
        draw = np.random.default_rng(seed)
        self.drawn = _counts(draw, self.count)
        self.drawn_held = _counts(draw, int(group.max()) + 1)[:, group]

    @torch.no_grad()
    def of(self, method: Method) -> MethodQuality:
        """Sample with the method, and measure."""
        generator = torch.Generator().manual_seed(self.seed + 2 + 1_000_003 * method.start)
        shape = (self.count, self.model.config.length, self.model.tokens.size)
        noise = torch.randn(shape, generator=generator)
        parts = [
            method.sampler(method.denoise, method.sigmas[0] * part, method.sigmas, generator)
            for part in noise.split(AT_ONCE)
        ]
        x = torch.cat(parts)
        tokens = self.model.tokens
        error, mask, _ = one_step(steps_of(tokens.trajectories(x)), self.task, self.scale)
        sums = torch.where(mask, error, 0.0).double().sum(1).numpy()
        counts = mask.sum(1).numpy()
        # What never varies in the data is put right in samples, as it is where they are used.
        standard = tokens.normaliser(tokens.restored(x)).flatten(1)
        order, gaps = merged((standard @ self.directions).double().numpy(), self.held)
        distance = self._distance(order, gaps)
        return MethodQuality(sums, counts, order, gaps, float(sums.sum() / counts.sum()), distance)

    def resampled(self, measured: MethodQuality) -> np.ndarray:
        """Both measures [2, R] of bootstrap samples, the same ones each time, for windows of one
        number come from the same noise."""
        error = (self.drawn @ measured.sums) / (self.drawn @ measured.counts)
        distance = sliced(measured.order, measured.gaps, self.drawn, self.drawn_held)
        return np.stack([error, distance])

    def floor(self, windows: Tensor) -> float:
        """The distance of as many of `windows` [N, L, F], drawn at random, to the held-out ones."""
        generator = torch.Generator().manual_seed(self.seed + 3)
        some = windows[torch.randperm(len(windows), generator=generator)[: self.count]]
        along = (some.flatten(1) @ self.directions).double().numpy()
        return self._distance(*merged(along, self.held))

    def _distance(self, order: np.ndarray, gaps: np.ndarray) -> float:
        ones = np.ones((1, len(self.held)))
        return float(sliced(order, gaps, np.ones((1, len(order) - len(self.held))), ones)[0])


def _counts(draw: np.random.Generator, count: int) -> np.ndarray:
    """Counts of `count` items in each bootstrap sample [R, count]."""
    samples = [draw.integers(count, size=count) for _ in range(DRAWS)]
    return np.stack([np.bincount(sample, minlength=count) for sample in samples])


def tops(
    measures: tuple[float, float], drawn: np.ndarray, base: MethodQuality, base_drawn: np.ndarray
) -> tuple[float, float]:
    """Upper ends of the basic 95 % bootstrap intervals of both measures over the base's, from what
    they are (error, distance) and were in bootstrap samples [2, R].

    The basic interval, 2 q - (2.5 % quantile), and not the percentile one: windows that are drawn
    twice add to any distance, to both of a quotient alike, so that quotients of bootstrap samples
    are too near to 1, often with their upper end below the quotient itself.
    """
    low = np.quantile(drawn / base_drawn, 0.025, axis=1)
    error, distance = measures[0] / base.error, measures[1] / base.slice
    return 2.0 * error - float(low[0]), 2.0 * distance - float(low[1])


def dense(model: TrajectoryDiffusion, dataset: Dataset) -> tuple[Tensor, Tensor]:
    """First rows of all windows, one at every row, of the episodes that the fit was on and of those
    that it held out."""
    config = replace(model.config, stride=1)
    fitted, held = TrajectoryDiffusion(model.spec, config, seed=model.seed).split(
        dataset.transitions
    )
    if len(held) == 0:
        raise ConfigError("no window is held out; give the model a larger holdout_fraction")
    return fitted, held


def windows_at(model: TrajectoryDiffusion, dataset: Dataset, index: Tensor) -> Tensor:
    """Standardised windows [N, L, F] of the data with the rows `index` [N, L]."""
    rows: Tensor = model.tokens.normaliser(model.tokens.raw(dataset.transitions))
    return rows[index]


def merged(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of samples x [N, K] and y [M, K], column by column: the order of all, indices [N + M, K] of
    x, then y, and the gaps [N + M - 1, K] from one to the next."""
    both = np.concatenate([x, y])
    order = both.argsort(0)
    return order, np.diff(np.take_along_axis(both, order, 0), axis=0)


def sliced(
    order: np.ndarray, gaps: np.ndarray, weights: np.ndarray, others: np.ndarray
) -> np.ndarray:
    """Sliced Wasserstein-1 distances [R]: the mean over directions of the integral of the absolute
    difference of both distribution functions, x weighted by `weights` [R, N] and y by `others`
    [R, M] (Sliced and Radon Wasserstein Barycenters of Measures, Bonneel et al., 2015)."""
    distances = []
    for row, other in zip(weights, others, strict=True):
        mass = np.concatenate([row / row.sum(), -other / other.sum()])
        difference = np.abs(np.cumsum(mass[order], 0)[:-1])
        distances.append((difference * gaps).sum(0).mean())
    return np.array(distances)


# What is said and drawn of them.


def equal(record: dict[str, Any], name: str) -> dict[int, bool]:
    """Whether a sampler has equal quality, by its number of evaluations."""
    curves = record["curves"]
    tops = zip(curves[f"{name}/error_top"], curves[f"{name}/slice_top"], strict=True)
    good = [error <= WITHIN and distance <= WITHIN for error, distance in tops]
    return dict(zip(map(int, curves[f"{name}/evaluations"]), good, strict=True))


def names(record: dict[str, Any]) -> list[str]:
    """The samplers of a record, in order."""
    return [key.removesuffix("/error") for key in record["curves"] if key.endswith("/error")]


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Both measures over the reference's, against the number of evaluations: for each row a panel
    of methods that look at the present level alone, one of multistep ones, one of what is learned.
    Nothing of rows that have one number of evaluations alone.
    """
    if all(len(record["curves"]["deis/evaluations"]) < 2 for r in rows.values() for record in r):
        return []
    lines = {
        f"{label.replace(', ', ' ')}: {family(name)}, {name}": [
            _part(record, name) for record in records
        ]
        for label, records in rows.items()
        for name in names(records[0])
    }
    files = []
    for measured, title in (("error", "error"), ("slice", "distance")):
        panels = figures.by_label(lines, lambda r: np.log10(r["evaluations"]), _log(measured))
        files.append(folder / f"few-steps-{measured}{suffix}.png")
        figures.curves(panels, "log10 of evaluations", f"log10 of {title} ratio", files[-1])
    return files


def family(name: str) -> str:
    """The panel that a sampler is shown in."""
    if name in ("time_shift", AGAIN):
        return "one step"
    if name not in PLAIN:
        return "learned"
    return "multistep" if isinstance(PLAIN[name], DEIS | DPMSolverPP) else "one step"


def _part(record: dict[str, Any], name: str) -> dict[str, Any]:
    """One sampler's curves, both measures divided by the reference's."""
    curves = record["curves"]
    quotients = {
        m: np.array(curves[f"{name}/{m}"]) / record["values"][m] for m in ("error", "slice")
    }
    return {"evaluations": curves[f"{name}/evaluations"]} | quotients


def _log(name: str) -> Callable[[dict[str, Any]], np.ndarray]:
    def values_of(record: dict[str, Any]) -> np.ndarray:
        logs: np.ndarray = np.log10(record[name])
        return logs

    return values_of
