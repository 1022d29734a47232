"""Rounds of whole episodes whose start states a scheduler chooses from a pool."""

from collections.abc import Callable
from typing import Any

import torch

from mbrl.errors import ConfigError, unknown_name
from mbrl.rounds import Rounds
from mbrl.scheduling import SCHEDULERS, Outcome, Pool, Request, scheduler
from mbrl.tasks import Task

REFUSED = {
    "brorl": "it changes the learning rate with the groups; set envs and group yourself",
    "grpo_roc_scheduler": "it prunes by penalties of tool calls, which control does not have",
    "scaler": "it follows the levels of families of problems, which start states do not have",
}


class ScheduledRounds(Rounds):
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
        if task.spec.reference_returns is None:
            raise ConfigError(
                f"task {task.spec.task!r} has no reference returns, by which schedulers know "
                "success; give its spec reference_returns=(random, expert), or leave pool at 0"
            )
        drawn = torch.Generator(device=task.device).manual_seed(seed + 104_729)
        self.pool = task.reset(pool, drawn)
        self.chance = torch.Generator().manual_seed(seed + 1_299_709)
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
        self._add(self.scheduler.request(self.chance))

    def _add(self, request: Request) -> None:
        """Begin with these copies, beside those of the round that have ended."""
        new = request.each()
        self.state = self.pool[new.to(self.pool.device)]
        self.obs = self.task.observe(self.state)
        first = len(self.owner)
        self.owner = torch.cat([self.owner, new])
        self.live = torch.arange(first, len(self.owner), device=self.task.device)
        self.running = torch.cat([self.running, self.running.new_zeros(len(new))])
        self.lengths = torch.cat([self.lengths, torch.zeros_like(new)])
        self.elapsed = 0

    def _advance(self, agent: Any) -> bool:
        self.lengths[self.live.cpu()] += 1
        return super()._advance(agent)

    def outcome(self) -> Outcome:
        """What the scheduler hears of the round so far."""
        reference = self.task.spec.reference_returns
        assert reference is not None
        low, high = reference
        score = ((self.running.cpu() - low) / (high - low)).clamp(0, 1)
        return Outcome(self.owner, score, {"length": self.lengths.double()})

    def _goes_on(self) -> bool:
        request = self.scheduler.more(self.outcome(), self.chance)
        if request is None or request.total == 0:
            return False
        self._add(request)
        return True

    def _over(self, agent: Any) -> None:
        outcome = self.outcome()
        kept = self.scheduler.keep(outcome, self.chance)
        self.scheduler.heard(outcome, self.chance)
        agent.starts(self.owner, kept)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "owner": self.owner.clone(),
            "lengths": self.lengths.clone(),
            "chance": self.chance.get_state(),
            "scheduler": self.scheduler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.owner, self.lengths = state["owner"].clone(), state["lengths"].clone()
        self.chance.set_state(state["chance"])
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
