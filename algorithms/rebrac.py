"""ReBRAC: Revisiting the Minimalist Approach to Offline Reinforcement Learning (arXiv 2305.09836):
TD3+BC with separate cloning penalties of policy and critics, LayerNorm in the critics, deeper
networks and larger batches.

Differences from the authors' code: LayerNorm stands before the ReLU, not after it; networks start
as `torch.nn.Linear` does (theirs: small last layers, hidden biases 0.1); the last row of an episode
that was cut off has no next action, so it is kept without the critics' penalty (theirs drops it).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from algorithms.learners import td3
from mbrl.buffer import Batch, Buffer
from mbrl.networks import minimum_value
from mbrl.training import Metrics
from mbrl.types import Spec, Transitions


@dataclass(frozen=True)
class ReBRACConfig(td3.TD3Config):
    """Settings of ReBRAC. The authors choose the two penalties per dataset; the defaults are those
    that stand most often in their Gym-MuJoCo settings."""

    actor_bc: float = 0.01  # beta_1, weight of the policy's cloning penalty
    critic_bc: float = 0.01  # beta_2, weight of the penalty in the critics' target
    normalise_q: bool = True  # divide the policy's value term by mean |Q|
    layer_norm: bool = True  # in the critics
    hidden: tuple[int, ...] = (256, 256, 256)  # widths of policy and critics
    learning_rate: float = 1e-3  # Adam, policy and critics
    batch_size: int = 1024  # rows an update


def cloning_penalty(action: Tensor, logged: Tensor) -> Tensor:
    """|a - a_logged|^2, summed over the components of [..., A]."""
    return (action - logged).square().sum(-1)


def actor_loss(
    q: Tensor, action: Tensor, logged: Tensor, weight: float, normalise: bool
) -> tuple[Tensor, Metrics]:
    """Mean of beta_1 |pi(s) - a|^2 - lambda Q(s, pi(s)) with lambda = 1 / mean |Q|, or 1 without
    `normalise`; `q` [B], actions [B, A]."""
    scale = 1.0 / q.detach().abs().mean().clamp_min(1e-8) if normalise else 1.0
    clone = cloning_penalty(action, logged).mean()
    loss = weight * clone - scale * q.mean()
    return loss, {"actor/loss": loss.detach(), "actor/bc": clone.detach()}


def with_next_actions(data: Transitions) -> Transitions:
    """`data` with actions [N, 2A + 1]: the row's own, that of the next row of its episode (zeros
    in its last row), and 1 where there is such a row, else 0."""
    known = ~data.ends
    known[-1] = False
    following = data.action.roll(-1, 0) * known[:, None]
    return replace(data, action=torch.cat([data.action, following, known[:, None].float()], 1))


class ReBRAC(td3.TD3):
    """TD3 with behaviour-cloning penalties of policy and critics."""

    version = 1

    def __init__(
        self, spec: Spec, config: ReBRACConfig | None = None, *, device: str = "cpu", seed: int = 0
    ) -> None:
        self.config: ReBRACConfig
        config = config or ReBRACConfig()
        super().__init__(spec, config, device, seed, layer_norm=config.layer_norm)

    def stored(self, data: Transitions) -> Buffer:
        """A buffer whose actions are those of `with_next_actions`."""
        low, high = self.spec.action_low, self.spec.action_high
        wide = replace(
            self.spec,
            action_dim=2 * self.spec.action_dim + 1,
            action_low=(*low, *low, -1.0),
            action_high=(*high, *high, 1.0),
        )
        buffer = Buffer(wide, len(data), self.config.gamma, self.device)
        buffer.append(with_next_actions(data))
        return buffer

    def next_q_values(self, batch: Batch, action: Tensor) -> Tensor:
        """Q_n(s', a') - beta_2 |a' - a'_logged|^2, [N, B]."""
        _, logged, known = batch.action.split((*[self.spec.action_dim] * 2, 1), -1)
        penalty = self.config.critic_bc * known[:, 0] * cloning_penalty(action, logged)
        return super().next_q_values(batch, action) - penalty

    def policy_loss(self, x: Tensor, action: Tensor, logged: Tensor) -> tuple[Tensor, Metrics]:
        c = self.config
        q = minimum_value(self.critic, x, self.spec.action_dim)
        return actor_loss(q, action, logged, c.actor_bc, c.normalise_q)
