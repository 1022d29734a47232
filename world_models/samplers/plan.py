"""Unified sampling: every step has its own level, order and extrapolation, and the schedule of them
is searched for."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mbrl.config import Count, NonNegative, Probability, Range, Settings
from mbrl.errors import ConfigError
from mbrl.native.adam import Adam
from mbrl.networks import MLP
from world_models.samplers.base import Denoiser, Marching, Step, at, edm_levels
from world_models.samplers.exponential import Prediction, Variable, multistep

HIGHEST = 4  # order of a step


@dataclass(frozen=True)
class Choice(Settings):
    """How one step is made."""

    # evaluations it looks at; fewer where there are not so many yet
    order: Annotated[int, Range(int, f"[1, {HIGHEST}]")] = 1
    prediction: Prediction = "data"  # what is extrapolated
    variable: Variable = "lambda"  # what the polynomial is in


@dataclass(frozen=True)
class Plan(Marching):
    """A multistep sampler with a choice for each step (A Unified Sampling Framework for Solver
    Searching of Diffusion Probabilistic Models, arXiv 2312.07243). DDIM, DEIS and DPM-Solver++ of
    any order are plans whose choices are all alike."""

    choices: tuple[Choice, ...]

    def stepper(
        self, denoise: Denoiser, sigmas: Sequence[float], generator: torch.Generator
    ) -> Step:
        if len(sigmas) - 1 != len(self.choices):
            raise ConfigError(
                f"the plan has {len(self.choices)} steps, the levels have {len(sigmas) - 1}"
            )
        past: deque[tuple[float, Tensor, Tensor]] = deque(maxlen=HIGHEST)

        def step(x: Tensor, n: int, now: float, then: float) -> Tensor:
            past.appendleft((now, x, denoise(x, at(x, now))))
            choice = self.choices[n]
            seen = list(past)[: choice.order]
            return multistep(x, seen, then, choice.prediction, choice.variable)

        return step


def uniform_plan(steps: int, choice: Choice) -> Plan:
    return Plan((choice,) * steps)


class Schedule(NamedTuple):
    """A sampler together with its levels."""

    plan: Plan
    sigmas: tuple[float, ...]


class Found(NamedTuple):
    schedule: Schedule
    value: float
    tried: list[tuple[Schedule, float]]  # all that were measured, in order


Measure = Callable[[Schedule], float]  # smaller is better


@dataclass(frozen=True)
class SearchConfig(Settings):
    """Settings of the search S^3 (arXiv 2312.07243)."""

    rounds: Count = 4  # of measuring, fitting and breeding
    population: Count = 24  # schedules measured a round
    offspring: Count = 400  # candidates that the predictor ranks a round
    parents: Count = 8  # best ones that candidates come from
    mutation: Probability = 0.25  # chance that a step's choice is drawn anew
    jitter: NonNegative = 0.3  # deviation of log levels, in units of the mean log step
    fit_steps: Count = 200  # of the predictor a round


def search(
    measure: Measure,
    steps: int,
    generator: torch.Generator,
    config: SearchConfig | None = None,
    *,
    sigma_max: float = 80.0,
    sigma_min: float = 0.002,
) -> Found:
    """The best schedule of `steps` evaluations that an evolution finds whose candidates are ranked
    by a predictor of `measure`, learned from those measured so far.

    The plain methods on EDM's levels are among the first measured, so what is found is never worse
    than they are by this measure. Measure on other noise than it is chosen on. A measure that is
    NaN, as where samples are infinite, counts as infinite.
    """
    config = config or SearchConfig()
    levels = tuple(edm_levels(steps, sigma_max=sigma_max, sigma_min=sigma_min))
    waiting = [Schedule(uniform_plan(steps, choice), levels) for choice in known_methods()]
    waiting += [
        mutated(waiting[0], replace(config, mutation=1.0), generator)
        for _ in range(config.population - len(waiting))
    ]
    tried: list[tuple[Schedule, float]] = []
    for _ in range(config.rounds):
        values = [measure(schedule) for schedule in waiting]
        tried += zip(waiting, [math.inf if math.isnan(v) else v for v in values], strict=True)
        tried_before = {schedule for schedule, _ in tried}
        ranked = sorted(tried, key=lambda pair: pair[1])
        predictor = fit_predictor(tried, config, generator)
        bred = [
            _child([s for s, _ in ranked[: config.parents]], config, generator)
            for _ in range(config.offspring)
        ]
        fresh = [s for s in dict.fromkeys(bred) if s not in tried_before]
        if not fresh:
            break
        guessed = predictor(torch.stack([encoded(s) for s in fresh]))[:, 0]
        waiting = [fresh[i] for i in guessed.argsort()[: config.population].tolist()]
    schedule, value = min(tried, key=lambda pair: pair[1])
    return Found(schedule, value, tried)


def known_methods() -> list[Choice]:
    """DDIM, then DEIS and DPM-Solver++ of orders 2 to 4."""
    choices = [Choice()]
    for order in range(2, HIGHEST + 1):
        choices += [Choice(order, "noise", "rho"), Choice(order, "data", "lambda")]
    return choices


def encoded(schedule: Schedule) -> Tensor:
    """Features of a schedule for the predictor: log levels and the choices one-hot."""
    numbers = [float(np.log(s)) for s in schedule.sigmas[1:-1]]
    for choice in schedule.plan.choices:
        numbers += [float(choice.order == o) for o in range(1, HIGHEST + 1)]
        numbers += [float(choice.prediction == p) for p in get_args(Prediction)]
        numbers += [float(choice.variable == v) for v in get_args(Variable)]
    return torch.tensor(numbers)


def fit_predictor(
    tried: Sequence[tuple[Schedule, float]], config: SearchConfig, generator: torch.Generator
) -> MLP:
    """A network [N, F] to [N, 1] that puts schedules in order: hinge loss over all pairs, as the
    paper has it, so that only ranks matter."""
    x = torch.stack([encoded(s) for s, _ in tried])
    value = torch.tensor([v for _, v in tried])
    worse = value[:, None] > value[None, :]
    network = MLP(x.shape[1], (64, 64), 1, generator=generator)
    optimiser = Adam(network.parameters(), lr=3e-3)
    for _ in range(config.fit_steps):
        guess = network(x)[:, 0]
        loss = (F.relu(1.0 - (guess[:, None] - guess[None, :])) * worse).sum() / worse.sum().clamp(
            min=1
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network.requires_grad_(False)


def _child(
    parents: Sequence[Schedule], config: SearchConfig, generator: torch.Generator
) -> Schedule:
    """Each step from one of two parents, then mutated."""
    steps = len(parents[0].plan.choices)
    first, second = (parents[_draw(len(parents), generator)] for _ in range(2))
    cut = _draw(steps + 1, generator)
    choices = first.plan.choices[:cut] + second.plan.choices[cut:]
    sigmas = first.sigmas if _draw(2, generator) else second.sigmas
    return mutated(Schedule(Plan(choices), sigmas), config, generator)


def mutated(schedule: Schedule, config: SearchConfig, generator: torch.Generator) -> Schedule:
    """Some choices drawn anew, and levels moved without changing their order; the first and the
    last two stay."""
    draws = torch.rand(len(schedule.plan.choices), generator=generator)
    choices = tuple(
        _random_choice(generator) if p < config.mutation else choice
        for choice, p in zip(schedule.plan.choices, draws.tolist(), strict=True)
    )
    logs = torch.tensor(schedule.sigmas[:-1], dtype=torch.double).log()
    if len(logs) > 2:
        noise = torch.randn(len(logs) - 2, generator=generator, dtype=torch.double)
        step = (logs[0] - logs[-1]) / (len(logs) - 1)
        moved = logs[1:-1] + config.jitter * step * noise
        low, high = float(logs[-1] + 0.01 * step), float(logs[0] - 0.01 * step)
        ordered = moved.clamp(low, high).sort(descending=True).values
        if bool((ordered.diff() < 0).all()):
            logs[1:-1] = ordered
    levels = (schedule.sigmas[0], *logs[1:-1].exp().tolist(), *schedule.sigmas[-2:])
    return Schedule(Plan(choices), levels if len(logs) > 2 else schedule.sigmas)


def _random_choice(generator: torch.Generator) -> Choice:
    order = 1 + _draw(HIGHEST, generator)
    prediction = get_args(Prediction)[_draw(len(get_args(Prediction)), generator)]
    return Choice(order, prediction, get_args(Variable)[_draw(len(get_args(Variable)), generator)])


def _draw(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(count, (1,), generator=generator))
