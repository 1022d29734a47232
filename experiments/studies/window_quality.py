"""Generated windows against imagined rollouts: their errors under the task's dynamics and their
likelihood under the target policy (claims P1, P2, P3 and P5 of policy-guided diffusion, arXiv
2404.06356)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.reports import figures
from experiments.runs import model_fits as fits
from experiments.runs.study import place
from experiments.settings import preset_config
from experiments.studies import Outcome, prerequisites
from experiments.studies.penalty_calibration import CIRCLES, on_circles
from mbrl import config as configs
from mbrl import data, tasks
from mbrl.config import Count, Several
from mbrl.errors import ConfigError, unknown_name
from mbrl.tasks.base import Task
from mbrl.training import is_stateful
from mbrl.types import Dataset, Trajectories
from world_models import (
    EnsembleConfig,
    EnsembleDynamics,
    PolicyGuidance,
    RolloutConfig,
    rollout,
)
from world_models.guidance import window_log_prob

VERSION = 1
DEFAULTS: dict[str, Any] = prerequisites.DEFAULTS | {
    "data": "swingup/medium-replay",
    "algorithm": "td3_bc",  # the target policy
    "source": "diffusion",  # or ensemble
    "length": 32,  # observations of a window
    "model": {},  # settings over those of the source's preset
    "windows": 1000,  # of each weight
}
WEIGHTS = {"diffusion": (0.0, 0.25, 0.5, 1.0, 2.0, 4.0), "ensemble": (0.0, 0.25, 0.5, 0.75, 1.0)}
HEADLINE = 1.0  # the weight whose numbers are the values


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train the target policy and a clone of the data's, fit the source, and make windows at each
    weight: lambda of the guidance, or the share of the target policy's action in what a rollout
    does (the rest is the clone's).

    `log_prob` is the mean over steps of log N(a; pi(s), 1) of the target policy, `behaviour` that
    of the clone, actions in [-1, 1]. Errors are mean squares in standard deviations of the data's
    observations: `one_step` of every next observation given the generated step before it, `open`
    of the observations given only the first one and the actions. `possible` is the share of steps
    at states that the task has (angles put on their circles).
    """
    check(settings)
    dataset = data.load(settings["data"])
    task = tasks.make_for(dataset.spec)
    policy, clone = (
        prerequisites.agent(s, prerequisites.config(s), seed, place(folder, name)).policy
        for name, s in trainings(settings).items()
    )
    make = source(settings, dataset, policy, clone, seed, place(folder, "model"))
    scale = dataset.transitions.obs.std(0, correction=0).clamp_min(1e-6)
    curves: dict[str, list[float]] = {"weight": list(WEIGHTS[settings["source"]])}
    by_step: dict[str, list[float]] = {}
    for weight in curves["weight"]:
        trajectories = make(weight, torch.Generator().manual_seed(seed))
        numbers, along = quality(trajectories, task, scale, policy, clone)
        for name, value in numbers.items():
            curves.setdefault(name, []).append(rounded(value))
        if weight == HEADLINE:
            by_step = {name: [rounded(v) for v in values] for name, values in along.items()}
    at = curves["weight"].index(HEADLINE)
    values = {name: column[at] for name, column in curves.items() if name != "weight"}
    return Outcome(values, curves | by_step)


def needs(settings: dict[str, Any], seed: int, home: Path) -> dict[str, Path]:
    check(settings)
    shared = {
        name: prerequisites.shared_run(s, prerequisites.config(s), seed, home)
        for name, s in trainings(settings).items()
    }
    diffusion = settings["source"] == "diffusion"
    config = prerequisites.windows_config(settings) if diffusion else ensemble_config(settings)
    return shared | {"model": prerequisites.shared_fit(settings, config, seed, home)}


def trainings(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The target policy's training, and the clone's of the data's."""
    return {"run": settings, "clone": settings | {"algorithm": "bc", "config": {}}}


def ensemble_config(settings: dict[str, Any]) -> EnsembleConfig:
    """MBPO's preset with the study's `model` over it."""
    base = preset_config("mbpo", settings["data"]).model
    return configs.from_dict(EnsembleConfig, configs.to_dict(base) | settings["model"])


def check(settings: dict[str, Any]) -> None:
    """Raise `ConfigError` for impossible settings."""
    if settings["source"] not in WEIGHTS:
        raise unknown_name("source", settings["source"], WEIGHTS)
    configs.check(settings, {"length": Several, "windows": Count})


def rounded(value: float) -> float:
    return float(f"{float(value):.4g}")


Make = Callable[[float, torch.Generator], Trajectories]


def source(
    settings: dict[str, Any],
    dataset: Dataset,
    policy: Any,
    clone: Any,
    seed: int,
    folder: Path,
) -> Make:
    """The fitted generator or ensemble as a function from weight to windows."""
    diffusion = settings["source"] == "diffusion"
    if not diffusion and is_stateful(policy):
        raise ConfigError(
            f"{settings['algorithm']} has a memory, which a mixture with a clone has not; choose "
            "an algorithm without one for the ensemble"
        )
    count = settings["windows"]
    if diffusion:
        generator_of_windows = prerequisites.generator_of_windows(settings, seed, folder)

        def guided(weight: float, generator: torch.Generator) -> Trajectories:
            guidance = PolicyGuidance(policy, weight)
            return steps_of(generator_of_windows.sample(count, generator, guidance=guidance))

        return guided
    config = ensemble_config(settings)
    fits.ensure(fits.FitSettings(settings["data"], seed), config, folder)
    fits.ModelFit(folder).finish()
    rule = tasks.make_for(dataset.spec).terminates
    model = EnsembleDynamics(dataset.spec, config, termination=rule, seed=seed)
    model.load_state_dict(fits.load(folder))
    obs = dataset.transitions.obs

    def rolled(weight: float, generator: torch.Generator) -> Trajectories:
        starts = obs[torch.randint(len(obs), (count,), generator=generator)]

        def act(at: Tensor, generator: torch.Generator) -> Tensor:
            action: Tensor = weight * policy(at) + (1.0 - weight) * clone(at)
            return action

        steps = RolloutConfig(horizon=settings["length"] - 1)
        return rollout(model, act, starts, steps, generator)

    return rolled


def steps_of(trajectories: Trajectories) -> Trajectories:
    """Generated windows [B, L, ...] without their last token, which has no next observation even
    where it ends the task: the steps [B, L - 1, ...] that a model's rollout has too."""
    return trajectories.map(lambda value: value[:, :-1])


@torch.no_grad()
def quality(
    trajectories: Trajectories, task: Task, scale: Tensor, policy: Any, clone: Any
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The numbers of `measure`, and both errors at every step."""
    one, mask, state = one_step(trajectories, task, scale)
    opened = open_loop(trajectories, task, state[:, 0], scale)
    opened = torch.where(trajectories.mask & mask[:, :1], opened, torch.nan)
    unit = policy.scale.to_unit(trajectories.action)
    obs, reward, alive = trajectories.obs, trajectories.reward, trajectories.mask
    names = {
        "log_prob": window_log_prob(policy, obs, unit, reward)[alive].mean(),
        "behaviour": window_log_prob(clone, obs, unit, reward)[alive].mean(),
        "one_step": one[mask].mean(),
        "open": opened.nanmean(),
        "possible": mask.sum() / alive.sum().clamp_min(1),
        "reward": reward[alive].mean(),
    }
    along = {
        "step": [float(t + 1) for t in range(mask.shape[1])],
        "one_step_at": torch.where(mask, one, torch.nan).nanmean(0).tolist(),
        "open_at": opened.nanmean(0).tolist(),
    }
    return {name: float(value) for name, value in names.items()}, along


def one_step(
    trajectories: Trajectories, task: Task, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean square error [B, T] of every next observation when the task takes the step from the
    generated one before it, where that is so (bool [B, T]: steps at states that the task has,
    angles put on their circles), and these states [B, T, ...]."""
    count, length = trajectories.mask.shape
    obs = on_circles(trajectories.obs.flatten(0, 1), CIRCLES.get(task.spec.task, ()))
    action = trajectories.action.flatten(0, 1)
    state, valid = task.state_from_obs(obs)
    mask = trajectories.mask & valid.view(count, length)
    rows = mask.flatten()
    after = torch.zeros_like(obs)
    after[rows] = task.step(state[rows], action[rows]).obs.to(obs.dtype)
    error = (
        ((trajectories.next_obs - after.view_as(trajectories.next_obs)) / scale).square().mean(-1)
    )
    return error, mask, state.view(count, length, -1)


def open_loop(trajectories: Trajectories, task: Task, state: Tensor, scale: Tensor) -> Tensor:
    """Mean square error [B, T] of the next observations when the task is led from its state at the
    first observation by the actions alone."""
    errors = []
    for t in range(trajectories.mask.shape[1]):
        step = task.step(state, trajectories.action[:, t])
        state = step.state
        errors.append(((trajectories.next_obs[:, t] - step.obs) / scale).square().mean(-1))
    return torch.stack(errors, 1)


def at_equal_likelihood(a: dict[str, Any], b: dict[str, Any], name: str) -> float:
    """Mean of log10 a / b of the error `name` of two records' curves, over the log-likelihoods of
    the target policy that both reach, between whose points the logs are led straight; NaN where
    they reach none in common."""
    lines = [_by_likelihood(record, name) for record in (a, b)]
    low, high = (f(g(x) for x, _ in lines) for f, g in ((max, np.min), (min, np.max)))
    if not low < high:
        return float("nan")
    grid = np.linspace(low, high, 101)
    first, second = (np.interp(grid, x, y) for x, y in lines)
    return float((first - second).mean())


def at_nearest_likelihood(a: dict[str, Any], b: dict[str, Any], name: str) -> float:
    """log10 a / b at the ends that lie nearest to each other, for records that reach no likelihood
    in common; NaN for those that do."""
    (x, first), (z, second) = (_by_likelihood(record, name) for record in (a, b))
    if x[-1] <= z[0]:
        return float(first[-1] - second[0])
    return float(first[0] - second[-1]) if z[-1] <= x[0] else float("nan")


def _by_likelihood(record: dict[str, Any], name: str) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.array(record["curves"]["log_prob"]), np.array(_log_of(name)(record))
    order = np.argsort(x)
    return x[order], y[order]


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Errors against the target policy's likelihood, and along the steps of a window; and the
    clone's likelihood and the one-step error against the weight."""
    files = []
    weight = figures.column("weight")
    panels = figures.by_label(rows, weight, figures.column("behaviour"))
    files.append(folder / f"windows-behaviour-weight{suffix}.png")
    figures.curves(panels, "weight or share", "log-likelihood of the clone", files[-1])
    panels = figures.by_label(rows, weight, _log_of("one_step"))
    files.append(folder / f"windows-error-weight{suffix}.png")
    figures.curves(panels, "weight or share", "log10 of one-step error", files[-1])
    for name, title in (("one_step", "one-step error"), ("open", "open-loop error")):
        panels = figures.by_label(rows, figures.column("log_prob"), _log_of(name))
        files.append(folder / f"windows-{name}{suffix}.png")
        figures.curves(panels, "log-likelihood of the policy", f"log10 of {title}", files[-1])
    for name, title in (("one_step_at", "one-step error"), ("open_at", "open-loop error")):
        panels = figures.by_label(rows, figures.column("step"), _log_of(name))
        files.append(folder / f"windows-{name.replace('_', '-')}{suffix}.png")
        figures.curves(panels, "step", f"log10 of {title}", files[-1])
    return files


def _log_of(name: str) -> Callable[[dict[str, Any]], list[float]]:
    def values_of(record: dict[str, Any]) -> list[float]:
        values = torch.tensor(record["curves"][name], dtype=torch.double)
        logs: list[float] = values.clamp_min(1e-12).log10().tolist()
        return logs

    return values_of
