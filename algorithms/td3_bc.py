"""TD3+BC: A Minimalist Approach to Offline Reinforcement Learning (arXiv 2106.06860).

Differences: none known from the authors' code; observations are standardised with eps 1e-3.
"""

from dataclasses import dataclass

from torch import Tensor

from algorithms.learners import td3
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class TD3BCConfig(td3.TD3Config):
    """Settings of TD3+BC; the defaults are the paper's."""

    alpha: float = 2.5  # weight of the value term against cloning
    normalise_obs: bool = True  # standardise observations with the data's statistics


def actor_loss(q: Tensor, action: Tensor, logged: Tensor, alpha: float) -> tuple[Tensor, Metrics]:
    """-lambda mean Q + mean (pi(s) - a)^2 with lambda = alpha / mean |Q| (eq. 5, 6)."""
    weight = alpha / q.detach().abs().mean().clamp_min(1e-8)
    clone = (action - logged).square().mean()
    loss = -weight * q.mean() + clone
    return loss, {"actor/loss": loss.detach(), "actor/bc": clone.detach()}


class TD3BC(td3.TD3):
    """TD3 with a behaviour-cloning term."""

    version = 1

    def __init__(
        self, spec: Spec, config: TD3BCConfig | None = None, *, device: str = "cpu", seed: int = 0
    ) -> None:
        self.config: TD3BCConfig
        super().__init__(spec, config or TD3BCConfig(), device, seed)

    def policy_loss(self, x: Tensor, action: Tensor, logged: Tensor) -> tuple[Tensor, Metrics]:
        q = self.critic.member(x, 0)[:, 0]
        return actor_loss(q, action, logged, self.config.alpha)
