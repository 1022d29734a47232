"""The collector of online runs: it owns the tasks' states; agents see only batches and `act`."""

from dataclasses import dataclass
from typing import Any

import torch

from mbrl.config import Count, CountOrZero, Settings
from mbrl.errors import ConfigError
from mbrl.tasks import Task
from mbrl.types import Transitions


@dataclass(frozen=True)
class CollectorConfig(Settings):
    """How experience is gathered."""

    envs: Count = 1  # parallel tasks; each loop step advances all of them once
    warmup: CountOrZero = 100  # uniform random rows before the first update; none after logged data
    capacity: Count = 1_000_000  # rows of experience kept, logged data among them
    updates_per_step: Count = 1  # of the learner, a loop step

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.capacity < self.warmup:
            raise ConfigError(
                f"capacity is {self.capacity}, below the warmup of {self.warmup} rows"
            )


class Collector:
    """Steps `envs` copies of a task with the agent's stochastic policy, one step a call.

    The first `warmup` rows come from uniform actions. Its whole state is tensors, so an online run
    resumes exactly.
    """

    def __init__(self, task: Task, *, envs: int = 1, warmup: int = 100, seed: int = 0) -> None:
        if envs < 1 or warmup < 0:
            raise ConfigError(f"envs is {envs} (at least 1), warmup {warmup} (0 or more)")
        if task.spec.max_episode_steps is None:
            raise ConfigError(f"task {task.spec.task!r} has no episode limit; give its spec one")
        self.task, self.envs, self.warmup = task, envs, warmup
        self.limit: int = task.spec.max_episode_steps
        self.generator = torch.Generator(device=task.device).manual_seed(seed + 7_919)
        self.state = task.reset(envs, self.generator)
        self.obs = task.observe(self.state)
        self.elapsed = torch.zeros(envs, dtype=torch.int64, device=task.device)
        self.running = torch.zeros(envs, dtype=torch.float64, device=task.device)
        self.policy_state: torch.Tensor | None = (
            None  # what the agent's `act` returned beside actions
        )
        self.rows = 0
        self.returns: list[float] = []  # finished episodes, in order

    def collect(self, agent: Any) -> int:
        """One step of every copy; returns how many updates follow."""
        action = self._action(agent)
        step = self.task.step(self.state, action)
        if self.policy_state is not None:
            self.policy_state = agent.policy.observe_reward(self.policy_state, step.reward)
        self.elapsed += 1
        truncated = (self.elapsed >= self.limit) & ~step.terminated
        agent.observe(
            Transitions(self.obs, action, step.reward, step.obs, step.terminated, truncated)
        )
        self.running += step.reward.double()
        ended = step.terminated | truncated
        state = step.state
        if bool(ended.any()):
            self.returns += self.running[ended].tolist()
            fresh = self.task.reset(self.envs, self.generator)
            state = torch.where(ended[:, None], fresh, state)
            self.running[ended], self.elapsed[ended] = 0.0, 0
            if self.policy_state is not None:
                going = (~ended).to(self.policy_state)
                self.policy_state = self.policy_state * going.view(
                    -1, *[1] * (self.policy_state.ndim - 1)
                )
        # Observed anew only where a task was reset: MuJoCo observations may need a forward pass.
        self.obs = self.task.observe(state) if bool(ended.any()) else step.obs
        self.state = state
        self.rows += self.envs
        return agent.updates_per_step if self.rows > self.warmup else 0

    def _action(self, agent: Any) -> torch.Tensor:
        spec = self.task.spec
        if self.rows >= self.warmup:
            action: torch.Tensor
            action, self.policy_state = agent.act(
                self.obs, deterministic=False, state=self.policy_state, generator=self.generator
            )
            return action
        if spec.discrete:
            count = spec.num_actions or 0
            return torch.randint(count, (self.envs,), generator=self.generator)
        low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
        draw = torch.rand(self.envs, spec.action_dim, generator=self.generator)
        return (low + (high - low) * draw).to(self.task.device)

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
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("state", "obs", "elapsed", "running"):
            setattr(self, name, state[name].clone())
        carried = state.get("carried")  # absent where it was saved before planners were known
        self.policy_state = None if carried is None else carried.clone()
        self.rows, self.returns = state["rows"], list(state["returns"])
        self.generator.set_state(state["generator"])
