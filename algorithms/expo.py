"""EXPO: Stable Reinforcement Learning with Expressive Policies (arXiv 2507.07986): a generative
clone of the data, a Gaussian policy that edits its actions, and the best of both by value, which
acts and makes the critics' targets. The formulas were read in a public copy of the authors' code
(class EXPOLearner) and in a re-implementation (github.com/ColinQiyangLi/qam, agents/fedit.py).

Differences from the authors' code: the clone is a flow by default (theirs DDPM with ten steps, a
residual network and averaged weights; see generative BC); edited actions are clipped to the bounds;
greedy actions take the edits' means and the first critics, theirs draw both; the log of the
temperature stands in its loss, as in this library's SAC. The target of the entropy is one of edits
before they are scaled, as in the re-implementation; in the copy it is -A / 2 of scaled ones, unless
told otherwise, which edits of at most 0.3 cannot reach. Nothing is known of the edits' scales but
that they are chosen for each task; the re-implementation's lie between 0.1 and 0.8.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from algorithms.learners.critics import CriticRegression, critics, q_values
from algorithms.learners.generative import (
    Drawn,
    GenerativeConfig,
    GenerativePolicy,
    best,
    drawn,
)
from algorithms.learners.soft_actor_critic import actor_loss, temperature_loss
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, CountOrZero, Finite, Positive, Rate
from mbrl.errors import ConfigError
from mbrl.networks import (
    EnsembleMLP,
    SquashedGaussianPolicy,
    adam,
    descend,
    polyak_update,
    target_copy,
)
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class EXPOConfig(GenerativeConfig):
    """Settings of EXPO. The authors go online with 20 updates a step, half of each batch logged."""

    candidates: Count = 8  # samples of the clone at a state
    edited: CountOrZero = 8  # of them that are also edited; 0: none, the best of samples
    edit_scale: Positive = 0.3  # largest edit of an action in [-1, 1]
    # what is edited in the edits' loss: logged actions (the authors' code), or fresh samples of the
    # clone (the re-implementation)
    edit_from: Literal["logged", "samples"] = "logged"
    critics: Count = 10  # N
    min_of: Count = 2  # a value is the minimum of so many random critics
    layer_norm: bool = True  # in the critics
    policy_every: Count = 1  # clone and edits take a step in every so many updates
    alpha: Positive = 1.0  # initial temperature of the edits
    target_entropy: Finite | None = None  # of edits before they are scaled; None: -A / 2
    tau: Rate = 0.005  # rate of the target average

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.edited > self.candidates:
            raise ConfigError(
                f"edited is {self.edited}, it must lie in 0..{self.candidates} (candidates)"
            )
        if self.min_of > self.critics:
            raise ConfigError(
                f"min_of is {self.min_of}, it must lie in 1..{self.critics} (critics)"
            )


class EditedPolicy(nn.Module):
    """The best of samples of `base` and of their edits, by the minimum of `critic`s."""

    first: Tensor

    def __init__(
        self,
        base: GenerativePolicy,
        edit: SquashedGaussianPolicy,
        critic: EnsembleMLP,
        c: EXPOConfig,
    ) -> None:
        super().__init__()
        self.base, self.edit, self.critic = base, edit, critic
        self.scale, self.normaliser = base.scale, base.normaliser
        self.edited, self.edit_scale = c.edited, c.edit_scale
        self.register_buffer("first", torch.arange(c.min_of), persistent=False)

    def moved(self, obs: Tensor, actions: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """`actions` [K, B, A] in [-1, 1] after edits drawn with standard normal `noise` [K, B, A],
        and the log-densities [K, B] of the edits in [-1, 1], before they are scaled."""
        standard = self.normaliser(obs).expand(actions.shape[0], -1, -1)
        step, log_prob = self.edit.sample(torch.cat([standard, actions], -1), noise)
        return (actions + self.edit_scale * step).clamp(-1, 1), log_prob

    def options(self, obs: Tensor, noise: Tensor, edit_noise: Tensor) -> Tensor:
        """Samples from `noise` [K, B, A], and the edits by `edit_noise` [E, B, A] of the first of
        them: [K + E, B, A]."""
        actions = self.base.candidates(obs, noise)
        if self.edited == 0:
            return actions
        return torch.cat([actions, self.moved(obs, actions[: self.edited], edit_noise)[0]])

    def values(self, obs: Tensor, actions: Tensor, members: Tensor) -> Tensor:
        """The minimum over `members` of Q_n(s, a_k) [K, B] at raw `obs` [B, S] and `actions`
        [K, B, A]."""
        standard = self.normaliser(obs).expand(actions.shape[0], -1, -1)
        x = torch.cat([standard, actions], -1).flatten(0, 1)
        return self.critic.chosen(x, members)[..., 0].min(0).values.view(actions.shape[:2])

    def evaluations(self, obs: Tensor) -> Tensor:
        """Passes of a network that the action at each row of `obs` takes, [B]."""
        count = self.base.noise.shape[0]
        return count * self.base.evaluations(obs) + count + 2.0 * self.edited

    def greedy_options(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Of the kept noise and the edits' means: actions [K + E, B, A] and values [K + E, B]."""
        noise = self.base.greedy_noise(obs)
        actions = self.options(obs, noise, torch.zeros_like(noise[: self.edited]))
        return actions, self.values(obs, actions, self.first)

    def forward(self, obs: Tensor) -> Tensor:
        """The greedy action in the task's units."""
        return self.scale.to_task(best(*self.greedy_options(obs)))

    def explore(self, obs: Tensor, generator: Generator | None) -> Tensor:
        """The best of fresh samples and edits, in the task's units."""
        noise = self.base.drawn_noise(obs, generator)
        shape = (self.edited, *noise.shape[1:])
        edit_noise = torch.randn(shape, generator=generator, device=obs.device)
        actions = self.options(obs, noise, edit_noise)
        return self.scale.to_task(best(actions, self.values(obs, actions, self.first)))


class ExpressiveLearner:
    """Critics whose targets the policy of the best option makes, a clone, and edits that climb."""

    def __init__(
        self, spec: Spec, config: EXPOConfig, device: torch.device, generator: Generator
    ) -> None:
        self.spec, self.config = spec, config
        hidden, rate = config.hidden, config.learning_rate
        self.base = GenerativePolicy(
            spec, config.path, hidden, candidates=config.candidates, generator=generator
        ).to(device)
        wide = replace(spec, obs_dim=spec.obs_dim + spec.action_dim)
        self.edit = SquashedGaussianPolicy(wide, hidden, generator=generator).to(device)
        critic = critics(spec, config.critics, hidden, generator, layer_norm=config.layer_norm)
        self.critic = critic.to(device)
        self.critic_target = target_copy(self.critic)
        self.policy = EditedPolicy(self.base, self.edit, self.critic_target, config).to(device)
        self.log_alpha = nn.Parameter(torch.tensor(float(config.alpha)).log().to(device))
        entropy = config.target_entropy
        self.target_entropy = -0.5 * spec.action_dim if entropy is None else entropy
        most = spec.action_dim * math.log(2.0)
        if self.target_entropy >= most:
            raise ConfigError(
                f"target_entropy is {entropy}, it must lie below {most:.3f}: no edit of "
                f"{spec.action_dim} numbers in [-1, 1] has a larger entropy"
            )
        learned: dict[str, nn.Module] = {
            "base": self.base,
            "edit": self.edit.net,  # without a normaliser of its own: its input is standardised
            "critic": self.critic,
            "temperature": nn.ParameterDict({"log_alpha": self.log_alpha}),
        }
        self.modules = learned | {"critic_target": self.critic_target}
        self.optimisers = {name: adam(m.parameters(), rate) for name, m in learned.items()}
        self.regression = CriticRegression(
            spec,
            self.critic,
            self.optimisers["critic"],
            self.base.normaliser,
            scale=1.0 / config.critics,
        )

    def draw(self, batch: Batch, generator: Generator) -> Drawn:
        """The batch with the draws of the next action's options (samples, then edits), of an edit
        and a sample at its own states, and two sets of critics [2, M]: one that chooses, one that
        values what is chosen."""
        c = self.config
        made = drawn(batch, c.path, generator, more=c.candidates + c.edited + 2)
        order = torch.rand(2, c.critics, generator=generator, device=batch.obs.device)
        subset = order.argsort(1)[:, : c.min_of]
        return made._replace(batch=made.batch._replace(subset=subset))

    def update(self, batch: Drawn, count: int = 0) -> Metrics:
        """One step of critics, clone, edits and temperature, in that order."""
        rows = batch.batch
        metrics = self.regression.step(rows, self.target(rows))
        polyak_update(self.critic_target, self.critic, self.config.tau)
        if count % self.config.policy_every == 0:
            loss = self.base.loss(batch)
            descend(self.optimisers["base"], loss)
            metrics |= {"actor/bc": loss.detach()}
            if self.config.edited:
                metrics |= self.update_edit(rows)
        return metrics

    @torch.no_grad()
    def target(self, rows: Batch) -> Tensor:
        """r + gamma min_m Q'_m(s', a*) [B], a* the best option at s' by other critics."""
        assert rows.noise is not None and rows.subset is not None
        count, policy = self.config.candidates, self.policy
        noise, edit_noise = rows.noise[:count], rows.noise[count:-2]
        actions = policy.options(rows.next_obs, noise, edit_noise)
        chosen = best(actions, policy.values(rows.next_obs, actions, rows.subset[0]))
        value = policy.values(rows.next_obs, chosen[None], rows.subset[1])[0]
        return rows.reward + rows.discount * value

    def update_edit(self, rows: Batch) -> Metrics:
        assert rows.noise is not None
        start = rows.action
        if self.config.edit_from == "samples":
            with torch.no_grad():
                start = self.base.sample(rows.obs, rows.noise[-2])
        moved, log_prob = self.policy.moved(rows.obs, start[None], rows.noise[-1:])
        q = q_values(self.critic, self.base.normaliser(rows.obs), moved[0]).mean(0)
        loss, metrics = actor_loss(log_prob[0], q, self.log_alpha.detach().exp())
        descend(self.optimisers["edit"], loss)
        own = temperature_loss(self.log_alpha, log_prob[0], self.target_entropy)
        descend(self.optimisers["temperature"], own)
        return metrics | {"actor/alpha": self.log_alpha.detach().exp()}


class EXPO(Agent[Drawn]):
    """Expressive policy optimisation.

    Formula:

        clone        L = that of a flow or diffusion of the rows' actions (generative BC)
        edits        L = mean (alpha log pi(e|s, a) - mean_n Q_n(s, a + beta e)), e = tanh N(s, a)
        options      K samples a_k of the clone, and a_k + beta e_k of the first E of them
        critics      y = r + gamma min_m Q'_m(s', argmax over options of min_m' Q'_m'(s', a))
                     L = mean_n mean (Q_n(s, a) - y)^2, m and m' random pairs of critics
        acting       the option with the largest min_m Q'_m(s, a)

    When not to use it: on logged data alone where they are narrow: targets take the best of many
    options by critics that never see an outcome of most of them. It is made to go on online.
    """

    version = 2
    config: EXPOConfig

    def build(self, generator: Generator) -> tuple[ExpressiveLearner, LoggedRows]:
        c = self.config
        learner = ExpressiveLearner(self.spec, c, self.device, generator)
        return learner, LoggedRows.of(self.spec, c, self.device)
