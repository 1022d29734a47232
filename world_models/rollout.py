"""The one rollout engine: imagined steps from start states under a policy, with a mask of rows
alive.

RAVL, MOPO, MBPO and their relatives are settings of it (member, horizon, stop, penalty).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from mbrl.config import Count, Finite, NonNegative, Range, Settings
from mbrl.errors import ConfigError, DataError
from mbrl.training import Stateful, is_stateful
from mbrl.types import Trajectories
from world_models.disagreement import measure
from world_models.protocol import Prediction, WorldModel

Actor = Callable[[Tensor, torch.Generator], Tensor]
Policy = Actor | Stateful
CHUNK = 1000  # rows that a policy on a CPU takes at a time, so that activations stay in cache


@dataclass(frozen=True)
class RolloutConfig(Settings):
    """How imagined trajectories are made."""

    horizon: Count = 5  # steps at most
    member: Literal["per_step", "per_rollout", "mean"] = "per_step"  # who predicts a row
    penalty: str | None = None  # disagreement measure taken off the reward
    penalty_weight: NonNegative = 0.0  # lambda of the penalty
    stop: str | None = None  # disagreement measure that ends a rollout
    # its threshold; the step that passes it is kept
    stop_above: Annotated[float, Range(float, "(-inf, inf]")] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.stop is None) != (self.stop_above is None):
            raise ConfigError(
                f"stop is {self.stop!r} and stop_above {self.stop_above!r}; give both or neither"
            )
        if self.penalty_weight > 0 and self.penalty is None:
            raise ConfigError(
                f"penalty_weight is {self.penalty_weight} and penalty None; name the measure that "
                "it weighs with penalty"
            )
        for name in (self.penalty, self.stop):
            if name is not None:
                measure(name)


@dataclass(frozen=True)
class HaltingRollout(RolloutConfig):
    """A rollout in a pessimistic task: the step that passes the stop threshold leads to HALT, an
    end of the task."""

    halt_reward: Finite = 0.0  # reward of that step, in place of the model's

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop is None:
            raise ConfigError(
                f"halt_reward is {self.halt_reward} and stop None; name the measure and its "
                "threshold with stop and stop_above"
            )


@torch.no_grad()
def rollout(
    model: WorldModel,
    policy: Policy,
    starts: Tensor,
    config: RolloutConfig,
    generator: torch.Generator,
    states: Tensor | None = None,
    *,
    memory: Tensor | None = None,
    limits: Tensor | None = None,
    deterministic: bool = False,
) -> Trajectories:
    """Roll `policy` (raw observations to task-unit actions) from `starts` [B, S] in `model`.

    A row ends when the model says terminated (later steps are masked), when the stop measure passes
    its threshold (flagged truncated: it bootstraps; with `HaltingRollout` terminated), when the
    model cannot predict it (nothing recorded), or at the horizon (truncated). `states` [B, K]:
    simulator states at the starts, for models that carry them; `memory` [B, M]: what a `Stateful`
    policy carries there, which takes its greedy actions if `deterministic`, and observes rewards
    before their penalty, as they are recorded in `signals["unpenalised_reward"]`; `limits` [B]:
    most steps of each row, if fewer. With `HaltingRollout`, `signals["halted"]` is 1 at the steps
    that lead to HALT. Raises `DataError` for starts that are not finite."""
    _check_finite(starts)
    record = _Record(len(starts), config.horizon, starts)
    obs, state, alive = starts, states, torch.arange(len(starts), device=starts.device)
    members = _members(model, config, len(starts), generator)
    if limits is not None:
        obs, alive = obs[limits > 0], torch.nonzero(limits > 0).flatten()
        state, memory, members = (_rows(x, alive) for x in (state, memory, members))
    asked = config.stop if config.penalty is None else config.penalty
    for t in range(config.horizon):
        if not len(alive):
            break
        if is_stateful(policy):
            action, memory = policy.step(obs, memory, generator, deterministic=deterministic)
        else:
            action = _act(policy, obs, generator)
        if config.member == "per_step":
            members = _members(model, config, len(alive), generator)
        guess = model.predict(obs, action, generator, member=members, state=state, measure=asked)
        plain = guess.reward
        if is_stateful(policy):
            assert memory is not None
            memory = policy.observe_reward(memory, plain)
        guess, halted = _judged(model, config, asked, obs, action, guess)
        over = halted | (t == config.horizon - 1)
        if limits is not None:
            over |= limits[alive] <= t + 1
        signals = _signals(policy, config, plain, halted)
        record.write(t, alive, obs, action, guess, over & ~guess.terminated, signals)
        keep = ~(guess.terminated | over)
        if guess.valid is not None:
            keep &= guess.valid
        # A host sync a step, not an update: dead rows would cost a whole model evaluation each.
        kept = torch.nonzero(keep).flatten()
        if len(kept) == len(alive):
            obs, state = guess.next_obs, guess.state
            continue
        alive, obs = alive[kept], guess.next_obs[kept]
        state, memory, members = (_rows(x, kept) for x in (guess.state, memory, members))
    return record.trajectories()


def _check_finite(starts: Tensor) -> None:
    if not torch.isfinite(starts).all():
        row = int((~torch.isfinite(starts)).any(1).nonzero()[0])
        raise DataError(f"start {row} is {starts[row].tolist()}; rollouts begin at finite states")


def _judged(
    model: WorldModel,
    config: RolloutConfig,
    asked: str | None,
    obs: Tensor,
    action: Tensor,
    guess: Prediction,
) -> tuple[Prediction, Tensor]:
    """The step with its penalty taken off, and which rows [B] the stop measure ends; `asked` is the
    measure that the prediction holds already."""
    reward = guess.reward
    if config.penalty is not None and config.penalty_weight > 0:
        assert guess.disagreement is not None
        reward = reward - config.penalty_weight * guess.disagreement
    halted = torch.zeros_like(guess.terminated)
    if config.stop is not None:
        level = guess.disagreement
        if config.stop != asked:
            level = model.disagreement(obs, action, config.stop)
        assert level is not None and config.stop_above is not None
        halted = level > config.stop_above
    if isinstance(config, HaltingRollout):
        reward = torch.where(halted, config.halt_reward, reward)
        guess = guess._replace(terminated=guess.terminated | halted)
    return guess._replace(reward=reward), halted


def _signals(
    policy: Policy, config: RolloutConfig, plain: Tensor, halted: Tensor
) -> dict[str, Tensor]:
    """What is recorded beside a step: the reward [B] before a penalty for a policy that observes
    it, and the rows [B] that HALT ended."""
    signals = {}
    if config.penalty and is_stateful(policy):
        signals["unpenalised_reward"] = plain
    if isinstance(config, HaltingRollout):
        signals["halted"] = halted.to(plain.dtype)
    return signals


def _rows(values: Tensor | None, kept: Tensor) -> Tensor | None:
    return None if values is None else values[kept]


def _members(
    model: WorldModel, config: RolloutConfig, count: int, generator: torch.Generator
) -> Tensor | None:
    if config.member == "mean" or model.num_members == 1:
        return None
    return balanced(count, model.num_members, generator, fair=config.member == "per_rollout")


def balanced(count: int, members: int, generator: torch.Generator, *, fair: bool = False) -> Tensor:
    """A member [count] for each row, every one as often as any other, up to one row. Which members
    are left out where rows are fewer is drawn; which have a row more is drawn if `fair`, else they
    are the first ones: among the many rows of a step that counts for nothing."""
    order = torch.randperm(count, generator=generator, device=generator.device)
    if count < members or (fair and count % members):
        names = torch.randperm(members, generator=generator, device=generator.device)
        return names[order % members]
    return order % members


def _act(policy: Actor, obs: Tensor, generator: torch.Generator) -> Tensor:
    if obs.device.type != "cpu" or len(obs) <= CHUNK:
        return policy(obs, generator)
    return torch.cat([policy(part, generator) for part in torch.split(obs, CHUNK)])


class _Record:
    """Preallocated [B, T, ...] storage that rows are written into as long as they are alive."""

    def __init__(self, count: int, horizon: int, like: Tensor) -> None:
        self.shape, self.like = (count, horizon), like
        self.fields: dict[str, Tensor] = {}
        self.signals: dict[str, Tensor] = {}
        self.mask = torch.zeros(self.shape, dtype=torch.bool, device=like.device)

    def write(
        self,
        t: int,
        alive: Tensor,
        obs: Tensor,
        action: Tensor,
        guess: Prediction,
        truncated: Tensor,
        signals: dict[str, Tensor],
    ) -> None:
        values = {
            "obs": obs,
            "action": action,
            "reward": guess.reward,
            "next_obs": guess.next_obs,
            "terminated": guess.terminated,
            "truncated": truncated,
        }
        if guess.disagreement is not None:
            values["disagreement"] = guess.disagreement
        rows = slice(None) if len(alive) == self.shape[0] else alive  # a copy beats a scatter
        for storage, new in ((self.fields, values), (self.signals, signals)):
            for name, value in new.items():
                if name not in storage:
                    storage[name] = value.new_zeros(*self.shape, *value.shape[1:])
                storage[name][rows, t] = value
        self.mask[rows, t] = True if guess.valid is None else guess.valid

    def trajectories(self) -> Trajectories:
        fields: dict[str, Any] = dict(self.fields)
        return Trajectories(mask=self.mask, signals=self.signals, **fields)
