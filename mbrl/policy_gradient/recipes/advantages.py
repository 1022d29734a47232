"""Recipes by their baselines, scales and rewards: what an answer is compared with."""

from mbrl.policy_gradient.axes import (
    aggregation,
    baseline,
    gate,
    modulation,
    ratio,
    regulariser,
    scale,
    selection,
)
from mbrl.policy_gradient.axes.credit import GAE, BundleRisk, SetValue
from mbrl.policy_gradient.axes.gate import Discriminative
from mbrl.policy_gradient.axes.modulation import EntropyShaping, ScoreVariance
from mbrl.policy_gradient.axes.regulariser import Contrast, HingeKL
from mbrl.policy_gradient.axes.reward import (
    ByOutcome,
    Consistency,
    FlawPenalty,
    IfPassed,
    KLPenalised,
    RareEvents,
    SequenceSignal,
)
from mbrl.policy_gradient.recipe import Recipe, Term
from mbrl.policy_gradient.requirements import Requirement

RAW = Term(baseline=baseline.Zero(), scale=scale.One())
CENTRED = Term(scale=scale.One())
NEGATIVE = "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning"
OFFLINE = "Improving Language Models with Advantage-based Offline Policy Gradients"
REFERENCE = Term(baseline=baseline.SignalBaseline("reference_value"), scale=scale.One())
PRIORITY = (
    "rewards of programs are in [0, 1] as they are; the authors put theirs through a sigmoid",
    "the number of updates is the run's; there it shrinks with the share of answers that are kept",
)

ADVANTAGES = (
    Recipe(
        "mc_grpo",
        "MC-GRPO: Median-Centered Group Relative Policy Optimization for Small-Rollout "
        "Reinforcement Learning",
        "2601.22582",
        terms=(Term(baseline=baseline.Median(), scale=scale.MedianDeviation()),),
        selection=(selection.DropMedian(),),
        aggregation=aggregation.SequenceMean(),
        regularisers=(regulariser.KL(0.04),),
        differences=(
            "of equal median answers the first in the batch is left out",
            "where more than half of a prompt's answers earn the same, the others' advantages are "
            "1,000 times their distance and the gradient is clipped, as in the authors' code; "
            "`policy/gradient_clipped` says how often",
        ),
        version=2,
    ),
    Recipe(
        "bnpo",
        "BNPO: Beta Normalization Policy Optimization",
        "2506.02864",
        terms=(Term(scale=scale.BetaDensity()),),
        differences=("groups of size 1 get zero advantage, not their reward",),
    ),
    Recipe(
        "psr",
        NEGATIVE,
        "2506.01347",
        terms=(Term(ByOutcome(1.0, 0.0), baseline=baseline.Zero(), scale=scale.One()),),
    ),
    Recipe(
        "nsr",
        NEGATIVE,
        "2506.01347",
        terms=(Term(ByOutcome(0.0, -1.0), baseline=baseline.Zero(), scale=scale.One()),),
    ),
    Recipe(
        "w_reinforce",
        NEGATIVE,
        "2506.01347",
        terms=(Term(ByOutcome(0.1, -1.0), baseline=baseline.Zero(), scale=scale.One()),),
    ),
    Recipe(
        "ngrpo",
        "NGRPO: Negative-enhanced Group Relative Policy Optimization",
        "2509.18851",
        terms=(Term(baseline=baseline.VirtualMean(), scale=scale.VirtualStd()),),
        selection=(selection.ZeroVariance("right"),),
        gate=gate.Clip(0.16, 0.24),
    ),
    Recipe(
        "gdpo",
        "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL "
        "Optimization",
        "2601.05242",
        terms=(Term(), Term(SequenceSignal("length_reward"))),
        modulation=(modulation.Whiten(),),
        differences=("two rewards: the outcome and one of length",),
    ),
    Recipe(
        "gdpo_conditioned",
        "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL "
        "Optimization",
        "2601.05242",
        terms=(Term(), Term(IfPassed(SequenceSignal("length_reward")))),
        modulation=(modulation.Whiten(),),
        differences=("two rewards: the outcome, and one of length for those that passed",),
    ),
    Recipe(
        "riskpo",
        "RiskPO: Risk-based Policy Optimization via Verifiable Reward for LLM Post-Training",
        "2510.00911",
        terms=(Term(credit=BundleRisk(), baseline=baseline.Zero(), scale=scale.One()),),
        requirements=(Requirement.BUNDLES, Requirement.SCORE_QUANTILES),
        differences=(
            "an answer without a partner makes a paper of its own, it is not left out",
            "as in the authors' code, bundles that score alike are divided by 1e-6",
            "the authors' scripts differ in levels and shares; these are of the one for DAPO-Math",
        ),
    ),
    Recipe(
        "fapo",
        "FAPO: Flawed-Aware Policy Optimization for Efficient and Reliable Reasoning",
        "2510.22543",
        terms=(Term(FlawPenalty(), scale=scale.Std(1e-6)),),
        gate=gate.Clip(0.2, 0.28, dual=10.0),
        requirements=(Requirement.PROCESS_REWARD_MODEL,),
        differences=("without the penalty of long answers that the authors' scripts switch on",),
    ),
    Recipe(
        "drpo_decoupled",
        "DRPO: Efficient Reasoning via Decoupled Reward Policy Optimization",
        "2510.04474",
        terms=(Term(ByOutcome(), baseline=baseline.Zero(), scale=scale.One()),),
        gate=Discriminative(),
        aggregation=aggregation.SequenceMean(),
        regularisers=(HingeKL(),),
        differences=(
            "prompts count by their answers, which are equally many in the paper",
            "the value is that of the objective; the authors' code has its gradient alone",
            "the penalty is half the square of the divergence, as that gradient has it",
        ),
    ),
    Recipe(
        "stable_reinforce",
        "R1-Reward: Training Multimodal Reward Model Through Stable Reinforcement Learning",
        "2505.02835",
        terms=(Term(Consistency(), baseline=baseline.Zero(), scale=scale.One(), key=()),),
        modulation=(modulation.Whiten(1e-8),),
        selection=(selection.Outliers(3.0),),
        gate=gate.Clip(clamp=6.907755278982137),
        aggregation=aggregation.SequenceMean(),
        requirements=(Requirement.CONSISTENCY_JUDGE,),
        differences=("the weights of the consistency reward are recalled, not checked",),
    ),
    Recipe(
        "nlpo",
        "Is Reinforcement Learning (Not) for Natural Language Processing: Benchmarks, Baselines, "
        "and Building Blocks for Natural Language Policy Optimization",
        "2210.01241",
        terms=(Term(KLPenalised(0.1), GAE(), baseline=baseline.Zero(), scale=scale.One(), key=()),),
        modulation=(modulation.Whiten(eps=1e-8, steps=True),),
        requirements=(Requirement.CRITIC, Requirement.MASKED_POLICY),
    ),
    Recipe(
        "a_lol",
        OFFLINE,
        "2305.14718",
        terms=(REFERENCE,),
        modulation=(modulation.Positive(),),
        ratio=ratio.ProductRatio(denominator="reference"),
        gate=gate.DetachedClip(low=0.9, high=0.9),
        aggregation=aggregation.SequenceSum(),
        requirements=(Requirement.REFERENCE_VALUE, Requirement.LOGGED_ANSWERS),
        differences=PRIORITY,
        version=2,
    ),
    Recipe(
        "a_lol_ref_free",
        OFFLINE,
        "2305.14718",
        terms=(REFERENCE,),
        modulation=(modulation.Positive(),),
        gate=gate.LogLikelihood(),
        aggregation=aggregation.SequenceSum(),
        requirements=(Requirement.REFERENCE_VALUE, Requirement.LOGGED_ANSWERS),
        differences=PRIORITY,
        version=2,
    ),
    Recipe(
        "a_lol_seq",
        OFFLINE,
        "2305.14718",
        terms=(REFERENCE,),
        modulation=(modulation.Positive(),),
        ratio=ratio.TokenRatio(denominator="reference"),
        gate=gate.DetachedClip(low=0.9, high=0.9),
        aggregation=aggregation.SequenceSum(),
        requirements=(Requirement.REFERENCE_VALUE, Requirement.LOGGED_ANSWERS),
        differences=PRIORITY,
        version=2,
    ),
    Recipe(
        "a_lol_kl",
        OFFLINE,
        "2305.14718",
        terms=(REFERENCE,),
        modulation=(modulation.Positive(),),
        gate=gate.LogLikelihood(),
        aggregation=aggregation.SequenceSum(),
        regularisers=(regulariser.KL(0.1, "k1"),),
        requirements=(Requirement.REFERENCE_VALUE, Requirement.LOGGED_ANSWERS),
        differences=(*PRIORITY, "the weight of the penalty is not the authors', who give none"),
        version=2,
    ),
    Recipe(
        "q_hawkeye",
        "Q-Hawkeye: Reliable Visual Policy Optimization for Image Quality Assessment",
        "2601.22920",
        modulation=(ScoreVariance(),),
        gate=gate.LogLikelihood(),
        aggregation=aggregation.SequenceMean(),
        regularisers=(regulariser.KL(0.04), Contrast()),
        requirements=(
            Requirement.DEGRADED_LOG_PROBS,
            Requirement.PREDICTED_SCORES,
            Requirement.FADING_CONTRAST,
        ),
        differences=(
            "the contrast fades by a half cosine over as many rounds as `ramp_rounds` says; the "
            "authors' by five epochs",
            "the value is A log pi; the authors' code has its gradient with the value A",
            "without the two entropy terms, which the authors' script does not switch on",
        ),
        version=3,
    ),
    Recipe(
        "mssr",
        "Stable and Efficient Single-Rollout RL for Multimodal Reasoning",
        "2512.18215",
        mark="secondary",
        terms=(Term(baseline=baseline.SignalBaseline("tracked_value"), scale=scale.One()),),
        modulation=(modulation.Whiten(1e-8), EntropyShaping()),
        requirements=(Requirement.SUCCESS_TRACKER,),
        assumptions=(
            "entropy weight 0.4 and limit |A| / 2 are those of others' code for such a bonus; the "
            "authors' was not found",
        ),
    ),
    Recipe(
        "polychromic",
        "Polychromic Objectives for Reinforcement Learning",
        "2509.25424",
        mark="secondary",
        terms=(Term(credit=SetValue(), scale=scale.One()),),
        modulation=(modulation.Elsewhere(GAE()),),
        regularisers=(regulariser.KL(0.01),),
        requirements=(Requirement.CRITIC, Requirement.SEQUENCE_SETS, Requirement.SEQUENCE_KINDS),
        assumptions=(
            "a set is worth its mean reward times its share of distinct sequences, as in others' "
            "code; the authors' was not found",
            "what a set is worth is compared with the other sets of the prompt",
        ),
        differences=(
            "advantages are not whitened, and the penalty holds the policy to the reference; in "
            "others' code they are, and it holds it to the old policy",
        ),
    ),
    Recipe(
        "v_half",
        "V_{0.5}: Generalist Value Model as a Prior for Sparse RL Rollouts",
        "2603.10848",
        mark="secondary",
        terms=(Term(baseline=baseline.Shrinkage(), scale=scale.One()),),
        requirements=(Requirement.PRIOR_VALUE,),
        assumptions=(
            "the weight is that of others' notes: the variance of the mean is the largest that can "
            "be, 1 / (4 n) for rewards of 0 and 1, and the squared bias what the difference has "
            "beyond it",
            "no division by a deviation",
        ),
        version=2,
        differences=(
            "the prior is that of v_half_scheduler; without it, the success rate of the level",
        ),
    ),
    Recipe(
        "weighted_grpo",
        "Beyond Variance: Prompt-Efficient RLVR via Rare-Event Amplification and Bidirectional "
        "Pairing",
        "2602.03452",
        mark="reconstructed",
        terms=(Term(RareEvents(), key=("pair",)),),
        requirements=(Requirement.PROMPT_PAIRS,),
        assumptions=(
            "rewards are 1 and -1, rare ones twice that; another's notes have 1 and -lambda, which "
            "standardisation cancels, in whatever group",
            "the pair's answers are one group: in a prompt's own group weights would cancel",
        ),
    ),
    Recipe(
        "urpa",
        "Uncertainty-quantified Rollout Policy Adaptation for Unlabelled Cross-domain Temporal "
        "Grounding",
        "2508.06317",
        mark="secondary",
        terms=(Term(SequenceSignal("consistency_reward")),),
        regularisers=(regulariser.KL(0.04),),
        requirements=(Requirement.MEAN_AGREEMENT,),
        assumptions=(
            "the reward is that of another's summary: half for the form, half the overlap with the "
            "interval of mean ends times e^-(sum of both ends' deviations)",
            "deviations count once, positions being in [0, 1]; GRPO's penalty 0.04",
        ),
        version=3,
    ),
    Recipe(
        "ps_grpo",
        "Improving Consistency in Retrieval-Augmented Systems with Group Similarity Rewards",
        "2510.04392",
        mark="secondary",
        terms=(Term(SequenceSignal("group_similarity")),),
        regularisers=(regulariser.KL(0.04),),
        requirements=(Requirement.PARAPHRASE_SIMILARITY,),
        assumptions=(
            "reward and groups are those of others' notes: the mean similarity to all answers to "
            "other paraphrases, compared with the answers to the same one",
            "GRPO's penalty 0.04",
        ),
        differences=(
            "similarities to all answers are taken, where the paper's runs draw three; no reward "
            "for being right is added",
        ),
        version=2,
    ),
)
