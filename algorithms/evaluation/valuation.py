"""May this policy act? Its value from logged episodes by several estimators, each beside that of
whoever chose the logged actions, with intervals, and what the data can say at all.

The estimators differ in what they assume. Fitted Q evaluation (both policies in one fit, on draws
of the episodes, so that most errors are shared and cancel in the difference) needs the logged
actions to cover the policy's; DICE the same, and steps of one length; doubly robust estimates need
the probabilities with which logged actions were chosen; rollouts in a world model need that model
to be right.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithms.evaluation import diagnosis, dice, fqe
from algorithms.evaluation.critic_values import critic_values
from algorithms.evaluation.support import Support, rows_to_look_at, support
from mbrl.config import Count, CountOrZero, Discount, Fraction, Settings, Several, Widths
from mbrl.errors import ConfigError, DataError, DivergenceError
from mbrl.logged_rules import require_match, with_bounds_of
from mbrl.policy_gradient.off_policy_evaluation import Logged, doubly_robust
from mbrl.training import Metrics, Trainable, is_stateful
from mbrl.types import Dataset, Transitions
from world_models.rollout import RolloutConfig, rollout

GAMMA = 0.99
FOLDS = 3  # of the values in the doubly robust estimate
TAU = 0.1  # rate of the averaged critics: values are to settle within few updates
NEVER = -1e6  # log-ratio of an action that the policy never takes; no episode's others outweigh it
ENOUGH = 0.1  # share of rows or episodes that weights must amount to, to be believed
MOST_OUTSIDE = 0.15  # share of a policy's actions unlike logged ones at which nothing is believed
AT_WORST = 0.5  # the same where three times as many of the logged actions themselves are


@dataclass(frozen=True)
class ValuationConfig(Settings):
    """How much is computed, and how sure an interval is."""

    steps: Count = 4000  # updates of fitted Q evaluation
    resamples: Several = 10  # draws of the episodes, each with critics of its own
    hidden: Widths = (64, 64)  # widths of critics
    gamma: Discount | None = None  # discount factor; None: the agent's own, else 0.99
    dice_steps: CountOrZero = 4000  # updates of DICE; 0: none
    model_starts: CountOrZero = 200  # rollouts in the policy's world model; 0: none
    confidence: Fraction = 0.9  # of two-sided intervals: a bound alone is surer
    seed: CountOrZero = 0

    @property
    def discount(self) -> float:
        return GAMMA if self.gamma is None else self.gamma


@dataclass(frozen=True)
class Estimate:
    """The discounted value of the policy with its interval, the difference to the logged policy by
    the same method with its own, whether to believe it here, and why (not)."""

    method: str
    value: float
    low: float
    high: float
    difference: float
    difference_low: float
    difference_high: float
    believed: bool
    note: str = ""


@dataclass(frozen=True)
class Valuation:
    """`logged`: mean discounted return of the held-out episodes as they were recorded (what came
    after a cut is not in it) and its interval. `critic`: mean value that the policy's own critic
    gives to the episodes' starts, None without one; `limits`: least and largest discounted return
    that the rewards allow, at the discount factor of that critic where there is one."""

    episodes: int
    rows: int
    gamma: float
    logged: tuple[float, float, float]
    estimates: tuple[Estimate, ...]
    support: Support
    critic: float | None
    limits: tuple[float, float]


def value_policy(
    agent: Trainable,
    dataset: Dataset,
    config: ValuationConfig | None = None,
    *,
    on_progress: Callable[[str, Metrics], None] | None = None,
) -> Valuation:
    """Value the greedy policy of `agent` on `dataset`, best on episodes it has not learned from:
    `value_policies`, and what its own critic and world model say. `on_progress` gets the method at
    work and what it measured. Raises `ConfigError` for data of other observations or actions."""
    require_match(agent.spec, dataset)
    dataset = with_bounds_of(agent.spec, dataset)
    config = config or ValuationConfig()
    if config.gamma is None:
        config = replace(config, gamma=own_gamma(agent))
    valuation = value_policies([agent.policy], dataset, config, on_progress=on_progress)[0]
    rows = dataset.transitions
    starts = [a for a, _ in rows.episodes()]
    mask = None if rows.action_mask is None else rows.action_mask[starts]
    values = critic_values(agent, rows.obs[starts], mask)
    own = own_gamma(agent)
    estimates = list(valuation.estimates)
    model = getattr(agent, "model", None)
    if config.model_starts and hasattr(model, "predict"):
        estimates.append(_in_model(agent, model, dataset, config))
    return replace(
        valuation,
        estimates=tuple(estimates),
        critic=None if values is None else float(values.mean()),
        limits=fqe.return_range(rows.reward, rows.terminated, own, rows.duration),
    )


def value_policies(
    policies: Sequence[Any],
    dataset: Dataset,
    config: ValuationConfig | None = None,
    *,
    on_progress: Callable[[str, Metrics], None] | None = None,
) -> list[Valuation]:
    """A valuation of each of `policies` (modules: raw observations to greedy actions in the task's
    units), fitted Q evaluation of all in one fit. Raises `DataError` for fewer than two episodes,
    else as the estimators."""
    config = config or ValuationConfig()
    rows = dataset.transitions
    spans = rows.episodes()
    if len(spans) < 2:
        raise DataError(
            f"{dataset.provenance.card} has {len(spans)} episode here; intervals are over "
            "episodes, which must be two at least"
        )

    def shown(method: str) -> Callable[[Metrics], None]:
        return lambda metrics: on_progress(method, metrics) if on_progress else None

    near = [_support(policy, dataset) for policy in policies]
    logged = _interval(discounted_returns(rows, config.discount), config.confidence)
    limits = fqe.return_range(rows.reward, rows.terminated, config.discount, rows.duration)
    # DICE asks for actions at observations alone, without their time step or mask.
    use_dice = config.dice_steps > 0 and rows.duration is None and rows.action_mask is None
    reference = _logged_dice(dataset, config, shown("DICE")) if use_dice else None
    result = []
    for policy, fitted, close in zip(
        policies, _fitted(policies, dataset, config, near, shown("fitted Q")), near, strict=True
    ):
        estimates = [fitted]
        if use_dice:
            estimates.append(_dice(policy, dataset, config, reference, shown("DICE")))
        if rows.behaviour_prob is not None and dataset.spec.discrete:
            robust = _doubly_robust(policy, dataset, config, shown("doubly robust"))
            estimates.append(robust)
        result.append(
            Valuation(
                len(spans),
                len(dataset),
                config.discount,
                logged,
                tuple(estimates),
                close,
                None,
                limits,
            )
        )
    return result


def own_gamma(agent: Trainable) -> float:
    """The discount factor that an agent learned with; 0.99 for one without."""
    parts: list[Any] = [agent.config, getattr(agent.config, "learner", None)]
    known = [float(part.gamma) for part in parts if hasattr(part, "gamma")]
    return known[0] if known else GAMMA


def discounted_returns(data: Transitions, gamma: float) -> np.ndarray:
    """Of every episode, as it was recorded [episodes]."""
    duration = torch.ones(len(data)) if data.duration is None else data.duration.cpu()
    returns = []
    for a, b in data.episodes():
        passed = torch.cat([torch.zeros(1), duration[a : b - 1]]).double().cumsum(0)
        returns.append(float((data.reward[a:b].cpu().double() * gamma**passed).sum()))
    return np.array(returns)


def _interval(values: np.ndarray, confidence: float) -> tuple[float, float, float]:
    """Mean with Student's interval over episodes."""
    from scipy import special  # here, as it takes long to import

    mean, n = float(values.mean()), len(values)
    reach = float(special.stdtrit(n - 1, 0.5 + confidence / 2) * values.std(ddof=1) / math.sqrt(n))
    return mean, mean - reach, mean + reach


def _around(
    value: float, draws: np.ndarray, episodes: int, confidence: float
) -> tuple[float, float, float]:
    """A value with an interval from the spread of `draws` [R] of the `episodes`, whose number
    limits what is known of their spread: draws of n things spread by sqrt((n - 1) / n) too
    little."""
    from scipy import special  # here, as it takes long to import

    freedom = min(len(draws), episodes) - 1
    deviation = draws.std(ddof=1) * math.sqrt(episodes / (episodes - 1))
    reach = float(special.stdtrit(freedom, 0.5 + confidence / 2) * deviation)
    return value, value - reach, value + reach


def policy_actions(policy: Any, data: Transitions) -> Tensor:
    """Greedy actions [N, A] (or [N]) at every `obs` of `data`, in the task's units; a policy with
    memory acts upon the history that is logged."""
    place = next(policy.parameters()).device
    data = data.to(place)
    starts = torch.tensor([a for a, _ in data.episodes()], device=place)
    actions = fqe.greedy_actions(policy, data, starts)
    at_obs = actions[: len(data)].roll(1, 0)  # the action at next_obs is that at the next row
    at_obs[starts] = actions[len(data) :]
    return at_obs


def _support(policy: Any, dataset: Dataset) -> Support:
    rows = rows_to_look_at(dataset)
    actions = policy_actions(policy, dataset.transitions).cpu()
    return support(actions[torch.from_numpy(rows)], dataset, rows)


def _fitted(
    policies: Sequence[Any],
    dataset: Dataset,
    config: ValuationConfig,
    near: Sequence[Support],
    shown: Callable[[Metrics], None],
) -> list[Estimate]:
    settings = fqe.FQEConfig(
        hidden=config.hidden, steps=config.steps, gamma=config.discount, tau=TAU, seed=config.seed,
        resamples=config.resamples,
    )  # fmt: skip
    try:
        fit = fqe.evaluate_policies([*policies, fqe.LOGGED], dataset, settings, on_progress=shown)
    except DivergenceError as problem:
        nothing = (math.nan,) * 6
        return [Estimate("fitted Q", *nothing, believed=False, note=str(problem))] * len(policies)
    result, episodes = [], len(dataset.transitions.episodes())
    for k, close in enumerate(near):
        note = ""
        if close.outside > max(MOST_OUTSIDE, min(3 * close.logged_outside, AT_WORST)):
            note = f"{close.outside:.0%} of the policy's actions are unlike any logged ones"
        apart = fit.resampled[k] - fit.resampled[-1]
        result.append(
            Estimate(
                "fitted Q",
                *_around(float(fit.values[k]), fit.resampled[k], episodes, config.confidence),
                *_around(float(fit.values[k] - fit.values[-1]), apart, episodes, config.confidence),
                believed=not note,
                note=note,
            )
        )
    return result


def _logged_dice(
    dataset: Dataset, config: ValuationConfig, shown: Callable[[Metrics], None]
) -> dice.DICEResult | None:
    """The same of the logged policy, whose actions are those of the nearest rows; None where the
    fit diverged."""
    nearest = fqe.NearestActions(dataset.transitions)
    own = torch.Generator().manual_seed(config.seed)
    settings = dice.DICEConfig(steps=config.dice_steps, gamma=config.discount, seed=config.seed)
    try:
        return dice.correct(lambda obs, _: nearest(obs, own), dataset, settings, on_progress=shown)
    except DivergenceError:
        return None


def _dice(
    policy: Any,
    dataset: Dataset,
    config: ValuationConfig,
    logged: dice.DICEResult | None,
    shown: Callable[[Metrics], None],
) -> Estimate:
    """DICE's value beside that of the `logged` policy."""
    settings = dice.DICEConfig(steps=config.dice_steps, gamma=config.discount, seed=config.seed)
    place = next(policy.parameters()).device

    def acts(obs: Tensor, generator: torch.Generator) -> Tensor:
        action: Tensor = policy(obs.to(place)).to(obs.device)
        return action

    if is_stateful(policy):
        note = "a policy with memory has no action at a row alone"
        return Estimate("DICE", *(math.nan,) * 6, believed=False, note=note)
    if logged is None:
        note = "the fit of the logged policy diverged"
        return Estimate("DICE", *(math.nan,) * 6, believed=False, note=note)
    try:
        mine = dice.correct(acts, dataset, settings, on_progress=shown)
    except (DivergenceError, ConfigError) as problem:
        return Estimate("DICE", *(math.nan,) * 6, believed=False, note=str(problem))
    from scipy import special  # here, as it takes long to import

    freedom = len(dataset.transitions.episodes()) - 1
    narrower = special.stdtrit(freedom, 0.5 + config.confidence / 2)
    narrower /= special.stdtrit(freedom, 0.975)  # DICE's own intervals are of 95 %
    reach, other = (float(narrower * (r.high - r.low) / 2) for r in (mine, logged))
    apart, both = mine.value - logged.value, math.hypot(reach, other)
    few = mine.effective_share < ENOUGH
    note = f"its weights amount to {mine.effective_share:.0%} of the rows" if few else ""
    return Estimate(
        "DICE", mine.value, mine.value - reach, mine.value + reach, apart, apart - both,
        apart + both, believed=not few, note=note,
    )  # fmt: skip


def _doubly_robust(
    policy: Any,
    dataset: Dataset,
    config: ValuationConfig,
    shown: Callable[[Metrics], None],
) -> Estimate:
    """Over episodes, with values fitted on the episodes of the other folds."""
    data = dataset.transitions
    spans = data.episodes()
    actions = policy_actions(policy, data).cpu()
    values = torch.zeros(2, len(data))
    folds = min(FOLDS, len(spans))
    for fold in range(folds):
        mine = [span for i, span in enumerate(spans) if i % folds == fold]
        rest = [span for i, span in enumerate(spans) if i % folds != fold]
        settings = fqe.FQEConfig(
            hidden=config.hidden,
            steps=max(1, config.steps // folds),
            gamma=config.discount,
            tau=TAU,
            seed=config.seed,
        )
        fit = fqe.FQE([policy], dataset.with_transitions(_spans(data, rest)), settings, "cpu")
        for _ in range(settings.steps):
            fit.update()
        for a, b in mine:
            values[0, a:b] = fit.values(data.obs[a:b], data.action[a:b])[0]
            values[1, a:b] = fit.values(data.obs[a:b], actions[a:b])[0]
        shown({})
    same = data.action == actions
    assert data.behaviour_prob is not None
    ratio = torch.where(same, -data.behaviour_prob.double().log(), NEVER)

    def padded(rows: Tensor) -> Tensor:
        parts = [rows[a:b] for a, b in spans]
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)

    mask = padded(torch.ones(len(data), dtype=torch.bool))
    logged = Logged(
        padded(ratio),
        padded(data.reward),
        mask,
        config.discount,
        padded(values[0]),
        padded(values[1]),
        None if data.duration is None else padded(data.duration),
    )
    return _robust_estimate(logged, discounted_returns(data, config.discount), config.confidence)


def _robust_estimate(logged: Logged, gained: np.ndarray, confidence: float) -> Estimate:
    """Of episodes that earned `gained` [B]."""
    try:
        each = doubly_robust(logged, torch.eye(len(gained), dtype=torch.float64)).numpy()
    except ConfigError as problem:
        nothing = (math.nan,) * 6
        return Estimate("doubly robust", *nothing, believed=False, note=str(problem))
    weight = logged.log_weights()[:, -1]
    share = float((2 * weight.logsumexp(0) - (2 * weight).logsumexp(0)).exp() / len(gained))
    if float(weight.max()) < NEVER / 2:  # equal weights of nothing are none
        share = 0.0
    note = "" if share >= ENOUGH else f"its weights amount to {share:.0%} of the episodes"
    return Estimate(
        "doubly robust",
        *_interval(each, confidence),
        *_interval(each - gained, confidence),
        believed=share >= ENOUGH,
        note=note,
    )


def _spans(data: Transitions, spans: list[tuple[int, int]]) -> Transitions:
    return data.select(torch.cat([torch.arange(a, b) for a, b in spans]))


def _in_model(agent: Any, model: Any, dataset: Dataset, config: ValuationConfig) -> Estimate:
    """From the episodes' starts in the world model that the policy was trained in, over as many
    steps as the discount leaves; the logged returns are cut there too, and what is imagined where
    the log of an episode was."""
    data = dataset.transitions
    spans = data.episodes()
    limit = dataset.spec.max_episode_steps or math.inf
    horizon = int(min(limit, diagnosis.horizon(config.discount)))
    place = next(agent.policy.parameters()).device
    generator = torch.Generator(device=place).manual_seed(config.seed)
    chosen = [
        spans[i]
        for i in np.linspace(0, len(spans) - 1, min(config.model_starts, len(spans))).astype(int)
    ]
    starts = data.obs[[a for a, _ in chosen]].to(place).float()
    settings = RolloutConfig(horizon=horizon, member="per_rollout")

    def greedy(obs: Tensor, _: torch.Generator) -> Tensor:
        action: Tensor = agent.policy(obs)
        return action

    acting = agent.policy if is_stateful(agent.policy) else greedy
    lengths = [horizon if data.terminated[b - 1] else min(b - a, horizon) for a, b in chosen]
    limits = torch.tensor(lengths, device=place)
    with torch.no_grad():
        imagined = rollout(
            model, acting, starts, settings, generator, limits=limits, deterministic=True
        )
    weight = config.discount ** torch.arange(horizon, dtype=torch.float64, device=place)
    reward = torch.where(imagined.mask, imagined.reward.double(), 0.0)
    values = (reward * weight[: reward.shape[1]]).sum(1).cpu().numpy()
    parts = _spans(data, [(a, min(b, a + horizon)) for a, b in chosen])
    cut = replace(parts, truncated=_last_of(chosen, horizon))
    logged = discounted_returns(cut, config.discount)
    return Estimate(
        "world model",
        *_interval(values, config.confidence),
        *_interval(values - logged, config.confidence),
        believed=False,
        note="the policy was trained in this model, whose errors it may use",
    )


def _last_of(spans: list[tuple[int, int]], horizon: int) -> Tensor:
    """[rows] bool: the last row of each span cut to `horizon` rows."""
    lengths = torch.tensor([min(b - a, horizon) for a, b in spans])
    last = torch.zeros(int(lengths.sum()), dtype=torch.bool)
    last[lengths.cumsum(0) - 1] = True
    return last
