"""What a policy earns in a learned model that ends where the data end.

A policy that was trained against values or a model finds what these get wrong, and every estimate
that shares their extrapolation believes it. Here a model of its own imagines what the policy does,
and the first step whose outcome the log has never shown ends the episode: an observation or a
reward outside the logged range, or members that disagree three times more than on all but a
hundredth of the held-out rows. Each step from there on earns what the worst hundredth of the logged
rows do. The halting task is MOReL's (Model-Based Offline Reinforcement Learning, arXiv 2005.05951),
used to compare policies instead of to train one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mbrl.errors import DataError
from mbrl.training import device_of
from mbrl.types import Dataset, Transitions
from world_models import EnsembleConfig, EnsembleDynamics
from world_models.ensemble import Termination

MODEL = EnsembleConfig(
    members=5, elites=5, hidden=(100, 100), layer_norm=True, target="residual", reward="reached",
    weight_decay=(1e-6,), min_epochs=5, max_epochs=15,
)  # fmt: skip
EDGE = 0.99  # quantile of the held-out rows' disagreement
FAR = 3.0  # times it, beyond which a step is not known
MARGIN = 0.05  # deviations beyond the logged range that count as inside
WORST = 0.01  # quantile of the logged rewards that is earned after the end; 0 at most if tasks end
FEW = 0.02  # share of windows by which ends may differ without meaning
ROOM = 3.0  # deviations beyond the range that imagined observations are kept to
SEED = 977  # of the model, apart from those of the agents


@dataclass(frozen=True)
class Halted:
    """`value` [E]: mean return of the windows of each held-out episode, over `horizon` steps;
    `inside`: the share of windows in which every outcome was one that the log has shown; `ended`:
    that in which the task's rule ended the episode; `plain`: the mean return without halting, which
    shows what halting took off."""

    value: np.ndarray
    inside: float
    ended: float
    plain: float
    horizon: int


@dataclass(frozen=True)
class HaltedValues:
    """Of each policy; and of the same windows in the log `ended`, the share that ended, and
    `spread`, the standard deviation of their returns."""

    each: tuple[Halted, ...]
    ended: float
    spread: float

    def credible(self, base: int) -> bool:
        """Whether policy number `base`, a clone of the logged one, ends about as often in the model
        as the log did: between half and double, or within 2 %. A model that never imagines the
        ends that the log has says nothing of who avoids them."""
        own = self.each[base].ended
        within = abs(own - self.ended) <= FEW
        return within or self.ended / 2 <= own <= 2 * self.ended


@dataclass(frozen=True)
class Range:
    """What the log has shown: observations [S], rewards, and the disagreement at its edge."""

    low: Tensor
    high: Tensor
    deviation: Tensor
    reward_low: float
    reward_high: float
    worst: float
    edge: float

    @classmethod
    def of(cls, rows: Transitions, held: Transitions, model: EnsembleDynamics) -> "Range":
        deviation = model.obs_normaliser.std  # 1 where an observation never changes
        reward = rows.reward.double().numpy()
        spare = MARGIN * float(reward.max() - reward.min())
        level = model.disagreement(held.obs, held.action, "epistemic_mean")
        return cls(
            rows.obs.amin(0),
            rows.obs.amax(0),
            deviation,
            float(reward.min()) - spare,
            float(reward.max()) + spare,
            float(np.quantile(reward, WORST)),
            float(np.quantile(level.numpy(), EDGE)),
        )

    def shown(self, reached: Tensor, reward: Tensor, level: Tensor) -> Tensor:
        """Whether each outcome [B] is one that the log has shown."""
        beyond = torch.maximum(reached - self.high, self.low - reached) / self.deviation
        paid = (reward >= self.reward_low) & (reward <= self.reward_high)
        return (beyond <= MARGIN).all(1) & paid & (level <= FAR * self.edge)


class HaltingModel:
    """A model fitted to `train` that ends where these data end, and `windows` rows of the held-out
    episodes from which policies are imagined in it for `horizon` steps, or for as many as half of
    these episodes (two at least) have, where that is fewer. `termination` is the task's rule,
    "learned" where the model learns from the log with which probability a step ends its episode,
    None where episodes do not end. `state` is the `state_dict` of an earlier one, which is not
    fitted again. Raises `DataError` for fewer than two held-out episodes.

    All policies start from the same rows in the same members, so that differences between them are
    paired. Of the windows in the log `ended` is the share that ended, `spread` the standard
    deviation of the returns.
    """

    def __init__(
        self,
        train: Dataset,
        held: Dataset,
        termination: Termination | Literal["learned"] | None,
        *,
        horizon: int = 100,
        windows: int = 300,
        state: dict[str, Any] | None = None,
    ) -> None:
        rows, spans = held.transitions, held.transitions.episodes()
        if len(spans) < 2:
            raise DataError(
                f"{held.provenance.card} has {len(spans)} held-out episode; values are compared "
                "over episodes, which must be two at least"
            )
        self.model = EnsembleDynamics(train.spec, MODEL, termination=termination, seed=SEED)
        if state is None:
            self.model.fit(train.transitions)
        else:
            self.model.load_state_dict(state)
        self.known = Range.of(train.transitions, rows, self.model)
        if termination is not None and can_end(self.model, rows):
            # An end pays nothing from there on; to leave the data must be worth no more.
            self.known = replace(self.known, worst=min(self.known.worst, 0.0))
        self.horizon = min(horizon, _reached(rows))
        starts, ended, earned = _starts(rows, self.horizon)
        pick = np.unique(np.linspace(0, len(starts) - 1, windows).astype(np.int64))
        starts, self.ended = starts[pick], float(ended[pick].mean())
        self.spread = float(earned[pick].std())
        self.episode = np.searchsorted([a for a, _ in spans], starts, side="right") - 1
        self.obs = rows.obs[starts]

    def value(self, policy: Any) -> Halted:
        """What `policy` (raw observations [B, S] to actions in the task's units) earns in it."""
        total, plain, inside, over = _windows(
            policy, self.obs, self.model, self.known, self.horizon
        )
        each = np.array([total[self.episode == e].mean() for e in np.unique(self.episode)])
        shares = float(inside.mean()), float(over.mean())
        return Halted(each, *shares, float(plain.mean()), self.horizon)

    def state_dict(self) -> dict[str, Any]:
        """The fitted model."""
        return self.model.state_dict()


def halted_values(
    policies: Sequence[Any],
    train: Dataset,
    held: Dataset,
    termination: Termination | Literal["learned"] | None,
    *,
    horizon: int = 100,
    windows: int = 300,
) -> HaltedValues:
    """A `Halted` of each of `policies` in the `HaltingModel` of the same arguments."""
    model = HaltingModel(train, held, termination, horizon=horizon, windows=windows)
    each = tuple(model.value(policy) for policy in policies)
    return HaltedValues(each, model.ended, model.spread)


def can_end(model: EnsembleDynamics, rows: Transitions) -> bool:
    """Whether the task's rule ends an episode anywhere: at observations up to a thousand deviations
    from the logged ones. An expert's log may hold no end of a task that has them. Ends that are
    learned are there."""
    if model.ends is not None:
        return True
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn(rows.obs.shape, generator=generator) * model.obs_normaliser.std
    for scale in (1.0, 10.0, 100.0, 1000.0):
        if bool(model.terminates(rows.obs, rows.action, rows.obs + scale * noise).any()):
            return True
    return False


def _reached(rows: Transitions) -> int:
    """The most steps of which half of the episodes, and two at least, show what came of them: an
    episode that the task ended shows it of any number, so that there the longest one bounds it."""
    spans = rows.episodes()
    longest = max(b - a for a, b in spans)
    known = sorted(longest if rows.terminated[b - 1] else b - a for a, b in spans)
    return known[-max((len(known) + 1) // 2, 2)]


def _starts(rows: Transitions, horizon: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows after which the log shows `horizon` steps or the end of the task, whether it ended
    within them, and what they earned."""
    starts, ended, earned = [], [], []
    paid = np.concatenate([[0.0], np.cumsum(rows.reward.double().numpy())])
    for a, b in rows.episodes():
        last = bool(rows.terminated[b - 1])
        own = np.arange(a, b if last else b - horizon + 1)
        starts.append(own)
        ended.append(last & (b - own <= horizon))
        earned.append(paid[np.minimum(own + horizon, b)] - paid[own])
    return np.concatenate(starts), np.concatenate(ended), np.concatenate(earned)


@torch.no_grad()
def _windows(
    policy: Any, obs: Tensor, model: EnsembleDynamics, known: Range, horizon: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Halted and plain return, the share in which all was shown, and in which it ended, of each
    window [B]: 0 or 1 by a rule. Learned ends are expected ones, not drawn: a step counts with the
    probability that the episode has come so far."""
    member = torch.arange(len(obs)) % model.num_members
    inside = torch.ones(len(obs), dtype=torch.bool)
    alive, shown = torch.ones(len(obs)), torch.ones(len(obs))
    total, plain = torch.zeros(len(obs)), torch.zeros(len(obs))
    place = device_of(policy, obs.device)
    low, high = known.low - ROOM * known.deviation, known.high + ROOM * known.deviation
    for _ in range(horizon):
        action = policy(obs.to(place)).to(obs.device)
        reached, reward, level = model.mean_step(obs, action, member)
        left = inside & ~known.shown(reached, reward, level)
        inside &= ~left
        shown -= torch.where(left, alive, 0.0)
        survival = model.survival(obs, action, reached)
        paid = model.ending_reward(reward, 1.0 - survival)
        worst = torch.full_like(reward, known.worst)
        total += alive * torch.where(inside, paid, worst)
        plain += alive * paid
        alive *= survival
        obs = torch.minimum(torch.maximum(reached, low), high)
    return total.numpy(), plain.numpy(), shown.numpy(), 1.0 - alive.numpy()


def lead(one: Halted, other: Halted, confidence: float) -> tuple[float, float, float]:
    """The mean difference of `one` to `other` over held-out episodes, with Student's two-sided
    interval."""
    from scipy import special  # here, as it takes long to import

    gap = one.value - other.value
    n = len(gap)
    if n < 2:
        return float(gap.mean()), -np.inf, np.inf
    quantile = float(special.stdtrit(n - 1, 0.5 + confidence / 2))
    reach = quantile * float(gap.std(ddof=1)) / n**0.5
    return float(gap.mean()), float(gap.mean()) - reach, float(gap.mean()) + reach


def rise(one: Halted, other: Halted) -> tuple[float, float]:
    """The mean difference of `one` to `other` over held-out episodes, and its standard error."""
    gap = one.value - other.value
    return float(gap.mean()), float(gap.std(ddof=1)) / len(gap) ** 0.5
