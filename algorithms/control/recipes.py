"""Recipes of `mbrl.policy_gradient` in control: what a run there has for them, and what changes
where the papers speak of answers that are right or wrong, or cut off."""

import dataclasses

from torch import Tensor

from algorithms.control import measures as control_measures
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.axes.credit import Bootstrapped, ReturnToGo
from mbrl.policy_gradient.axes.option import CURRENT_ENTROPY
from mbrl.policy_gradient.axes.reward import at_last, outcome
from mbrl.policy_gradient.axes.selection import Finished
from mbrl.policy_gradient.measure import unmet
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import ANCHORS
from mbrl.types import Spec, Trajectories

# What a run in control has for a recipe, beside the current policy's entropy.
FIELDS = (
    *(f"log_probs.{name}" for name in ("old", "behaviour", "proximal", *ANCHORS)),
    "signals.uniform",
    *("groups.prompt", "segments.turn", "entropy"),
    "sum_prob_squared",  # of discrete actions
    CURRENT_ENTROPY,
)
FULFILS = (
    Requirement.ACTING_LOG_PROBS,
    Requirement.ENGINE_LOG_PROBS,  # here the policy itself: they are the old ones
    Requirement.SAMPLER_LOG_PROBS,
    Requirement.START_LOG_PROBS,
    Requirement.EARLIER_DATA,  # with keep above 1
    Requirement.SUM_PROB_SQUARED,
)


def check(objective: Recipe, group: int, scheduler: str, pool: int) -> None:
    """Raises `ConfigError` where a run in control with `group` copies of a start, which are those
    that `scheduler` takes from a `pool`, does not have what the recipe needs."""
    if group == 1 and scheduler == "uniform" and objective.compares:
        raise ConfigError(
            f"recipe {objective.name} compares copies that begin in one state, and group is 1: "
            "nothing would be learned; set group to 2 or more"
        )
    lacking = unmet(objective, control_measures.MEASURES, FIELDS, FULFILS)
    if lacking:
        raise ConfigError(
            f"recipe {objective.name} needs {', '.join(lacking)}, which a run in control does not "
            "have; `list recipes` shows what each one needs"
        )
    control_measures.check(objective, group, pool)


def success(t: Trajectories) -> Tensor:
    """[B, T]: 1 at the last step of episodes that earned at least the median of `t` (of an even
    number the lower of the middle two), 0 elsewhere. About half of a round is right and half wrong,
    however good the policy is, and all are right where all earned the same."""
    earned = outcome(t)
    return at_last((earned >= earned[:, :1].median()).to(t.reward.dtype), t)


def in_control(objective: Recipe, spec: Spec, gamma: float, lam: float | None) -> Recipe:
    """The recipe with `gamma` wherever it discounts, and `lam` in its advantage estimates if given.
    Episodes that reached the task's own limit are whole: those alone count as cut off that a
    horizon has shortened."""
    terms = []
    for term in objective.terms:
        credit = term.credit
        if isinstance(credit, (Bootstrapped, ReturnToGo)):
            credit = dataclasses.replace(credit, gamma=gamma)
        if isinstance(credit, Bootstrapped) and lam is not None:
            credit = dataclasses.replace(credit, lam=lam)
        terms.append(dataclasses.replace(term, credit=credit))
    kept = tuple(
        Finished(limit=spec.max_episode_steps) if isinstance(option, Finished) else option
        for option in objective.selection
    )
    return dataclasses.replace(objective, terms=tuple(terms), selection=kept)
