"""Recipes by what they do to advantages after they were normalised, and by what they leave out."""

from mbrl.policy_gradient.axes import (
    aggregation,
    baseline,
    gate,
    modulation,
    regulariser,
    rejection,
    scale,
    selection,
)
from mbrl.policy_gradient.axes.credit import TokenWeighted
from mbrl.policy_gradient.axes.gate_adaptive import EntropyClip
from mbrl.policy_gradient.axes.modulation import (
    AsymmetricConfidence,
    ConfidenceGap,
    Novelty,
    ResponseEntropy,
    SemanticEntropy,
)
from mbrl.policy_gradient.axes.reward import SequenceSignal
from mbrl.policy_gradient.axes.selection import ResampleOnCorrect
from mbrl.policy_gradient.recipe import Recipe, Term
from mbrl.policy_gradient.requirements import Requirement

HAPO_READ = "read in the authors' code, which was not run beside it, as it differs in what follows"
HAPO_SCRIPTS = "without the choice of groups and the penalty of long answers of their scripts"
XRPO_KNOWN = (
    "the formula is that of another's code, rate 2.5 and limit A / 2 are of the paper's reviews; "
    "the authors' code could not be had"
)

SELECTIONS = (
    Recipe(
        "adora",
        "ADORA: Training Reasoning Models with Dynamic Advantage Estimation on Reinforcement "
        "Learning",
        "2602.10019",
        modulation=(modulation.LongReasoning(),),
        differences=("the condition of its version for language models, by length",),
    ),
    Recipe(
        "hapo_token_aware",
        "From Uniform to Heterogeneous: Tailoring Policy Optimization to Every Token's Nature",
        "2509.16591",
        mark="secondary",
        terms=(Term(credit=TokenWeighted(), baseline=baseline.Zero(), scale=scale.One()),),
        gate=EntropyClip(),
        assumptions=(HAPO_READ,),
        differences=(
            "entropies below the pivot are scaled to [-1, 0]; the authors' code divides them by a "
            "negative number, which makes them positive",
            "entropies are those of the old policy",
            "the temperature of sampling does not follow the entropy; hapo is this with it",
            HAPO_SCRIPTS,
        ),
    ),
    Recipe(
        "hapo",
        "From Uniform to Heterogeneous: Tailoring Policy Optimization to Every Token's Nature",
        "2509.16591",
        mark="secondary",
        terms=(Term(credit=TokenWeighted(), baseline=baseline.Zero(), scale=scale.One()),),
        gate=EntropyClip(),
        requirements=(Requirement.ENTROPY_TEMPERATURE,),
        assumptions=(HAPO_READ,),
        differences=(
            "entropies below the pivot are scaled to [-1, 0], so that these tokens are sampled "
            "colder; the authors' code divides by a negative number, which makes all hotter",
            "entropies are taken at the temperature of sampling, which is 1 there; of the gate "
            "those of the old policy",
            "statistics are those of the round before; there of the update before",
            HAPO_SCRIPTS,
        ),
    ),
    Recipe(
        "simple_tir",
        "SimpleTIR: End-to-End Reinforcement Learning for Multi-Turn Tool-Integrated Reasoning",
        "2509.02479",
        selection=(selection.NoVoidTurn(),),
        requirements=(Requirement.VOID_TURNS,),
        differences=("steps of sequences that are left out stay in the denominator",),
    ),
    Recipe(
        "mini_o3",
        "Mini-o3: Scaling Up Reasoning Patterns and Interaction Turns for Visual Search",
        "2509.07969",
        terms=(Term(baseline=baseline.Mean("keep"), scale=scale.Std(1e-6, alone="one")),),
        selection=(selection.Finished(),),
        differences=(
            "steps that are left out stay in the denominator",
            "left out is what a limit of tokens or a horizon cut off; where the task tells how "
            "many turns there are, an answer that has used them up is over, and counts",
        ),
    ),
    Recipe(
        "grpo_roc",
        "rStar2-Agent: Agentic Reasoning Technical Report",
        "2508.20722",
        terms=(Term(baseline=baseline.Mean("keep"), scale=scale.Std(1e-6, alone="one")),),
        sampling=(ResampleOnCorrect(),),
        gate=gate.Clip(0.2, 0.28),
        requirements=(Requirement.TOOL_PENALTIES,),
        differences=(
            "as in the authors' code the best right answers are kept, none is drawn by chance",
            "a prompt with less of both kinds than the minimum keeps half too, not all",
            "denominators are those of all samples",
        ),
    ),
    Recipe(
        "seed_grpo",
        "SEED-GRPO: Semantic Entropy Enhanced GRPO for Uncertainty-Aware Policy Optimization",
        "2505.12346",
        mark="secondary",
        terms=(Term(scale=scale.One()),),
        modulation=(SemanticEntropy(),),
        requirements=(Requirement.ANSWER_CLUSTERS,),
        assumptions=(
            "the formula is that of others' notes, as the authors have published no code",
            "linear in the entropy, rate 0.02",
            "clusters weigh by their answers; in the notes by the probability of these",
        ),
    ),
    Recipe(
        "ace",
        "Overconfident Errors Need Stronger Correction: Asymmetric Confidence Penalties for "
        "Reinforcement Learning",
        "2602.21420",
        mark="secondary",
        modulation=(AsymmetricConfidence(),),
        assumptions=(
            "that answers with A < 0 weigh 1 + rate softplus(c), c = log pi - log pi_reference, is "
            "that of others' notes, one of which has max(c, 0); the authors' code was not found",
            "rate 1; in the notes 0.5 to 2",
            "confidence is the mean over the answer's steps, of the old policy",
        ),
    ),
    Recipe(
        "xrpo",
        "XRPO: Pushing the limits of GRPO with Targeted Exploration and Exploitation",
        "2510.06672",
        mark="secondary",
        modulation=(Novelty(),),
        assumptions=(XRPO_KNOWN, "likelihoods are those of the old policy"),
        differences=("shows no solved examples; xrpo_seeded does",),
        version=2,
    ),
    Recipe(
        "xrpo_seeded",
        "XRPO: Pushing the limits of GRPO with Targeted Exploration and Exploitation",
        "2510.06672",
        mark="secondary",
        modulation=(Novelty(),),
        requirements=(Requirement.SEEDED_ATTEMPTS,),
        assumptions=(
            XRPO_KNOWN,
            "likelihoods are those of the old policy",
            "the example stands before the prompt in learning, too",
            "half of a group is sampled before it is known to fail",
        ),
        differences=(
            "one solved example of the policy's own, the most alike by characters; there two at "
            "most, by a language model's embedding, and cut where they are long",
        ),
        version=2,
    ),
    Recipe(
        "arm_progrpo",
        "Back to Basics: Revisiting Exploration in Reinforcement Learning for LLM Reasoning via "
        "Generative Probabilities",
        "2602.05281",
        mark="secondary",
        modulation=(ConfidenceGap(),),
        gate=gate.Clip(high=0.28),
        requirements=(Requirement.PROMPT_CONFIDENCE,),
        assumptions=(
            "the formula and its clip are those of others' notes, as the authors' code was not "
            "found; these do not agree on whether groups that are all right are changed, too",
            "rate 0.3",
            "the least likely fifth of an answer's tokens",
        ),
        version=2,
    ),
    Recipe(
        "ettrl",
        "ETTRL: Balancing Exploration and Exploitation in LLM Test-Time Reinforcement Learning Via "
        "Entropy Mechanism",
        "2508.11356",
        mark="secondary",
        terms=(Term(SequenceSignal("majority_reward")),),
        modulation=(ResponseEntropy(),),
        requirements=(Requirement.MAJORITY_AGREEMENT, Requirement.VOTE_FORKS),
        assumptions=(
            "the factor 1 + (mean H - H) / mean H is that of others' notes, H an answer's mean "
            "entropy, its mean that of the prompt's answers",
            "whole answers fork twice at each of their two most uncertain tokens, as said there; "
            "of forks only what was said anew is trained on",
        ),
        version=3,
    ),
    Recipe(
        "dart",
        "Efficient Multi-turn RL for GUI Agents via Decoupled Training and Adaptive Data Curation",
        "2509.23866",
        mark="secondary",
        terms=(Term(baseline=baseline.Mean("keep"), scale=scale.Std(1e-6, alone="one")),),
        selection=(selection.TopEntropyTurns(0.8),),
        rejection=(rejection.TruncatedRatio(cap=1.0),),
        gate=gate.Clip(0.1, 0.28, dual=10.0),
        aggregation=aggregation.SequenceMean(),
        regularisers=(regulariser.KL(0.1),),
        requirements=(Requirement.ENGINE_LOG_PROBS,),
        assumptions=(
            "four fifths of the turns are kept, by their mean entropy",
            "the truncated weight, clip and penalty are those of the authors' code, in which the "
            "choice by entropy is commented out",
        ),
        differences=(
            "numbers of rollouts, lengths of episodes and the pool of successes are those of "
            "dart_scheduler",
        ),
        version=2,
    ),
)
