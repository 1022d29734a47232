"""CDSA: Conservative Denoising Score-based Algorithm (arXiv 2406.07541): any offline policy, whose
actions move along the score of the logged actions when it acts. No code of the authors is known:
the formulas are reconstructed.

Differences: scores are networks of their own, learned beside the policy, not after it; that of
states reaches an action by the chain rule.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor, nn

from algorithms.bc import BC, BCConfig
from algorithms.edac import EDAC, EDACConfig
from algorithms.iql import IQL, IQLConfig
from algorithms.learners.state_score import StateScore
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
    state_weight: NonNegative = 0.0  # kappa of the score of s' beside that of a; 0: a only
    hidden: Widths = (256, 256)  # widths of the scores and of the model of s'
    learning_rate: Positive = 3e-4  # Adam, scores and model
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
        if self.state_weight > 0 and self.gamma == 0:
            raise ConfigError(
                f"gamma of {self.learner} is 0 with state_weight {self.state_weight}: rows that "
                "end the task, which the score of states leaves out, are told by a discount of 0; "
                "set gamma above 0, or state_weight to 0"
            )

    @property
    def gamma(self) -> float:
        gamma: float = getattr(self, self.learner).gamma
        return gamma


class Perturbed(NamedTuple):
    """A batch of the learner with what the scores' step needs: standard normal `noise` [B, A] and
    the index `level` [B] of the noise's scale; `state_noise` [B, S] where s' has a score, too."""

    batch: Batch
    noise: Tensor
    level: Tensor
    state_noise: Tensor | None = None


def noise_levels(smallest: float, largest: float, count: int) -> Tensor:
    """Geometric sigmas [K] from `largest` down to `smallest`."""
    share = torch.linspace(0, 1, count, dtype=torch.float64)
    return (largest * (smallest / largest) ** share).float()


def score_loss(output: Tensor, noise: Tensor, counted: Tensor | None = None) -> Tensor:
    """Mean over rows of sigma^2 |psi + xi / sigma|^2 where psi = output / sigma, all [B, A]: its
    value for an output of 0 is A at every level. `counted` [B], 0 or 1, leaves rows out."""
    check_shapes(output=(output, "B A"), noise=(noise, "B A"), counted=(counted, "B"))
    errors = (output + noise).square().sum(-1)
    return errors.mean() if counted is None else mean_of(errors, counted)


def mean_of(values: Tensor, counted: Tensor) -> Tensor:
    """The mean of `values` [B] over the rows where `counted` [B] is 1; 0 where none is."""
    return (values * counted).sum() / counted.sum().clamp_min(1)


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
    """A policy whose actions move along the scores before they are taken."""

    def __init__(
        self,
        spec: Spec,
        base: nn.Module,
        score: ScoreNetwork,
        state_score: StateScore | None,
        config: CDSAConfig,
    ):
        super().__init__()
        self.base, self.score, self.step_size = base, score, config.step_size
        self.state_score, self.state_weight = state_score, config.state_weight
        self.scale = ActionScale(spec)
        self.used = int((score.sigmas <= config.act_below).sum())  # the last of them
        self.stochastic = getattr(base, "stochastic", True)

    def correct(self, obs: Tensor, action: Tensor) -> Tensor:
        """`action` [B, A] in the task's units after the steps; with a step size of 0 as it is."""
        if self.step_size == 0:
            return action

        def score(unit: Tensor, sigma: Tensor) -> Tensor:
            psi: Tensor = self.score(obs, unit, sigma)
            if self.state_score is None:
                return psi
            pull: Tensor = self.state_score(obs, unit, sigma)
            return psi + self.state_weight * pull

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
    """The learner that is corrected, and the scores beside it: neither changes the other."""

    def __init__(
        self, spec: Spec, base: Any, config: CDSAConfig, device: torch.device, generator: Generator
    ) -> None:
        self.base, self.config = base, base.config
        self.sigmas = noise_levels(config.smallest, config.largest, config.levels).to(device)
        self.score = ScoreNetwork(spec, config.hidden, self.sigmas, generator).to(device)
        optimiser = adam(self.score.net.parameters(), config.learning_rate)
        self.modules: dict[str, nn.Module] = base.modules | {"score": self.score}
        self.optimisers = base.optimisers | {"score": optimiser}
        self.state_score: StateScore | None = None
        if config.state_weight > 0:
            self.state_score = StateScore(spec, config.hidden, generator).to(device)
            self.modules["state_score"] = self.state_score
            optimiser = adam(self.state_score.parameters(), config.learning_rate)
            self.optimisers["state_score"] = optimiser
        policy = CorrectedPolicy(spec, base.policy, self.score, self.state_score, config)
        self.policy = policy.to(device)

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
        if self.state_score is None:
            return Perturbed(drawn, noise, level)
        of_state = torch.randn(batch.next_obs.shape, generator=generator, device=device)
        return Perturbed(drawn, noise, level, of_state)

    def update(self, batch: Perturbed, count: int = 0) -> Metrics:
        """The learner's update and a step of the scores."""
        metrics: Metrics = self.base.update(batch.batch, count)
        rows, sigma = batch.batch, self.sigmas[batch.level]
        moved = rows.action + sigma[:, None] * batch.noise
        loss = score_loss(self.score.output(rows.obs, moved, sigma), batch.noise)
        descend(self.optimisers["score"], loss)
        metrics |= {"score/loss": loss.detach()}
        return metrics if self.state_score is None else metrics | self.update_state(batch)

    def update_state(self, batch: Perturbed) -> Metrics:
        """A step of the score of next states and of their model. Rows that end the task are left
        out: what such a row led to is not known in all data."""
        assert self.state_score is not None and batch.state_noise is not None
        rows, sigma = batch.batch, self.sigmas[batch.level]
        counted = (rows.discount > 0).to(rows.obs.dtype)
        state = self.state_score.normaliser(rows.next_obs)
        moved = state + sigma[:, None] * batch.state_noise
        score = score_loss(self.state_score.output(moved, sigma), batch.state_noise, counted)
        errors = (self.state_score.predicted(rows.obs, rows.action) - state).square().sum(-1)
        model = mean_of(errors, counted)
        descend(self.optimisers["state_score"], score + model)
        return {"score/state_loss": score.detach(), "score/model_loss": model.detach()}


class CDSA(Agent[Perturbed]):
    """An offline policy corrected by the score of the data's actions, and of its next states.

    Formula:

        learner      the losses of `learner` (TD3+BC, IQL, ...)
        score        L = mean sigma^2 |psi(s, a + sigma xi, sigma) + xi / sigma|^2, xi ~ N(0, 1),
                     sigma uniform among K geometric levels
        acting       a = pi(s); for each sigma up to `act_below`, from the largest:
                     a <- clip(a + eta sigma^2 (psi(s, a, sigma) + kappa J' psi_s(f(s, a), sigma)),
                     -1, 1), J = df / da
        states       (kappa > 0) L = mean sigma^2 |psi_s(s' + sigma xi, sigma) + xi / sigma|^2 +
                     |f(s, a) - s'|^2 over rows that do not end the task

    When not to use it: where most of the log is bad: the score is that of density, not of value,
    and pulls an action to what was done most. A clone of the data gains nothing. `state_weight`
    where an action hardly changes the next state.

    The chain rule for states is ours: a summary of the paper speaks of an inverse dynamics model in
    its place, and its formula was not found.
    """

    version = 1
    config: CDSAConfig

    def build(self, generator: Generator) -> tuple[ScoreCorrected, Any]:
        c = self.config
        own = getattr(c, c.learner)
        base = LEARNERS[c.learner](self.spec, own, device=str(self.device), seed=self.seed)
        learner = ScoreCorrected(self.spec, base.learner, c, self.device, generator)
        return learner, base.source
