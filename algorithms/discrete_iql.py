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
    """Implicit Q-learning for discrete actions."""

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
