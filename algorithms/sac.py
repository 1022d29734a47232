"""SAC: Soft Actor-Critic Algorithms and Applications (arXiv 1812.05905), online.

Differences: networks start as `torch.nn.Linear` does; the log-deviation is clipped to [-5, 2]
(the authors' code: [-20, 2]); the temperature is updated before the actor.
"""

from dataclasses import dataclass, field

from torch import Generator

from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic, SoftConfig
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.collector import CollectorConfig


@dataclass(frozen=True)
class SACConfig(CollectorConfig, SoftConfig):
    """Settings of SAC."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(hidden=(256, 256), init="torch")
    )


class SAC(Agent[Batch]):
    """Soft actor-critic; `learn(task, steps)` online with an update a step, `fit(dataset, steps)`
    on logged data.

    Formula:

        critics      y = r + gamma (min_n Q'_n(s', a') - alpha log pi(a'|s')), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2
        policy       L = mean (alpha log pi(a|s) - min_n Q_n(s, a)), a ~ pi(s)
        temperature  L = -log alpha mean (log pi(a|s) + target entropy)

    When not to use it: on logged data alone: two critics overrate actions that nobody took, and
    nothing corrects them; take IQL, EDAC or CQL. Where steps in the task are dear, MBPO needs fewer
    of them.
    """

    version = 1
    config: SACConfig

    def build(self, generator: Generator) -> tuple[SoftActorCritic, LoggedRows]:
        c = self.config.learner
        learner = SoftActorCritic(self.spec, c, self.device, generator)
        source = LoggedRows(self.spec, c.gamma, c.batch_size, self.device, collection=self.config)
        return learner, source
