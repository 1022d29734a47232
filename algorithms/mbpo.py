"""MBPO: When to Trust Your Model: Model-Based Policy Optimization (arXiv 1906.08253): short
rollouts, no penalty. `learn` is the paper's; `fit` takes logged data in place of the environment,
the baseline that RAVL and MOPO are measured against.

Differences: online, refits keep the members that the first fit kept, and early stopping sees a
holdout anew at each; imagined rows start from the experience as a whole. Offline, the model is
fitted once, the horizon is fixed and the schedule is RAVL's, so that the two differ in their
critics alone.
"""

from dataclasses import dataclass, field

from algorithms.learners.soft_actor_critic import LearnerConfig
from algorithms.online_model import OnlineModelBased, OnlineModelBasedConfig
from mbrl.types import Spec
from world_models import WorldModel


@dataclass(frozen=True)
class MBPOConfig(OnlineModelBasedConfig):
    """Settings of MBPO: two critics, no penalty; `online` as mbrl-lib has it for Hopper."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(critics=2))


class MBPO(OnlineModelBased):
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
        super().__init__(spec, config or MBPOConfig(), model, device, seed)
