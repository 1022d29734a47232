"""Stationary distribution correction: how much more often another policy visits a logged step than
the data do, and what the policy earns with these weights.

"DualDICE: Behavior-Agnostic Estimation of Discounted Stationary Distribution Corrections", arXiv
1906.04733, in the regularised Lagrangian form of "Off-Policy Evaluation via the Regularized
Lagrangian", arXiv 2007.03438: with d the discounted distribution of the policy over (state, action)
and D the data,

    min_nu max_zeta  E_D[zeta (nu(s, a) - gamma nu(s', a')) - zeta^2 / 2]
                     - (1 - gamma) E[nu(s_0, a_0)]

has its saddle at zeta = d / D. No ratio of action probabilities is needed, nor who made the data,
and no product over steps whose variance grows with their number.

A constant nu makes of it E_D[zeta (1 - gamma')] = 1 - gamma, with gamma' = gamma but 0 where the
episode ended: that the weights count all of the policy's time. It is known before anything is
learned, so a multiplier holds it, and the weights are scaled to it at the end.

Differences: zeta is kept positive by a square; the multiplier, which the second paper has for data
without ends alone (there it says that the mean of zeta is 1).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mbrl.agent import generators, resolve_device
from mbrl.errors import ConfigError, DataError, DivergenceError
from mbrl.networks import MLP, ActionScale, Normaliser, adam
from mbrl.policy_gradient.off_policy_evaluation import interval
from mbrl.training import Metrics
from mbrl.types import Dataset

Acts = Callable[[Tensor, torch.Generator], Tensor]
KEEP = 0.5  # share of the updates, the last ones, whose weights are averaged


@dataclass(frozen=True)
class DICEConfig:
    """Settings of the correction."""

    hidden: tuple[int, ...] = (64, 64)  # widths of both networks
    nu_rate: float = 1e-3  # Adam, the value-like function
    zeta_rate: float = 1e-3  # Adam, the weights
    steps: int = 10_000  # updates
    batch_size: int = 512  # logged steps, and episode starts, an update
    gamma: float = 0.99  # discount factor
    average_every: int = 100  # updates between two weights that are averaged
    seed: int = 0  # of the initial weights and the batches

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "average_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if not 0 <= self.gamma < 1:
            raise ConfigError(f"gamma is {self.gamma}, it must lie in [0, 1)")
        for name in ("nu_rate", "zeta_rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be positive")


@dataclass(frozen=True)
class DICEResult:
    """`weights` [N], float64: of every logged step, scaled as said above. `value`: the mean
    discounted return of the policy from the data's episode starts, in the task's units. `low`,
    `high`: its interval of 95 % over resamples of the logged episodes, NaN for fewer than two; the
    weights are taken as they are, so that what is wrong with them is not in it.
    `effective_share`: how many of the logged steps the weights amount to, as a share."""

    weights: np.ndarray
    value: float
    low: float
    high: float
    effective_share: float


def correct(
    acts: Acts,
    dataset: Dataset,
    config: DICEConfig | None = None,
    *,
    device: str = "cpu",
    on_progress: Callable[[Metrics], None] | None = None,
) -> DICEResult:
    """Weights and value of the policy `acts`: raw observations [B, S] and a generator to actions in
    the task's units, as `agent.policy.explore` (or `lambda obs, g: agent.policy(obs)` for greedy
    ones). Raises `DataError` for a dataset without rows and `DivergenceError` for weights that are
    not finite."""
    if len(dataset) == 0:
        raise DataError(f"dataset {dataset.provenance.card!r} has no transitions")
    fit = DICE(acts, dataset, config or DICEConfig(), device)
    steps, every = fit.config.steps, fit.config.average_every
    total, count = torch.zeros(len(dataset), dtype=torch.float64, device=fit.place), 0
    for step in range(1, steps + 1):
        metrics = fit.update()
        last = step == steps
        if last or (step > (1 - KEEP) * steps and step % every == 0):
            total, count = total + fit.weights().double(), count + 1
        if on_progress is not None and (last or step % every == 0):
            on_progress(metrics)
    weights = total / count
    if not torch.isfinite(weights).all():
        raise DivergenceError(
            f"weights are not finite after {steps} updates; lower nu_rate and zeta_rate"
        )
    left = fit.left.double()
    weights = weights * (1 - fit.config.gamma) / (weights * left).mean()
    share = weights.sum() ** 2 / (len(weights) * (weights**2).sum())
    spans = dataset.transitions.episodes()
    earned, length = (
        torch.stack([x[a:b].sum() for a, b in spans]).cpu()
        for x in (weights * fit.reward.double(), weights * left)
    )
    value = float(earned.sum() / length.sum())
    low, high = interval(
        lambda drawn: drawn @ earned / (drawn @ length), value, len(spans), seed=fit.config.seed
    )
    return DICEResult(weights.cpu().numpy(), value, low, high, float(share))


class DICE:
    """The fit of one correction."""

    def __init__(self, acts: Acts, dataset: Dataset, config: DICEConfig, device: str) -> None:
        self.acts, self.config, self.spec = acts, config, dataset.spec
        self.place = resolve_device(device)
        initial, self.generator = generators(config.seed, self.place)
        data = dataset.transitions.to(self.place)
        self.obs, self.next_obs, self.reward = data.obs, data.next_obs, data.reward
        self.discount = config.gamma * (~data.terminated).to(data.reward.dtype)
        self.left = 1 - self.discount
        self.starts = data.obs[torch.tensor([a for a, _ in data.episodes()], device=self.place)]
        self.scale = None if self.spec.discrete else ActionScale(self.spec).to(self.place)
        self.normaliser = Normaliser(self.spec.obs_dim).to(self.place)
        self.normaliser.fit(data.obs)
        self.logged = self.features(self.obs, data.action)
        width = self.logged.shape[1]
        self.nu = MLP(width, config.hidden, 1, generator=initial).to(self.place)
        self.zeta = MLP(width, config.hidden, 1, generator=initial).to(self.place)
        with torch.no_grad():
            list(self.zeta.parameters())[-1].fill_(1.0)  # the last bias: weights begin near 1
        self.multiplier = nn.Parameter(torch.zeros((), device=self.place))
        self.optimisers = (
            adam([*self.nu.parameters(), self.multiplier], config.nu_rate),
            adam(self.zeta.parameters(), config.zeta_rate),
        )

    def features(self, obs: Tensor, action: Tensor) -> Tensor:
        """What both networks see of (state, action) [B, ...]."""
        if self.scale is None:
            chosen = nn.functional.one_hot(action.long(), self.spec.num_actions or 0)
            return torch.cat([self.normaliser(obs), chosen.to(obs.dtype)], -1)
        return torch.cat([self.normaliser(obs), self.scale.to_unit(action)], -1)

    def weights(self) -> Tensor:
        """zeta [N] of all logged steps."""
        with torch.no_grad():
            return self.zeta(self.logged)[:, 0].square()

    def update(self) -> Metrics:
        """One step down in nu (and the multiplier) and up in zeta."""
        size = self.config.batch_size

        def draw(count: int) -> Tensor:
            return torch.randint(count, (size,), generator=self.generator, device=self.place)

        rows, first = draw(len(self.obs)), draw(len(self.starts))
        later, start = self.next_obs[rows], self.starts[first]
        nu = self.nu(self.logged[rows])[:, 0]
        nu_later = self.nu(self.features(later, self.acts(later, self.generator)))[:, 0]
        nu_start = self.nu(self.features(start, self.acts(start, self.generator)))[:, 0]
        zeta = self.zeta(self.logged[rows])[:, 0].square()
        residual = nu - self.discount[rows] * nu_later
        lagrangian = (zeta * residual - zeta.square() / 2).mean()
        lagrangian = lagrangian - (1 - self.config.gamma) * nu_start.mean()
        whole = (zeta * self.left[rows]).mean() / (1 - self.config.gamma)
        lagrangian = lagrangian + self.multiplier * (1 - whole)
        low, high = self.optimisers
        parameters = [p for group in low.param_groups for p in group["params"]]
        others = list(self.zeta.parameters())
        found = torch.autograd.grad(lagrangian, [*parameters, *others])
        for p, gradient in zip([*parameters, *others], found, strict=True):
            p.grad = gradient
        for p in others:
            assert p.grad is not None
            p.grad = -p.grad
        low.step()
        high.step()
        return {"dice/lagrangian": lagrangian.detach(), "dice/mean_weight": zeta.mean().detach()}
