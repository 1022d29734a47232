"""Recipes of `mbrl.policy_gradient` in control: what a run there has for them, and what changes
where the papers speak of answers that are right or wrong, or cut off."""

import dataclasses

from torch import Tensor

from algorithms import control_measures
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.axes.credit import Bootstrapped, ReturnToGo
from mbrl.policy_gradient.axes.option import CURRENT_ENTROPY
from mbrl.policy_gradient.axes.reward import at_last, outcome
from mbrl.policy_gradient.axes.selection import Finished
from mbrl.types import Spec, Trajectories

# What a run in control has for a recipe, beside the current policy's entropy.
ANCHORS = ("reference", "previous")  # the first policy, the one before the last round's updates
KEYS = ("prompt", "turn")  # copies that began in one state, and the step of the episode
HAS = (
    *(f"log_probs.{name}" for name in ("old", "behaviour", "proximal", *ANCHORS)),
    *("signals.value", "signals.uniform"),
    *(name for part in control_measures.PARTS for name in part.provides),
    *("groups.prompt", "segments.turn", "entropy"),
    "sum_prob_squared",  # of discrete actions
    CURRENT_ENTROPY,
)
# Parts of recipes, in their words, that a run in control has or makes.
PARTS = frozenset(
    {
        "a critic",
        "log-probs of the policy that acted",
        "log-probs of the engine that sampled",  # here the policy itself: they are the old ones
        "sampling log-probs",
        "log-probs at the start of the update",
        "data of earlier policies with their log-probs",  # with keep above 1
        "the sum of squared probabilities of the old policy",
        *(sentence for part in control_measures.PARTS for sentence in part.covers),
    }
)


def check(objective: Recipe, group: int, scheduler: str, pool: int) -> None:
    """Raises `ConfigError` where a run in control with `group` copies of a start, which are those
    that `scheduler` takes from a `pool`, does not have what the recipe needs."""
    if group == 1 and scheduler == "uniform" and objective.compares:
        raise ConfigError(
            f"recipe {objective.name} compares copies that begin in one state, and group is 1: "
            "nothing would be learned; set group to 2 or more"
        )
    lacking = [n for n in objective.needs if n not in HAS]
    keys = {name for term in objective.terms for name in term.key} - set(KEYS)
    lacking += [f"groups.{name}" for name in sorted(keys) if f"groups.{name}" not in lacking]
    lacking += [part for part in objective.parts if part not in PARTS]
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
