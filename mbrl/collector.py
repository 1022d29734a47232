"""The collector of online runs: it owns the tasks' states; agents see only batches and `act`."""

import warnings
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch

from mbrl.config import Count, CountOrZero, NonNegative, Probability, Settings
from mbrl.errors import ConfigError
from mbrl.generators import set_state
from mbrl.tasks import Task, as_live
from mbrl.types import Transitions


@dataclass(frozen=True)
class CollectorConfig(Settings):
    """How experience is gathered."""

    envs: Count = 1  # parallel tasks; each loop step advances all of them once
    warmup: CountOrZero = 100  # uniform random rows before the first update; none after logged data
    capacity: Count = 1_000_000  # rows of experience kept, logged data among them
    updates_per_step: Count = 1  # of the learner, a loop step
    frozen: CountOrZero = 0  # rows that the policy makes as it is before the first update
    warmup_by: Literal["uniform", "policy"] = "uniform"  # who makes the rows of the warm-up
    deterministic: bool = False  # act greedily; what explores is a world model, or nothing
    # Share of each batch that is logged rows, exactly; 0: they are left behind; None: a batch is
    # drawn from logged rows and experience alike. With a share, nothing is learned until there is
    # as much experience as a batch takes.
    logged_share: Probability | None = None
    # Deviation of the normal noise on the actions of a policy without randomness (TD3+BC's, say),
    # in halves of their range; they are clipped to it. Of discrete actions (discrete CQL's) it is
    # the share that is drawn uniformly, from those that are allowed.
    noise: NonNegative = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.capacity < self.warmup:
            raise ConfigError(
                f"capacity is {self.capacity}, below the warmup of {self.warmup} rows"
            )


class Collector:
    """Steps `envs` copies of a task with the agent's stochastic policy (or, `deterministic`, its
    greedy one), one step a call.

    The first `warmup` rows come from uniform actions, and of those after them `frozen` from the
    agent as it is, before the first update; `rows` is how many there were before. `noise` is the
    deviation of what is added to the actions of a policy that is not `stochastic`, in halves of
    their range, or the share of its discrete actions that uniform ones take the place of.

    Its whole state is tensors, so an online run resumes exactly; with a gymnasium environment,
    whose state cannot be saved, it resumes with new episodes, a warning, and `interrupted` one
    higher for each that was lost.
    """

    def __init__(
        self,
        task: Task,
        *,
        envs: int = 1,
        warmup: int = 100,
        frozen: int = 0,
        deterministic: bool = False,
        noise: float = 0.0,
        seed: int = 0,
        rows: int = 0,
    ) -> None:
        if envs < 1 or warmup < 0 or frozen < 0:
            raise ConfigError(
                f"envs is {envs} (at least 1), warmup {warmup} (0 or more), frozen {frozen} (0 or "
                "more)"
            )
        if task.spec.max_episode_steps is None:
            raise ConfigError(no_limit(task.spec.task))
        self.task, self.envs, self.warmup = task, envs, warmup
        self.deterministic, self.noise = deterministic, noise
        self.learns_after = warmup + frozen  # rows
        self.environments = as_live(task)
        self.limit: int = task.spec.max_episode_steps
        self.generator = torch.Generator(device=task.device).manual_seed(seed + 7_919)
        self.state = task.reset(envs, self.generator)
        self.obs = task.observe(self.state)
        self.elapsed = torch.zeros(envs, dtype=torch.int64, device=task.device)
        self.running = torch.zeros(envs, dtype=torch.float64, device=task.device)
        self.policy_state: torch.Tensor | None = (
            None  # what the agent's `act` returned beside actions
        )
        self.rows = rows
        self.returns: list[float] = []  # finished episodes, in order
        self.interrupted = 0  # episodes that a resumed run could not go on with

    @classmethod
    def configured(
        cls,
        task: Task,
        config: CollectorConfig,
        *,
        logged: bool,
        seed: int,
        rows: int = 0,
        least: int = 0,
    ) -> Self:
        """As `config` says, after so many `rows`, with the first update after `least` rows or more.
        An agent with `logged` rows needs no warm-up."""
        warmup = 0 if logged else config.warmup
        uniform = warmup if config.warmup_by == "uniform" else 0
        return cls(
            task,
            envs=config.envs,
            warmup=uniform,
            frozen=max(config.frozen + warmup, least) - uniform,
            deterministic=config.deterministic,
            noise=config.noise,
            seed=seed,
            rows=rows,
        )

    def warn_of_warmup(self, steps: int) -> None:
        """Warn where nothing is learned in so many further `steps` of every copy."""
        rows = self.rows + steps * self.envs
        if 0 < rows <= self.learns_after and steps > 0:
            warnings.warn(
                f"nothing is learned: {steps} steps end after {rows} rows of experience, and the "
                f"first update comes after {self.learns_after}. Give more steps, or a smaller "
                "warm-up (collection: warmup, frozen; with a logged_share at least the rows that a "
                "batch takes)",
                stacklevel=3,
            )

    def collect(self, agent: Any) -> int:
        """One step of every copy; returns how many updates follow."""
        mask = self._mask(self.state)
        action = self._action(agent, mask)
        step = self.task.step(self.state, action)
        if self.policy_state is not None:
            reward = step.reward.to(self.policy_state.device)
            self.policy_state = agent.policy.observe_reward(self.policy_state, reward)
        self.elapsed += 1
        truncated = (self.elapsed >= self.limit) & ~step.terminated
        if step.truncated is not None:
            truncated = truncated | step.truncated
        masks = {"action_mask": mask, "next_action_mask": self._mask(step.state)}
        agent.observe(
            Transitions(
                self.obs, action, step.reward, step.obs, step.terminated, truncated, **masks
            )
        )
        self.running += step.reward.double()
        ended = step.terminated | truncated
        state, some_ended = step.state, bool(ended.any())
        if some_ended:
            self.returns += self.running[ended].tolist()
            state = self._restarted(state, ended)
            self.running[ended], self.elapsed[ended] = 0.0, 0
            if self.policy_state is not None:
                going = (~ended).to(self.policy_state)
                self.policy_state = self.policy_state * going.view(
                    -1, *[1] * (self.policy_state.ndim - 1)
                )
        # Observed anew only where a task was reset: MuJoCo observations may need a forward pass,
        # and sources know a row that goes on by what was seen after the one before.
        self.obs = step.obs
        if some_ended:
            self.obs = torch.where(ended[:, None], self.task.observe(state), step.obs)
        self.state = state
        self.rows += self.envs
        return agent.updates_per_step if self.rows > self.learns_after else 0

    def _restarted(self, state: torch.Tensor, ended: torch.Tensor) -> torch.Tensor:
        if self.environments is not None:
            return self.environments.restart(state, ended, self.generator)
        fresh = self.task.reset(self.envs, self.generator)
        return torch.where(ended[:, None], fresh, state)

    def close(self) -> None:
        """Give back the environments of episodes that nobody goes on with."""
        if self.environments is not None:
            self.environments.release(self.state)

    def _needs_noise(self, agent: Any) -> bool:
        return (
            self.noise > 0
            and not self.deterministic
            and not getattr(agent.policy, "stochastic", True)
        )

    def _with_noise(self, action: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        spec = self.task.spec
        if spec.discrete:
            draw = torch.rand(self.envs, generator=self.generator, device=self.generator.device)
            uniform = self._uniform(mask).to(action)
            return torch.where(draw.to(action.device) < self.noise, uniform, action)
        low, high = (torch.tensor(b).to(action) for b in (spec.action_low, spec.action_high))
        draw = torch.randn(action.shape, generator=self.generator, device=action.device)
        noisy: torch.Tensor = (action + self.noise * (high - low) / 2 * draw).clamp(low, high)
        return noisy

    def _mask(self, state: torch.Tensor) -> torch.Tensor | None:
        return None if self.environments is None else self.environments.action_mask(state)

    def _action(self, agent: Any, mask: torch.Tensor | None) -> torch.Tensor:
        if self.rows >= self.warmup:
            action: torch.Tensor
            limits = {} if mask is None else {"mask": mask}
            action, self.policy_state = agent.act(
                self.obs,
                deterministic=self.deterministic,
                state=self.policy_state,
                generator=self.generator,
                **limits,
            )
            return self._with_noise(action, mask) if self._needs_noise(agent) else action
        return self._uniform(mask)

    def _uniform(self, mask: torch.Tensor | None) -> torch.Tensor:
        """Actions drawn uniformly, from those that `mask` allows."""
        spec = self.task.spec
        if mask is not None:
            return torch.multinomial(mask.float(), 1, generator=self.generator)[:, 0]
        if spec.discrete:
            count = spec.num_actions or 0
            return torch.randint(
                count, (self.envs,), generator=self.generator, device=self.generator.device
            )
        shape = (self.envs, spec.action_dim)
        draw = torch.rand(shape, generator=self.generator, device=self.generator.device)
        low, high = (torch.tensor(b).to(draw) for b in (spec.action_low, spec.action_high))
        return low + (high - low) * draw

    def state_dict(self) -> dict[str, Any]:
        return {
            "state": self.state.clone(),
            "obs": self.obs.clone(),
            "elapsed": self.elapsed.clone(),
            "running": self.running.clone(),
            "carried": None if self.policy_state is None else self.policy_state.clone(),
            "rows": self.rows,
            "returns": list(self.returns),
            "generator": self.generator.get_state(),
            **({"interrupted": self.interrupted} if self.interrupted else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        begun, seen = self.state, self.obs
        for name in ("state", "obs", "elapsed", "running"):
            setattr(self, name, state[name].clone())
        carried = state.get("carried")  # absent where it was saved before planners were known
        self.policy_state = None if carried is None else carried.clone()
        self.rows, self.returns = state["rows"], list(state["returns"])
        set_state(self.generator, state["generator"], self.rows)
        self.interrupted = state.get("interrupted", 0)
        if self.environments is not None and not self.environments.holds(self.state):
            self.interrupted += int((self.elapsed > 0).sum())
            self.state, self.obs, self.policy_state = begun, seen, None
            self.elapsed, self.running = (torch.zeros_like(v) for v in (self.elapsed, self.running))
            warnings.warn(interrupted_text(self.task.spec.task), stacklevel=2)


def no_limit(task: str) -> str:
    """What to say of a task without a limit."""
    return (
        f"task {task!r} has no episode limit; give its spec one "
        f"(make({task!r}, max_episode_steps=200), or the name '{task},max_episode_steps=200')"
    )


def interrupted_text(task: str) -> str:
    """What to say where episodes were lost."""
    return (
        f"the state of {task!r}, a gymnasium environment, cannot be saved: its unfinished episodes "
        "are given up and new ones begun, so the run is not the one that it would have been "
        "without the stop"
    )
