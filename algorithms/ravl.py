"""RAVL, reach-aware value learning: The Edge-of-Reach Problem in Offline Model-Based Reinforcement
Learning (arXiv 2402.12527). Short rollouts in a learned ensemble without any dynamics penalty; the
value learner is EDAC, whose pessimism bites at states that are only ever bootstrapped from.

Differences from the authors' code: see `world_models.ensemble`; start states are drawn without
replacement where the data has enough of them.
"""

from dataclasses import dataclass, field
from pathlib import Path

from algorithms import model_based
from algorithms.model_based import ImaginationConfig
from algorithms.soft_actor_critic import LearnerConfig
from mbrl import agent
from mbrl.networks import SquashedGaussianPolicy
from mbrl.types import Spec
from world_models import EnsembleConfig, WorldModel


@dataclass(frozen=True)
class RAVLConfig:
    """Settings of RAVL; the defaults are the authors' (their code gives no per-dataset ones)."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(critics=10, eta=1.0))
    model: EnsembleConfig = field(default_factory=EnsembleConfig)
    imagination: ImaginationConfig = field(default_factory=ImaginationConfig)

    @property
    def gamma(self) -> float:
        return self.learner.gamma


class RAVL(model_based.ModelBased):
    """Reach-aware value learning: EDAC on short rollouts of a learned world model."""

    version = 1

    def __init__(
        self,
        spec: Spec,
        config: RAVLConfig | None = None,
        *,
        model: WorldModel | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.config: RAVLConfig
        model_based.setup(self, spec, config or RAVLConfig(), device, seed, model)

    act, predict, fit, save = agent.act, agent.predict, agent.fit, agent.save
    prepare, next_batch, update = model_based.prepare, model_based.next_batch, model_based.update
    state_dict, load_state_dict = model_based.state_dict, model_based.load_state_dict

    @property
    def policy(self) -> SquashedGaussianPolicy:
        return self.learner.actor

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> "RAVL":
        """Read an agent that `save` or a run's checkpoint wrote."""
        return agent.load(cls, path, device)
