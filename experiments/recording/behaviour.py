"""Behaviour policies of the local datasets: recording episodes in batched tasks, training with
stable-baselines3 through a gymnasium view of a task, and the small files that hold weights."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor

from mbrl.collector import no_limit
from mbrl.errors import ConfigError, TaskError, optional_packages
from mbrl.files import replacing
from mbrl.tasks import LiveTask, Task, as_live
from mbrl.types import Spec, Transitions

# Observations [B, S] and a source of noise to actions [B, A] (or [B] int64), in the task's units;
# where the task masks actions, a third argument says which are allowed, [B, n] bool.
Behaviour = Callable[..., Tensor]
Report = Callable[[int], None]  # called with the number of transitions so far


@dataclass(frozen=True)
class TimedBehaviour:
    """A behaviour that also asks for the number of steps since the episode began."""

    act: Callable[[Tensor, torch.Generator, int], Tensor]


def at_step(behaviour: Behaviour | TimedBehaviour, elapsed: int) -> Behaviour:
    """`behaviour` as it acts `elapsed` steps after the start of its episodes."""
    if not isinstance(behaviour, TimedBehaviour):
        return behaviour
    act = behaviour.act
    return lambda obs, generator: act(obs, generator, elapsed)


Weights = dict[str, np.ndarray]

BATCH = 10  # episodes recorded side by side


class Row(NamedTuple):
    """One transition of one task: tensors without a batch dimension, and two flags."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    terminated: bool
    truncated: bool
    state: Tensor
    mask: Tensor | None = None
    next_mask: Tensor | None = None


def concatenated(episodes: list[list[Row]], *, with_state: bool = False) -> Transitions:
    """The rows of episodes, episode after episode; the last row of each ends it."""
    rows = [row for episode in episodes for row in episode]
    last = torch.tensor([i + 1 == len(e) for e in episodes for i in range(len(e))])
    terminated = torch.tensor([row.terminated for row in rows])
    return Transitions(
        obs=torch.stack([row.obs for row in rows]),
        action=torch.stack([row.action for row in rows]),
        reward=torch.stack([row.reward for row in rows]),
        next_obs=torch.stack([row.next_obs for row in rows]),
        terminated=terminated,
        truncated=torch.tensor([row.truncated for row in rows]) | (last & ~terminated),
        state=torch.stack([row.state for row in rows]) if with_state else None,
        action_mask=_stacked([row.mask for row in rows]),
        next_action_mask=_stacked([row.next_mask for row in rows]),
    )


def _stacked(masks: list[Tensor | None]) -> Tensor | None:
    present = [mask for mask in masks if mask is not None]
    return torch.stack(present) if present else None


class RecordingFailed(TaskError):
    """The environment failed while recording; `rows` are the transitions before that, or None."""

    def __init__(self, problem: TaskError, rows: Transitions | None) -> None:
        super().__init__(str(problem))
        self.rows = rows


def record(
    task: Task,
    behaviour: Behaviour | TimedBehaviour,
    steps: int,
    generator: torch.Generator,
    *,
    start: Callable[[Tensor], Tensor] | None = None,
    with_state: bool = False,
    report: Report,
) -> Transitions:
    """Whole episodes of `behaviour`, at least `steps` transitions in all; a longer recording begins
    with the shorter one.

    Batches of episodes run side by side, each to its own end, and follow one another in the
    order in which they were started, so that short episodes are not over-represented. `start`
    says which start observations [B, S] are kept, as a mask [B]. Raises `RecordingFailed` where the
    environment fails; the episodes that it cut off are truncated there.
    """
    if steps < 1:
        raise ConfigError(f"steps is {steps}; record at least 1 transition")
    episodes: list[list[Row]] = []
    count = 0
    while count < steps:
        batch: list[list[Row]] = []
        try:
            state = start_states(task, BATCH, generator, start)
            run_episodes(task, behaviour, state, generator, batch)
        except TaskError as problem:
            begun = [episode for episode in [*episodes, *batch] if episode]
            rows = concatenated(begun, with_state=with_state) if begun else None
            raise RecordingFailed(problem, rows) from problem
        for episode in batch:
            if count < steps:
                episodes.append(episode)
                count += len(episode)
        report(min(count, steps))
    return concatenated(episodes, with_state=with_state)


def step_limit(spec: Spec) -> int:
    if spec.max_episode_steps is None:
        raise ConfigError(no_limit(spec.task))
    return spec.max_episode_steps


def start_states(
    task: Task,
    count: int,
    generator: torch.Generator,
    keep: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """`count` start states; where `keep` is given, those whose observation it accepts."""
    state = task.reset(count, generator)
    if keep is None:
        return state
    state = state[keep(task.observe(state))]
    while len(state) < count:
        more = task.reset(count, generator)
        state = torch.cat([state, more[keep(task.observe(more))]])
    return state[:count]


def run_episodes(
    task: Task,
    behaviour: Behaviour | TimedBehaviour,
    state: Tensor,
    generator: torch.Generator,
    episodes: list[list[Row]] | None = None,
) -> list[list[Row]]:
    """One episode from each row of `state`, in row order; written to `episodes` as they grow, where
    a list is given."""
    horizon, environments = step_limit(task.spec), as_live(task)
    episodes = [] if episodes is None else episodes
    episodes += [[] for _ in range(len(state))]
    alive = torch.arange(len(state))
    obs = task.observe(state)
    for t in range(1, horizon + 1):
        mask = _mask(environments, state)
        act = at_step(behaviour, t - 1)
        action = act(obs, generator) if mask is None else act(obs, generator, mask)
        step = task.step(state, action)
        ended, next_mask = step.terminated.tolist(), _mask(environments, step.state)
        cut = [t == horizon] * len(alive) if step.truncated is None else step.truncated.tolist()
        for i, e in enumerate(alive.tolist()):
            row = (obs[i], action[i], step.reward[i], step.obs[i], ended[i], cut[i], state[i])
            masks = () if mask is None or next_mask is None else (mask[i], next_mask[i])
            episodes[e].append(Row(*row, *masks))
        going = ~step.ended
        alive, state, obs = alive[going], step.state[going], step.obs[going]
        if not len(alive):
            break
    return episodes


def _mask(environments: LiveTask | None, state: Tensor) -> Tensor | None:
    return None if environments is None else environments.action_mask(state)


# --- policies ------------------------------------------------------------------------------------


def bounds(spec: Spec) -> tuple[Tensor, Tensor]:
    return torch.tensor(spec.action_low), torch.tensor(spec.action_high)


def uniform_actions(spec: Spec) -> Behaviour:
    """Uniform over the actions, or those that are allowed."""
    if spec.action_mask:
        return lambda obs, generator, mask: torch.multinomial(mask.float(), 1, generator=generator)[
            :, 0
        ]
    if spec.discrete:
        count = int(spec.num_actions or 0)
        return lambda obs, generator: torch.randint(count, (len(obs),), generator=generator)
    low, high = bounds(spec)

    def act(obs: Tensor, generator: torch.Generator) -> Tensor:
        return low + (high - low) * torch.rand(len(obs), spec.action_dim, generator=generator)

    return act


def noisy(policy: Callable[[Tensor], Tensor], spec: Spec, noise: float) -> Behaviour:
    """`policy` with Gaussian noise of `noise` times the action range, clipped to the bounds; for
    discrete actions a uniform action with probability `noise`."""
    anything = uniform_actions(spec)

    def discrete(obs: Tensor, generator: torch.Generator) -> Tensor:
        slip = torch.rand(len(obs), generator=generator) < noise
        return torch.where(slip, anything(obs, generator), policy(obs))

    def continuous(obs: Tensor, generator: torch.Generator) -> Tensor:
        low, high = bounds(spec)
        wobble = torch.randn(len(obs), spec.action_dim, generator=generator)
        return (policy(obs) + noise * (high - low) * wobble).clamp(low, high)

    return discrete if spec.discrete else continuous


def with_noise(
    behaviour: Behaviour | TimedBehaviour, spec: Spec, noise: float
) -> Behaviour | TimedBehaviour:
    """`behaviour` with Gaussian noise of `noise` times the action range added to its actions, which
    are clipped to the bounds. Raises `ConfigError` for discrete actions."""
    if noise == 0:
        return behaviour
    if spec.discrete or noise < 0:
        raise ConfigError(
            f"noise is {noise} in {spec.task!r}: it is a share of the action range, 0 or more, of "
            "continuous actions"
        )
    low, high = bounds(spec)

    def act(obs: Tensor, generator: torch.Generator, elapsed: int) -> Tensor:
        action = at_step(behaviour, elapsed)(obs, generator)
        wobble = torch.randn(action.shape, generator=generator)
        return (action + noise * (high - low) * wobble).clamp(low, high)

    return TimedBehaviour(act)


def policy_of(weights: Weights, spec: Spec, *, sampled: bool) -> Behaviour:
    """The policy of a weights file (`actor_weights`, or `linear` [A, S] of a search); `sampled`
    draws from its distribution, otherwise its mode."""
    tensors = {n: torch.from_numpy(value) for n, value in weights.items() if n != "activation"}
    if "linear" in tensors:

        def linear(obs: Tensor, generator: torch.Generator) -> Tensor:
            seen = (obs.double() - tensors["mean"]) / tensors["sd"]
            return (seen @ tensors["linear"].T).to(obs).clamp(*bounds(spec))

        return linear
    layers = sum(name.startswith("w") for name in tensors)
    squash = torch.relu if str(weights["activation"]) == "relu" else torch.tanh

    def outputs(obs: Tensor) -> Tensor:
        for i in range(layers - 1):
            obs = squash(obs @ tensors[f"w{i}"] + tensors[f"b{i}"])
        return obs @ tensors[f"w{layers - 1}"] + tensors[f"b{layers - 1}"]

    def discrete(obs: Tensor, generator: torch.Generator) -> Tensor:
        logits = outputs(obs)
        if not sampled:
            return logits.argmax(dim=-1)
        return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)[:, 0]

    def continuous(obs: Tensor, generator: torch.Generator) -> Tensor:
        low, high = bounds(spec)
        out = outputs(obs)
        mean = out[:, : spec.action_dim].clamp(-tensors["clip"], tensors["clip"])
        if sampled:
            wobble = torch.randn(mean.shape, generator=generator)
            mean = mean + out[:, spec.action_dim :].clamp(-20, 2).exp() * wobble
        return low + 0.5 * (mean.tanh() + 1) * (high - low)

    return discrete if spec.discrete else continuous


def save_weights(weights: Weights, path: Path) -> Path:
    """Write a weights file; equal weights give equal bytes."""
    with replacing(path) as file:
        np.savez_compressed(file, **weights)  # type: ignore[arg-type]
    return path


def load_weights(path: Path) -> Weights:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


# --- training with stable-baselines3 -------------------------------------------------------------


class TaskEnv(gymnasium.Env):
    """One row of a batched task as a gymnasium environment, with its time limit.

    `episodes` keeps every transition since construction, exactly as the task gave it (a replay
    buffer holds rescaled actions); `begun` holds the step at which each episode began.
    """

    def __init__(self, task: Task) -> None:
        spec = task.spec
        self.task, self.horizon = task, step_limit(spec)
        self.generator = torch.Generator().manual_seed(0)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (spec.obs_dim,), np.float32)
        if spec.discrete:
            self.action_space = gymnasium.spaces.Discrete(int(spec.num_actions or 0))
        else:
            low, high = (b.numpy() for b in bounds(spec))
            self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.episodes: list[list[Row]] = []
        self.begun: list[int] = []
        self.clock = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A new start; `seed` restarts the generator of starts."""
        super().reset(seed=seed)
        if seed is not None:
            self.generator.manual_seed(seed)
        self.state = self.task.reset(1, self.generator)
        self.obs = self.task.observe(self.state)
        self.elapsed = 0
        return self.obs[0].numpy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step; continuous actions are clipped to the bounds first."""
        if self.task.spec.discrete:
            given = torch.tensor([int(action)])
        else:
            low, high = bounds(self.task.spec)
            given = torch.as_tensor(np.asarray(action, np.float32))[None].clamp(low, high)
        step = self.task.step(self.state, given)
        if self.elapsed == 0:
            self.episodes.append([])
            self.begun.append(self.clock)
        self.elapsed += 1
        self.clock += 1
        terminated, truncated = bool(step.terminated), self.elapsed >= self.horizon
        row = (self.obs[0], given[0], step.reward[0], step.obs[0], terminated, truncated)
        self.episodes[-1].append(Row(*row, self.state[0]))
        self.state, self.obs = step.state, step.obs
        return self.obs[0].numpy(), float(step.reward), terminated, truncated, {}


@dataclass(frozen=True)
class Training:
    """A stable-baselines3 run of `steps` transitions; the actor after `medium` of them is the
    medium policy. `settings` go to the algorithm, `envs` is the number of tasks side by side."""

    algorithm: str
    steps: int
    medium: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    envs: int = 1
    seed: int = 0


class Outcome(NamedTuple):
    """What a run or search leaves: its policies by tier, and either every transition in order or
    every candidate in order."""

    policies: dict[str, Weights]
    replay: Transitions | None = None
    candidates: tuple[Weights, ...] = ()


def train(task: Task, training: Training, report: Report) -> Outcome:
    """Run `training`; where several tasks ran, episodes are in the order in which they began."""
    with optional_packages("sb3", "recorded policies"):
        import stable_baselines3
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.vec_env import DummyVecEnv

    envs = [TaskEnv(task) for _ in range(training.envs)]
    kept: dict[str, Weights] = {}

    class Keep(BaseCallback):
        def _on_step(self) -> bool:
            report(self.num_timesteps)
            if training.medium is not None and not kept and self.num_timesteps > training.medium:
                kept["medium"] = actor_weights(self.model)
            return True

    model = getattr(stable_baselines3, training.algorithm)(
        "MlpPolicy",
        DummyVecEnv([lambda env=env: env for env in envs]),
        seed=training.seed,
        device="cpu",
        **training.settings,
    )
    model.learn(training.steps, callback=Keep())
    episodes = [
        (begun, i, episode)
        for i, env in enumerate(envs)
        for begun, episode in zip(env.begun, env.episodes, strict=True)
    ]
    episodes.sort(key=lambda entry: entry[:2])
    return Outcome(kept, concatenated([episode for *_, episode in episodes]))


def actor_weights(model: Any) -> Weights:
    """The actor of a SAC or PPO model as arrays w0 [in, out], b0, ...

    The last layer of a SAC actor gives means and log standard deviations before the tanh; with
    state-dependent exploration the means only, which are clipped to +-`clip`.
    """
    policy = model.policy
    if hasattr(policy, "action_net"):
        layers, heads, activation = policy.mlp_extractor.policy_net, [policy.action_net], "tanh"
        clip = np.inf
    elif policy.actor.use_sde:
        layers, heads, activation = policy.actor.latent_pi, [policy.actor.mu[0]], "relu"
        clip = policy.actor.clip_mean
    else:
        actor = policy.actor
        layers, heads, activation = actor.latent_pi, [actor.mu, actor.log_std], "relu"
        clip = np.inf
    linear = [layer for layer in layers if isinstance(layer, torch.nn.Linear)]
    weights: Weights = {"activation": np.array(activation), "clip": np.array(clip, np.float32)}
    for i, layer in enumerate(linear):
        weights[f"w{i}"], weights[f"b{i}"] = to_numpy(layer.weight.T), to_numpy(layer.bias)
    last = len(linear)
    weights[f"w{last}"] = np.concatenate([to_numpy(head.weight.T) for head in heads], axis=1)
    weights[f"b{last}"] = np.concatenate([to_numpy(head.bias) for head in heads])
    return weights


def to_numpy(value: Tensor) -> np.ndarray:
    return value.detach().cpu().numpy().copy()
