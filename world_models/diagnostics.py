"""How good a world model is: error over k steps, calibration, and whether its disagreement ranks
its errors. Rows whose next observation was not recorded are left out. Arrays first; `experiments
model inspect` draws them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mbrl.errors import DataError
from mbrl.types import Transitions
from world_models.disagreement import MEASURES
from world_models.ensemble import EnsembleDynamics
from world_models.learned_ends import constant_surprise

# Share of a standard normal within each of these central intervals.
LEVELS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99])


@dataclass(frozen=True)
class KStepError:
    """Open-loop error of the members' mean predictions along logged action sequences.

    `median`, `low` and `high` [k] are the median and the quartiles over windows of the root mean
    square error of the observation after 1..k steps, in standard deviations of the data; `reward`
    [k] is the median absolute error of the reward in its own units; `windows` [k] says over how
    many windows each of them is.
    """

    median: np.ndarray
    low: np.ndarray
    high: np.ndarray
    reward: np.ndarray
    windows: np.ndarray


@torch.no_grad()
def k_step_error(
    model: EnsembleDynamics, data: Transitions, k: int, *, windows: int = 1000, seed: int = 0
) -> KStepError:
    """Roll the ensemble's mean along the actions of `data`. The error after t steps is that over
    at most `windows` random starts that have t steps left in their episode. Raises `DataError`
    where no episode is `k` steps long."""
    data = data.with_known_next()
    left = torch.cat([torch.arange(b - a, 0, -1) for a, b in data.episodes()])
    if k > int(left.max()):
        raise DataError(f"no episode of the data has {k} steps; use a smaller k")
    order = torch.randperm(len(left), generator=torch.Generator().manual_seed(seed))
    picked = [order[left[order] >= t][:windows].sort().values for t in range(1, k + 1)]
    rows = torch.cat(picked).unique()
    data = data.to(model.device)
    scale = data.obs.std(0, correction=0)
    scale = torch.where(scale < 1e-12, torch.ones_like(scale), scale)
    obs, errors, rewards = data.obs[rows], [], []
    for t, own in enumerate(picked):
        going = left[rows] > t
        rows, obs = rows[going], obs[going]
        mean, _ = model.members_predict(obs, data.action[rows + t])
        obs, reward = model.decode(obs, data.action[rows + t], mean.mean(0))
        gap = (obs - data.next_obs[rows + t]) / scale
        place = torch.searchsorted(rows, own)
        errors.append(gap[place].square().mean(-1).sqrt().double())
        rewards.append((reward - data.reward[rows + t])[place].abs().double())
    low, median, high = (
        np.array([float(error.quantile(q)) for error in errors]) for q in (0.25, 0.5, 0.75)
    )
    paid = np.array([float(error.quantile(0.5)) for error in rewards])
    return KStepError(median, low, high, paid, np.array([len(own) for own in picked]))


def window_starts(data: Transitions, k: int) -> Tensor:
    """Rows from which k steps stay inside one episode."""
    parts = [torch.arange(a, b - k + 1) for a, b in data.episodes() if b - a >= k]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Calibration:
    """Observed share [L] of targets inside the mixture's central intervals at each of `levels`
    [L]; `error` is the mean absolute gap between the two (0 is perfect)."""

    levels: np.ndarray
    observed: np.ndarray
    error: float


@torch.no_grad()
def calibration(model: EnsembleDynamics, data: Transitions, *, rows: int = 5000) -> Calibration:
    """Central-interval coverage of the Gaussian with the mixture's mean and variance, over all
    target dimensions of at most `rows` rows."""
    from scipy import special  # here, as it takes long to import

    data = _first(data, rows).to(model.device)
    mean, variance = model.members_predict(data.obs, data.action)
    centre = mean.mean(0)
    spread = (variance.mean(0) + mean.var(0, correction=0)).sqrt()
    z = ((model.targets(data) - centre) / spread).abs().flatten().cpu().numpy()
    bounds = special.ndtri(0.5 + LEVELS / 2)
    observed = np.array([(z <= b).mean() for b in bounds])
    return Calibration(LEVELS, observed, float(np.abs(observed - LEVELS).mean()))


@torch.no_grad()
def rank_correlation(
    model: EnsembleDynamics, data: Transitions, *, rows: int = 5000
) -> dict[str, float]:
    """Spearman's rank correlation of every disagreement measure with the true one-step error (root
    mean square over target dimensions), on at most `rows` rows."""
    from scipy import stats  # here, as it takes a second to import

    data = _first(data, rows).to(model.device)
    mean, variance = model.members_predict(data.obs, data.action)
    error = (model.targets(data) - mean.mean(0)).square().mean(-1).sqrt().cpu().numpy()
    result = {}
    for name, function in MEASURES.items():
        level = function(mean, variance).cpu().numpy()
        constant = np.ptp(level) == 0 or np.ptp(error) == 0
        result[name] = float("nan") if constant else float(stats.spearmanr(level, error)[0])
    return result


@torch.no_grad()
def log_likelihood(model: EnsembleDynamics, data: Transitions, *, rows: int = 5000) -> np.ndarray:
    """Mean log-likelihood [E] of the targets under each member's Gaussian, in target units, summed
    over dimensions."""
    data = _first(data, rows).to(model.device)
    mean, variance = model.members_predict(data.obs, data.action)
    error = (model.targets(data) - mean).square() / variance
    nats = -0.5 * (error + variance.log() + np.log(2 * np.pi)).sum(-1)
    result: np.ndarray = nats.double().mean(1).cpu().numpy()
    return result


@dataclass(frozen=True)
class EndErrors:
    """Of learned ends: how many the model expects in the data and how many there are, the
    cross-entropy of the latter [nats a row], and that of a model that knows their share alone."""

    expected: float
    actual: int
    surprise: float
    constant: float


@torch.no_grad()
def end_errors(model: EnsembleDynamics, data: Transitions) -> EndErrors | None:
    """How good the learned ends of a model are, on all rows; None of one that learned none."""
    if model.ends is None:
        return None
    rows = data.to(model.device)
    probability = model.ends(model.encode(rows.obs, rows.action)).double()
    ended = rows.terminated.double()
    surprise = torch.nn.functional.binary_cross_entropy(probability, ended)
    share = float(ended.mean())
    return EndErrors(
        float(probability.sum()), int(ended.sum()), float(surprise), constant_surprise(share)
    )


def _first(data: Transitions, rows: int) -> Transitions:
    data = data.with_known_next()
    return data if len(data) <= rows else data.select(slice(0, rows))


def split_episodes(data: Transitions, share: float, seed: int) -> tuple[Transitions, Transitions]:
    """Whole episodes, about `share` of the rows in the second part. A single episode is cut at
    that share instead."""
    episodes = data.episodes()
    if len(episodes) < 2:
        cut = max(1, int(len(data) * (1 - share)))
        return data.select(slice(0, cut)), data.select(slice(cut, None))
    order = np.random.default_rng(seed).permutation(len(episodes))
    wanted, held, rows = share * len(data), [], 0
    for index in order[:-1]:
        if rows >= wanted:
            break
        held.append(int(index))
        rows += episodes[index][1] - episodes[index][0]
    chosen = set(held)

    def gather(wants_held: bool) -> Transitions:
        kept = [e for i, e in enumerate(episodes) if (i in chosen) == wants_held]
        return data.select(torch.cat([torch.arange(a, b) for a, b in kept]))

    return gather(False), gather(True)
