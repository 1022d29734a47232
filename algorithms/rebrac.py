"""ReBRAC: Revisiting the Minimalist Approach to Offline Reinforcement Learning (arXiv 2305.09836):
TD3+BC with separate cloning penalties of policy and critics, LayerNorm in the critics, deeper
networks and larger batches.

Differences from the authors' code: LayerNorm stands before the ReLU, not after it; networks start
as `torch.nn.Linear` does (theirs: small last layers, hidden biases 0.1); the last row of an episode
that was cut off has no next action, so it is kept without the critics' penalty (theirs drops it);
the target policy follows the policy after its step (theirs: before it).
"""

from dataclasses import dataclass

from torch import Generator, Tensor

from algorithms.learners.td3 import TD3, TD3Config
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, NonNegative, Positive, Widths
from mbrl.native.deterministic import PolicyLoss as CompiledLoss
from mbrl.networks import minimum_value
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Transitions


@dataclass(frozen=True)
class ReBRACConfig(TD3Config):
    """Settings of ReBRAC. The authors choose the two penalties per dataset; the defaults are those
    that stand most often in their Gym-MuJoCo settings."""

    actor_bc: NonNegative = 0.01  # beta_1, weight of the policy's cloning penalty
    critic_bc: NonNegative = 0.01  # beta_2, weight of the penalty in the critics' target
    normalise_q: bool = True  # divide the policy's value term by mean |Q|
    layer_norm: bool = True  # in the critics
    hidden: Widths = (256, 256, 256)  # widths of policy and critics
    learning_rate: Positive = 1e-3  # Adam, policy and critics
    batch_size: Count = 1024  # rows an update


def cloning_penalty(action: Tensor, logged: Tensor) -> Tensor:
    """|a - a_logged|^2, summed over the components of [..., A]."""
    check_shapes(action=(action, "... A"), logged=(logged, "... A"))
    return (action - logged).square().sum(-1)


def actor_loss(
    q: Tensor, action: Tensor, logged: Tensor, weight: float, normalise: bool
) -> tuple[Tensor, Metrics]:
    """Mean of beta_1 |pi(s) - a|^2 - lambda Q(s, pi(s)) with lambda = 1 / mean |Q|, or 1 without
    `normalise`; `q` [B], actions [B, A]."""
    check_shapes(q=(q, "B"), action=(action, "B A"), logged=(logged, "B A"))
    scale = 1.0 / q.detach().abs().mean().clamp_min(1e-8) if normalise else 1.0
    clone = cloning_penalty(action, logged).mean()
    loss = weight * clone - scale * q.mean()
    return loss, {"actor/loss": loss.detach(), "actor/bc": clone.detach()}


def next_actions(data: Transitions) -> dict[str, Tensor]:
    """The columns `next_action` [N, A], that of the next row of its episode (zeros in its last
    row), and `has_next` [N], 1 where there is such a row, else 0."""
    known = ~data.ends
    known[-1] = False
    following = data.action.roll(-1, 0) * known[:, None]
    return {"next_action": following, "has_next": known.to(data.reward.dtype)}


class ReBRAC(Agent[Batch]):
    """TD3 with behaviour-cloning penalties of policy and critics.

    Formula:

        critics      y = r + gamma (min_n Q'_n(s', a') - beta_2 |a' - a'_logged|^2)
                     a' = clip(pi'(s') + clip(noise, -c, c), -1, 1)
                     L = sum_n mean (Q_n(s, a) - y)^2
        policy       L = mean (beta_1 |pi(s) - a|^2 - lambda min_n Q_n(s, pi(s)))
                     lambda = 1 / mean |min_n Q_n(s, pi(s))|

    When not to use it: with the default penalties on narrow data: in the table classic its seeds
    lie far apart on the expert data of Pendulum and InvertedPendulum. The authors choose both
    penalties for each dataset; raise `actor_bc` there.
    """

    version = 1
    config: ReBRACConfig

    def build(self, generator: Generator) -> tuple[TD3, LoggedRows]:
        c, spec, device = self.config, self.spec, self.device
        learner = TD3(
            spec,
            c,
            device,
            generator,
            self.policy_loss,
            self.next_penalty,
            layer_norm=c.layer_norm,
            compiled=CompiledLoss(c.actor_bc, 1.0, 1.0, of_minimum=True, normalised=c.normalise_q),
            compiled_penalty=c.critic_bc,
        )
        widths = {"next_action": spec.action_dim, "has_next": 0}
        source = LoggedRows(
            spec, c.gamma, c.batch_size, device, widths=widths, columns=next_actions
        )
        return learner, source

    def next_penalty(self, batch: Batch, action: Tensor) -> Tensor:
        """beta_2 |a' - a'_logged|^2 [B] at the next action `action` [B, A]; 0 where none is
        logged."""
        assert batch.next_action is not None and batch.has_next is not None
        weight = self.config.critic_bc * batch.has_next
        return weight * cloning_penalty(action, batch.next_action)

    def policy_loss(
        self, learner: TD3, x: Tensor, action: Tensor, logged: Tensor
    ) -> tuple[Tensor, Metrics]:
        c = self.config
        q = minimum_value(learner.critic, x, self.spec.action_dim)
        return actor_loss(q, action, logged, c.actor_bc, c.normalise_q)
