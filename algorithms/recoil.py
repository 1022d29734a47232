"""ReCOIL: Dual RL: Unification and New Methods for Reinforcement and Imitation Learning (arXiv
2302.08560): imitation of an expert from its data and any other, without a discriminator. The
losses were compared with a copy of the authors' released code.

Differences: the Gumbel loss of the value alone (their code has an expectile form too); no penalty
of the critics' gradients, no dropout; an end is worth what `step_reward` for ever is, -200 in their
code whatever gamma is; uniform actions are part of the value's loss, in their code of its scale
alone; unless `scaled_by` is "batch", that scale is of the rows that were drawn from all.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Generator, Tensor

from algorithms.learners.dual_value import DualValue, DualValueConfig, gumbel_loss, part_of
from algorithms.sources.expert_rows import ExpertRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import CountOrZero, Finite
from mbrl.shapes import check_shapes


@dataclass(frozen=True)
class ReCOILConfig(DualValueConfig):
    """Settings of ReCOIL. The data's rewards are not used, unless `expert_episodes` ranks episodes
    by them."""

    expert_episodes: CountOrZero = 0  # best episodes to imitate, of data without marks
    expert_value: Finite = 200.0  # what critics are pulled to at the expert's rows
    step_reward: Finite = -2.0  # reward of every step; its sum for ever is the value of an end
    scaled_by: Literal["mixture", "batch"] = "mixture"  # rows whose largest z scales V's loss


def critic_loss(
    q: Tensor, discount: Tensor, next_value: Tensor, expert_value: float, step_reward: float,
    gamma: float,
) -> Tensor:  # fmt: skip
    """Sum over critics of half the mean squared distance of the expert's values to `expert_value`
    plus half that of the others to y = step_reward + discount V(s'), where the task ended
    step_reward + gamma step_reward / (1 - gamma). `q` [N, 2 B], `discount` and `next_value` [2 B];
    the first B rows are the expert's."""
    check_shapes(q=(q, "N B"), discount=(discount, "B"), next_value=(next_value, "B"))
    half = q.shape[1] // 2
    ended = gamma * step_reward / (1 - gamma)
    target = step_reward + (discount * next_value).where(discount > 0, discount.new_tensor(ended))
    expert = (q[:, :half] - expert_value).square().mean(1)
    others = (q[:, half:] - target[half:]).square().mean(1)
    return 0.5 * (expert + others).sum()


def later_half(batch: Batch) -> Batch:
    """The rows that were drawn from all data."""
    return part_of(batch, slice(len(batch.obs) // 2, None))


def earlier_half(batch: Batch) -> Batch:
    """The expert's rows."""
    return part_of(batch, slice(0, len(batch.obs) // 2))


class ReCOIL(Agent[Batch]):
    """Imitation of an expert from mixed data.

    Formula:

        rows         E: the expert's; M: all, the expert's among them; as many of each in a batch
        critics      L = sum_n mean over E of (Q_n(s, a) - 200)^2 / 2
                     + mean over M of (Q_n(s, a) - y)^2 / 2, y = -2 + gamma V(s')
                     V(s') = -2 / (1 - gamma) where the task ended
        value        L = mean over M of (exp(z) - z - 1) / exp(m), z = (min_n Q'_n(s, a) - V(s)) /
                     beta, at most `max_exponent`, m the largest z of M ("mixture") or of M and E
                     ("batch", the released code's), at least -1
        policy       L = -mean over M of min(exp(T (min_n Q'_n(s, a) - V(s))), bound) log pi(a|s)

    When not to use it: where rewards are known and trusted: it does not look at them. Where the
    task ends well for the expert: an end counts as the worst that can happen, unless it is a time
    limit. Values move between -200 and 200, far more than the bound of the Gumbel loss's exponent
    lets through at beta 1. Where Q - V is beyond it on every row, V has no gradient and all weights
    are at their bound, which is cloning. One run on Pendulum's medium-replay data ended below
    random actions.
    With `scaled_by` "batch" m is at its bound as soon as an expert's value stands out.
    """

    version = 1
    config: ReCOILConfig

    def build(self, generator: Generator) -> tuple[DualValue, ExpertRows]:
        c = self.config
        learner = DualValue(
            self.spec,
            c,
            self.device,
            generator,
            self.value_loss,
            self.critic_loss,
            later_half,
            in_rewards=False,
            uniform_actions=c.uniform_actions,
            beside=earlier_half if c.scaled_by == "batch" else None,
        )
        source = ExpertRows(self.spec, c.gamma, c.batch_size, self.device, c.expert_episodes)
        return learner, source

    def value_loss(self, difference: Tensor, experts: Tensor | None = None) -> Tensor:
        return gumbel_loss(difference, self.config.beta, self.config.max_exponent, experts)

    def critic_loss(self, q: Tensor, batch: Batch, next_value: Tensor) -> Tensor:
        c = self.config
        return critic_loss(q, batch.discount, next_value, c.expert_value, c.step_reward, c.gamma)
