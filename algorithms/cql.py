"""CQL(H): Conservative Q-Learning for Offline Reinforcement Learning (arXiv 2006.04779), on SAC.

Differences from the authors' code: no behaviour cloning in the policy's first updates, no maximum
over sampled next actions in the target; the critics are updated after the policy (theirs: both at
one point); the log-deviation is clipped to [-5, 2] (theirs: [-20, 2]). Calibrated: the return of an
episode that was cut goes on for ever with the mean reward (Cal-QL's code: it ends there); Cal-QL's
code also learns a scale and an offset of the log-deviations, takes all steps at one point, and its
threshold is one of the gap, here and in CQL's code of `weight` times the gap.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor, nn

from algorithms.learners.critics import sampled_q_values
from algorithms.learners.soft_actor_critic import (
    LearnerConfig,
    SoftActorCritic,
    SoftConfig,
    critic_loss,
)
from algorithms.sources.episode_rows import EpisodeRows
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, Finite, NonNegative, Positive
from mbrl.errors import ConfigError
from mbrl.networks import SquashedGaussianPolicy, adam, descend
from mbrl.shapes import check_shapes
from mbrl.training import Metrics


@dataclass(frozen=True)
class CQLConfig(SoftConfig):
    """Settings of CQL; the defaults are those the authors name for Gym-MuJoCo."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(
            actor_lr=1e-4, alpha_lr=1e-4, entropy_in_target=False, init="torch"
        )
    )
    weight: NonNegative = 5.0  # alpha of the conservative term (the authors: 5 or 10)
    temperature: Positive = 1.0  # of its soft maximum
    samples: Count = 10  # actions a state of each of the three kinds
    threshold: Finite | None = None  # tau of the Lagrange form; None: the weight is fixed
    threshold_lr: Positive = 3e-4  # Adam, log of the Lagrange multiplier
    normalise_rewards: bool = False  # times 1000 / range of returns
    calibrated: bool = False  # Cal-QL: values below the logged return are not pressed further

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learner.eta != 0:
            raise ConfigError(f"eta is {self.learner.eta}, CQL's critics have no diversity term")


def conservative_gap(q: Tensor, log_density: Tensor, data_q: Tensor, temperature: float) -> Tensor:
    """Batch mean of T log sum_k exp((Q_n(s, a_k) - log mu(a_k)) / T) - Q_n(s, a), [N], for values
    `q` [N, K, B] of sampled actions whose log-density was `log_density` [K, B], and `data_q` [N, B]
    of the logged ones.

    CQL(H) with the authors' importance-sampled estimate of the sum, without its constant log K.
    """
    check_shapes(q=(q, "N K B"), log_density=(log_density, "K B"), data_q=(data_q, "N B"))
    return (soft_maximum(q, log_density, temperature) - data_q).mean(1)


def soft_maximum(q: Tensor, log_density: Tensor, temperature: float) -> Tensor:
    """T log sum_k exp((Q_n(s, a_k) - log mu(a_k)) / T), [N, B], over all K actions of a state."""
    check_shapes(q=(q, "N K B"), log_density=(log_density, "K B"))
    return temperature * torch.logsumexp((q - log_density) / temperature, 1)


@torch.no_grad()
def sample_actions(
    actor: SquashedGaussianPolicy, obs: Tensor, next_obs: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Actions [3M, B, A] and their log-densities [3M, B] from normal draws `noise` [3M, B, A]: M
    uniform ones, and M each of the policy at the observations and at the next observations."""
    count = len(noise) // 3
    # The error function makes a standard normal draw uniform in (-1, 1).
    uniform = torch.erf(noise[:count] / math.sqrt(2.0))
    density = torch.full_like(uniform[..., 0], -noise.shape[-1] * math.log(2.0))
    draws = noise[count:].unflatten(0, (count, 2))
    action, log_prob = actor.sample(torch.stack([obs, next_obs]), draws)
    return (
        torch.cat([uniform, action.flatten(0, 1)]),
        torch.cat([density, log_prob.flatten(0, 1)]),
    )


def calibrated_values(q: Tensor, to_go: Tensor) -> Tensor:
    """max(Q_n(s, a_k), G(s)) of sampled values `q` [N, 3M, B] for the policy's actions, the last 2M
    of each state, and discounted returns `to_go` [B]; those of the M uniform actions as they are.

    Cal-QL (arXiv 2303.05479): where the return is the larger one, nothing is pressed down.
    """
    check_shapes(q=(q, "N K B"), to_go=(to_go, "B"))
    uniform, policy = q.tensor_split([q.shape[1] // 3], 1)
    return torch.cat([uniform, torch.maximum(policy, to_go)], 1)


def multiplier_loss(log_multiplier: Tensor, gap: Tensor, threshold: float) -> Tensor:
    """-alpha' mean_n (gap_n - tau) from weighted gaps [N], the paper's Lagrange form: alpha' grows
    while the gap is above the threshold."""
    return -bounded_multiplier(log_multiplier) * (gap.detach() - threshold).mean()


def bounded_multiplier(log_multiplier: Tensor) -> Tensor:
    return log_multiplier.exp().clamp_max(1e6)


class Conservatism:
    """The critics' loss with the conservative term, and in the Lagrange form its multiplier."""

    def __init__(self, config: CQLConfig, device: torch.device) -> None:
        self.config = config
        self.log_multiplier = nn.Parameter(torch.zeros((), device=device))
        self.optimiser = adam([self.log_multiplier], config.threshold_lr)

    def __call__(
        self, learner: SoftActorCritic, batch: Batch, target: Tensor
    ) -> tuple[Tensor, Metrics]:
        """The loss; with a threshold the multiplier makes its own step first."""
        assert batch.noise is not None
        c = self.config
        sampled, log_density = sample_actions(
            learner.actor, batch.obs, batch.next_obs, batch.noise[2:]
        )
        actions = torch.cat([batch.action[None], sampled])
        q = sampled_q_values(learner.critic, batch.obs, actions)
        loss, metrics = critic_loss(q[:, 0], target, c.learner.huber)
        pressed = q[:, 1:]
        if c.calibrated:
            assert batch.to_go is not None
            metrics["critic/calibrated"] = (pressed < batch.to_go).float().mean().detach()
            pressed = calibrated_values(pressed, batch.to_go)
        gap = conservative_gap(pressed, log_density, q[:, 0], c.temperature)
        penalty = c.weight * gap
        metrics["critic/gap"] = gap.detach().mean()
        if c.threshold is not None:
            multiplier = bounded_multiplier(self.log_multiplier.detach())
            metrics["critic/multiplier"] = multiplier
            threshold_loss = multiplier_loss(self.log_multiplier, penalty, c.threshold)
            penalty = multiplier * (penalty - c.threshold)
            descend(self.optimiser, threshold_loss)
        return loss + penalty.sum(), metrics


class CQL(Agent[Batch]):
    """SAC whose critics are pressed down on sampled actions and up on logged ones.

    Formula:

        critics      y = r + gamma min_n Q'_n(s', a'), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2 + weight mean gap_n
                     gap_n = T log sum_k exp((Q_n(s, a_k) - log mu(a_k)) / T) - Q_n(s, a)
                     a_k: uniform actions, and the policy's at s and at s'
        policy       L = mean (alpha log pi(a|s) - min_n Q_n(s, a)), a ~ pi(s)
        calibrated   max(Q_n(s, a_k), G) for the policy's a_k in gap_n (Cal-QL, arXiv 2303.05479),
                     G the discounted return from the row on

    When not to use it: where time is short: in the table classic an update costs five times IQL's.
    On Pendulum's expert data there it ends far below cloning, so the weight needs a choice for each
    dataset. `calibrated` changes nothing until values have fallen below returns, which are far
    below 0 on Pendulum and the reacher, where values begin: look at `critic/calibrated`.
    """

    version = 1
    config: CQLConfig

    def build(self, generator: Generator) -> tuple[SoftActorCritic, LoggedRows]:
        c, device = self.config, self.device
        loss = Conservatism(c, device)
        learner = SoftActorCritic(
            self.spec, c.learner, device, generator, critic_loss=loss, samples=3 * c.samples
        )
        if c.threshold is not None:
            learner.modules["multiplier"] = nn.ParameterDict({"log": loss.log_multiplier})
            learner.optimisers["multiplier"] = loss.optimiser
        kind = EpisodeRows if c.calibrated else LoggedRows
        source = kind(
            self.spec,
            c.learner.gamma,
            c.learner.batch_size,
            device,
            normalise_rewards=c.normalise_rewards,
        )
        return learner, source
