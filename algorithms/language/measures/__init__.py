"""What recipes need beside log-probs: measured from conversations, or learned beside the model."""

from typing import Any

from algorithms.language.measures.answers import (
    ConsistencyReward,
    Kinds,
    Majority,
    Paraphrases,
    PredictedScore,
)
from algorithms.language.measures.base import Part
from algorithms.language.measures.branches import BalancedBranches, ToolBranches
from algorithms.language.measures.critics import Critic, Progress, Utterances
from algorithms.language.measures.flaws import Flawed
from algorithms.language.measures.gains import AnswerGain, ObservationGain, Probes
from algorithms.language.measures.groups import Bundles, Histories, Pairs
from algorithms.language.measures.judged import (
    Matched,
    MatchScore,
    ProcessReward,
    ReasoningConsistency,
    TaskSignals,
)
from algorithms.language.measures.likelihoods import (
    Degraded,
    EntropyControl,
    EntropyHistory,
    Expert,
    GradientNorms,
    PromptConfidence,
)
from algorithms.language.measures.policies import Masked, Perturbed
from algorithms.language.measures.subgoals import Subgoals
from algorithms.language.measures.trees import DivergentTrees, Sets
from algorithms.language.measures.turns import Backwards, OneToken
from algorithms.language.measures.values import (
    GreedyReturn,
    PriorValue,
    ReferenceValue,
    TrackedValue,
)
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe

PARTS: tuple[type[Part], ...] = (
    TaskSignals,
    Flawed,
    ReasoningConsistency,
    ProcessReward,
    Matched,
    MatchScore,
    Histories,
    Bundles,
    Pairs,
    Kinds,
    Majority,
    ConsistencyReward,
    Paraphrases,
    PredictedScore,
    GreedyReturn,
    ReferenceValue,
    PriorValue,
    TrackedValue,
    AnswerGain,
    ObservationGain,
    Probes,
    PromptConfidence,
    Degraded,
    Expert,
    GradientNorms,
    EntropyHistory,
    EntropyControl,
    Critic,
    Progress,
    Utterances,
    Masked,
    Perturbed,
    ToolBranches,
    BalancedBranches,
    DivergentTrees,
    Sets,
    Backwards,
    OneToken,
    Subgoals,
)
WHY = {  # what no part can honestly measure here
    "rounds of sampling until both kinds of answers are there": (
        "that is what the scheduler reinforce_ada_scheduler does; set it, with a pool"
    ),
    "segments.decode": (
        "models here write from left to right, and which step of a masked decoder revealed a token "
        "has no meaning for them; where you have such a decoder, record its states, put the steps "
        "into segments.decode and call estimate and loss of mbrl.policy_gradient on them, or train "
        "grpo, which is the same objective for texts from left to right"
    ),
}


def wanted(objective: Recipe) -> tuple[str, ...]:
    """The fields that `objective` reads, with the ids of its terms' groups."""
    keys = {f"groups.{k}" for term in objective.terms for k in term.key if k != "turn"}
    return tuple(dict.fromkeys((*objective.needs, *sorted(keys))))


def kinds(objective: Recipe) -> list[type[Part]]:
    """The parts that `objective` needs, in the order of `PARTS`. Of several that provide one field
    it is the one that covers a sentence of the recipe; a part that provides none is needed for its
    sentences."""
    sentences, found = set(objective.parts), set[type[Part]]()
    for need in wanted(objective):
        able = [kind for kind in PARTS if need in kind.provides]
        found |= set([k for k in able if sentences & set(k.covers)][:1] or able[:1])
    found |= {k for k in PARTS if not k.provides and sentences & set(k.covers)}
    return [kind for kind in PARTS if kind in found]


def needed(objective: Recipe, agent: Any) -> list[Part]:
    """The parts of `objective` for `agent`."""
    return [kind(agent) for kind in kinds(objective)]


def check(objective: Recipe, given: tuple[str, ...], made: tuple[str, ...] = ()) -> None:
    """Raises `ConfigError` that names what the recipe needs and neither the trainer has (`given`)
    nor a part provides, and which of the recipe's own sentences neither the trainer does (`made`)
    nor a part covers."""
    known = {*given, *(name for kind in PARTS for name in kind.provides)}
    lacking = [need for need in wanted(objective) if need not in known]
    covered = {*made, *(sentence for kind in kinds(objective) for sentence in kind.covers)}
    lacking += [sentence for sentence in objective.parts if sentence not in covered]
    if lacking:
        why = "".join(f" ({name}: {WHY[name]})" for name in lacking if name in WHY)
        raise ConfigError(
            f"recipe {objective.name} needs {', '.join(lacking)}, which training on text tasks "
            f"does not have{why}; `list recipes` shows what each one needs"
        )


def check_settings(objective: Recipe, config: Any) -> None:
    """Raises `ConfigError` where a part has nothing to measure with these settings."""
    for kind in kinds(objective):
        kind.check(objective, config)


__all__ = ["PARTS", "Part", "check", "check_settings", "kinds", "needed", "wanted"]
