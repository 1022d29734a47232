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
CODE = "departs from the authors' code, so that it was not compared with it"
ROSE = (
    "groups whose answers all earned the same stay in the denominator",
    "where answers part is known by node; the authors' code knows it by position, so that the "
    "value after a branch counts for a prompt's other answers at that position, too",
    "without the authors' divergence of weight 0.001; length 1024 is not their 4096",
)

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
            "of an odd number of epochs the middle one belongs to the later half; there to the "
            "earlier one",
        ),
    ),
    Recipe(
        "aepo",
        "Agentic Entropy-Balanced Policy Optimization",
        "2510.14545",
        mark="secondary",
        modulation=(modulation.EntropyGrowth(0.2),),
        gate=gate.GradientPreservingClip(gate.Clip(dual=3.0)),
        requirements=(Requirement.ENTROPY_BRANCHES,),
        assumptions=("factor, weight 0.2 and gate are those of others' articles on the code",),
        differences=("where it branches is this library's",),
        version=2,
    ),
    Recipe(
        "arpo",
        "Agentic Reinforced Policy Optimization",
        "2507.19849",
        mark="secondary",
        modulation=(modulation.SharedPrefix(),),
        requirements=(Requirement.TOOL_BRANCHES,),
        assumptions=("the hard attribution: shared steps get the mean over their branches",),
        differences=(
            "the authors' code has the soft attribution alone: the recipe grpo, without its "
            "penalty, on the same rollouts",
        ),
    ),
    Recipe(
        "balanced_aggregation",
        "Balanced Aggregation: Understanding and Fixing Aggregation Bias in GRPO",
        "2605.04077",
        mark="secondary",
        aggregation=aggregation.SignBalanced(),
        assumptions=(
            "that shares count answers, those without an advantage among them, is read in "
            "another's code; the authors' was not found",
        ),
        differences=("shares are taken over the batch",),
    ),
    Recipe(
        "d3s",
        "Learning More with Less: A Dynamic Dual-Level Down-Sampling Framework for Efficient "
        "Policy Optimization",
        "2509.22115",
        mark="secondary",
        selection=(
            selection.TopGain(
                0.5, "schedule", selection.LargestVariance(0.5, (), "schedule", advantages=True)
            ),
        ),
        requirements=(Requirement.GROWING_SHARE,),
        assumptions=(
            "the choice is that of others' notes: sequences of the whole batch whose advantages "
            "vary most, then of their steps those of largest |A| H",
            "half of the sequences and half of their steps at first; both shares grow linearly to "
            "all of them, over as many rounds as `ramp_rounds` says",
            "denominators are those of all samples",
        ),
        version=3,
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
        mark="secondary",
        terms=(Term(credit=TreeDifference(), baseline=baseline.Zero(), scale=scale.One()),),
        aggregation=aggregation.SequenceSum(length=1024.0),
        requirements=(Requirement.DIVERGENCE_BRANCHES,),
        assumptions=(
            CODE,
            "no term for length, as in the authors' script, whose power of it is 0; "
            "rose_length_aware has one",
        ),
        differences=ROSE,
    ),
    Recipe(
        "rose_length_aware",
        "Reinforced Efficient Reasoning via Semantically Diverse Exploration",
        "2601.05053",
        mark="secondary",
        terms=(Term(credit=TreeDifference(), baseline=baseline.Zero(), scale=scale.One()),),
        modulation=(LongerRight(),),
        aggregation=aggregation.SequenceSum(length=1024.0),
        requirements=(Requirement.DIVERGENCE_BRANCHES, Requirement.RIGHT_LENGTHS),
        assumptions=(CODE, "the term's power is 1"),
        differences=ROSE,
    ),
    Recipe(
        "otr",
        "One-Token Rollout: Guiding Supervised Fine-Tuning of LLMs with Policy Gradient",
        "2509.26313",
        mark="secondary",
        terms=(Term(reward.Affine(1.1, -0.1), baseline=baseline.Zero(), scale=scale.One()),),
        gate=gate.LogLikelihood(),
        requirements=(Requirement.TEACHER_TOKENS,),
        assumptions=(
            "the form is that of the paper's reviews: 1 for the teacher's token, a number below 0 "
            "for others, times log pi, averaged over positions and draws",
            "a wrong token earns -0.1; every sampled token is a sequence of one step",
        ),
        differences=("tokens are drawn at the policy's own temperature, not a higher one",),
    ),
)
