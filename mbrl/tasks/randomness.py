"""Randomness and hardships that any task can be given: actions that are not what was chosen, time
that jumps, dynamics that change, observations that are missing, rewards with noise, a delay, a
disturbance that nobody sees, a limit that costs.

The kinds follow STORI (arXiv 2509.01793), for images of games there, and the realistic hardships of
NeoRL-2 (arXiv 2503.19267).
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mbrl.config import (
    Count,
    CountOrZero,
    Finite,
    NonNegative,
    Positive,
    Probability,
    Settings,
)
from mbrl.errors import ConfigError
from mbrl.tasks.base import LiveStep, LiveTask, Step, Task, as_live
from mbrl.tasks.common import hashed_uniform, uniform

SEEDS = 2**31
# what a draw is for; a draw is a function of the seed, the step, this number and a component
ACTION_NOISE, STICKY, RANDOM, WHICH, JUMP, REWARD, BLACKOUT, PHASE = range(8)
COMPONENTS = 64  # draws of one purpose in a step, at most


@dataclass(frozen=True)
class Randomness(Settings):
    """What happens to a task. A chosen action waits `action_delay` steps, is changed by the drift,
    the disturbance and the noise, in this order, and may then be replaced; what reaches the task is
    the action that sticks."""

    action_delay: CountOrZero = 0  # steps until an action acts; before, the middle of the range
    drift_at: Count | None = None  # step of the episode at which the actuator changes
    drift_every: bool = False  # changes back and forth every so many steps, not once
    drift_gain: Finite = 0.5  # factor of actions after it; discrete ones: their order is reversed
    disturbance: NonNegative = 0.0  # height of a sine added to actions, in halves of their range
    disturbance_period: Positive = 50.0  # its period, in steps; its phase is drawn in each episode
    action_noise: NonNegative = 0.0  # deviation of noise added to actions, in halves of their range
    sticky_actions: Probability = 0.0  # that the action before is taken again
    random_actions: Probability = 0.0  # that a uniform one is taken instead
    time_jumps: Probability = 0.0  # that a step is taken twice; the second one pays
    blackout: Probability = 0.0  # that an observation is all zeros
    hidden_entries: tuple[CountOrZero, ...] = ()  # entries of an observation that are always 0
    reward_noise: NonNegative = 0.0  # deviation of noise added to rewards
    limit_entry: CountOrZero | None = None  # entry of the observation with a limit
    limit_size: Positive = 1.0  # of its size, before anything is hidden
    limit_penalty: NonNegative = 100.0  # the reward beyond it is minus this

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drift_every and self.drift_at is None:
            raise ConfigError("drift_every needs drift_at, the number of steps between two changes")


NAMES = frozenset(f.name for f in dataclasses.fields(Randomness))


def randomised(task: Task, options: dict[str, Any]) -> Task:
    """`task` with the randomness of these fields of `Randomness`; itself without any."""
    hidden = options.get("hidden_entries", ())
    entries = tuple(hidden) if isinstance(hidden, list | tuple) else (hidden,)
    randomness = Randomness(**options | {"hidden_entries": entries})
    if randomness == Randomness():
        return task
    environments = as_live(task)
    return (
        Randomised(task, randomness)
        if environments is None
        else LiveRandomised(task, randomness, environments)
    )


class Randomised:
    """A task with `randomness`. All draws are functions of a seed in the state and of the step, so
    that a step stays a function of state and action; where the seed is 0 nothing is drawn.

    State, float64: that of the task, a seed, steps of the episode, the action that acted last, and
    the actions that wait. Scores of 0 and 100 are those of the plain task.
    """

    def __init__(self, task: Task, randomness: Randomness) -> None:
        self.task, self.randomness = task, randomness
        self.device = task.device
        spec = task.spec
        self._check(randomness, task)
        changed = {
            f.name: getattr(randomness, f.name)
            for f in dataclasses.fields(randomness)
            if getattr(randomness, f.name) != f.default
        }
        lists = {k: list(v) if isinstance(v, tuple) else v for k, v in changed.items()}
        self.spec = dataclasses.replace(spec, task_options=spec.task_options | lists)
        self.width = spec.action_dim
        self.extra = 2 + self.width * (1 + randomness.action_delay)
        if spec.discrete:
            self._low = self._high = torch.zeros(1, dtype=torch.float64, device=self.device)
        else:
            bounds = torch.tensor([spec.action_low, spec.action_high], dtype=torch.float64)
            self._low, self._high = bounds.to(self.device)
        self._middle, self._half = (self._low + self._high) / 2, (self._high - self._low) / 2
        self._inner = torch.float64
        if as_live(task) is None:
            self._inner = task.reset(1, torch.Generator(device=self.device)).dtype

    @staticmethod
    def _check(r: Randomness, task: Task) -> None:
        spec, name = task.spec, task.spec.task
        entries = [*r.hidden_entries, *([] if r.limit_entry is None else [r.limit_entry])]
        wrong = [entry for entry in entries if entry >= spec.obs_dim]
        if wrong:
            raise ConfigError(
                f"{name}: entry {wrong[0]} of an observation is to be hidden or limited, they are "
                f"0 to {spec.obs_dim - 1}"
            )
        if spec.action_dim > COMPONENTS:
            raise ConfigError(f"{name}: {spec.action_dim} action components, at most {COMPONENTS}")
        if spec.discrete and (r.action_noise > 0 or r.disturbance > 0):
            raise ConfigError(
                f"{name}: action_noise and disturbance add to actions, and these are discrete; "
                "take random_actions or sticky_actions"
            )
        acts = r.action_delay or r.drift_at or r.sticky_actions or r.random_actions
        if spec.action_mask and (acts or r.time_jumps):  # a jump takes an action in two states
            raise ConfigError(
                f"{name} tells which actions are allowed in a state, so that others cannot be put "
                "in their place, nor one be taken twice; take kinds that leave actions alone"
            )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` states [count, K] at the starts of episodes."""
        inner = self.task.reset(count, generator).double()
        return torch.cat([inner, self._fresh(count, generator)], 1)

    def _fresh(self, count: int, generator: torch.Generator) -> Tensor:
        """The numbers of a new episode [count, `extra`] behind the task's."""
        seed = 1 + (SEEDS * uniform(count, 0.0, 1.0, 1, generator)).floor().to(self.device)
        return self._begun(seed)

    def _begun(self, seed: Tensor) -> Tensor:
        """The numbers [B, `extra`] at the start of episodes of these seeds [B, 1]."""
        idle = self._middle.repeat(1 + self.randomness.action_delay).expand(len(seed), -1)
        return torch.cat([seed, torch.zeros_like(seed), idle.to(seed.device)], 1)

    def plain(self, state: Tensor) -> Tensor:
        """The task's own part of states [B, K]."""
        return state[:, : -self.extra].to(self._inner)

    def observe(self, state: Tensor) -> Tensor:
        """[B, S], with what is missing at 0."""
        seed, steps = state[:, -self.extra], state[:, 1 - self.extra]
        return self._seen(self.task.observe(self.plain(state)), seed, steps)

    def _seen(self, obs: Tensor, seed: Tensor, steps: Tensor) -> Tensor:
        r = self.randomness
        if r.hidden_entries:
            obs = obs.clone()
            obs[:, list(r.hidden_entries)] = 0.0
        if r.blackout > 0:
            dark = self._happens(seed, steps, BLACKOUT, r.blackout)
            obs = torch.where(dark, torch.zeros_like(obs), obs)
        return obs

    def step(self, state: Tensor, action: Tensor) -> Step:
        """A step with what happens to it. `action` [B, A], or [B] int64 where discrete."""
        inner, extra = self.plain(state), state[:, -self.extra :]
        seed, steps = extra[:, 0], extra[:, 1]
        acting, waiting = self._acting(action, extra)
        result = self._moved(inner, acting, seed, steps)
        reached = torch.cat(
            [
                result.state.double(),
                torch.stack([seed, steps + 1], 1),
                acting[:, None].double() if acting.ndim == 1 else acting.double(),
                waiting,
            ],
            1,
        )
        obs = self._seen(result.obs, seed, steps + 1)
        return rebuilt(result, reached, obs, self._paid(result, seed, steps))

    def _acting(self, action: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """The action that reaches the task, as the task takes it, and those that still wait."""
        r, discrete = self.randomness, self.spec.discrete
        seed, steps = extra[:, 0], extra[:, 1]
        last, queue = extra[:, 2 : 2 + self.width], extra[:, 2 + self.width :]
        chosen = action[:, None].double() if discrete else action.double()
        queue = torch.cat([queue, chosen], 1)
        now, waiting = queue[:, : self.width], queue[:, self.width :]
        now = self._replaced(self._disturbed(self._drifted(now, steps), seed, steps), seed, steps)
        if r.sticky_actions > 0:
            stick = self._happens(seed, steps, STICKY, r.sticky_actions)
            now = torch.where(stick & (steps[:, None] > 0), last, now)
        return (now[:, 0].long() if discrete else now.to(action.dtype)), waiting

    def _drifted(self, action: Tensor, steps: Tensor) -> Tensor:
        r = self.randomness
        if r.drift_at is None:
            return action
        times = (steps / r.drift_at).floor()
        after = (times % 2 == 1) if r.drift_every else (times >= 1)
        if self.spec.num_actions is not None:
            other = self.spec.num_actions - 1 - action
        else:
            other = self._middle + r.drift_gain * (action - self._middle)
        return torch.where(after[:, None], other, action)

    def _disturbed(self, action: Tensor, seed: Tensor, steps: Tensor) -> Tensor:
        r = self.randomness
        if r.disturbance == 0 and r.action_noise == 0:
            return action
        added = torch.zeros_like(action)
        if r.disturbance > 0:
            phase = self._draws(seed, torch.zeros_like(steps), PHASE, 1)
            turn = 2 * torch.pi * (steps[:, None] / r.disturbance_period + phase)
            added = added + r.disturbance * turn.sin() * (seed > 0)[:, None]
        if r.action_noise > 0:
            added = added + r.action_noise * self._normals(seed, steps, ACTION_NOISE, self.width)
        return (action + self._half * added).clamp(self._low, self._high)

    def _replaced(self, action: Tensor, seed: Tensor, steps: Tensor) -> Tensor:
        r = self.randomness
        if r.random_actions == 0:
            return action
        replaced = self._happens(seed, steps, RANDOM, r.random_actions)
        share = self._draws(seed, steps, WHICH, self.width)
        count = self.spec.num_actions
        other = self._low + (self._high - self._low) * share
        return torch.where(replaced, other if count is None else (count * share).floor(), action)

    def _moved(self, inner: Tensor, action: Tensor, seed: Tensor, steps: Tensor) -> Step:
        """The task's step, in some rows twice."""
        first = self.task.step(inner, action)
        if self.randomness.time_jumps == 0:
            return first
        jumps = self._happens(seed, steps, JUMP, self.randomness.time_jumps)[:, 0]
        rows = (jumps & ~first.ended).nonzero()[:, 0]
        if len(rows) == 0:
            return first
        second = self.task.step(first.state[rows], action[rows])
        parts = [a.index_copy(0, rows, b) for a, b in zip(first, second, strict=True)]
        joined = type(first)(*parts)
        if isinstance(first, LiveStep) and isinstance(joined, LiveStep):
            assert second.truncated is not None
            joined.cut = first.cut.index_copy(0, rows, second.truncated)
        return joined

    def _paid(self, step: Step, seed: Tensor, steps: Tensor) -> Tensor:
        r, reward = self.randomness, step.reward
        if r.limit_entry is not None:
            beyond = step.obs[:, r.limit_entry].abs() > r.limit_size
            reward = torch.where(beyond, torch.full_like(reward, -r.limit_penalty), reward)
        if r.reward_noise > 0:
            noise = self._normals(seed, steps, REWARD, 1)[:, 0]
            reward = reward + r.reward_noise * noise.to(reward.dtype)
        return reward

    def _draws(self, seed: Tensor, steps: Tensor, purpose: int, size: int) -> Tensor:
        """[B, size] uniform draws on [0, 1)."""
        first = (steps.long() * 8 + purpose) * COMPONENTS
        return torch.stack([hashed_uniform(seed, first + k) for k in range(size)], 1)

    def _happens(self, seed: Tensor, steps: Tensor, purpose: int, probability: float) -> Tensor:
        """[B, 1] bool."""
        return (self._draws(seed, steps, purpose, 1) < probability) & (seed > 0)[:, None]

    def _normals(self, seed: Tensor, steps: Tensor, purpose: int, size: int) -> Tensor:
        """[B, size] standard normal draws, 0 where the seed is."""
        share = self._draws(seed, steps, purpose, size).clamp_min(1e-12)
        normals: Tensor = torch.special.ndtri(share)
        return normals * (seed > 0)[:, None]

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The task's states at the start of an episode to which nothing random happens; none where
        observations are incomplete."""
        inner, possible = self.task.state_from_obs(obs)
        extra = self._begun(torch.zeros(len(obs), 1, dtype=torch.float64, device=obs.device))
        if self._incomplete:
            possible = torch.zeros_like(possible)
        return torch.cat([inner.double(), extra], 1), possible

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """As the task. Raises `ConfigError` where observations are incomplete and the task ends."""
        if self._incomplete and not getattr(self.task, "endless", False):
            raise ConfigError(
                f"{self.spec.task} with missing observations: whether an episode ends cannot be "
                "read from them; set termination to 'learned', or give the algorithm a model that "
                "has a rule of its own: model=EnsembleDynamics(spec, termination=function)"
            )
        ends: Tensor = self.task.terminates(obs, action, next_obs)
        return ends

    @property
    def _incomplete(self) -> bool:
        return bool(self.randomness.hidden_entries) or self.randomness.blackout > 0


class LiveRandomised(Randomised):
    """`Randomised` over environments that only go on from where they are."""

    def __init__(self, task: Task, randomness: Randomness, environments: LiveTask) -> None:
        super().__init__(task, randomness)
        self.environments, self.copies = environments, environments.copies

    def restart(self, state: Tensor, ended: Tensor, generator: torch.Generator) -> Tensor:
        """`state` [B, K] with new starts in the rows that `ended` [B] marks."""
        inner = self.environments.restart(self.plain(state), ended, generator)
        extra = state[:, -self.extra :].clone()
        extra[ended] = self._fresh(int(ended.sum()), generator)
        return torch.cat([inner, extra], 1)

    def release(self, state: Tensor) -> None:
        """Give back the environments of states that nobody will step."""
        self.environments.release(self.plain(state))

    def holds(self, state: Tensor) -> bool:
        """Whether all these states can be stepped."""
        return self.environments.holds(self.plain(state))

    def action_mask(self, state: Tensor) -> Tensor | None:
        """[B, n] bool, the discrete actions allowed in states; None where all always are."""
        return self.environments.action_mask(self.plain(state))


def rebuilt(step: Step, state: Tensor, obs: Tensor, reward: Tensor) -> Step:
    """`step` with these parts, cut where it was."""
    made = type(step)(state, obs, reward, step.terminated)
    if isinstance(step, LiveStep) and isinstance(made, LiveStep):
        made.cut = step.cut
    return made
