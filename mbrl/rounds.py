"""The collector of on-policy runs: whole episodes in rounds, several from each start."""

from collections.abc import Callable
from typing import Any

import torch

from mbrl.errors import ConfigError
from mbrl.tasks import Task
from mbrl.types import Transitions


class Rounds:
    """Steps `envs` copies of a task in rounds: all begin together, every `group` of them in one
    state, and whoever has ended waits until the last one has. `envs` transitions a call on average,
    however few go on, so that runs of equal length have seen equally much.

    The agent hears `observe(data, rows)`, rows [L] the copies that the L transitions are of, and
    `end_round()`, which says how many updates follow. Its whole state is tensors, so a run resumes
    exactly. With a `horizon`, which gives the longest episode of a round by its number, episodes
    are truncated there. With `greedy`, the last copy of every group acts without exploration.
    """

    def __init__(
        self,
        task: Task,
        *,
        envs: int = 16,
        group: int = 1,
        seed: int = 0,
        horizon: Callable[[int], int] | None = None,
        greedy: bool = False,
    ) -> None:
        if envs < 1 or group < 1 or envs % group:
            raise ConfigError(
                f"envs is {envs} and group {group}; both must be at least 1 and envs a multiple of "
                "group"
            )
        if task.spec.max_episode_steps is None:
            raise ConfigError(f"task {task.spec.task!r} has no episode limit; give its spec one")
        self.task, self.envs, self.group = task, envs, group
        self.limit: int = task.spec.max_episode_steps
        self.generator = torch.Generator(device=task.device).manual_seed(seed + 7_919)
        self.running = torch.zeros(envs, dtype=torch.float64, device=task.device)
        self.horizon, self.rounds, self.greedy = horizon, 0, greedy
        self.rows_seen = 0
        self.owed = 0  # transitions that calls so far were to bring, and did not
        self.returns: list[float] = []  # of finished episodes
        self._begin()

    def _begin(self) -> None:
        starts = self.task.reset(self.envs // self.group, self.generator)
        self.state = starts.repeat_interleave(self.group, 0)
        self.obs = self.task.observe(self.state)
        self.live = torch.arange(self.envs, device=self.task.device)
        self.elapsed = 0
        self.running = torch.zeros_like(self.running)

    def collect(self, agent: Any) -> int:
        """Steps of all copies that go on, up to the end of a round; returns how many updates
        follow."""
        self.owed += self.envs
        while self.owed >= len(self.live):
            self.owed -= len(self.live)
            if self._advance(agent):
                self._over(agent)
                self.rounds += 1
                self._begin()
                updates: int = agent.end_round()
                return updates
        return 0

    def _advance(self, agent: Any) -> bool:
        """One step of every copy that goes on; whether the round is over with it."""
        action, _ = agent.act(self.obs, deterministic=False, generator=self.generator)
        if self.greedy:
            best, _ = agent.act(self.obs, deterministic=True)
            last = self.live % self.group == self.group - 1
            action = torch.where(last.view(-1, *[1] * (action.ndim - 1)), best, action)
        step = self.task.step(self.state, action)
        self.elapsed += 1
        limit = self.limit if self.horizon is None else min(self.limit, self.horizon(self.rounds))
        truncated = ~step.terminated & (self.elapsed >= limit)
        agent.observe(
            Transitions(self.obs, action, step.reward, step.obs, step.terminated, truncated),
            self.live,
        )
        self.rows_seen += len(self.live)
        self.running[self.live] += step.reward.double()
        on = ~(step.terminated | truncated)
        self.state, self.obs, self.live = step.state[on], step.obs[on], self.live[on]
        if len(self.live) or self._goes_on():
            return False
        self.returns += self.running.tolist()
        return True

    def _goes_on(self) -> bool:
        """Whether copies were added to the round, all of which had ended."""
        return False

    def _over(self, agent: Any) -> None:
        """The round's copies have ended; the agent hears of it next."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "state": self.state.clone(),
            "obs": self.obs.clone(),
            "live": self.live.clone(),
            "running": self.running.clone(),
            "elapsed": self.elapsed,
            "owed": self.owed,
            "rows_seen": self.rows_seen,
            "rounds": self.rounds,
            "returns": list(self.returns),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("state", "obs", "live", "running"):
            setattr(self, name, state[name].clone())
        self.elapsed, self.rows_seen = state["elapsed"], state["rows_seen"]
        self.owed, self.rounds = state["owed"], state["rounds"]
        self.returns = list(state["returns"])
        self.generator.set_state(state["generator"])
