"""Recipes whose change is a gate, an entropy term, the aggregation or which data are kept."""

from mbrl.policy_gradient.axes import (
    aggregation,
    baseline,
    gate,
    modulation,
    regulariser,
    reward,
    scale,
    selection,
)
from mbrl.policy_gradient.axes.credit import TreeDifference
from mbrl.policy_gradient.axes.modulation_lengths import LongerRight
from mbrl.policy_gradient.recipe import Recipe, Term
from mbrl.policy_gradient.requirements import Requirement

ENTROPY = "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models"

CLIPPING = (
    Recipe("clip_cov", ENTROPY, "2505.22617", gate=gate.CovarianceClip()),
    Recipe("kl_cov", ENTROPY, "2505.22617", gate=gate.CovariancePenalty()),
    Recipe(
        "epo",
        "EPO: Entropy-regularized Policy Optimization for LLM Agents Reinforcement Learning",
        "2509.22576",
        regularisers=(regulariser.EntropyBand(),),
        requirements=(Requirement.ENTROPY_HISTORY,),
        differences=(
            "as in the authors' code the term of the band has no gradient: it moves the value of "
            "the loss alone; epo_hinge has one",
            "its weight does not fall with training, which the authors' code has switched off",
        ),
    ),
    Recipe(
        "epo_hinge",
        "EPO: Entropy-regularized Policy Optimization for LLM Agents Reinforcement Learning",
        "2509.22576",
        mark="secondary",
        regularisers=(regulariser.EntropyBand(form="hinge", phase="entropy_phase"),),
        requirements=(Requirement.ENTROPY_HISTORY, Requirement.ENTROPY_PHASE),
        assumptions=(
            "the penalty is how far the entropy is outside the band: with a gradient, which that "
            "of the authors' code does not have",
            "a phase lasts 150 rounds, for the authors' 150 epochs",
        ),
        differences=(
            "it begins with the second round, and is there in rounds in which a conversation has "
            "half of the task's turns; the authors' has half of 50",
        ),
    ),
    Recipe(
        "aepo",
        "Agentic Entropy-Balanced Policy Optimization",
        "2510.14545",
        mark="reconstructed",
        modulation=(modulation.EntropyGrowth(0.1),),
        gate=gate.GradientPreservingClip(),
        requirements=(Requirement.ENTROPY_BRANCHES,),
        assumptions=(
            "entropy enters the advantage as a deviation from the batch's mean, weight 0.1",
            "the fifth of steps with the largest entropy keeps its gradient",
        ),
    ),
    Recipe(
        "arpo",
        "Agentic Reinforced Policy Optimization",
        "2507.19849",
        mark="reconstructed",
        modulation=(modulation.SharedPrefix(),),
        requirements=(Requirement.TOOL_BRANCHES,),
        assumptions=("the hard attribution: shared steps get the mean over their branches",),
        differences=("the soft attribution is the recipe grpo",),
    ),
    Recipe(
        "balanced_aggregation",
        "Balanced Aggregation: Understanding and Fixing Aggregation Bias in GRPO",
        "2605.04077",
        mark="secondary",
        aggregation=aggregation.SignBalanced(),
        differences=("shares are taken over the batch",),
    ),
    Recipe(
        "d3s",
        "Learning More with Less: A Dynamic Dual-Level Down-Sampling Framework for Efficient "
        "Policy Optimization",
        "2509.22115",
        mark="reconstructed",
        selection=(
            selection.LargestVariance(0.5, grown="schedule"),
            selection.TopGain(0.5, "schedule"),
        ),
        requirements=(Requirement.GROWING_SHARE,),
        assumptions=(
            "half of the sequences and half of all steps at first; both shares grow linearly to "
            "all of them, over as many rounds as `ramp_rounds` says",
            "denominators are those of all samples",
        ),
        version=2,
    ),
    Recipe(
        "reinforce_ada",
        "Reinforce-Ada: An Adaptive Sampling Framework for Reinforce-Style LLM Training",
        "2510.04996",
        selection=(selection.Balanced(4),),
        requirements=(Requirement.BOTH_KINDS,),
        differences=("denominators are those of all samples",),
    ),
    Recipe(
        "rose",
        "Reinforced Efficient Reasoning via Semantically Diverse Exploration",
        "2601.05053",
        mark="reconstructed",
        terms=(Term(credit=TreeDifference(), baseline=baseline.Zero(), scale=scale.One()),),
        aggregation=aggregation.SequenceSum(length=1024.0),
        requirements=(Requirement.DIVERGENCE_BRANCHES,),
        assumptions=(
            "no term for length, as in the authors' script, whose power of it is 0; "
            "rose_length_aware has one",
        ),
        differences=("groups whose answers all earned the same stay in the denominator",),
    ),
    Recipe(
        "rose_length_aware",
        "Reinforced Efficient Reasoning via Semantically Diverse Exploration",
        "2601.05053",
        mark="reconstructed",
        terms=(Term(credit=TreeDifference(), baseline=baseline.Zero(), scale=scale.One()),),
        modulation=(LongerRight(),),
        aggregation=aggregation.SequenceSum(length=1024.0),
        requirements=(Requirement.DIVERGENCE_BRANCHES, Requirement.RIGHT_LENGTHS),
        assumptions=("the term's power is 1; the formula is that of the authors' code",),
        differences=(
            "groups whose answers all earned the same stay in the denominator",
            "where two answers part is known by node; the authors' code knows it by its position, "
            "so that other branches at the same position count as common",
        ),
    ),
    Recipe(
        "otr",
        "One-Token Rollout: Guiding Supervised Fine-Tuning of LLMs with Policy Gradient",
        "2509.26313",
        mark="reconstructed",
        terms=(Term(reward.Affine(1.1, -0.1), baseline=baseline.Zero(), scale=scale.One()),),
        gate=gate.LogLikelihood(),
        requirements=(Requirement.TEACHER_TOKENS,),
        assumptions=("a wrong token earns -0.1", "every sampled token is a sequence of one step"),
    ),
)
