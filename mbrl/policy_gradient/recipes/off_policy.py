"""Recipes whose change is the importance ratio, or how data of another policy are corrected for."""

from mbrl.policy_gradient.axes import (
    aggregation,
    baseline,
    gate,
    modulation,
    ratio,
    regulariser,
    rejection,
    reward,
    scale,
    selection,
    step_size,
)
from mbrl.policy_gradient.axes.credit import GAE
from mbrl.policy_gradient.axes.gate_adaptive import ShiftedClip
from mbrl.policy_gradient.recipe import Recipe, Term
from mbrl.policy_gradient.requirements import Requirement

CENTRED = Term(scale=scale.One())
CRITIC = Term(credit=GAE(), baseline=baseline.Zero(), scale=scale.One(), key=())
MYTHS = (
    "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm: Demystifying Some Myths About "
    "GRPO and Its Friends"
)
STABILIZED = (
    "ST-PPO: Stabilized Off-Policy Proximal Policy Optimization for Multi-Turn Agents Training"
)
TURN_RATIO = ratio.GeometricRatio(segment="turn")
BIAS = (
    "the gradient is divided by the L2 norm of what clipping takes from it, say the paper's "
    "reviews; here by the absolute value of the mean of ratio times advantage at clipped steps, as "
    "no norm is known before the gradient, and no step is made larger by it"
)
DYNAMIC = "Orchestrating Tokens and Sequences: Dynamic Hybrid Policy Optimization for RLVR"
BRANCHES = (
    "that each branch is clipped with its own range before they are mixed is said in others' notes",
    "the ranges are ours: 0.2 and 0.28 for steps, 3e-4 and 4e-4 for sequences",
)
MINI = (
    "the form is that of others' notes: ratios of steps, masked where stale, no mean over lengths",
    "the ranges 0.2 and 0.27 and the truncation at 5, of each step, are in none of them",
)
HYBRID = gate.Hybrid(step=gate.Clip(0.2, 0.28))

OFF_POLICY = (
    Recipe(
        "minpro",
        "A Step Back: Prefix Importance Ratio Stabilizes Policy Optimization",
        "2601.22718",
        mark="secondary",
        ratio=ratio.PrefixMinimumRatio(),
        gate=gate.DetachedClip(high=4.0),
        assumptions=("the formula is that of others' notes; no code of it was found",),
        differences=("the form with a detached, clipped ratio; its range is that of CISPO here",),
    ),
    Recipe(
        "topr",
        "Tapered Off-Policy REINFORCE: Stable and efficient reinforcement learning for LLMs",
        "2503.14286",
        terms=(Term(reward.Affine(), baseline=baseline.Zero(), scale=scale.One()),),
        ratio=ratio.ProductRatio("behaviour"),
        gate=gate.DetachedClip(low=0.0, high=0.0, negative=(None, 0.0)),
        aggregation=aggregation.SequenceSum(),
        differences=("rewards 0 and 1 count as -1 and 1",),
    ),
    Recipe(
        "rec_one_side",
        MYTHS,
        "2509.24203",
        terms=(CENTRED,),
        gate=gate.MaskedWeight(),
    ),
    Recipe(
        "rec_one_side_no_is",
        MYTHS,
        "2509.24203",
        terms=(CENTRED,),
        gate=gate.MaskedWeight(weighted=False),
    ),
    Recipe(
        "rec_two_side",
        MYTHS,
        "2509.24203",
        terms=(CENTRED,),
        gate=gate.MaskedWeight(shape="two"),
    ),
    Recipe(
        "rec_ring",
        MYTHS,
        "2509.24203",
        terms=(CENTRED,),
        gate=gate.MaskedWeight(shape="ring"),
    ),
    Recipe(
        "rec_sequence",
        MYTHS,
        "2509.24203",
        terms=(CENTRED,),
        ratio=ratio.GeometricRatio(),
        gate=gate.MaskedWeight(3e-4, 4e-4),
        aggregation=aggregation.SequenceMean(),
    ),
    Recipe(
        "opmd",
        MYTHS,
        "2509.24203",
        terms=(Term(scale=scale.One(), weight=1 / 1.1),),
        gate=gate.LogLikelihood(),
        aggregation=aggregation.SequenceSum(),
        differences=("the simple form: advantage R - mean, loss over 1 + tau with tau = 0.1",),
    ),
    Recipe(
        "rep_opmd",
        MYTHS,
        "2509.24203",
        terms=(CENTRED,),
        gate=gate.LogLikelihood(),
        aggregation=aggregation.SequenceSum(),
        regularisers=(regulariser.SquaredRatio(0.1),),
    ),
    Recipe(
        "asym_re",
        MYTHS,
        "2509.24203",
        terms=(Term(baseline=baseline.ShiftedMean(-0.1), scale=scale.One()),),
        gate=gate.LogLikelihood(),
        aggregation=aggregation.SequenceSum(),
    ),
    Recipe(
        "red_drop",
        MYTHS,
        "2509.24203",
        terms=(CENTRED,),
        sampling=(selection.DropSurplus(),),
        gate=gate.LogLikelihood(),
        aggregation=aggregation.SequenceSum(),
        version=2,
    ),
    Recipe(
        "red_weight",
        MYTHS,
        "2509.24203",
        terms=(CENTRED,),
        modulation=(modulation.Exponential(1.0),),
        gate=gate.LogLikelihood(),
        aggregation=aggregation.SequenceSum(),
    ),
    Recipe(
        "turn_ppo",
        STABILIZED,
        "2511.20718",
        mark="secondary",
        terms=(CRITIC,),
        modulation=(modulation.Whiten(eps=1e-8, steps=True),),
        ratio=TURN_RATIO,
        requirements=(Requirement.CRITIC,),
        assumptions=(
            "the geometric mean over a turn is that of others' notes on the paper's first version",
            "its range is 0.2; advantages stay those of steps",
        ),
    ),
    Recipe(
        "s_ppo",
        STABILIZED,
        "2511.20718",
        mark="reconstructed",
        terms=(CRITIC,),
        modulation=(modulation.Whiten(eps=1e-8, steps=True),),
        step_size=step_size.ClippingBias(),
        requirements=(Requirement.CRITIC,),
        assumptions=(BIAS,),
    ),
    Recipe(
        "st_ppo",
        STABILIZED,
        "2511.20718",
        mark="reconstructed",
        terms=(CRITIC,),
        modulation=(modulation.Whiten(eps=1e-8, steps=True),),
        ratio=TURN_RATIO,
        step_size=step_size.ClippingBias(),
        requirements=(Requirement.CRITIC,),
        assumptions=("range 0.2 for the geometric mean over a turn", BIAS),
    ),
    Recipe(
        "dhpo",
        DYNAMIC,
        "2601.05607",
        mark="secondary",
        gate=HYBRID,
        aggregation=aggregation.SequenceMean(),
        assumptions=BRANCHES,
    ),
    Recipe(
        "dhpo_entropy",
        DYNAMIC,
        "2601.05607",
        mark="secondary",
        gate=gate.Hybrid(step=gate.Clip(0.2, 0.28), alpha=None),
        aggregation=aggregation.SequenceMean(),
        assumptions=(*BRANCHES, "entropies are divided by the largest of the batch"),
    ),
    Recipe(
        "dispo",
        "DISPO: Enhancing Training Efficiency and Stability in Reinforcement Learning for Large "
        "Language Model Mathematical Reasoning",
        "2602.00983",
        mark="secondary",
        gate=gate.DetachedClip(low=0.2, high=10.0, negative=(1.0, 100.0)),
        assumptions=("bounds and aggregation are those of others' notes on the paper",),
        differences=("groups whose answers all earned the same stay in the denominator",),
        version=2,
    ),
    Recipe(
        "alp",
        "Adaptive Layerwise Perturbation: Unifying Off-Policy Corrections for LLM RL",
        "2603.19470",
        mark="secondary",
        ratio=ratio.TokenRatio("behaviour"),
        requirements=(Requirement.PERTURBED_POLICY, Requirement.SAMPLER_LOG_PROBS),
        assumptions=("from the authors' page and README; their loss could not be read",),
        differences=("the clip is that of GRPO, at steps; their default is of whole sequences",),
    ),
    Recipe(
        "vcpo",
        "Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs",
        "2602.17616",
        terms=(Term(baseline=baseline.LeastVariance(), scale=scale.Std()),),
        rejection=(rejection.TruncatedRatio("sequence", numerator=None, cap=8.0),),
        gate=gate.LogLikelihood(),
        aggregation=aggregation.SequenceMean(),
        step_size=step_size.EffectiveSamples(0.5),
        requirements=(Requirement.GRADIENT_NORMS, Requirement.SAMPLER_LOG_PROBS),
        differences=(
            "the deviation is a sample's plus 1e-4; in the authors' code the population's alone",
        ),
    ),
    Recipe(
        "mini_rl",
        "Stabilizing Reinforcement Learning with LLMs: Formulation and Practices",
        "2512.01374",
        mark="secondary",
        terms=(CENTRED,),
        rejection=(rejection.TruncatedRatio(cap=5.0),),
        gate=gate.MaskedWeight(0.2, 0.27),
        aggregation=aggregation.SequenceSum(),
        requirements=(Requirement.ENGINE_LOG_PROBS,),
        assumptions=MINI,
        differences=("without routing replay; mini_rl_r2 and mini_rl_r3 have it",),
    ),
    *(
        Recipe(
            name,
            "Stabilizing Reinforcement Learning with LLMs: Formulation and Practices",
            "2512.01374",
            mark="secondary",
            terms=(CENTRED,),
            rejection=(rejection.TruncatedRatio(cap=5.0),),
            gate=gate.MaskedWeight(0.2, 0.27),
            aggregation=aggregation.SequenceSum(),
            requirements=(Requirement.ENGINE_LOG_PROBS, replay),
            assumptions=(*MINI, *more),
        )
        for name, replay, more in (
            ("mini_rl_r2", Requirement.ROUTING_REPLAY, ()),
            (
                "mini_rl_r3",
                Requirement.ROLLOUT_ROUTING_REPLAY,
                ("the sampler's experts are read off a whole pass over what it said",),
            ),
        )
    ),
    Recipe(
        "areal",
        "AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning",
        "2505.24298",
        ratio=ratio.TokenRatio("proximal"),
        rejection=(rejection.MaskedRatio(numerator="proximal", high=5.0),),
        requirements=(Requirement.START_LOG_PROBS, Requirement.SAMPLER_LOG_PROBS),
        differences=("advantages of GRPO",),
    ),
    Recipe(
        "remix",
        "Squeeze the Soaked Sponge: Efficient Off-policy Reinforcement Finetuning for Large "
        "Language Model",
        "2507.06892",
        mark="secondary",
        ratio=ratio.TokenRatio("behaviour"),
        gate=ShiftedClip(),
        regularisers=(
            regulariser.KL(0.02, "k3", "reference"),
            regulariser.KL(0.02, "k3", "previous"),
        ),
        requirements=(Requirement.EARLIER_DATA,),
        assumptions=(
            "ratios and clip are those of others' notes; the sum of both weights, 0.04, is ours, "
            "as is k3",
            "the switch to data of the current policy is the trainer's",
        ),
        differences=(
            "both divergences are weighted alike from the start; in the paper the first policy's "
            "share falls from 1 to 1/2, and its place is taken by the policy at the switch",
        ),
        version=2,
    ),
    Recipe(
        "seeupo",
        "SeeUPO: Sequence-Level Agentic-RL with Convergence Guarantees",
        "2602.06554",
        mark="secondary",
        terms=(CENTRED,),
        modulation=(modulation.Whiten(eps=1e-6),),
        ratio=TURN_RATIO,
        rejection=(rejection.LaterSegments(),),
        aggregation=aggregation.SegmentMean("turn"),
        requirements=(Requirement.BACKWARD_TURNS, Requirement.LATER_TURN_LOG_PROBS),
        assumptions=(
            "read in another's copy of the authors' code, from whose settings it departs",
            "the range of a turn's ratio is the framework's, 0.2",
        ),
        differences=(
            "conversations are compared once, not those that have a turn at each turn; advantages "
            "are not held in [-3, 3]",
            "without the authors' divergence of weight 0.002",
        ),
        version=2,
    ),
    Recipe(
        "calibrl",
        "Controllable Exploration in Hybrid-Policy RLVR for Multi-Modal Reasoning",
        "2602.20197",
        regularisers=(regulariser.ExpertMargin(),),
        requirements=(Requirement.EXPERT_LOG_PROBS,),
    ),
    Recipe(
        "cj_grpo",
        "Taming Masked Diffusion Language Models via Consistency Trajectory Reinforcement Learning "
        "with Fewer Decoding Step",
        "2509.23924",
        version=2,
        terms=(CENTRED,),
        gate=gate.Clip(0.5, 0.5),
        aggregation=aggregation.SegmentMean("decode"),
        regularisers=(regulariser.KL(0.04),),
        requirements=(Requirement.DECODER_STATES,),
    ),
)
