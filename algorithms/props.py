"""Proximal robust on-policy sampling: On-Policy Policy Gradient Reinforcement Learning Without
On-Policy Sampling (arXiv 2311.08290).

A second policy gathers the data. After every round it starts from the policy that is learned and is
moved to do less often what the kept data already have more often than that policy would, so that
the data as a whole look as if it had drawn them; policy gradients then use all of them without
importance weights.

Differences: rounds of whole episodes; the divergence of its penalty in closed form, in the
direction of the authors' rule to stop (their code has the penalty commented out); beyond `stop_kl`
the sampling policy is only drawn back, instead of its updates being left out; the oldest round
counts among the kept data also when it is about to leave.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from algorithms.control.measures import Episodes, log_probs_and_entropy
from algorithms.policy_gradient import Networks, OnPolicy, PolicyGradient, PolicyGradientConfig
from mbrl.config import Count, Fraction, NonNegative
from mbrl.networks import CategoricalPolicy, SquashedGaussianPolicy, adam, descend, target_copy
from mbrl.policy_gradient import Estimate
from mbrl.policy_gradient.axes.gate import Clip
from mbrl.policy_gradient.axes.ratio import log_difference
from mbrl.policy_gradient.trainer import Minibatch
from mbrl.training import Metrics
from mbrl.types import Trajectories


@dataclass(frozen=True)
class PROPSConfig(PolicyGradientConfig):
    """Settings of PROPS: those of the policy gradient, and of the policy that samples."""

    keep: Count = 4  # rounds that an update learns from, the newest ones
    every: Count = 2  # rounds between updates of the learned policy
    sampling_rate: NonNegative = 1e-3  # Adam, sampling policy
    sampling_epochs: Count = 4  # passes over the kept rounds after each round
    sampling_minibatches: Count = 4  # updates a pass
    sampling_clip: Fraction = 0.3  # range in which ratios to the learned policy push on
    sampling_kl: NonNegative = 0.1  # weight of the divergence from the learned policy
    stop_kl: NonNegative = 0.03  # divergence beyond which nothing pushes any more


def sampling_loss(
    log_prob: Tensor, t: Trajectories, divergence: Tensor, config: PROPSConfig
) -> Tensor:
    """The sampling policy's loss: minus min(-r, -clip(r)), r its ratio to the learned policy
    (`t.log_probs["old"]`), plus the weighted `divergence` [B, T] (equation 6 with the penalty of
    section 5)."""
    log_ratio = log_difference(log_prob, t.log_probs["old"], t.mask)
    pressed = torch.full_like(log_ratio, -1.0)
    gain = Clip(config.sampling_clip, config.sampling_clip)(log_ratio, log_prob, pressed, t)
    steps = t.mask.sum().clamp_min(1)
    apart = torch.where(t.mask, divergence, 0.0).sum() / steps
    push = -torch.where(t.mask, gain, 0.0).sum() / steps
    goes_on = (apart.detach() < config.stop_kl).to(push.dtype)
    return goes_on * push + config.sampling_kl * apart


class PROPS(PolicyGradient):
    """PROPS: policy gradients on data of a policy that makes up for sampling error.

    Formula:

        sampling     L = -mean min(-r, -clip(r, 1 - c, 1 + c)) + w KL(pi || pi_sampling)
                     r = pi_sampling(a|s) / pi(a|s), on the kept rounds
        learned      the loss of the recipe on the kept rounds, without importance weights

    When not to use it: where plain PPO is good enough: in the table control it is as good on
    Acrobot and below PPO on CartPole, Pendulum and InvertedPendulum, with a second policy to train.
    """

    version = 4
    config: PROPSConfig

    def build(self, generator: torch.Generator) -> tuple[Networks, OnPolicy]:
        learner, source = super().build(generator)
        self.sampling: Any = target_copy(learner.policy).requires_grad_(True)
        learner.modules["sampling"] = self.sampling
        rate = self.config.sampling_rate
        learner.optimisers["sampling"] = adam(self.sampling.parameters(), rate)
        self.count = 0  # rounds so far
        self.sampling_left = 0
        self.sampling_order = torch.empty(0, dtype=torch.int64)
        self.sampled: Trajectories | None = None
        return learner, source

    @property
    def acting(self) -> CategoricalPolicy | SquashedGaussianPolicy:
        sampling: CategoricalPolicy | SquashedGaussianPolicy = self.sampling
        return sampling

    def end_round(self) -> int:
        c = self.config
        self.count += 1
        if self.count % c.every == 0:
            super().end_round()
        else:
            self.take_in()
            self.trainer.left = 0
        self.sampling_left = c.sampling_epochs * c.sampling_minibatches
        return self.left + self.sampling_left

    def next_batch(self) -> Minibatch[Episodes]:
        """Of the learned policy's episodes first, then of the sampling policy's. Raises
        `ConfigError` before a round is over."""
        if self.left > 0 or self.sampling_left == 0:
            return super().next_batch()
        c = self.config
        passed = c.sampling_epochs * c.sampling_minibatches - self.sampling_left
        if passed == 0:
            self._start_sampling()
        assert self.sampled is not None
        if passed % c.sampling_minibatches == 0:
            rows = len(self.sampled.mask)
            self.sampling_order = torch.randperm(rows, generator=self.generator, device=self.device)
        place = passed % c.sampling_minibatches
        chosen = self.sampled.select(
            self.sampling_order.tensor_split(c.sampling_minibatches)[place]
        )
        nothing = torch.zeros_like(chosen.reward)
        return Minibatch(Episodes(chosen), Estimate(nothing, nothing), {})

    @torch.no_grad()
    def _start_sampling(self) -> None:
        """From the learned policy, on all kept rounds."""
        self.sampling.load_state_dict(self.policy.state_dict())
        self.sampled = self.kept()
        self.sampled.log_probs["old"] = log_probs_and_entropy(self.policy, self.sampled)[0]

    def update(self, batch: Minibatch[Episodes]) -> Metrics:
        if self.left > 0:
            return super().update(batch)
        t = batch.data
        log_prob, _ = log_probs_and_entropy(self.sampling, t)
        apart = divergence(self.policy, self.sampling, t.obs, t.action_mask)
        loss = sampling_loss(log_prob, t, apart, self.config)
        descend(self.optimisers["sampling"], loss, self.config.clip_norm)
        self.sampling_left -= 1
        mean = torch.where(t.mask, apart.detach(), 0.0).sum() / t.mask.sum().clamp_min(1)
        return {"sampling/loss": loss.detach(), "sampling/divergence": mean}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.count = state["count"]


def divergence(
    learned: nn.Module, sampling: nn.Module, obs: Tensor, mask: Tensor | None = None
) -> Tensor:
    """KL(learned || sampling) [...] at raw `obs`, among the actions that `mask` [..., n] allows,
    without a gradient into `learned`; of squashed Gaussians that before the squash, which is the
    same."""
    if isinstance(learned, CategoricalPolicy) and isinstance(sampling, CategoricalPolicy):
        ours = torch.log_softmax(learned.logits(obs, mask), -1).detach()
        other = torch.log_softmax(sampling.logits(obs, mask), -1)
        return (ours.exp() * (ours - other)).sum(-1)
    assert isinstance(learned, SquashedGaussianPolicy)
    assert isinstance(sampling, SquashedGaussianPolicy)
    mean, log_std = (x.detach() for x in learned.distribution(obs))
    other, other_log_std = sampling.distribution(obs)
    squared = (2 * (log_std - other_log_std)).exp()
    moved = ((mean - other) / other_log_std.exp()).square()
    return (other_log_std - log_std + (squared + moved - 1) / 2).sum(-1)
