"""MBPO on logged data: When to Trust Your Model (arXiv 1906.08253) with the dataset in place of the
environment. The penalty-free baseline that RAVL and MOPO are measured against.

Differences: no environment steps, so the model is fitted once; a fixed horizon; the schedule of
rollouts is RAVL's, so that the two differ in their critics alone.
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
class MBPOConfig:
    """Settings of MBPO on logged data: two critics, no penalty."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(critics=2))
    model: EnsembleConfig = field(default_factory=EnsembleConfig)
    imagination: ImaginationConfig = field(default_factory=ImaginationConfig)

    @property
    def gamma(self) -> float:
        return self.learner.gamma


class MBPO(model_based.ModelBased):
    """SAC on short rollouts of a learned world model, without any pessimism about it."""

    version = 1

    def __init__(
        self,
        spec: Spec,
        config: MBPOConfig | None = None,
        *,
        model: WorldModel | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.config: MBPOConfig
        model_based.setup(self, spec, config or MBPOConfig(), device, seed, model)

    act, predict, fit, save = agent.act, agent.predict, agent.fit, agent.save
    prepare, next_batch, update = model_based.prepare, model_based.next_batch, model_based.update
    state_dict, load_state_dict = model_based.state_dict, model_based.load_state_dict

    @property
    def policy(self) -> SquashedGaussianPolicy:
        return self.learner.actor

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> "MBPO":
        """Read an agent that `save` or a run's checkpoint wrote."""
        return agent.load(cls, path, device)
