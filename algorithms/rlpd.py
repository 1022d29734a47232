"""RLPD: Efficient Online Reinforcement Learning with Offline Data (arXiv 2302.02948), online with
logged rows and without pre-training.

Read in the authors' code (ikostrikov/rlpd): ten critics with LayerNorm, targets with the entropy
and the minimum over two random ones, the actor's mean over all, half of each batch logged rows,
target entropy minus half the action's size, `updates_per_step` steps of the critics for one of the
actor. Differences: the logged half is drawn anew for every step of the critics (theirs: a slice of
one large draw, the same in law); the actor's step comes with the first of these and not the last;
no uniform actions at first where there are logged rows (theirs: 10,000 steps); the temperature's
step is the first and of its logarithm (theirs: the last and of itself). The log-deviation is
clipped to [-5, 2] (theirs: [-20, 2]); LayerNorm's epsilon is 1e-5 (theirs: 1e-6).
"""

from dataclasses import dataclass, field, replace

from torch import Generator

from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic, SoftConfig
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.collector import CollectorConfig
from mbrl.config import Count, Probability


@dataclass(frozen=True)
class RLPDConfig(CollectorConfig, SoftConfig):
    """Settings of RLPD; the defaults are the authors' for D4RL's locomotion."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(
            critics=10,
            hidden=(256, 256),
            target_min_of=2,
            actor_value="mean",
            layer_norm="critics",
            policy_every=20,
            init="torch",
        )
    )
    updates_per_step: Count = 20  # of the critics; `learner.policy_every` of them for one actor's
    logged_share: Probability | None = 0.5  # of each batch, where there are logged rows


class RLPD(Agent[Batch]):
    """Soft actor-critic in a task, with logged rows in every batch.

    `prepare(dataset)`, then `learn(task, steps)`; `run rlpd TASK --logged DATA` does both.

    Formula:

        batch        a share `logged_share` of logged rows, the rest experience
        critics      y = r + gamma (min over 2 random Q'_n(s', a') - alpha log pi(a'|s')),
                     a' ~ pi(s'); L = sum_n mean (Q_n(s, a) - y)^2, Q_n with LayerNorm
        policy       L = mean (alpha log pi(a|s) - mean_n Q_n(s, a)), a ~ pi(s)
        temperature  L = -log alpha mean (log pi(a|s) + target entropy)

    When not to use it: where steps in the task must be good from the first one: it begins with a
    policy that knows nothing. Where a policy was trained on the logged data, WSRL goes on with it.
    """

    version = 1
    config: RLPDConfig

    def build(self, generator: Generator) -> tuple[SoftActorCritic, LoggedRows]:
        c = self.config.learner
        if c.target_entropy is None:
            c = replace(c, target_entropy=-self.spec.action_dim / 2)
        learner = SoftActorCritic(self.spec, c, self.device, generator)
        source = LoggedRows(self.spec, c.gamma, c.batch_size, self.device, collection=self.config)
        return learner, source
