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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mbrl.agent import resolve_device
from mbrl.config import Count, CountOrZero, Discount, Positive, Settings, Widths
from mbrl.errors import ConfigError, DataError, DivergenceError
from mbrl.generators import generators
from mbrl.networks import ActionScale, EnsembleMLP, Normaliser, adam
from mbrl.policy_gradient.off_policy_evaluation import interval
from mbrl.training import Metrics
from mbrl.types import Dataset

Acts = Callable[[Tensor, torch.Generator], Tensor]
KEEP = 0.5  # share of the updates, the last ones, whose weights are averaged


@dataclass(frozen=True)
class DICEConfig(Settings):
    """Settings of the correction."""

    hidden: Widths = (64, 64)  # widths of both networks
    nu_rate: Positive = 1e-3  # Adam, the value-like function
    zeta_rate: Positive = 1e-3  # Adam, the weights
    steps: Count = 10_000  # updates
    batch_size: Count = 512  # logged steps, and episode starts, an update
    gamma: Discount = 0.99  # discount factor
    average_every: Count = 100  # updates between two weights that are averaged
    seed: CountOrZero = 0  # of the initial weights and the batches


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
    return correct_all(acts, [dataset], config, device=device, on_progress=on_progress)[0]


def correct_all(
    acts: Acts,
    datasets: Sequence[Dataset],
    config: DICEConfig | None = None,
    *,
    device: str = "cpu",
    on_progress: Callable[[Metrics], None] | None = None,
) -> list[DICEResult]:
    """`correct` for several datasets of one task at once, each with networks and batches of its
    own: one ensemble, whose updates cost far less than those of its members one by one. Raises
    `ConfigError` for none or for tasks that differ, else as `correct`."""
    if not datasets:
        raise ConfigError("there is no dataset; give at least one")
    for data in datasets:
        if len(data) == 0:
            raise DataError(f"dataset {data.provenance.card!r} has no transitions")
        if data.spec != datasets[0].spec:
            raise ConfigError(
                f"datasets of {datasets[0].spec.task} and {data.spec.task}, or of two kinds of one "
                "task; give those of one specification"
            )
    fit = DICE(acts, datasets, config or DICEConfig(), device)
    steps, every = fit.config.steps, fit.config.average_every
    total, count = torch.zeros(fit.reward.shape, dtype=torch.float64, device=fit.place), 0
    for step in range(1, steps + 1):
        metrics = fit.update()
        last = step == steps
        if last or (step > (1 - KEEP) * steps and step % every == 0):
            total, count = total + fit.weights().double(), count + 1
        if on_progress is not None and (last or step % every == 0):
            on_progress(metrics)
    weights = total / count
    return [
        _result(data, weights[e, : len(data)].cpu(), fit.config) for e, data in enumerate(datasets)
    ]


def _result(dataset: Dataset, weights: Tensor, config: DICEConfig) -> DICEResult:
    """Of raw weights [N], which are scaled here."""
    if not torch.isfinite(weights).all():
        raise DivergenceError(
            f"weights are not finite after {config.steps} updates; lower nu_rate and zeta_rate"
        )
    data = dataset.transitions.to("cpu")
    left = 1 - config.gamma * (~data.terminated).double()
    weights = weights * (1 - config.gamma) / (weights * left).mean()
    share = weights.sum() ** 2 / (len(weights) * (weights**2).sum())
    spans = data.episodes()
    earned, length = (
        torch.stack([x[a:b].sum() for a, b in spans])
        for x in (weights * data.reward.double(), weights * left)
    )
    value = float(earned.sum() / length.sum())
    low, high = interval(
        lambda drawn: drawn @ earned / (drawn @ length), value, len(spans), seed=config.seed
    )
    return DICEResult(weights.numpy(), value, low, high, float(share))


class DICE:
    """The fit of the corrections of E datasets: tensors [E, N, ...], the shorter ones padded."""

    def __init__(
        self, acts: Acts, datasets: Sequence[Dataset], config: DICEConfig, device: str
    ) -> None:
        for dataset in datasets:
            if dataset.transitions.duration is not None:
                raise DataError(
                    f"the steps of {dataset.provenance.card} differ in length, and the "
                    "stationary distribution that DICE estimates is one of equal steps; use fitted "
                    "Q evaluation"
                )
        self.acts, self.config, self.spec = acts, config, datasets[0].spec
        self.place = resolve_device(device)
        initial, self.generator = generators(config.seed, self.place)
        parts = [data.transitions.to(self.place) for data in datasets]
        starts = [part.obs[[a for a, _ in part.episodes()]] for part in parts]

        def padded(values: Sequence[Tensor]) -> Tensor:
            return nn.utils.rnn.pad_sequence(list(values), batch_first=True)

        def counts(values: Sequence[Tensor]) -> Tensor:
            return torch.tensor([[len(v)] for v in values], device=self.place)

        self.next_obs, self.starts = padded([p.next_obs for p in parts]), padded(starts)
        self.rows, self.begun = counts([p.obs for p in parts]), counts(starts)
        self.reward = padded([p.reward for p in parts])
        self.discount = config.gamma * (~padded([p.terminated for p in parts])).to(torch.float32)
        self.scale = None if self.spec.discrete else ActionScale(self.spec).to(self.place)
        scales = [Normaliser(self.spec.obs_dim).to(self.place) for _ in parts]
        for scale, part in zip(scales, parts, strict=True):
            scale.fit(part.obs)
        self.mean = torch.stack([scale.mean for scale in scales])[:, None]
        self.std = torch.stack([scale.std for scale in scales])[:, None]
        self.logged = self.features(
            padded([p.obs for p in parts]), padded([p.action for p in parts])
        )
        size = (len(parts), self.logged.shape[-1], config.hidden, 1)
        self.nu = EnsembleMLP(*size, generator=initial).to(self.place)
        self.zeta = EnsembleMLP(*size, generator=initial).to(self.place)
        nn.init.ones_(self.zeta.biases[-1])  # weights begin near 1
        self.multiplier = nn.Parameter(torch.zeros(len(parts), device=self.place))
        self.optimisers = (
            adam([*self.nu.parameters(), self.multiplier], config.nu_rate),
            adam(self.zeta.parameters(), config.zeta_rate),
        )

    def features(self, obs: Tensor, action: Tensor) -> Tensor:
        """What both networks see of (state, action) [E, B, ...]."""
        seen = (obs - self.mean) / self.std
        if self.scale is None:
            chosen = nn.functional.one_hot(action.long(), self.spec.num_actions or 0)
            return torch.cat([seen, chosen.to(obs.dtype)], -1)
        return torch.cat([seen, self.scale.to_unit(action)], -1)

    def weights(self) -> Tensor:
        """zeta [E, N] of all logged steps."""
        with torch.no_grad():
            return self.zeta(self.logged)[..., 0].square()

    def update(self) -> Metrics:
        """One step down in nu (and the multiplier) and up in zeta; sums over datasets, which have
        nothing in common."""
        size, gamma = self.config.batch_size, self.config.gamma
        member = torch.arange(len(self.rows), device=self.place)[:, None]

        def draw(count: Tensor) -> tuple[Tensor, Tensor]:
            shape = (len(count), size)
            drawn = torch.rand(
                shape, generator=self.generator, device=self.place, dtype=torch.float64
            )
            return member, (drawn * count).long()

        def ahead(obs: Tensor) -> Tensor:
            """nu [E, B] of what the policy does at `obs` [E, B, S]."""
            action = self.acts(obs.flatten(0, 1), self.generator)
            return self.nu(self.features(obs, action.unflatten(0, obs.shape[:2])))[..., 0]

        at, first = draw(self.rows), draw(self.begun)
        x, discount = self.logged[at], self.discount[at]
        nu, zeta = self.nu(x)[..., 0], self.zeta(x)[..., 0].square()
        residual = nu - discount * ahead(self.next_obs[at])
        lagrangian = (zeta * residual - zeta.square() / 2).mean(1)
        lagrangian = lagrangian - (1 - gamma) * ahead(self.starts[first]).mean(1)
        whole = (zeta * (1 - discount)).mean(1) / (1 - gamma)
        lagrangian = lagrangian + self.multiplier * (1 - whole)
        low, high = self.optimisers
        parameters = [p for group in low.param_groups for p in group["params"]]
        others = list(self.zeta.parameters())
        gradients = torch.autograd.grad(lagrangian.sum(), [*parameters, *others])
        for p, gradient in zip([*parameters, *others], gradients, strict=True):
            p.grad = gradient
        for p in others:
            assert p.grad is not None
            p.grad = -p.grad
        low.step()
        high.step()
        mean = lagrangian.detach().mean()
        return {"dice/lagrangian": mean, "dice/mean_weight": zeta.detach().mean()}
