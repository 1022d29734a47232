"""IQL for discrete actions: Offline Reinforcement Learning with Implicit Q-Learning
(arXiv 2110.06169) with a categorical policy and critics that have one output an action. Settings
and learner are those of `algorithms.iql`.

Differences: those of `algorithms.iql`; the paper has continuous actions alone.
"""

from torch import Generator

from algorithms.iql import ImplicitQLearner, IQLConfig
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch


class DiscreteIQL(Agent[Batch]):
    """Implicit Q-learning for discrete actions.

    Formula:

        value        L = mean |tau - 1(u < 0)| u^2, u = min_n Q'_n(s, a) - V(s)
        policy       L = -mean min(exp(beta u), bound) log pi(a|s)
        critics      L = sum_n mean (Q_n(s, a) - r - gamma V(s'))^2 / 2

    When not to use it: on random data: in the table classic-discrete discrete CQL and SAC-N score
    nearly twice as much on CartPole's, and on Acrobot only discrete CQL leaves the ground.
    """

    version = 1
    action_kinds = ("discrete",)
    takes_masks = True
    config: IQLConfig

    def build(self, generator: Generator) -> tuple[ImplicitQLearner, LoggedRows]:
        c = self.config
        learner = ImplicitQLearner(self.spec, c, self.device, generator)
        scaled = c.normalise_rewards
        return learner, LoggedRows(
            self.spec, c.gamma, c.batch_size, self.device, normalise_rewards=scaled
        )
