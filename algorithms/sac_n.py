"""SAC-N: SAC with the minimum over N critics on logged data (arXiv 2110.01548, section 3).

Differences: none known from the authors' code, except that all learning rates are 3e-4.
"""

from dataclasses import dataclass, field

from torch import Generator

from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic, SoftConfig
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch


@dataclass(frozen=True)
class SACNConfig(SoftConfig):
    """Settings of SAC-N; the paper needs up to 500 critics on Hopper."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(critics=10))


class SACN(Agent[Batch]):
    """SAC with N critics.

    Formula:

        critics      y = r + gamma (min of all N Q'_n(s', a') - alpha log pi(a'|s')), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2
        policy       L = mean (alpha log pi(a|s) - min_n Q_n(s, a)), a ~ pi(s)
        temperature  L = -log alpha mean (log pi(a|s) + target entropy)

    When not to use it: on narrow data, and where many critics are too slow: the paper needs up to
    500. EDAC makes do with fewer. No table of ours compares it yet.
    """

    version = 1
    config: SACNConfig

    def build(self, generator: Generator) -> tuple[SoftActorCritic, LoggedRows]:
        c = self.config.learner
        learner = SoftActorCritic(self.spec, c, self.device, generator)
        return learner, LoggedRows(self.spec, c.gamma, c.batch_size, self.device)
