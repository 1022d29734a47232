"""Searches over linear policies: behaviour policies for Swimmer, Hopper and HalfCheetah in minutes
on one core."""

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from experiments.recording.behaviour import (
    Outcome,
    Report,
    Row,
    Weights,
    bounds,
    concatenated,
    policy_of,
    run_episodes,
    step_limit,
    to_numpy,
)
from mbrl.errors import ConfigError
from mbrl.tasks import Task
from mbrl.types import Transitions


@dataclass(frozen=True)
class Search:
    """A search over linear policies, a clipped matrix times the observation.

    `cross-entropy`: `population` candidates a generation, the `elite` best of which give the next
    mean and spread. `ars`: augmented random search (Mania et al., "Simple random search provides a
    competitive approach to reinforcement learning", https://arxiv.org/abs/1803.07055, V2-t), with
    `population` / 2 directions of which the `elite` best are used, observations normalised, and
    `alive_bonus` taken off every reward. The mean policy after `medium` iterations is the medium
    policy; the best of the mean policies, each judged on 8 episodes every `judge` iterations, is
    the expert.
    """

    method: str
    iterations: int
    medium: int
    population: int
    elite: int
    noise: float
    step: float = 0.0
    alive_bonus: float = 0.0
    judge: int = 1
    seed: int = 0


class Moments:
    """Running mean and standard deviation of observations, for `ars`."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean, self.squares = torch.zeros(size).double(), torch.zeros(size).double()

    def add(self, obs: Tensor) -> None:
        obs = obs.double()
        delta = obs.mean(0) - self.mean
        total = self.count + len(obs)
        self.squares += (obs - obs.mean(0)).square().sum(0)
        self.squares += delta.square() * self.count * len(obs) / total
        self.mean = self.mean + delta * len(obs) / total
        self.count = total

    def weights(self, linear: Tensor) -> Weights:
        """What a weights file holds of `linear` [A, S]."""
        sd = torch.ones_like(self.mean)
        if self.count > 1:
            sd = (self.squares / (self.count - 1)).sqrt().clamp(min=1e-6)
        return {"linear": to_numpy(linear), "mean": to_numpy(self.mean), "sd": to_numpy(sd)}


def search(task: Task, settings: Search, report: Report) -> Outcome:
    """Run a search; `report` is called with the number of each iteration."""
    if settings.method not in ("cross-entropy", "ars"):
        raise ConfigError(f"search {settings.method!r}: known are cross-entropy and ars")
    crossed = settings.method == "cross-entropy"  # which leaves the moments as they are
    generator = torch.Generator().manual_seed(settings.seed)
    shape = (task.spec.action_dim, task.spec.obs_dim)
    mean, sd = torch.zeros(shape).double(), torch.full(shape, settings.noise).double()
    moments = Moments(task.spec.obs_dim)
    policies: dict[str, Weights] = {}
    candidates: list[Weights] = []
    best = -np.inf
    for iteration in range(1, settings.iterations + 1):
        half = settings.population // (1 if crossed else 2)
        delta = torch.randn((half, *shape), generator=generator).double() * sd
        tried = mean + delta if crossed else torch.cat([mean + delta, mean - delta])
        candidates += [moments.weights(linear) for linear in tried]
        now = moments.weights(mean)
        returns, seen = linear_returns(task, tried, now, generator, settings.alive_bonus)
        if crossed:
            chosen = tried[returns.argsort(descending=True)[: settings.elite]]
            mean, sd = chosen.mean(0), chosen.std(0) + settings.step / iteration
        else:
            up, down = returns.chunk(2)
            top = torch.maximum(up, down).argsort(descending=True)[: settings.elite]
            spread = torch.cat([up[top], down[top]]).std()
            slope = ((up - down)[top][:, None, None] * delta[top] / settings.noise).mean(0)
            mean = mean + settings.step * slope / spread
            moments.add(seen)
        now = moments.weights(mean)
        if iteration == settings.medium:
            policies["medium"] = now
        if iteration % settings.judge == 0:
            score = float(linear_returns(task, mean.expand(8, *shape), now, generator)[0].mean())
            if score > best:
                best, policies["expert"] = score, now
        report(iteration)
    return Outcome(policies, candidates=tuple(candidates))


def linear_returns(
    task: Task, linear: Tensor, norm: Weights, generator: torch.Generator, bonus: float = 0.0
) -> tuple[Tensor, Tensor]:
    """One episode of each policy of `linear` [P, A, S]: returns [P] less `bonus` a step, and the
    observations seen [N, S]."""
    shift, scale = torch.from_numpy(norm["mean"]), torch.from_numpy(norm["sd"])
    low, high = bounds(task.spec)
    state = task.reset(len(linear), generator)
    obs = task.observe(state)
    alive = torch.arange(len(linear))
    returns = torch.zeros(len(linear)).double()
    seen = []
    for _ in range(step_limit(task.spec)):
        seen.append(obs)
        action = torch.einsum("pas,ps->pa", linear[alive], (obs.double() - shift) / scale)
        step = task.step(state, action.to(obs).clamp(low, high))
        returns[alive] += step.reward.double() - bonus
        going = ~step.terminated
        alive, state, obs = alive[going], step.state[going], step.obs[going]
        if not len(alive):
            break
    return returns, torch.cat(seen)


def record_candidates(
    task: Task,
    candidates: tuple[Weights, ...],
    steps: int,
    generator: torch.Generator,
    *,
    with_state: bool = False,
    report: Report,
) -> Transitions:
    """One episode each of candidates drawn from a search without repetition, as many as make
    `steps` transitions, in the order of the search; a longer recording holds the shorter one."""
    episodes: list[tuple[int, list[Row]]] = []
    count = 0
    for index in itertools.cycle(torch.randperm(len(candidates), generator=generator).tolist()):
        behaviour = policy_of(candidates[index], task.spec, sampled=False)
        (episode,) = run_episodes(task, behaviour, task.reset(1, generator), generator)
        episodes.append((index, episode))
        count += len(episode)
        report(min(count, steps))
        if count >= steps:
            break
    episodes.sort(key=lambda entry: entry[0])
    return concatenated([episode for _, episode in episodes], with_state=with_state)
