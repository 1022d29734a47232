"""RAVL, reach-aware value learning: The Edge-of-Reach Problem in Offline Model-Based Reinforcement
Learning (arXiv 2402.12527). Short rollouts in a learned ensemble without any dynamics penalty; the
value learner is EDAC, whose pessimism bites at states that are only ever bootstrapped from.

Differences from the authors' code: see `world_models.ensemble`; start states are drawn without
replacement where the data has enough of them.
"""

from dataclasses import dataclass, field

from torch import Generator

from algorithms import edac
from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic
from algorithms.sources.imagined import ImaginedRows, ModelBasedConfig, dynamics
from mbrl.agent import Agent
from mbrl.buffer import Batch
from world_models import WorldModel


@dataclass(frozen=True)
class RAVLConfig(ModelBasedConfig):
    """Settings of RAVL; the defaults are the authors' (their code gives no per-dataset ones)."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(critics=10, eta=1.0))


class RAVL(Agent[Batch]):
    """Reach-aware value learning: EDAC's critics on short rollouts of a learned world model.

    `model` replaces the learned ensemble (the true dynamics, a mixture, one that is fitted
    already).

    Formula:

        model        Gaussian members p_e(s', r | s, a), rollouts of k steps, no penalty
        critics      y = r + gamma (min of all N Q'_n(s', a') - alpha log pi(a'|s')), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2 + eta mean sum_(i != j) <g_i, g_j> / (N - 1)
                     g_n = gradient of Q_n(s, a) by a, scaled to unit length
        policy       L = mean (alpha log pi(a|s) - min_n Q_n(s, a)), a ~ pi(s)

    When not to use it: on narrow expert data, where cloning wins by far, and for a first try: in
    the table classic IQL has the higher mean over all datasets. Seeds lie far apart on
    InvertedPendulum's medium-replay data (table model-based).
    """

    version = 1
    config: RAVLConfig

    def build(
        self, generator: Generator, model: WorldModel | None = None
    ) -> tuple[SoftActorCritic, ImaginedRows]:
        c, device = self.config, self.device
        learner = edac.diversified(self.spec, c.learner, device, generator)
        model = dynamics(self.spec, c.model, c.imagination, device, self.seed, model)
        return learner, ImaginedRows(learner, model, c.imagination, device, self.seed)
