"""RAMBO: RAMBO-RL: Robust Adversarial Model-Based Offline Reinforcement Learning
(arXiv 2204.12581). The model is changed now and then so that the policy does worse in it, while it
still has to explain the data.

Differences: only the kept members are changed; the mixture's density is that of whole targets; the
adversary has no weight decay; critics see observations as they are (the authors' are standardised);
rows of the adversary's rollouts that end start afresh from the data.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from algorithms.learners.critics import q_values
from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic
from algorithms.sources.imagined import (
    ImaginationConfig,
    ImaginedRows,
    ModelBasedConfig,
    dynamics,
    require_ensemble,
)
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, CountOrZero, NonNegative, Positive, Settings, Several
from mbrl.networks import adam, descend
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Dataset
from world_models import EnsembleDynamics, RolloutConfig, WorldModel
from world_models.ensemble_network import gaussian_nll


@dataclass(frozen=True)
class AdversaryConfig(Settings):
    """How the model is turned against the policy."""

    weight: NonNegative = 3e-4  # lambda of the adversarial term; 0: the model stays as fitted
    every: Count = 1000  # updates between its turns
    steps: Count = 1000  # its gradient steps a turn
    batch_size: Several = 256  # imagined rows, and real rows, a step
    learning_rate: Positive = 3e-4  # Adam


@dataclass(frozen=True)
class CloningConfig(Settings):
    """How the policy is cloned from the data before anything else."""

    epochs: CountOrZero = 50  # passes over the data; 0: the policy starts as it is
    batch_size: Count = 256  # rows a step
    learning_rate: Positive = 1e-4  # Adam


@dataclass(frozen=True)
class RAMBOConfig(ModelBasedConfig):
    """Settings of RAMBO; the adversary's weight and the horizon are tuned per dataset."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(hidden=(256, 256), actor_lr=1e-4)
    )
    imagination: ImaginationConfig = field(
        default_factory=lambda: ImaginationConfig(
            rollout=RolloutConfig(horizon=5), every=250, real_ratio=0.5
        )
    )
    adversary: AdversaryConfig = field(default_factory=AdversaryConfig)
    cloning: CloningConfig = field(default_factory=CloningConfig)


def mixture_log_prob(mean: Tensor, log_variance: Tensor, target: Tensor) -> Tensor:
    """log of (1 / E) sum_e N(y; mu_e, sigma_e^2) [B] at `target` [B, D], from the members' means
    and log-variances [E, B, D]."""
    check_shapes(mean=(mean, "E B D"), log_variance=(log_variance, "E B D"), target=(target, "B D"))
    square = (target - mean).square() * torch.exp(-log_variance)
    log_probs = -0.5 * (square + log_variance + math.log(2 * math.pi)).sum(-1)
    return torch.logsumexp(log_probs, 0) - math.log(len(mean))


def normalised_advantage(value: Tensor, baseline: Tensor) -> Tensor:
    """(A - mean A) / std A over the batch, of A = value - baseline, all [B]; no gradient."""
    check_shapes(value=(value, "B"), baseline=(baseline, "B"))
    advantage = (value - baseline).detach()
    return (advantage - advantage.mean()) / (advantage.std() + 1e-6)


def adversarial_loss(
    fit: Tensor, log_prob: Tensor, advantage: Tensor, weight: float
) -> tuple[Tensor, Metrics]:
    """The model's fit plus weight times the batch mean of log p(s', r | s, a) A, `log_prob` and
    `advantage` [B]: descending it makes steps that are good for the policy less likely.

    RAMBO-RL (arXiv 2204.12581), the model's gradient of the value with a baseline. A mean, as in
    the authors' code and in the present OfflineRL-Kit (its first version: a sum).
    """
    check_shapes(log_prob=(log_prob, "B"), advantage=(advantage, "B"))
    attack = (log_prob * advantage).mean()
    metrics = {"adversary/fit": fit.detach(), "adversary/attack": attack.detach()}
    return fit + weight * attack, metrics


class AdversarialRows(ImaginedRows):
    """Imagined rows in a model that an adversary changes every so many updates. The adversary's
    optimiser and that of cloning are among the learner's."""

    model: EnsembleDynamics

    def __init__(
        self,
        config: RAMBOConfig,
        learner: SoftActorCritic,
        model: EnsembleDynamics,
        seed: int,
        generator: Generator,
    ) -> None:
        super().__init__(learner, model, config.imagination, learner.log_alpha.device, seed)
        self.config, self.generator = config, generator
        rate = config.cloning.learning_rate
        learner.optimisers["cloning"] = adam(learner.actor.parameters(), rate)
        self.epochs = 0  # of the model's fit and of cloning, those that were reported
        self.cloned = 0  # epochs of cloning

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Fit the world model, then clone the logged actions; both continue where they stopped."""

        def counted(metrics: Metrics) -> None:
            self.epochs += 1
            on_progress(metrics)

        super().prepare(dataset, counted)
        while self.cloned < self.config.cloning.epochs:
            self.clone(on_progress)
        if "adversary" not in self.learner.optimisers:
            self.arm()

    def clone(self, on_progress: Callable[[Metrics], None]) -> None:
        """One pass over the logged rows in a fresh random order, by maximum likelihood."""
        data, actor = self.real.rows, self.learner.actor
        order = torch.randperm(len(data), generator=self.generator, device=self.device)
        total = torch.zeros((), device=self.device)
        parts = order.split(self.config.cloning.batch_size)
        for rows in parts:
            batch = data.batch(data.gather(rows))
            loss = -actor.log_prob(batch.obs, batch.action).mean()
            descend(self.learner.optimisers["cloning"], loss)
            total += loss.detach()
        self.cloned, self.epochs = self.cloned + 1, self.epochs + 1
        assert self.model.holdout_mse is not None
        on_progress(
            {
                "model/epoch": torch.tensor(float(self.epochs)),
                "model/holdout_mse": self.model.holdout_mse.mean(),
                "actor/cloning": total / len(parts),
            }
        )

    def arm(self) -> None:
        """Make the fitted model trainable again, with an optimiser of the adversary's own."""
        learned, rate = self.model.trainable(), self.config.adversary.learning_rate
        self.learner.optimisers["adversary"] = adam(learned, rate)

    def refitted(self) -> None:
        self.arm()

    def advance(self, step: int, generator: Generator) -> Metrics:
        """Let the adversary have its turn when due, then imagine when due."""
        c = self.config.adversary
        armed = "adversary" in self.learner.optimisers
        due = armed and c.weight > 0 and step > 0 and step % c.every == 0
        metrics = self.attack() if due else {}
        return metrics | super().advance(step, generator)

    def attack(self) -> Metrics:
        """One turn of the adversary: `steps` gradient steps on its loss, along rollouts of the
        policy in the model as it changes; the means of its metrics."""
        c, horizon = self.config.adversary, self.imagination.rollout.horizon
        totals: Metrics = {}
        obs = self.real.rows.sample(c.batch_size, self.generator).obs
        for k in range(c.steps):
            real = self.real.rows.sample(c.batch_size, self.generator)
            if k % horizon == 0:
                obs = real.obs
            metrics, obs = self.attack_step(obs, real)
            totals = {name: totals.get(name, 0.0) + value for name, value in metrics.items()}
        return {name: value / c.steps for name, value in totals.items()}

    def attack_step(self, obs: Tensor, real: Batch) -> tuple[Metrics, Tensor]:
        """One gradient step at the imagined `obs` [B, S] and the `real` rows; returns the next
        imagined observations, where an episode ended those of `real`."""
        model, to_task = self.model, self.learner.actor.scale.to_task
        with torch.no_grad():
            action = self.learner.actor.explore(obs, self.generator)
        mean, log_variance = model.network(model.encode(obs, action))
        y = self.sampled_target(mean.detach(), log_variance.detach())
        next_obs, reward = model.decode(obs, action, y)
        terminated = model.terminates(obs, action, next_obs, self.generator)
        reward = model.ending_reward(reward, terminated)
        advantage = self.advantage(obs, action, reward, next_obs, terminated)
        real_mean, real_spread = model.network(model.encode(real.obs, to_task(real.action)))
        fit = gaussian_nll(real_mean, real_spread, model.targets(real), model.network)
        log_prob = mixture_log_prob(mean, log_variance, y)
        loss, metrics = adversarial_loss(fit, log_prob, advantage, self.config.adversary.weight)
        descend(self.learner.optimisers["adversary"], loss)
        return metrics, torch.where(terminated[:, None], real.obs, next_obs)

    def sampled_target(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """A draw [B, D] of the mixture, in target units: a random member for each row."""
        members, rows, width = mean.shape
        drawn = torch.randint(members, (rows,), generator=self.generator, device=self.device)
        noise = torch.randn(rows, width, generator=self.generator, device=self.device)
        row = torch.arange(rows, device=self.device)
        return mean[drawn, row] + (0.5 * log_variance[drawn, row]).exp() * noise

    @torch.no_grad()
    def advantage(
        self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, terminated: Tensor
    ) -> Tensor:
        """Normalised r + gamma (1 - terminated) min Q(s', pi(s')) - min Q(s, a) [B], with the
        greedy action at s'; `action` in the task's units."""
        critic, actor = self.learner.critic, self.learner.actor
        to_unit = actor.scale.to_unit
        next_q = q_values(critic, next_obs, to_unit(actor(next_obs))).min(0).values
        q = q_values(critic, obs, to_unit(action)).min(0).values
        discount = self.config.gamma * (1.0 - terminated.to(reward.dtype))
        return normalised_advantage(reward + discount * next_q, q)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"epochs": self.epochs, "cloned": self.cloned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.epochs, self.cloned = state["epochs"], state["cloned"]
        if "adversary" in state["optimisers"]:
            self.arm()  # its optimiser is then loaded with the learner's others


class RAMBO(Agent[Batch]):
    """SAC against a model that is trained to be as bad for the policy as the data allow. A copy of
    `model` replaces the learned ensemble.

    Formula:

        model        L = -log likelihood of the data + lambda mean log p(s', r | s, a) A
                     A = r + gamma min_n Q_n(s', pi(s')) - min_n Q_n(s, a), over its deviation
        critics      y = r + gamma (min_n Q'_n(s', a') - alpha log pi(a'|s')), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2, on logged and imagined rows
        policy       L = mean (alpha log pi(a|s) - min_n Q_n(s, a)), a ~ pi(s)

    When not to use it: on narrow expert data: in the table model-based it ends there lowest of
    seven, although its policy begins as a clone. On broad Pendulum data it is among the best.
    """

    version = 1
    config: RAMBOConfig

    def build(
        self, generator: Generator, model: WorldModel | None = None
    ) -> tuple[SoftActorCritic, AdversarialRows]:
        c = self.config
        learner = SoftActorCritic(self.spec, c.learner, self.device, generator)
        model = dynamics(self.spec, c.model, c.imagination, self.device, self.seed, model)
        given = require_ensemble(model, "RAMBO")
        # Others keep what they gave. Its rule of ends, with the task that it is a method of, is not
        # copied: MuJoCo's cannot be.
        ensemble = copy.deepcopy(given, {id(given.termination): given.termination})
        return learner, AdversarialRows(c, learner, ensemble, self.seed, self.generator)
