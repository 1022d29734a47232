"""The collector of on-policy runs: whole episodes in rounds, several from each start."""

import warnings
from collections.abc import Callable
from typing import Any

import torch

from mbrl.collector import interrupted_text, no_limit
from mbrl.errors import ConfigError, unknown_name
from mbrl.generators import set_state
from mbrl.policy_gradient.schedulers import SCHEDULERS, Outcome, Pool, Request, scheduler
from mbrl.tasks import Task, as_live
from mbrl.types import Transitions


class EpisodeCollector:
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
            raise ConfigError(no_limit(task.spec.task))
        if as_live(task) is not None and group > 1:
            raise ConfigError(
                f"group is {group}, but episodes cannot begin in one state of {task.spec.task!r}, "
                "a gymnasium environment; set group to 1 (with a baseline that needs no group)"
            )
        self.task, self.envs, self.group = task, envs, group
        self.environments = as_live(task)
        self.limit: int = task.spec.max_episode_steps
        self.generator = torch.Generator(device=task.device).manual_seed(seed + 7_919)
        self.running = torch.zeros(envs, dtype=torch.float64, device=task.device)
        self.horizon, self.rounds, self.greedy = horizon, 0, greedy
        self.rows_seen = 0
        self.owed = 0  # transitions that calls so far were to bring, and did not
        self.returns: list[float] = []  # of finished episodes
        self.interrupted = 0  # rounds that a resumed run could not go on with
        self._broken = False  # whether the agent holds the beginning of such a round
        self._begin()

    def _begin(self) -> None:
        starts = self.task.reset(self.envs // self.group, self.generator)
        self.state = starts.repeat_interleave(self.group, 0)
        self.obs = self.task.observe(self.state)
        self.alive = torch.arange(self.envs, device=self.task.device)
        self.elapsed = 0
        self.running = torch.zeros_like(self.running)

    def collect(self, agent: Any) -> int:
        """Steps of all copies that go on, up to the end of a round; returns how many updates
        follow."""
        if self._broken:
            agent.drop_round()
            self._broken = False
        self.owed += self.envs
        while self.owed >= len(self.alive):
            self.owed -= len(self.alive)
            if self._advance(agent):
                self._over(agent)
                self.rounds += 1
                self._begin()
                updates: int = agent.end_round()
                return updates
        return 0

    def _advance(self, agent: Any) -> bool:
        """One step of every copy that goes on; whether the round is over with it."""
        mask = self._mask(self.state)
        limits = {} if mask is None else {"mask": mask}
        action, _ = agent.act(self.obs, deterministic=False, generator=self.generator, **limits)
        if self.greedy:
            best, _ = agent.act(self.obs, deterministic=True, **limits)
            last = self.alive % self.group == self.group - 1
            action = torch.where(last.view(-1, *[1] * (action.ndim - 1)), best, action)
        step = self.task.step(self.state, action)
        self.elapsed += 1
        limit = self.limit if self.horizon is None else min(self.limit, self.horizon(self.rounds))
        truncated = ~step.terminated & (self.elapsed >= limit)
        if step.truncated is not None:
            truncated = truncated | step.truncated
        masks = {"action_mask": mask, "next_action_mask": self._mask(step.state)}
        agent.observe_rows(
            Transitions(
                self.obs, action, step.reward, step.obs, step.terminated, truncated, **masks
            ),
            self.alive,
        )
        self.rows_seen += len(self.alive)
        self.running[self.alive] += step.reward.double()
        on = ~(step.terminated | truncated)
        if self.environments is not None:
            self.environments.release(step.state[~on])  # those that a shorter horizon cut
        self.state, self.obs, self.alive = step.state[on], step.obs[on], self.alive[on]
        if len(self.alive) or self._goes_on():
            return False
        self.returns += self.running.tolist()
        return True

    def _mask(self, state: torch.Tensor) -> torch.Tensor | None:
        return None if self.environments is None else self.environments.action_mask(state)

    def _goes_on(self) -> bool:
        """Whether copies were added to the round, all of which had ended."""
        return False

    def _over(self, agent: Any) -> None:
        """The round's copies have ended; the agent hears of it next."""

    def close(self) -> None:
        """Give back the environments of episodes that nobody goes on with."""
        if self.environments is not None:
            self.environments.release(self.state)

    def state_dict(self) -> dict[str, Any]:
        return {
            "state": self.state.clone(),
            "obs": self.obs.clone(),
            "live": self.alive.clone(),
            "running": self.running.clone(),
            "elapsed": self.elapsed,
            "owed": self.owed,
            "rows_seen": self.rows_seen,
            "rounds": self.rounds,
            "returns": list(self.returns),
            "generator": self.generator.get_state(),
            **({"interrupted": self.interrupted} if self.interrupted else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        begun = self.state, self.obs, self.running, self.alive, 0
        for name in ("state", "obs", "running"):
            setattr(self, name, state[name].clone())
        self.alive = state["live"].clone()
        self.elapsed, self.rows_seen = state["elapsed"], state["rows_seen"]
        self.interrupted = state.get("interrupted", 0)
        if self.environments is not None and not self.environments.holds(self.state):
            self.interrupted += int(self.elapsed > 0)
            self.state, self.obs, self.running, self.alive, self.elapsed = begun
            self._broken = True
            warnings.warn(interrupted_text(self.task.spec.task), stacklevel=2)
        self.owed, self.rounds = state["owed"], state["rounds"]
        self.returns = list(state["returns"])
        set_state(self.generator, state["generator"], self.rounds)


REFUSED = {
    "brorl": "it changes the learning rate with the groups; set envs and group yourself",
    "grpo_roc_scheduler": "it prunes by penalties of tool calls, which control does not have",
    "scaler": "it follows the levels of families of problems, which start states do not have",
}


class ScheduledEpisodeCollector(EpisodeCollector):
    """Steps copies of a task in rounds, at most `envs` of them, which begin in states of a pool of
    `pool`, drawn from the task's start distribution once, by `seed`. The scheduler says how many
    copies begin in which. It knows the states by what is observed in them (each number standardised
    over the pool), and hears of every episode its return on the scale of `Spec.reference_returns`,
    0 to 1 and clipped there, as success, and its length.

    `settings` are the scheduler's own. What it would have a trainer fill up from earlier rounds is
    left out: the round is smaller by that. The agent hears `starts(owner, kept)` before
    `end_round()`: the state [E] in which each of the round's copies began, and whether the
    scheduler wants it trained on."""

    def __init__(
        self,
        task: Task,
        name: str,
        pool: int,
        *,
        envs: int = 16,
        group: int = 1,
        seed: int = 0,
        horizon: Callable[[int], int] | None = None,
        settings: Any = None,
    ) -> None:
        check(name, pool)
        if as_live(task) is not None:
            raise ConfigError(
                f"a pool of start states needs a task that can begin in them again; "
                f"{task.spec.task!r} is a gymnasium environment, leave pool at 0"
            )
        if task.spec.reference_returns is None:
            raise ConfigError(
                f"task {task.spec.task!r} has no reference returns, by which schedulers know "
                "success; give its spec reference_returns=(random, expert), or leave pool at 0"
            )
        drawn = torch.Generator(device=task.device).manual_seed(seed + 104_729)
        self.pool = task.reset(pool, drawn)
        self.scheduler_generator = torch.Generator().manual_seed(seed + 1_299_709)
        seen = task.observe(self.pool).double().cpu()
        features = (seen - seen.mean(0)) / seen.std(0, correction=0).clamp_min(1e-8)
        known = Pool(pool, features)
        self.scheduler = scheduler(name, known, budget=envs, group=group, config=settings)
        self.owner = torch.empty(0, dtype=torch.int64)
        self.lengths = torch.empty(0, dtype=torch.int64)
        super().__init__(task, envs=envs, group=group, seed=seed, horizon=horizon)

    def _begin(self) -> None:
        self.owner = self.lengths = torch.empty(0, dtype=torch.int64)
        self.running = self.running[:0]
        self._add(self.scheduler.request(self.scheduler_generator))

    def _add(self, request: Request) -> None:
        """Begin with these copies, beside those of the round that have ended."""
        new = request.each()
        self.state = self.pool[new.to(self.pool.device)]
        self.obs = self.task.observe(self.state)
        first = len(self.owner)
        self.owner = torch.cat([self.owner, new])
        self.alive = torch.arange(first, len(self.owner), device=self.task.device)
        self.running = torch.cat([self.running, self.running.new_zeros(len(new))])
        self.lengths = torch.cat([self.lengths, torch.zeros_like(new)])
        self.elapsed = 0

    def _advance(self, agent: Any) -> bool:
        self.lengths[self.alive.cpu()] += 1
        return super()._advance(agent)

    def outcome(self) -> Outcome:
        """What the scheduler hears of the round so far."""
        reference = self.task.spec.reference_returns
        assert reference is not None
        low, high = reference
        score = ((self.running.cpu() - low) / (high - low)).clamp(0, 1)
        return Outcome(self.owner, score, {"length": self.lengths.double()})

    def _goes_on(self) -> bool:
        request = self.scheduler.more(self.outcome(), self.scheduler_generator)
        if request is None or request.total == 0:
            return False
        self._add(request)
        return True

    def _over(self, agent: Any) -> None:
        outcome = self.outcome()
        kept = self.scheduler.keep(outcome, self.scheduler_generator)
        self.scheduler.observe(outcome, self.scheduler_generator)
        agent.starts(self.owner, kept, self.scheduler.of_all)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "owner": self.owner.clone(),
            "lengths": self.lengths.clone(),
            "chance": self.scheduler_generator.get_state(),
            "scheduler": self.scheduler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.owner, self.lengths = state["owner"].clone(), state["lengths"].clone()
        self.scheduler_generator.set_state(state["chance"])
        self.scheduler.load_state_dict(state["scheduler"])


def check(name: str, pool: int) -> None:
    """Raises `ConfigError` for what cannot choose start states."""
    if name not in SCHEDULERS:
        raise unknown_name("scheduler", name, SCHEDULERS)
    if name in REFUSED:
        raise ConfigError(f"the scheduler {name} cannot choose start states: {REFUSED[name]}")
    if pool < 0:
        raise ConfigError(f"pool is {pool}, it must be at least 0 (0: new start states)")
    if name != "uniform" and pool == 0:
        raise ConfigError(
            f"the scheduler {name} chooses among start states that come again; give pool their "
            "number, or take the scheduler uniform"
        )
