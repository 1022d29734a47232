"""COPlanner: Plan to Roll Out Conservatively but to Explore Optimistically for Model-Based RL
(arXiv 2310.07220), on MBPO. Of several actions of the policy the one is taken whose short imagined
future is best, less its uncertainty in rollouts, plus its uncertainty in the real task.

Differences: the uncertainty is a disagreement measure of the members' predictions (the authors'
code: the mean deviation of one sample a member, in the units of observations) in the units of the
model's targets; ended futures earn nothing more. `fit`, on logged data, has only the conservative
half.
"""

from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic
from algorithms.mbpo import DynaConfig, DynaRows, OnlineModelBasedConfig
from algorithms.sources.imagined import dynamics
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, NonNegative, Probability, Settings
from mbrl.training import Metrics
from world_models import WorldModel
from world_models.disagreement import measure
from world_models.rollout import Actor


@dataclass(frozen=True)
class ForesightConfig(Settings):
    """How an action is chosen among the policy's; the defaults are the authors'."""

    candidates: Count = 5  # K, actions of the policy
    horizon: Count = 5  # steps that each is followed in the model
    discount: Probability = 0.97  # of rewards and uncertainty, a step
    conservative: NonNegative = 2.0  # weight of uncertainty in rollouts, where it counts against
    optimistic: NonNegative = 1.0  # and in the real task, where it counts for an action
    measure: str = "epistemic_mean"  # disagreement that stands for uncertainty

    def __post_init__(self) -> None:
        super().__post_init__()
        measure(self.measure)


@dataclass(frozen=True)
class COPlannerConfig(OnlineModelBasedConfig):
    """Settings of COPlanner; `online` as the authors have it for Hopper."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(critics=2))
    online: DynaConfig = field(default_factory=lambda: DynaConfig(updates_per_step=40))
    foresight: ForesightConfig = field(default_factory=ForesightConfig)


@torch.no_grad()
def futures(
    model: WorldModel,
    policy: Actor,
    obs: Tensor,
    action: Tensor,
    config: ForesightConfig,
    generator: Generator,
) -> tuple[Tensor, Tensor]:
    """Discounted sums over the horizon of reward and of disagreement, both [B], of taking `action`
    [B, A] at `obs` [B, S] and following `policy` in the model, with a random member each step."""
    reward = torch.zeros(len(obs), device=obs.device)
    uncertainty = torch.zeros_like(reward)
    alive = torch.ones_like(reward)
    for t in range(config.horizon):
        member: Tensor | None = None
        if model.num_members > 1:
            shape = (len(obs),)
            member = torch.randint(model.num_members, shape, generator=generator, device=obs.device)
        guess = model.predict(obs, action, generator, member=member, measure=config.measure)
        assert guess.disagreement is not None
        weight = alive * config.discount**t
        reward = reward + weight * guess.reward
        uncertainty = uncertainty + weight * guess.disagreement
        alive = alive * ~guess.terminated
        obs = torch.where(alive[:, None] > 0, guess.next_obs, obs)
        if t < config.horizon - 1:
            action = policy(obs, generator)
    return reward, uncertainty


class COPlanner(Agent[Batch]):
    """MBPO whose rollouts avoid what the model does not know and whose exploration seeks it.
    `model` replaces the learned ensemble.

    Formula:

        action       argmax over k of sum_t discount^t (r_t + w u_t), a_k ~ pi(s), in the model
                     w = -conservative in rollouts, +optimistic in the task; u: disagreement
        critics      y = r + gamma (min_n Q'_n(s', a') - alpha log pi(a'|s')), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2
        policy       L = mean (alpha log pi(a|s) - min_n Q_n(s, a)), a ~ pi(s)

    When not to use it: on logged data alone, where only its cautious half is at work: take MOPO or
    COMBO, which are measured. Every action costs candidates times horizon steps of the model. Where
    the members agree about what the policy's few actions lead to, it is MBPO at several times the
    cost: look at `foresight/changed`. `run coplanner Pendulum-v1 --steps 2000` ends with 0.01 (seed
    0), CartPoleSwingUp-v0 with 0.10.
    """

    version = 1
    config: COPlannerConfig
    learner: SoftActorCritic
    source: DynaRows
    changed: list[Tensor]  # of each step imagined since the last metrics, [B] bool

    def build(
        self, generator: Generator, model: WorldModel | None = None
    ) -> tuple[SoftActorCritic, DynaRows]:
        c = self.config
        learner = SoftActorCritic(self.spec, c.learner, self.device, generator)
        model = dynamics(self.spec, c.model, c.imagination, self.device, self.seed, model)
        self.changed = []
        source = DynaRows(
            learner,
            model,
            c.imagination,
            c.online,
            self.seed,
            policy=self.imagined_action,
            policy_metrics=self.foresight_metrics,
        )
        return learner, source

    @torch.no_grad()
    def choose(self, obs: Tensor, weight: float, generator: Generator) -> tuple[Tensor, Tensor]:
        """Of K sampled actions at each of `obs` [B, S] the one [A] whose future has the largest
        reward plus `weight` times uncertainty; [B, A] in the task's units. Also whether it is
        another than that of the largest reward, [B] bool."""
        c, explore = self.config.foresight, self.learner.actor.explore
        many = obs.repeat_interleave(c.candidates, 0)
        action = explore(many, generator)
        reward, uncertainty = futures(self.model, explore, many, action, c, generator)
        best = (reward + weight * uncertainty).view(-1, c.candidates).argmax(1)
        rows = torch.arange(len(obs), device=obs.device) * c.candidates + best
        return action[rows], best != reward.view(-1, c.candidates).argmax(1)

    def imagined_action(self, obs: Tensor, generator: Generator) -> Tensor:
        """The conservative choice."""
        action, changed = self.choose(obs, -self.config.foresight.conservative, generator)
        self.changed.append(changed)
        return action

    def foresight_metrics(self) -> Metrics:
        """Of a refresh: `foresight/changed`, the share of its imagined actions that would be others
        without uncertainty."""
        share = torch.cat(self.changed).float().mean()
        self.changed = []
        return {"foresight/changed": share}

    def explore(
        self, obs: Tensor, generator: Generator | None, mask: Tensor | None = None
    ) -> Tensor:
        """What experience is gathered with: the optimistic choice once there is a model, if there
        is a generator."""
        learned = self.source.learned
        if generator is None or (learned is not None and not learned.fitted):
            return super().explore(obs, generator)
        return self.choose(obs, self.config.foresight.optimistic, generator)[0]
