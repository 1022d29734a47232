"""What recipes need beside log-probs: measured from conversations, or learned beside the model."""

from typing import Any

from algorithms.language.measures.answers import (
    ConsistencyReward,
    Kinds,
    Majority,
    Paraphrases,
    PredictedScore,
)
from algorithms.language.measures.attempts import Attempts, RightLengths
from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.measures.branches import BalancedBranches, ToolBranches
from algorithms.language.measures.critics import Critic, Progress
from algorithms.language.measures.domains import (
    DomainRatios,
    DomainStages,
    ExpertAnswers,
    FurtherAttempts,
)
from algorithms.language.measures.dreams import ImaginedConversations
from algorithms.language.measures.flaws import Flawed
from algorithms.language.measures.forks import ForkedVotes
from algorithms.language.measures.gains import AnswerGain, ObservationGain, Probes
from algorithms.language.measures.groups import Bundles, Histories, Pairs
from algorithms.language.measures.guided import (
    FeedbackTokens,
    GuidedAttempts,
    RescuedPrompts,
    ShownDocuments,
    TextFeedback,
)
from algorithms.language.measures.judged import (
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
from algorithms.language.measures.logged import LoggedAnswers
from algorithms.language.measures.lookahead import LookaheadTrees
from algorithms.language.measures.modes import ModeRouting
from algorithms.language.measures.partners import Hinter, Observer
from algorithms.language.measures.policies import EntropyTemperature, Masked, Perturbed
from algorithms.language.measures.preferences import JudgedAnswers, PreferencePairs
from algorithms.language.measures.prefixes import (
    CorrectedSteps,
    HintedPrefixes,
    Interventions,
    SolvedPrefixes,
)
from algorithms.language.measures.proposals import ProposedProblems
from algorithms.language.measures.recoveries import ErrorContexts, PurifiedTurns
from algorithms.language.measures.routing import RoutedSampler, RoutedUpdates
from algorithms.language.measures.schedules import EntropyPhase, FadingContrast, GrowingShare
from algorithms.language.measures.seeds import SeededAttempts
from algorithms.language.measures.subgoals import Subgoals
from algorithms.language.measures.teachers import (
    ExpertDistribution,
    GrowingDepth,
    HindsightTeacher,
    InformedTeacher,
    TeacherFirst,
)
from algorithms.language.measures.traces import PatchedTraces
from algorithms.language.measures.trees import DivergentTrees, Sets
from algorithms.language.measures.turns import Backwards, OneToken
from algorithms.language.measures.utterances import Utterances
from algorithms.language.measures.values import (
    GreedyReturn,
    PriorValue,
    TrackedValue,
)
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.measure import chosen, unmet
from mbrl.policy_gradient.requirements import Requirement

MEASURES: tuple[type[LanguageMeasure], ...] = (
    TaskSignals,
    Flawed,
    ReasoningConsistency,
    ProcessReward,
    PatchedTraces,
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
    LoggedAnswers,
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
    EntropyPhase,
    EntropyControl,
    GrowingShare,
    FadingContrast,
    Attempts,
    RightLengths,
    Critic,
    Progress,
    Utterances,
    Masked,
    EntropyTemperature,
    RoutedUpdates,
    RoutedSampler,
    Perturbed,
    ToolBranches,
    BalancedBranches,
    DivergentTrees,
    Sets,
    Backwards,
    OneToken,
    Subgoals,
    SolvedPrefixes,
    CorrectedSteps,
    HintedPrefixes,
    Interventions,
    ErrorContexts,
    PurifiedTurns,
    ShownDocuments,
    GuidedAttempts,
    RescuedPrompts,
    TextFeedback,
    FeedbackTokens,
    ExpertDistribution,
    InformedTeacher,
    HindsightTeacher,
    GrowingDepth,
    TeacherFirst,
    LookaheadTrees,
    ForkedVotes,
    SeededAttempts,
    DomainStages,
    DomainRatios,
    FurtherAttempts,
    ExpertAnswers,
    JudgedAnswers,
    PreferencePairs,
    ModeRouting,
    Observer,
    Hinter,
    ImaginedConversations,
    ProposedProblems,
)
WHY = {  # what no measure can honestly give here
    str(Requirement.BOTH_KINDS): (
        "that is what the scheduler reinforce_ada_scheduler does; set it, with a pool"
    ),
    "segments.decode": (
        "models here write from left to right, and which step of a masked decoder revealed a token "
        "has no meaning for them; algorithms.masked_diffusion has such a decoder and trains it by "
        "this recipe; for texts from left to right train grpo"
    ),
}


def kinds(objective: Recipe) -> list[type[LanguageMeasure]]:
    """The measures that `objective` needs, in the order of `MEASURES`."""
    return chosen(objective, MEASURES)


def check(
    objective: Recipe, fields: tuple[str, ...], requirements: tuple[Requirement, ...] = ()
) -> None:
    """Raises `ConfigError` that names what the recipe needs and neither a measure gives nor the
    trainer has, `fields` and `requirements`."""
    lacking = unmet(objective, MEASURES, fields, requirements)
    if lacking:
        why = "".join(f" ({name}: {WHY[name]})" for name in lacking if name in WHY)
        raise ConfigError(
            f"recipe {objective.name} needs {', '.join(lacking)}, which training on text tasks "
            f"does not have{why}; `list recipes` shows what each one needs"
        )


def check_settings(objective: Recipe, config: Any) -> None:
    """Raises `ConfigError` where a measure has nothing to measure with these settings."""
    for kind in kinds(objective):
        kind.check(objective, config)


__all__ = ["MEASURES", "LanguageMeasure", "check", "check_settings", "kinds"]
