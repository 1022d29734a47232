"""CDSA: Conservative Denoising Score-based Algorithm (arXiv 2406.07541): any offline policy, whose
actions move along the score of the logged actions when it acts. No code of the authors is known:
the formulas are reconstructed.

Differences: the score is that of actions given states alone (the paper also takes that of states);
it is a network of its own, learned beside the policy, not after it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor, nn

from algorithms.bc import BC, BCConfig
from algorithms.edac import EDAC, EDACConfig
from algorithms.iql import IQL, IQLConfig
from algorithms.sac_n import SACN, SACNConfig
from algorithms.td3_bc import TD3BC, TD3BCConfig
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import NonNegative, Positive, Settings, Several, Widths
from mbrl.errors import ConfigError
from mbrl.networks import MLP, ActionScale, Normaliser, adam, descend
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec

LEARNERS: dict[str, Any] = {"bc": BC, "td3_bc": TD3BC, "iql": IQL, "sac_n": SACN, "edac": EDAC}


@dataclass(frozen=True)
class CDSAConfig(Settings):
    """Settings of CDSA; those of the learners that `learner` does not name are not used."""

    learner: Literal["bc", "td3_bc", "iql", "sac_n", "edac"] = "td3_bc"  # what is corrected
    step_size: NonNegative = 0.5  # eta of a step at a level, in squares of its sigma; 0: no move
    levels: Several = 10  # noise levels of the score
    smallest: Positive = 0.01  # sigma of the lowest one, of actions in [-1, 1]
    largest: Positive = 0.5  # and of the highest
    act_below: Positive = 0.1  # levels with a sigma of at most this move an action
    hidden: Widths = (256, 256)  # widths of the score
    learning_rate: Positive = 3e-4  # Adam, score
    bc: BCConfig = field(default_factory=BCConfig)
    td3_bc: TD3BCConfig = field(default_factory=TD3BCConfig)
    iql: IQLConfig = field(default_factory=IQLConfig)
    sac_n: SACNConfig = field(default_factory=SACNConfig)
    edac: EDACConfig = field(default_factory=EDACConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.smallest >= self.largest:
            raise ConfigError(
                f"smallest is {self.smallest}; it must lie below largest ({self.largest})"
            )
        if self.act_below < self.smallest:
            raise ConfigError(
                f"act_below is {self.act_below}, below the smallest sigma ({self.smallest}), so "
                "that no level would move an action; raise it, or set step_size to 0"
            )

    @property
    def gamma(self) -> float:
        gamma: float = getattr(self, self.learner).gamma
        return gamma


class Perturbed(NamedTuple):
    """A batch of the learner with what the score's step needs: standard normal `noise` [B, A] and
    the index `level` [B] of the noise's scale."""

    batch: Batch
    noise: Tensor
    level: Tensor


def noise_levels(smallest: float, largest: float, count: int) -> Tensor:
    """Geometric sigmas [K] from `largest` down to `smallest`."""
    share = torch.linspace(0, 1, count, dtype=torch.float64)
    return (largest * (smallest / largest) ** share).float()


def score_loss(output: Tensor, noise: Tensor) -> Tensor:
    """Mean over rows of sigma^2 |psi + xi / sigma|^2 where psi = output / sigma, all [B, A]: its
    value for an output of 0 is A at every level."""
    check_shapes(output=(output, "B A"), noise=(noise, "B A"))
    return (output + noise).square().sum(-1).mean()


def corrected(
    action: Tensor, score: Callable[[Tensor, Tensor], Tensor], sigmas: Tensor, step_size: float
) -> Tensor:
    """`action` [B, A] in [-1, 1] after a step eta sigma^2 psi(a, sigma) at each of `sigmas` [K] in
    their order, clipped to the bounds; psi [B, A] is `score` of actions and sigma."""
    for sigma in sigmas:
        action = (action + step_size * sigma.square() * score(action, sigma)).clamp(-1, 1)
    return action


class ScoreNetwork(nn.Module):
    """psi(s, a, sigma), the gradient by a of the log-density of logged actions with noise sigma."""

    def __init__(
        self, spec: Spec, hidden: tuple[int, ...], sigmas: Tensor, generator: Generator
    ) -> None:
        super().__init__()
        self.sigmas: Tensor
        self.register_buffer("sigmas", sigmas)
        self.normaliser = Normaliser(spec.obs_dim)
        width = spec.obs_dim + spec.action_dim + 1
        self.net = MLP(width, hidden, spec.action_dim, generator=generator)

    def output(self, obs: Tensor, action: Tensor, sigma: Tensor) -> Tensor:
        """sigma psi [B, A] at raw `obs` [B, S], `action` [B, A] in [-1, 1] and `sigma` [B]."""
        x = torch.cat([self.normaliser(obs), action, sigma.log()[:, None]], -1)
        out: Tensor = self.net(x)
        return out

    def forward(self, obs: Tensor, action: Tensor, sigma: Tensor) -> Tensor:
        """psi [B, A] for one `sigma` []."""
        return self.output(obs, action, sigma.expand(action.shape[0])) / sigma


class CorrectedPolicy(nn.Module):
    """A policy whose actions move along the score before they are taken."""

    def __init__(self, spec: Spec, base: nn.Module, score: ScoreNetwork, config: CDSAConfig):
        super().__init__()
        self.base, self.score, self.step_size = base, score, config.step_size
        self.scale = ActionScale(spec)
        self.used = int((score.sigmas <= config.act_below).sum())  # the last of them

    def correct(self, obs: Tensor, action: Tensor) -> Tensor:
        """`action` [B, A] in the task's units after the steps; with a step size of 0 as it is."""
        if self.step_size == 0:
            return action

        def score(unit: Tensor, sigma: Tensor) -> Tensor:
            psi: Tensor = self.score(obs, unit, sigma)
            return psi

        sigmas = self.score.sigmas[-self.used :]
        unit = corrected(self.scale.to_unit(action), score, sigmas, self.step_size)
        return self.scale.to_task(unit)

    def forward(self, obs: Tensor) -> Tensor:
        """The greedy action in the task's units."""
        return self.correct(obs, self.base(obs))

    def explore(self, obs: Tensor, generator: Generator | None) -> Tensor:
        """A sampled action of the policy, corrected, in the task's units."""
        action: Tensor = self.base.explore(obs, generator)  # type: ignore[operator]
        return self.correct(obs, action)


class ScoreCorrected:
    """The learner that is corrected, and the score beside it: neither changes the other."""

    def __init__(
        self, spec: Spec, base: Any, config: CDSAConfig, device: torch.device, generator: Generator
    ) -> None:
        self.base, self.config = base, base.config
        self.sigmas = noise_levels(config.smallest, config.largest, config.levels).to(device)
        self.score = ScoreNetwork(spec, config.hidden, self.sigmas, generator).to(device)
        self.policy = CorrectedPolicy(spec, base.policy, self.score, config).to(device)
        self.modules: dict[str, nn.Module] = base.modules | {"score": self.score}
        optimiser = adam(self.score.net.parameters(), config.learning_rate)
        self.optimisers = base.optimisers | {"score": optimiser}

    @property
    def offline(self) -> bool:
        """Whether rates of the learner decay."""
        return bool(getattr(self.base, "offline", False))

    @offline.setter
    def offline(self, value: bool) -> None:
        if hasattr(self.base, "offline"):
            self.base.offline = value

    def draw(self, batch: Batch, generator: Generator) -> Perturbed:
        """The batch as the learner draws it, with noise and a level for each row."""
        shape, device = batch.action.shape, batch.obs.device
        drawn = self.base.draw(batch, generator)
        noise = torch.randn(shape, generator=generator, device=device)
        level = torch.randint(len(self.sigmas), shape[:1], generator=generator, device=device)
        return Perturbed(drawn, noise, level)

    def update(self, batch: Perturbed, count: int = 0) -> Metrics:
        """The learner's update and a step of the score."""
        metrics: Metrics = self.base.update(batch.batch, count)
        rows, sigma = batch.batch, self.sigmas[batch.level]
        moved = rows.action + sigma[:, None] * batch.noise
        loss = score_loss(self.score.output(rows.obs, moved, sigma), batch.noise)
        descend(self.optimisers["score"], loss)
        return metrics | {"score/loss": loss.detach()}


class CDSA(Agent[Perturbed]):
    """An offline policy corrected by the score of the data's actions.

    Formula:

        learner      the losses of `learner` (TD3+BC, IQL, ...)
        score        L = mean sigma^2 |psi(s, a + sigma xi, sigma) + xi / sigma|^2, xi ~ N(0, 1),
                     sigma uniform among K geometric levels
        acting       a = pi(s); for each sigma up to `act_below`, from the largest:
                     a <- clip(a + eta sigma^2 psi(s, a, sigma), -1, 1)

    When not to use it: where most of the log is bad: the score is that of density, not of value,
    and pulls an action to what was done most. A clone of the data gains nothing.
    """

    version = 1
    config: CDSAConfig

    def build(self, generator: Generator) -> tuple[ScoreCorrected, Any]:
        c = self.config
        own = getattr(c, c.learner)
        base = LEARNERS[c.learner](self.spec, own, device=str(self.device), seed=self.seed)
        learner = ScoreCorrected(self.spec, base.learner, c, self.device, generator)
        return learner, base.source
