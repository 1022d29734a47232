"""Is a model-based run in danger of overestimating? Measured while it trains, from the run's own
parts: where its rollouts end, what its critics say there, and whether the values at states of the
data can be earned in its world model."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.learners.critics import q_values
from algorithms.learners.recurrent_actor_critic import RecurrentActorCritic
from algorithms.learners.soft_actor_critic import SoftActorCritic, entropy_range
from mbrl.training import Metrics
from world_models import WorldModel
from world_models.edge_of_reach import outside
from world_models.rollout import balanced

STATES = 128  # data states whose value is compared
POINTS = 1000  # trained states, and ends of rollouts, that are looked at
LEFT = 0.05  # discount at which a Monte-Carlo return stops
TAIL = 20  # steps whose mean stands for what comes after
FAR = 1e3  # deviations of the data beyond which a model's rollout has left for good
Learner = SoftActorCritic | RecurrentActorCritic
# Excess, as a share of the value range, that two diagnoses in a row must pass to raise the alarm.
ALARM = 0.1
CALM = 2  # diagnoses in a row that withdraw it


@torch.no_grad()
def edge_metrics(learner: SoftActorCritic, trained: Tensor, ends: Tensor) -> Metrics:
    """Share of `ends` [B, S] that are outside the `trained` states [M, S], and at both the critics'
    spread (standard deviation), effective penalty (mean less minimum) and value (minimum) of the
    greedy action. Where no end is outside, all of them stand for the edge."""
    q_trained, q_ends = (greedy_values(learner, states) for states in (trained, ends))
    return spread_metrics(outside(ends, trained), q_trained, q_ends)


def spread_metrics(mask: Tensor, q_trained: Tensor, q_ends: Tensor) -> Metrics:
    """`edge_metrics` from which ends are outside, `mask` [B], and the critics' values [N, M] at
    trained states and [N, B] at ends."""
    edge = torch.where(mask.any(), mask.double(), torch.ones_like(mask, dtype=torch.double))
    metrics = {"reach/outside": mask.double().mean()}
    for name, q in (("inside", q_trained), ("edge", q_ends)):
        weight = edge / edge.sum() if name == "edge" else None
        low = q.min(0).values
        for quantity, level in (
            ("spread", q.std(0, correction=0)),
            ("penalty", q.mean(0) - low),
            ("value", low),
        ):
            mean = level.mean() if weight is None else (weight * level).sum()
            metrics[f"reach/{quantity}_{name}"] = mean
    return metrics


@torch.no_grad()
def greedy_values(learner: SoftActorCritic, obs: Tensor) -> Tensor:
    """Every critic's value [N, B] of the policy's greedy action at `obs` [B, S]."""
    return values(learner, obs, learner.actor(obs))


@torch.no_grad()
def values(learner: SoftActorCritic, obs: Tensor, action: Tensor) -> Tensor:
    """Every critic's value [N, B] of `action` [B, A], in the task's units, at `obs` [B, S]."""
    unit = learner.actor.scale.to_unit(action)
    return q_values(learner.critic, obs, unit)


@torch.no_grad()
def value_metrics(
    learner: SoftActorCritic,
    model: WorldModel,
    obs: Tensor,
    rewards: tuple[Tensor, Tensor],
    memory: Tensor,
    generator: torch.Generator,
    *,
    clip_rewards: bool = True,
) -> Metrics:
    """Mean value at data states `obs` [B, S] against what the policy earns from there in the
    model. `rewards` are the least and the largest reward of the data, to which imagined ones are
    truncated by default; `memory` [2] is what values remember of earlier temperatures
    (`learner.remembered`)."""
    noise = torch.randn(len(obs), learner.spec.action_dim, generator=generator, device=obs.device)
    action, _ = learner.actor.sample(obs, noise)
    q = q_values(learner.critic, obs, action).min(0).values.double()
    bounds = rewards if clip_rewards else (rewards[0] - math.inf, rewards[1] + math.inf)
    earned = soft_return(learner, model, obs, action, bounds, memory[1], generator)
    return excess_metrics(learner, q, earned, rewards, memory)


def excess_metrics(
    learner: Learner, q: Tensor, earned: Tensor, rewards: tuple[Tensor, Tensor], memory: Tensor
) -> Metrics:
    """Means of values `q` [B] and of what is `earned` [B], and the excess as a share of the value
    range: that of the rewards (with 0, the reward after an end) and entropy bonuses, over
    1 - gamma."""
    low, high = rewards[0].clamp_max(0), rewards[1].clamp_min(0)
    least, most = entropy_range(learner)
    alpha = torch.maximum(learner.log_alpha.detach().exp(), memory[0])
    span = (high - low + alpha * (most - least)) / (1 - learner.config.gamma)
    return {
        "value/q": q.mean(),
        "value/monte_carlo": earned.mean(),
        "value/range": span,
        "value/excess": (q.mean() - earned.mean()) / span.clamp_min(1e-12),
    }


@torch.no_grad()
def soft_return(
    learner: SoftActorCritic,
    model: WorldModel,
    obs: Tensor,
    action: Tensor,
    rewards: tuple[Tensor, Tensor],
    bonus: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Discounted return [B] of taking `action` [B, A] (in [-1, 1]) at `obs` [B, S] and following
    the sampled policy in the model, with `bonus` at every later step where the critic's target pays
    for entropy. (What the policy's own entropy would pay far from the data, where it may be as
    narrow as it likes, is no matter of its values.) Rewards are cut to the bounds `rewards`; what
    follows after the discount falls to `LEFT` is the mean of the last `TAIL` steps for ever."""
    gamma = learner.config.gamma
    steps = horizon(gamma)
    scale = learner.actor.scale
    centre, spread = obs.mean(0), obs.std(0, correction=0).clamp_min(1e-6)
    alive = torch.ones(len(obs), dtype=torch.double, device=obs.device)
    total, tail = torch.zeros_like(alive), torch.zeros_like(alive)
    later = bonus.double() if learner.config.entropy_in_target else 0.0
    for t in range(steps):
        member = None
        if model.num_members > 1:
            member = balanced(len(obs), model.num_members, generator)
        step = model.predict(obs, scale.to_task(action), generator, member=member)
        if step.valid is not None:  # where the model has no answer nothing is earned any more
            alive = alive * step.valid
        gained = alive * (step.reward.clamp(*rewards).double() + (later if t > 0 else 0.0))
        total += gamma**t * gained
        if t >= steps - TAIL:
            tail += gained / min(TAIL, steps)
        off = ((step.next_obs - centre) / spread).abs().amax(-1)
        stays = ~step.terminated & (off < FAR)
        obs = torch.where(stays[:, None], step.next_obs, obs)
        alive = alive * stays
        noise = torch.randn(action.shape, generator=generator, device=obs.device)
        action, _ = learner.actor.sample(obs, noise)
    return total + gamma**steps / (1 - gamma) * tail * alive


def horizon(gamma: float) -> int:
    """Steps after which the discount is at most `LEFT`."""
    return max(1, math.ceil(math.log(LEFT) / math.log(gamma))) if gamma > 0 else 1


@dataclass(frozen=True)
class Verdict:
    """Whether a run is in danger now, since which update, and why in a sentence."""

    danger: bool
    since: int | None
    sentence: str


def verdict(rows: Sequence[Mapping[str, float]], alarm: float = ALARM) -> Verdict:
    """Judge a run from its logged metrics: rows with `value/...` and `reach/...`, oldest first
    (rows without them are passed over, a diagnosis that is logged again counts once). The alarm is
    raised at the second of two diagnoses in a row whose excess is above `alarm` if values rose
    between them. It is withdrawn at the second in a row whose excess is not above it or whose value
    is not above the one before. (Values of an untrained policy exceed what it earns until it has
    learned; values that exceed and fall follow a falling temperature.)
    """
    known = {r["value/at"]: r for r in rows if not math.isnan(r.get("value/at", math.nan))}
    diagnoses = list(known.values())
    if not diagnoses:
        return Verdict(False, None, "This run holds no diagnosis of its values.")
    since, calm = None, 0
    for before, now in itertools.pairwise(diagnoses):
        rising = now["value/q"] > before["value/q"]
        calm = 0 if rising and now["value/excess"] > alarm else calm + 1
        if calm >= CALM:
            since = None
        elif since is None and calm == 0 and before["value/excess"] > alarm:
            since = int(now["value/at"])
    last = diagnoses[-1]
    facts = (
        f"values at data states average {last['value/q']:.4g}, the policy earns "
        f"{last['value/monte_carlo']:.4g} in the model, and {100 * last['reach/outside']:.1f} % of "
        "rollouts end where no trained transition starts"
    )
    if since is None:
        return Verdict(False, None, f"No sign of danger: {facts}.")
    cause = _cause(last)
    return Verdict(True, since, f"In danger since update {since}: {facts}; {cause}.")


def _cause(row: Mapping[str, float]) -> str:
    if row["reach/outside"] == 0:
        return "no rollout ends outside, so the excess does not come from the edge of reach"
    if row["reach/value_edge"] > row["reach/value_inside"]:
        return (
            "values are higher there than inside, so the policy is drawn to where nothing corrects "
            "them; more critics or a larger eta make the edge less attractive"
        )
    return "values are lower there than inside, so the excess may come from elsewhere"
