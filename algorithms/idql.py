"""IDQL: Implicit Q-Learning as an Actor-Critic Method with Diffusion Policies (arXiv 2304.10573):
IQL's values, a diffusion that clones the data, and the best of its samples by value. The formulas
were read in the authors' code (github.com/philippe-eecs/IDQL, jaxrl5/agents/ddpm_iql).

Differences from the authors' code: an MLP for their residual network with LayerNorm and dropout;
the diffusion has EDM's levels and follows the probability flow, theirs takes five of DDPM's steps
with fresh noise; weights are not averaged; one step an update, theirs takes two on two batches.
Of their value losses there is the expectile. `policy = "flow"` is IFQL of FQL's authors.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from algorithms.iql import expectile_loss
from algorithms.learners.advantage_weighted import cosine_rate
from algorithms.learners.critics import CriticRegression, critics, q_values, sampled_q_values
from algorithms.learners.generative import (
    Drawn,
    GenerativeConfig,
    GenerativePolicy,
    best,
    drawn,
    picked,
)
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, CountOrZero, Fraction, Rate, Widths
from mbrl.networks import (
    MLP,
    EnsembleMLP,
    adam,
    descend,
    polyak_update,
    target_copy,
)
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class IDQLConfig(GenerativeConfig):
    """Settings of IDQL; the defaults are the authors' where they are not named as differences."""

    policy: Literal["flow", "diffusion"] = "diffusion"  # which model of the logged actions
    candidates: Count = 64  # samples of it at a state, of which the best is taken
    expectile: Fraction = 0.7  # tau of the value regression
    hidden: Widths = (256, 256)  # widths of all networks
    decay_steps: CountOrZero = 2_000_000  # the policy's rate falls to 0 on a cosine; 0: constant
    tau: Rate = 0.005  # rate of the target average


class BestOfSamples(nn.Module):
    """Of samples of `base` the one with the largest minimum of `critic`s. Exploring draws one of
    them with the weights of the implicit policy, which `value` is for."""

    def __init__(
        self, base: GenerativePolicy, critic: EnsembleMLP, value: MLP, expectile: float
    ) -> None:
        super().__init__()
        self.base, self.critic, self.value, self.expectile = base, critic, value, expectile
        self.scale, self.normaliser = base.scale, base.normaliser

    def values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """min_n Q_n(s, a_k) [K, B] at raw `obs` [B, S] and `actions` [K, B, A]."""
        return sampled_q_values(self.critic, self.normaliser(obs), actions).min(0).values

    def weights(self, obs: Tensor, q: Tensor) -> Tensor:
        """|tau - 1(Q < V)| [K, B] at raw `obs` [B, S] and `q` [K, B]: the policy whose values an
        expectile's V holds, over that of the data (arXiv 2304.10573, section 4)."""
        above = q > self.value(self.normaliser(obs))[:, 0]
        return torch.where(above, self.expectile, 1.0 - self.expectile)

    def evaluations(self, obs: Tensor) -> Tensor:
        """Passes of a network that the action at each row of `obs` takes, [B]."""
        return self.base.noise.shape[0] * (self.base.evaluations(obs) + 1.0)

    def greedy_options(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Samples [K, B, A] from the kept noise and their values [K, B]."""
        actions = self.base.candidates(obs, self.base.greedy_noise(obs))
        return actions, self.values(obs, actions)

    def forward(self, obs: Tensor) -> Tensor:
        """The greedy action in the task's units."""
        return self.scale.to_task(best(*self.greedy_options(obs)))

    def explore(self, obs: Tensor, generator: Generator | None) -> Tensor:
        """An action of the implicit policy in the task's units."""
        actions = self.base.candidates(obs, self.base.drawn_noise(obs, generator))
        weights = self.weights(obs, self.values(obs, actions))
        index = torch.multinomial(weights.T, 1, generator=generator)[:, 0]
        return self.scale.to_task(picked(actions, index))


class ImplicitDiffusionLearner:
    """Value by expectile regression, critics on the values, and a generative clone beside them."""

    def __init__(
        self, spec: Spec, config: IDQLConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config = config
        self.offline = True  # whether it learns from logged data alone; the agent sets it
        hidden, rate = config.hidden, config.learning_rate
        self.base = GenerativePolicy(
            spec, config.path, hidden, candidates=config.candidates, generator=generator
        ).to(device)
        self.critic = critics(spec, 2, hidden, generator).to(device)
        self.value = MLP(spec.obs_dim, hidden, 1, generator=generator).to(device)
        self.critic_target = target_copy(self.critic)
        self.policy = BestOfSamples(self.base, self.critic_target, self.value, config.expectile)
        learned: dict[str, nn.Module] = {
            "base": self.base,
            "critic": self.critic,
            "value": self.value,
        }
        self.modules = learned | {"critic_target": self.critic_target}
        self.optimisers = {name: adam(m.parameters(), rate) for name, m in learned.items()}
        self.regression = CriticRegression(
            spec, self.critic, self.optimisers["critic"], self.base.normaliser, scale=0.5
        )

    def draw(self, batch: Batch, generator: Generator) -> Drawn:
        """The batch with noise and a level for each row."""
        return drawn(batch, self.config.path, generator)

    def update(self, batch: Drawn, count: int = 0) -> Metrics:
        """One step of policy, value and critics, in that order, and of the target average."""
        c, rows = self.config, batch.batch
        self.optimisers["base"].param_groups[0]["lr"] = (
            cosine_rate(c.learning_rate, c.decay_steps, count) if self.offline else c.learning_rate
        )
        clone = self.base.loss(batch)
        descend(self.optimisers["base"], clone)
        metrics = {"actor/bc": clone.detach()} | self.update_value(rows)
        with torch.no_grad():
            next_value = self.value(self.base.normaliser(rows.next_obs))[:, 0]
        metrics |= self.regression.step(rows, rows.reward + rows.discount * next_value)
        polyak_update(self.critic_target, self.critic, c.tau)
        return metrics

    def update_value(self, rows: Batch) -> Metrics:
        obs = self.base.normaliser(rows.obs)
        with torch.no_grad():
            q = q_values(self.critic_target, obs, rows.action).min(0).values
        loss = expectile_loss(q - self.value(obs)[:, 0], self.config.expectile)
        descend(self.optimisers["value"], loss)
        return {"value/loss": loss.detach()}


class IDQL(Agent[Drawn]):
    """Implicit Q-learning with a diffusion policy.

    Formula:

        policy       L = that of a diffusion or flow of the logged actions (generative BC)
        value        L = mean |tau - 1(u < 0)| u^2, u = min_n Q'_n(s, a) - V(s)
        critics      L = mean_n mean (Q_n(s, a) - r - gamma V(s'))^2
        acting       a = argmax over K samples of the policy of min_n Q'_n(s, a_k)
        exploring    a sample with probability ~ |tau - 1(min_n Q'_n(s, a_k) < V(s))|

    When not to use it: where an action must be quick: K samples of many steps each are passes of
    a network by the hundred. And where no logged action is good: it takes samples as they are.
    """

    version = 1
    config: IDQLConfig

    def build(self, generator: Generator) -> tuple[ImplicitDiffusionLearner, LoggedRows]:
        c = self.config
        learner = ImplicitDiffusionLearner(self.spec, c, self.device, generator)
        return learner, LoggedRows.of(self.spec, c, self.device)
