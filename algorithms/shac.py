"""SHAC: Accelerated Policy Learning with Parallel Differentiable Simulation (arXiv 2204.07137), in
a learned model: the policy follows the derivative of what a short imagined window earns, through
the model's steps and into the value at the window's end.

Differences: windows run in members of a learned ensemble, from logged states, in place of a
simulator; the reward of an imagined step is lowered where the members disagree more than on all but
a hundredth of the logged rows, and imagined observations stay within three deviations of the
logged ones; the policy is deterministic, begins as a clone of the logged one and acts as an
exponential average; two critics, the smaller value counts. The authors' critics are trained on
whole windows for 16 passes, here on parts of the windows for a fixed number of updates.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from algorithms.learners.critics import state_values, value_critics
from algorithms.sources.imagined import RefitConfig, require_ensemble
from algorithms.sources.model_rows import ModelRows, own_ensemble
from mbrl.agent import Agent, fit_normalisers
from mbrl.buffer import Batch
from mbrl.config import (
    Count,
    CountOrZero,
    Discount,
    NonNegative,
    Positive,
    Probability,
    Rate,
    Settings,
    Widths,
)
from mbrl.networks import DeterministicPolicy, adam, descend, polyak_update, target_copy
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec
from world_models import EnsembleConfig, EnsembleDynamics, WorldModel

EDGE_ROWS = 5000  # logged rows whose disagreement says what is unusual
EDGE = 0.99  # quantile of theirs beyond which the members disagree too much
ROOM = 3.0  # deviations that imagined observations may leave the logged range by


@dataclass(frozen=True)
class SHACConfig(Settings):
    """Settings of SHAC in a learned model."""

    hidden: Widths = (64, 64)  # widths of the policy
    critic_hidden: Widths = (128, 128)  # and of the critics
    learning_rate: Positive = 1e-3  # Adam, policy and critics
    gamma: Discount = 0.99  # discount factor
    horizon: Count = 16  # steps of a window
    trace: Probability = 0.95  # lambda of the critics' targets
    critic_updates: Count = 8  # after each update of the policy, each on a part of the windows
    tau: Rate = 0.01  # rate of the critics' target average
    batch_size: Count = 128  # windows an update
    cloning: CountOrZero = 500  # first updates, which clone the logged actions
    critics_first: CountOrZero = 100  # next updates, in which only the critics learn
    penalty: NonNegative = 3.0  # off a step's reward, in its deviations, for each EDGE passed
    clip: Positive = 1.0  # largest norm of the policy's gradient
    policy_average: Rate = 0.02  # rate of the average of the policy that acts
    model: EnsembleConfig = field(
        default_factory=lambda: EnsembleConfig(
            members=5,
            elites=5,
            hidden=(100, 100),
            layer_norm=True,
            target="residual",
            reward="reached",
            weight_decay=(1e-6,),
            min_epochs=5,
            max_epochs=20,
        )
    )
    # where imagined episodes end; learned: by a probability learned from the data
    termination: Literal["task", "never", "learned"] = "task"
    online: RefitConfig = field(default_factory=lambda: RefitConfig(warmup=1000))


def trace_targets(
    reward: Tensor, value: Tensor, alive: Tensor, gamma: float, trace: float
) -> Tensor:
    """TD(lambda) targets [H, B] of the states before each step, from the `reward` [H, B] of the
    steps, the `value` [H, B] of the states after them, and `alive` [H, B], 1 where the episode goes
    on after the step: G_t = r_t + gamma alive_t ((1 - lambda) V_{t+1} + lambda G_{t+1}), with
    G_H = V_H."""
    check_shapes(reward=(reward, "H B"), value=(value, "H B"), alive=(alive, "H B"))
    following, targets = value[-1], []
    for t in reversed(range(len(reward))):
        mixed = (1.0 - trace) * value[t] + trace * following
        following = reward[t] + gamma * alive[t] * mixed
        targets.append(following)
    return torch.stack(targets[::-1])


class Limits(nn.Module):
    """What the logged rows say of the model: `edge`, the disagreement of their most unusual
    hundredth; `low` and `high` [S] of imagined observations; the deviation of rewards, 1 where all
    are equal."""

    edge: Tensor
    low: Tensor
    high: Tensor
    reward: Tensor

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        most = torch.finfo(torch.float32).max  # an infinite one counts as a divergence
        self.register_buffer("edge", torch.tensor(most))
        self.register_buffer("low", torch.full((spec.obs_dim,), -most))
        self.register_buffer("high", torch.full((spec.obs_dim,), most))
        self.register_buffer("reward", torch.ones(()))

    @torch.no_grad()
    def fit(self, rows: Batch, action: Tensor, model: EnsembleDynamics) -> None:
        """From the batch `rows` with their `action` [B, A] in the task's units."""
        level = model.disagreement(rows.obs, action, "epistemic_mean")
        self.edge.copy_(torch.quantile(level, EDGE).clamp_min(1e-6))
        room = ROOM * rows.obs.std(0)
        self.low.copy_(rows.obs.amin(0) - room)
        self.high.copy_(rows.obs.amax(0) + room)
        deviation = rows.reward.std()
        self.reward.copy_(torch.where(deviation < 1e-6, 1.0, deviation))


class Window(NamedTuple):
    """Imagined steps: `obs` [H + 1, B, S]; scaled, lowered `reward`, and `alive` [H, B] after
    them, the probability of that (0 or 1 where a rule says it); the share of steps beyond the
    edge."""

    obs: Tensor
    reward: Tensor
    alive: Tensor
    outside: Tensor


class ShortHorizon:
    """The policy, its critics, and their updates in `model`."""

    def __init__(
        self,
        spec: Spec,
        config: SHACConfig,
        model: EnsembleDynamics,
        device: torch.device,
        generator: Generator,
    ) -> None:
        self.spec, self.config, self.model, self.device = spec, config, model, device
        self.actor = DeterministicPolicy(spec, config.hidden, generator=generator).to(device)
        self.policy = target_copy(self.actor)
        self.critic = value_critics(spec, 2, config.critic_hidden, generator).to(device)
        self.target, self.limits = target_copy(self.critic), Limits(spec).to(device)
        self.modules: dict[str, nn.Module] = {
            "policy": self.policy,
            "actor": self.actor,
            "critic": self.critic,
            "target": self.target,
            "limits": self.limits,
        }
        self.optimisers: dict[str, torch.optim.Optimizer] = {
            "actor": adam(self.actor.parameters(), config.learning_rate),
            "critic": adam(self.critic.parameters(), config.learning_rate),
        }

    @property
    def reward_scale(self) -> float:
        """What the rewards that critics value are multiplied by."""
        return 1.0 / float(self.limits.reward)

    def fit_limits(self, rows: ModelRows) -> None:
        """Let the rows say what is usual of the model and of observations."""
        some = rows.rows.sample(
            EDGE_ROWS, Generator(device=self.device).manual_seed(self.model.seed)
        )
        self.limits.fit(some, self.actor.scale.to_task(some.action), self.model)
        fit_normalisers(self.modules, rows.rows.whole().obs)

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch as it is: updates draw nothing, as the rows of a batch are in random order."""
        return batch

    def update(self, batch: Batch, count: int) -> Metrics:
        """One update of the policy with those of the critics that follow it."""
        c = self.config
        if count < c.cloning:
            loss = F.mse_loss(self.actor.unit(batch.obs), batch.action)
            descend(self.optimisers["actor"], loss)
            polyak_update(self.policy, self.actor, 1.0)
            return {"actor/bc": loss.detach()}
        window = self.imagine(batch.obs)
        metrics: Metrics = {"reach/outside": window.outside}
        if count >= c.cloning + c.critics_first:
            loss = -self.returns(window).mean() / c.horizon
            descend(self.optimisers["actor"], loss, c.clip)
            polyak_update(self.policy, self.actor, c.policy_average)
            metrics["actor/loss"] = loss.detach()
        return metrics | self.update_critics(window)

    def imagine(self, obs: Tensor) -> Window:
        """Windows of the actor's steps from `obs` [B, S], each in one member of the ensemble."""
        member = torch.arange(len(obs), device=self.device) % self.model.num_members
        alive = torch.ones(len(obs), device=self.device)
        seen, rewards, lives, outside = [obs], [], [], []
        for _ in range(self.config.horizon):
            action = self.actor(obs)
            reached, reward, level = self.model.mean_step(obs, action, member)
            # Of the observation as predicted: ends may lie beyond the limits.
            survives = self.model.survival(obs, action, reached)
            reward = self.model.ending_reward(reward, 1.0 - survives)
            excess = F.relu(level / self.limits.edge - 1.0)
            rewards.append((reward / self.limits.reward - self.config.penalty * excess) * alive)
            outside.append((excess > 0).float().mean())
            alive = alive * survives
            obs = torch.minimum(torch.maximum(reached, self.limits.low), self.limits.high)
            seen.append(obs)
            lives.append(alive)
        share = torch.stack(outside).mean().detach()
        return Window(torch.stack(seen), torch.stack(rewards), torch.stack(lives), share)

    def returns(self, window: Window) -> Tensor:
        """sum_t gamma^t r_t + gamma^H V(s_H) [B], the smaller value of the two critics."""
        c = self.config
        power = c.gamma ** torch.arange(c.horizon, device=self.device)
        end = state_values(self.target, window.obs[-1]).min(0).values * window.alive[-1]
        return (power[:, None] * window.reward).sum(0) + c.gamma**c.horizon * end

    def update_critics(self, window: Window) -> Metrics:
        c = self.config
        horizon, batch = window.reward.shape
        with torch.no_grad():
            after = window.obs[1:].flatten(0, 1)
            value = state_values(self.target, after).min(0).values.view(horizon, batch)
            living = torch.cat([torch.ones_like(window.alive[:1]), window.alive[:-1]])
            # Of a window that is alive before the step; dead ones have no weight below.
            there = torch.where(living > 0, living, torch.ones_like(living))
            reward, goes_on = window.reward / there, window.alive / there
            targets = trace_targets(reward, value, goes_on, c.gamma, c.trace)
        before = window.obs[:-1].detach()
        total = targets.new_zeros(())
        parts = min(c.critic_updates, batch)
        for part in range(c.critic_updates):
            columns = slice(part % parts, None, parts)
            own = before[:, columns].flatten(0, 1)
            error = state_values(self.critic, own) - targets[:, columns].flatten()
            weight = living[:, columns].flatten()
            loss = (error.square() * weight).sum() / weight.sum().clamp_min(1.0)
            descend(self.optimisers["critic"], loss)
            polyak_update(self.target, self.critic, c.tau)
            total += loss.detach()
        return {"critic/loss": total / c.critic_updates, "critic/target": targets.mean()}


class SHAC(Agent[Batch]):
    """A policy improved by derivatives of short imagined windows through a learned ensemble, with
    the value at their end. `model` replaces the ensemble by another, fitted or not.

    Formula:

        window       s_{t+1}, r_t from one member of the ensemble, a_t = pi(s_t), s_0 logged
        reward       r_t / std(r) - w max(0, d(s_t, a_t) / d_99 - 1), d the members' disagreement,
                     d_99 what a hundredth of the logged rows passes
        policy       L = -mean (sum_t gamma^t r_t + gamma^H min_n V'_n(s_H)) / H, by derivatives
                     through all steps
        critics      G_t = r_t + gamma ((1 - lambda) V'(s_{t+1}) + lambda G_{t+1})
                     L = sum_n mean (V_n(s_t) - G_t)^2

    When not to use it: where contacts or jumps make the model's derivatives useless, and on narrow
    data: in the table solve-neorl2 it has -1 on SafetyHalfCheetah, where cloning has 73. It is at
    its best where the dynamics are smooth and the data broad: 91 on DMSD there, cloning 65.
    """

    version = 1
    config: SHACConfig

    def build(
        self, generator: Generator, model: WorldModel | None = None
    ) -> tuple[ShortHorizon, ModelRows]:
        c = self.config
        model = model or own_ensemble(self.spec, c.model, c.termination, self.device, self.seed)
        ensemble = require_ensemble(model, "shac")
        learner = ShortHorizon(self.spec, c, ensemble, self.device, generator)
        rows = ModelRows(
            self.spec, ensemble, c.gamma, c.batch_size, c.online, self.device,
            refitted=learner.fit_limits,
        )  # fmt: skip
        return learner, rows
