"""Workers that step environments and a trainer that learns from their episodes, joined by streams
(see `streams`; SRL, arXiv 2306.16688)."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mbrl.collector import no_limit
from mbrl.distributed.streams import InferenceStream, SampleStream
from mbrl.errors import ConfigError
from mbrl.networks import ActionScale
from mbrl.tasks import Task, as_live
from mbrl.training import Metrics
from mbrl.types import Transitions

Latency = Callable[[np.random.Generator], float]


@dataclass(frozen=True)
class Episode:
    """Episode `number` of environment `env`: `obs` [T, S] to `truncated` [T], and the `version` [T]
    of the policy that chose each action. Continuous actions are as drawn, before their squash."""

    env: int
    number: int
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    version: np.ndarray

    def __len__(self) -> int:
        return len(self.reward)


STEP = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "version")


@dataclass
class Place:
    """An environment: its state [1, K], its own draws, and its episode so far."""

    env: int
    generator: torch.Generator
    state: torch.Tensor
    number: int = 0
    steps: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in STEP})


class EnvironmentWorker:
    """Steps a ring of `ring` groups of `size` environments: while one group waits for actions the
    next one is stepped. The environments are numbers `first` and on; each draws its starts and its
    uniform numbers from its own generator, by `seed` and its number, so that its episodes depend on
    the policy alone, however many workers, rings and batches there are.

    A task's environments may be this library's or gymnasium's. Of continuous actions the policy
    gives the draw before the squash (`GaussianActs`), from as many uniform numbers as they have
    dimensions. `latency` gives the seconds that a step of a group takes beside its computing (an
    artificial wait, drawn from a generator of the worker's). Raises `ConfigError` for tasks without
    a limit, or that do not allow all their actions everywhere."""

    def __init__(
        self,
        task: Task,
        inference: InferenceStream,
        samples: SampleStream,
        *,
        ring: int = 2,
        size: int = 1,
        first: int = 0,
        seed: int = 0,
        latency: Latency | None = None,
    ) -> None:
        if ring < 1 or size < 1:
            raise ConfigError(f"ring is {ring} and size {size}; both must be at least 1")
        limit = task.spec.max_episode_steps
        if limit is None:
            raise ConfigError(no_limit(task.spec.task))
        torch.set_num_threads(1)
        self.task, self.inference, self.samples, self.latency = task, inference, samples, latency
        self.limit, self.environments = limit, as_live(task)
        self.scale = None if task.spec.discrete else ActionScale(task.spec)
        self.numbers = () if task.spec.discrete else (task.spec.action_dim,)  # uniform, an action
        places = [self._place(first + i, seed) for i in range(ring * size)]
        self.ring = [places[k * size : (k + 1) * size] for k in range(ring)]
        self.tickets: list[Any] = [None] * ring
        self.held: list[Episode] = []  # that the sample stream had no room for yet
        self.most: int | None = None  # episodes of each environment; None: no end
        self.turn = self.frames = 0
        self.waiting = self.stepping = 0.0  # seconds: for actions; in the task, with its latency
        self.draws = np.random.default_rng([seed, first])

    def _place(self, env: int, seed: int) -> Place:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + env)
        state = self.task.reset(1, generator)
        if self.environments is not None and self.environments.action_mask(state) is not None:
            self.environments.release(state)
            raise ConfigError(
                f"an environment worker cannot step {self.task.spec.task!r}: its states do not all "
                "allow all actions; collect from it with `learn` or `run`"
            )
        return Place(env, generator, state)

    def run(self, episodes: int | None = None, seconds: float | None = None) -> dict[str, float]:
        """Go on until every environment has had `episodes` more, or for so many seconds; what it
        counted. Raises `ConfigError` where neither is said."""
        if (episodes is None) == (seconds is None):
            raise ConfigError("say either how many episodes, or how many seconds")
        self.begin(episodes)
        began, frames, idle = time.perf_counter(), self.frames, self.waiting
        while self.step():
            if self.held:  # the trainer is behind
                time.sleep(0.002)
            if seconds is not None and time.perf_counter() - began > seconds:
                break
        wall = time.perf_counter() - began
        return {"frames": self.frames - frames, "wall": wall, "waiting": self.waiting - idle}

    def begin(self, episodes: int | None) -> None:
        """Let every environment have so many more episodes (None: no end)."""
        everyone = [place for group in self.ring for place in group]
        self.most = None if episodes is None else max(p.number for p in everyone) + episodes
        for k in range(len(self.ring)):
            if self.tickets[k] is None:
                self._ask(k)

    def step(self) -> bool:
        """One step of the next group of the ring that goes on; whether there is one. While the
        sample stream is full nothing is stepped."""
        if not self._delivered():
            return True
        for _ in self.ring:  # the next one that goes on
            k, self.turn = self.turn, (self.turn + 1) % len(self.ring)
            if self.tickets[k] is not None:
                self._advance(k)
                break
        return not self._delivered() or any(ticket is not None for ticket in self.tickets)

    def _delivered(self) -> bool:
        """Give finished episodes to the sample stream; whether it had room for all."""
        while self.held and self.samples.put(self.held[0]):
            self.held.pop(0)
        return not self.held

    def _alive(self, k: int) -> list[Place]:
        return [p for p in self.ring[k] if self.most is None or p.number < self.most]

    def _ask(self, k: int) -> None:
        places = self._alive(k)
        self.tickets[k] = None
        if places:
            obs = self.task.observe(torch.cat([p.state for p in places])).numpy()
            shape, exact = (1, *self.numbers), torch.float64
            uniform = [torch.rand(shape, generator=p.generator, dtype=exact) for p in places]
            self.tickets[k] = places, obs, self.inference.ask(obs, torch.cat(uniform).numpy())

    def _advance(self, k: int) -> None:
        places, obs, ticket = self.tickets[k]
        began = time.perf_counter()
        action, version = self.inference.answer(ticket)
        answered = time.perf_counter()
        self.waiting += answered - began
        state = torch.cat([p.state for p in places])
        drawn = torch.from_numpy(np.asarray(action))
        taken = drawn if self.scale is None else self.scale.to_task(torch.tanh(drawn).float())
        step = self.task.step(state, taken)
        if self.latency is not None:
            time.sleep(self.latency(self.draws))
        next_obs, reward = step.obs.numpy(), step.reward.numpy()
        terminated = step.terminated.numpy()
        cut = [False] * len(places) if step.truncated is None else step.truncated.tolist()
        for i, place in enumerate(places):
            limited = len(place.steps["reward"]) + 1 == self.limit and not terminated[i]
            truncated = limited or cut[i]
            row = (obs[i], action[i], reward[i], next_obs[i], terminated[i], truncated, version)
            for name, value in zip(STEP, row, strict=True):
                place.steps[name].append(value)
            place.state = step.state[i : i + 1]
            if terminated[i] or truncated:
                self._end(place)
        self.frames += len(places)
        self.stepping += time.perf_counter() - answered
        self._ask(k)

    def _end(self, place: Place) -> None:
        steps = {name: np.array(values) for name, values in place.steps.items()}
        self.held.append(Episode(place.env, place.number, **steps))
        place.number += 1
        place.steps = {name: [] for name in STEP}
        if self.environments is None:
            place.state = self.task.reset(1, place.generator)
        else:
            everyone = torch.ones(1, dtype=torch.bool)
            place.state = self.environments.restart(place.state, everyone, place.generator)

    def close(self) -> None:
        """Give back gymnasium's environments."""
        if self.environments is not None:
            for place in itertools.chain(*self.ring):
                self.environments.release(place.state)


def run_together(workers: Sequence[EnvironmentWorker], episodes: int) -> None:
    """Step workers of this process in turn until every environment has had `episodes` more. Their
    sample stream needs room for all of them."""
    for worker in workers:
        worker.begin(episodes)
    going = list(workers)
    while going:
        going = [worker for worker in going if worker.step()]
        if going and all(worker.held for worker in going):
            raise ConfigError(
                "the sample stream is full, and nobody in this process takes from it; raise its "
                f"bound to the {episodes} episodes of every environment"
            )


def learn(agent: Any, episodes: Sequence[Episode]) -> tuple[int, Metrics]:
    """A round of a policy gradient (`algorithms.policy_gradient`, groups of 1) from as many
    episodes as it has copies, in the order of environments whichever came first; its updates, and
    the metrics of the last one. Raises `ConfigError` for another number."""
    if len(episodes) != agent.config.envs or agent.config.group != 1:
        raise ConfigError(
            f"{len(episodes)} episodes for a policy gradient with envs {agent.config.envs} and "
            f"group {agent.config.group}: give as many as envs, and set group to 1"
        )
    rows = sorted(episodes, key=lambda e: (e.number, e.env))
    for t in range(max(len(e) for e in rows)):
        at = [i for i, e in enumerate(rows) if len(e) > t]
        columns = {
            name: torch.from_numpy(np.stack([getattr(rows[i], name)[t] for i in at]))
            for name in STEP[:-1]
        }
        agent.drawn = columns["action"]
        agent.observe_rows(Transitions(**columns), torch.tensor(at))
    updates: int = agent.end_round()
    metrics: Metrics = {}
    for _ in range(updates):
        metrics = agent.update(agent.next_batch())
    return updates, metrics
