"""FQE: the values of given policies from logged data alone, all policies in one fit.

Batch Policy Learning under Constraints (arXiv 1903.08738); used to choose between policies as in
Hyperparameter Selection for Offline Reinforcement Learning (arXiv 2007.09055). Differences: single
updates against an averaged target instead of a regression an iteration; targets are clipped. A
policy with memory acts upon the logged history, its critic is one of the observation all the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from mbrl import agent
from mbrl.config import Count, CountOrZero, Discount, Positive, Rate, Settings, Widths
from mbrl.data.neighbours import Neighbours
from mbrl.errors import ConfigError, DataError, DivergenceError
from mbrl.generators import generators
from mbrl.logged_table import rows_of
from mbrl.networks import (
    ActionScale,
    EnsembleMLP,
    Normaliser,
    adam,
    descend,
    ensemble_values,
    polyak_update,
    target_copy,
)
from mbrl.returns import endless_return, returns_to_go
from mbrl.training import Metrics, Stateful, Trainable, chosen_action, device_of, is_stateful
from mbrl.types import Dataset, Spec, Transitions

Policy = Callable[[Tensor], Tensor] | Stateful  # raw obs [B, S] to actions in the task's units

DIVERGED = 1e4  # a TD error beyond this many deviations of the data's returns says nothing
NEAREST = 32  # observations at which the logged policy is looked up where a recording was cut
CHUNK = 65_536  # observations a policy is asked for at a time


class LoggedPolicy:
    """Stands for whoever chose the logged actions: its next action is the logged one. Where a
    recording was cut there is none; there it is one of those logged at the nearest observations."""


LOGGED = LoggedPolicy()


@dataclass(frozen=True)
class FQEConfig(Settings):
    """Settings of fitted Q evaluation.

    The averaged target follows the Bellman operator at rate tau, so that about
    exp(-tau (1 - gamma) steps) of the distance to the fixed point is left at the end: 0.7 % with
    these defaults, 60 % with the tau of 0.005 that is customary in learning.
    """

    hidden: Widths = (64, 64)  # widths of each policy's critic
    learning_rate: Positive = 1e-3  # Adam
    steps: Count = 10_000  # updates
    batch_size: Count = 256  # rows an update, the same ones for all policies
    gamma: Discount = 0.99  # discount factor
    tau: Rate = 0.05  # rate of the target average
    clip: bool = True  # keep targets within what the data's rewards allow (`return_range`)
    report_every: Count = 100  # updates between two checks for divergence and progress reports
    seed: CountOrZero = 0  # of the initial weights and the batches
    # critics of each policy, every one of a draw of the episodes with replacement; 0: one of all
    resamples: CountOrZero = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden:
            raise ConfigError("hidden is (), it needs at least one width")


@dataclass(frozen=True)
class FQEResult:
    """What `evaluate_policies` found of K policies, float64, in the task's units of reward.

    `values` [K]: mean discounted value over the data's episode starts; `start_values`
    [K, episodes]: the value at each of them; `resampled` [K, R]: the mean over a draw of the
    episodes by the critic of that draw, the same draws for all policies (R is 0 without any). Over
    the last tenth of the updates: `td_errors` [K], the root mean square TD error, and
    `out_of_range` [K], the share of targets beyond the possible returns before the clip. A large
    share where the value itself is not at the edge of that range marks a policy whose actions the
    data do not support: its value is an extrapolation.
    """

    values: np.ndarray
    start_values: np.ndarray
    td_errors: np.ndarray
    out_of_range: np.ndarray
    resampled: np.ndarray


def evaluate_policies(
    policies: Sequence[Trainable | Policy | LoggedPolicy],
    dataset: Dataset,
    config: FQEConfig | None = None,
    *,
    device: str = "cpu",
    on_progress: Callable[[Metrics], None] | None = None,
) -> FQEResult:
    """Values of the greedy actions of K policies: agents of this library and their policies,
    wherever they are, or functions of raw observations [B, S] on `device` to actions [B, A] in the
    task's units ([B] int64 if discrete). Those with memory act upon the history that is logged;
    `LOGGED` stands for whoever chose the logged actions.

    The values are discounted and without an episode limit: a truncated row is bootstrapped, a
    terminated one is not. Policies meet the same initial weights and batches, so each value is what
    a fit of that policy alone gives, and a difference of values is one of policies. `on_progress`
    gets 0-d tensors every `report_every` updates. Raises `ConfigError` for policies that do not
    fit the task, `DataError` for actions that are not finite or a dataset without rows, and
    `DivergenceError` for a fit that diverged.
    """
    config = config or FQEConfig()
    fit = FQE(policies, dataset, config, device)
    first_kept = config.steps - max(1, config.steps // 10)
    sums = torch.zeros(2, len(policies), device=fit.place)
    for step in range(1, config.steps + 1):
        squared, outside = fit.update()
        if step > first_kept:
            sums += torch.stack([squared, outside])
        if step % config.report_every == 0 or step == config.steps:
            fit.check(squared, step)
            if on_progress is not None:
                on_progress(fit.metrics(squared, outside, step))
    start_values, resampled = (v.cpu().double().numpy() for v in fit.start_values())
    means = (sums / (config.steps - first_kept)).cpu().double().numpy()
    return FQEResult(start_values.mean(1), start_values, np.sqrt(means[0]), means[1], resampled)


def select(values: ArrayLike) -> int:
    """Index of the largest of `values` [K], the first one of equals."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or np.isnan(array).any():
        raise ConfigError(f"values must be [K] numbers with K at least 1, got {array.tolist()}")
    return int(array.argmax())


def return_range(
    reward: Tensor, terminated: Tensor, gamma: float, duration: Tensor | None = None
) -> tuple[float, float]:
    """Lowest and highest discounted return that rewards within those seen [N] can add up to, over
    all lengths of an episode where the data have terminations, without end otherwise.

    The true values lie inside if the data show the range of rewards, and then a clip moves no
    target away from the truth.
    """
    low, high = float(reward.min()), float(reward.max())
    ends = bool(terminated.any())
    # Short steps add up to the largest sums, long ones to the smallest.
    spans = (1.0, 1.0) if duration is None else (float(duration.min()), float(duration.max()))
    most, least = (1 - gamma**span for span in spans)
    lowest = low if ends and low > 0 else low / (least if low > 0 else most)
    highest = high if ends and high < 0 else high / (most if high > 0 else least)
    return lowest + 0.0, highest + 0.0  # never -0


def return_moments(data: Transitions, gamma: float) -> tuple[float, float]:
    """Mean and standard deviation (1 where it is 0) of `returns_to_go`."""
    returns = returns_to_go(data, gamma)
    endless = endless_return(data, gamma)
    scale = float(returns.std())
    return float(returns.mean()), scale if scale > 1e-8 * abs(endless) else 1.0


@torch.no_grad()
def greedy_actions(policy: Policy, data: Transitions, starts: Tensor) -> Tensor:
    """Actions at every `next_obs` of `data`, then at the rows `starts` [E], where episodes begin:
    [N + E, A] in the task's units, or [N + E] where discrete."""
    if not is_stateful(policy):
        mask = allowed_actions(data, starts)
        if mask is None or not isinstance(policy, nn.Module):
            places = (data.next_obs.float(), data.obs[starts].float())
            return torch.cat([policy(part) for obs in places for part in obs.split(CHUNK)])
        obs = torch.cat([data.next_obs, data.obs[starts]]).float()
        parts = zip(obs.split(CHUNK), mask.split(CHUNK), strict=True)
        return torch.cat(
            [chosen_action(policy, o, None, deterministic=True, mask=m) for o, m in parts]
        )
    # Longest episodes first: those that still run are the first ones, at every step.
    length = torch.cat([starts[1:], starts.new_tensor([len(data)])]) - starts
    order = length.argsort(descending=True)
    action, state = policy.step(data.obs[starts[order]].float(), None, None)
    actions = action.new_zeros(len(data) + len(starts), *action.shape[1:])
    actions[len(data) + order] = action
    for t in range(int(length.max())):
        rows = starts[order[: int((length > t).sum())]] + t
        state = policy.observe_reward(state[: len(rows)], data.reward[rows], data.action[rows])
        action, state = policy.step(data.next_obs[rows].float(), state, None)
        actions[rows] = action
    return actions


def allowed_actions(data: Transitions, starts: Tensor) -> Tensor | None:
    """Masks [N + E, n] of what `greedy_actions` may choose from; None for data without masks. After
    the end of an episode, where nothing is chosen, all are allowed."""
    if data.action_mask is None or data.next_action_mask is None:
        return None
    following = data.next_action_mask | data.terminated[:, None]
    return torch.cat([following, data.action_mask[starts]])


def logged_next_actions(data: Transitions) -> Tensor:
    """The logged action at every `next_obs`: that of the next row, or, where an episode was cut,
    that of a random one of the rows whose observations are nearest, among the allowed ones. The
    last row counts as cut, if it is not an end of the task."""
    action = data.action.roll(-1, 0)
    over = data.truncated.clone()
    over[-1:] = True
    cut = (over & ~data.terminated).nonzero().flatten()
    if len(cut):
        generator = torch.Generator().manual_seed(0)
        mask = None if data.next_action_mask is None else data.next_action_mask[cut]
        nearest = NearestActions(data)(data.next_obs[cut], generator, mask)
        action[cut] = nearest.to(action.device)
    return action


class NearestActions:
    """The logged policy at observations that nobody logged: the action of a random one of the rows
    whose observations, each divided by its deviation, are nearest."""

    def __init__(self, data: Transitions) -> None:
        obs = data.obs.cpu().double()
        self.scale = obs.std(0, correction=0).clamp_min(1e-12)
        self.action, self.count = data.action.cpu(), min(NEAREST, len(obs))
        self.neighbours = Neighbours((obs / self.scale).numpy())

    def __call__(
        self, obs: Tensor, generator: torch.Generator, mask: Tensor | None = None
    ) -> Tensor:
        """Actions [B, A] (or [B]) in the task's units at raw `obs` [B, S]; those that `mask` [B, n]
        allows, each as likely as it is among the nearest rows (equally where it is in none)."""
        places = (obs.detach().cpu().double() / self.scale).numpy()
        near = self.neighbours.nearest(places, self.count)
        if mask is not None:
            done = self.action[torch.from_numpy(near)].long()  # [B, k]
            counts = torch.zeros(mask.shape).scatter_add_(1, done, torch.ones(done.shape))
            weight = (counts + 1e-6) * mask.cpu()
            return torch.multinomial(weight, 1, generator=generator)[:, 0].to(obs.device)
        picked = torch.randint(self.count, (len(obs), 1), generator=generator).numpy()
        rows = np.take_along_axis(near, picked, 1)[:, 0]
        return self.action[torch.from_numpy(rows)].to(obs.device)


def policy_actions(
    policies: Sequence[Trainable | Policy | LoggedPolicy],
    data: Transitions,
    starts: Tensor,
    spec: Spec,
) -> Tensor:
    """Greedy actions of K policies as `greedy_actions` has them, on the data's device: [N + E, K,
    A] in [-1, 1], or [N + E, K] int64 where discrete."""
    place, count = data.obs.device, len(data) + len(starts)
    shape = (count,) if spec.discrete else (count, spec.action_dim)
    scale = None if spec.discrete else ActionScale(spec).to(place)
    mask = allowed_actions(data, starts)
    columns = []
    for k, policy in enumerate(policies):
        if isinstance(policy, LoggedPolicy):
            action = torch.cat([logged_next_actions(data), data.action[starts]])
            if mask is not None:  # after an end the next row belongs to another episode
                ended = data.terminated.nonzero().flatten()
                action[ended] = mask[ended].int().argmax(1).to(action.dtype)
        elif isinstance(policy, Trainable | nn.Module) or callable(policy) or is_stateful(policy):
            acting: Any = policy.policy if isinstance(policy, Trainable) else policy
            there = device_of(acting, place)
            action = greedy_actions(acting, data.to(there), starts.to(there)).to(place)
        else:
            kind = type(policy).__name__
            raise ConfigError(f"policy {k} is of type {kind}; give an agent or a function")
        if tuple(action.shape) != shape:
            raise ConfigError(
                f"policy {k} gives actions of shape {tuple(action.shape)} for {count} "
                f"observations, task {spec.task!r} needs {shape}"
            )
        if not bool(torch.isfinite(action).all()):
            raise DataError(f"policy {k} gives actions that are not finite; has its fit diverged?")
        if scale is not None:
            columns.append(scale.to_unit(action.float()).clamp(-1, 1))
            continue
        low, high, last = int(action.min()), int(action.max()), (spec.num_actions or 0) - 1
        if low < 0 or high > last:
            raise ConfigError(
                f"policy {k} gives actions {low} to {high}, task {spec.task!r} has 0 to {last}"
            )
        if mask is not None and not bool(mask.gather(1, action.long()[:, None]).all()):
            raise ConfigError(
                f"policy {k} takes actions that task {spec.task!r} did not allow there; give an "
                "agent that keeps to action masks"
            )
        columns.append(action.long())
    return torch.stack(columns, 1)


class FQE:
    """The fit behind `evaluate_policies`: member k of the critic belongs to policy k.

    Next and start actions are computed once, so that an update runs no policy. A critic's output f
    stands for Q = centre + scale f with the moments of the data's returns. Targets are formed in
    the task's units, so this is exact at terminated rows too, where rewards shifted by a constant
    would pay or fine an early end.
    """

    def __init__(
        self,
        policies: Sequence[Trainable | Policy | LoggedPolicy],
        dataset: Dataset,
        config: FQEConfig,
        device: str,
    ) -> None:
        if len(policies) == 0:
            raise ConfigError("policies is empty; give at least one agent or function")
        if len(dataset) == 0:
            raise DataError(f"dataset {dataset.provenance.card!r} has no transitions")
        self.config, self.spec = config, dataset.spec
        self.place = agent.resolve_device(device)
        initial, self.generator = generators(config.seed, self.place)
        data = dataset.transitions.to(self.place)
        first_rows = torch.tensor([first for first, _ in data.episodes()], device=self.place)
        starts = data.obs[first_rows].float()
        actions = policy_actions(policies, data, first_rows, self.spec)
        self.next_action, start_action = actions.split([len(data), len(starts)])
        self.start_action = start_action.transpose(0, 1)

        self.normalise = Normaliser(self.spec.obs_dim).to(self.place)
        self.normalise.fit(data.obs, eps=1e-3)
        self.start = self.normalise(starts)
        data = replace(data, obs=self.normalise(data.obs), next_obs=self.normalise(data.next_obs))
        self.buffer = rows_of(self.spec, data, config.gamma, self.place)
        self.range = return_range(data.reward, data.terminated, config.gamma, data.duration)
        self.centre, self.scale = return_moments(data, config.gamma)

        width = self.spec.obs_dim + (0 if self.spec.discrete else self.spec.action_dim)
        outputs = self.spec.num_actions or 1
        self.draws = max(1, config.resamples)
        shared = EnsembleMLP(self.draws, width, config.hidden, outputs, generator=initial)
        members = len(policies) * self.draws
        self.critic = EnsembleMLP(members, width, config.hidden, outputs, generator=initial)
        with torch.no_grad():
            for parameter, first in zip(self.critic.parameters(), shared.parameters(), strict=True):
                parameter.copy_(first.repeat(len(policies), *[1] * (first.ndim - 1)))
        # How often each draw has each episode [R, E], and the episode of each row.
        self.counts = self._draw_counts(len(starts))
        self.episode = (data.truncated | data.terminated).long().cumsum(0).roll(1)
        self.episode[0] = 0
        self.critic.to(self.place)
        self.critic_target = target_copy(self.critic)
        self.optimiser = adam(self.critic.parameters(), config.learning_rate)

    def _draw_counts(self, episodes: int) -> Tensor | None:
        if self.config.resamples == 0:
            return None
        size = (self.draws, episodes)
        draw = torch.randint(episodes, size, generator=self.generator, device=self.place)
        ones = torch.ones(size, device=self.place)
        return torch.zeros(size, device=self.place).scatter_add_(1, draw, ones)

    def update(self) -> tuple[Tensor, Tensor]:
        """One descent step on a fresh batch; returns each policy's mean squared TD error [K] in
        the task's units and its share of targets out of range [K]."""
        c = self.config
        index = torch.randint(
            len(self.buffer), (c.batch_size,), generator=self.generator, device=self.place
        )
        batch = self.buffer.batch(self.buffer.gather(index))
        next_action = self.next_action.index_select(0, index).transpose(0, 1)
        with torch.no_grad():
            f = self._outputs(self.critic_target, batch.next_obs, next_action)
            target = batch.reward + batch.discount * (self.centre + self.scale * f)
            bounded = target.clamp(*self.range)
            outside = self._by_policy((bounded != target).float().mean(1))
            target = ((bounded if c.clip else target) - self.centre) / self.scale
        squared = (self._outputs(self.critic, batch.obs, batch.action) - target).square()
        if self.counts is not None:
            counts = self.counts[:, self.episode[index]]
            squared = squared * counts.repeat(len(squared) // self.draws, 1)
        squared = squared.mean(1)
        descend(self.optimiser, squared.sum())
        polyak_update(self.critic_target, self.critic, c.tau)
        return self._by_policy(squared.detach()) * self.scale**2, outside

    def _by_policy(self, values: Tensor) -> Tensor:
        """Means over the draws of each policy [K] of numbers [K R]."""
        return values.reshape(-1, self.draws).mean(1)

    def _outputs(self, critic: EnsembleMLP, obs: Tensor, action: Tensor) -> Tensor:
        """f [K R, B] at normalised `obs` [B, S] and logged actions ([B, A], or [B] if discrete), or
        those of each policy ([K, B, A], or [K, B])."""
        if self.draws > 1 and action.ndim > (1 if self.spec.discrete else 2):
            action = action.repeat_interleave(self.draws, 0)
        if self.spec.discrete:
            f = critic(obs)
            return f.gather(2, action.expand(f.shape[:2])[:, :, None])[:, :, 0]
        if action.ndim == 2:
            return ensemble_values(critic, torch.cat([obs, action], -1))[0]
        x = torch.cat([obs.expand(len(action), *obs.shape), action], -1)
        return critic(x)[:, :, 0]

    @torch.no_grad()
    def start_values(self) -> tuple[Tensor, Tensor]:
        """Q(s_0, pi_k(s_0)) [K, episodes] of the averaged critic, which has less of the last
        batches' noise, and its mean over each draw of the episodes [K, R]."""
        f = self._outputs(self.critic_target, self.start, self.start_action)
        values = (self.centre + self.scale * f).reshape(-1, self.draws, f.shape[1])
        if self.counts is None:
            return values[:, 0], values.new_zeros(len(values), 0)
        return values.mean(1), (values * self.counts).sum(2) / self.counts.sum(1)

    @torch.no_grad()
    def values(self, obs: Tensor, action: Tensor) -> Tensor:
        """Q [K, N] of raw `obs` [N, S] and actions in the task's units ([N, A], or [N])."""
        scale = ActionScale(self.spec).to(self.place) if not self.spec.discrete else None
        x = self.normalise(obs.float())
        f = self._outputs(self.critic_target, x, action if scale is None else scale.to_unit(action))
        return (self.centre + self.scale * f).reshape(-1, self.draws, len(obs)).mean(1)

    def metrics(self, squared: Tensor, outside: Tensor, step: int) -> Metrics:
        """What a progress report holds; errors and shares are means over the policies."""
        metrics = {f"fqe/value_{k}": v for k, v in enumerate(self.start_values()[0].mean(1))}
        metrics["fqe/update"] = torch.tensor(step, device=self.place)
        return metrics | {"fqe/td_error": squared.mean().sqrt(), "fqe/out_of_range": outside.mean()}

    def check(self, squared: Tensor, step: int) -> None:
        """Raise `DivergenceError` where a policy's mean squared TD error [K] is beyond use."""
        bad = ~(squared <= (DIVERGED * self.scale) ** 2)
        if bool(bad.any()):
            k = int(bad.nonzero()[0])
            raise DivergenceError(
                f"fitted Q evaluation diverged: the TD error of policy {k} is "
                f"{float(squared[k].sqrt()):.4g} at update {step}, the data's returns vary by "
                f"{self.scale:.4g}; use clip=True or a lower learning_rate or tau"
            )
