"""Recipes for sequences of turns: credit, groups and rewards that follow them."""

from mbrl.policy_gradient.axes import (
    aggregation,
    baseline,
    gate,
    modulation,
    ratio,
    regulariser,
    rejection,
    scale,
    selection,
)
from mbrl.policy_gradient.axes.credit import (
    GAE,
    NestedGroups,
    RescaledReturn,
    ReturnToGo,
    SegmentReward,
    SegmentValue,
)
from mbrl.policy_gradient.axes.credit_hierarchical import HierarchicalGAE
from mbrl.policy_gradient.axes.gate_adaptive import InformativeClip
from mbrl.policy_gradient.axes.modulation import StepEntropy
from mbrl.policy_gradient.axes.regulariser import SegmentKL
from mbrl.policy_gradient.axes.reward import (
    Mixture,
    ProgressBonus,
    SequenceSignal,
    Standardised,
    StepSignal,
    TaskReward,
    TurnGains,
)
from mbrl.policy_gradient.axes.selection import CoverageRejection
from mbrl.policy_gradient.recipe import Recipe, Term
from mbrl.policy_gradient.requirements import Requirement

TURN_KEY = ("prompt", "turn")
KEEP, UNIT = baseline.Mean(alone="keep"), scale.Std(1e-6, alone="one")
Z, ZERO, ONE = scale.Std(1e-6), baseline.Zero(), scale.One()
OTHERS = baseline.LeaveOneOut()
GIGPO = "Group-in-Group Policy Optimization for LLM Agent Training"
KERNEL = "Dr. Kernel: Reinforcement Learning Done Right for Triton Kernel Generations"
CORRECT = "Training Language Models to Self-Correct via Reinforcement Learning"
GAIN = StepSignal("information_gain")

TURNS = (
    Recipe(
        "gigpo",
        GIGPO,
        "2505.10978",
        terms=(
            Term(baseline=KEEP, scale=UNIT),
            Term(credit=ReturnToGo(0.95, "turn"), scale=UNIT, key=("prompt", "state")),
        ),
        regularisers=(regulariser.KL(0.01),),
        differences=("episodes are counted once each; the authors' code counts their turns",),
    ),
    Recipe(
        "gigpo_no_std",
        GIGPO,
        "2505.10978",
        terms=(
            Term(baseline=KEEP, scale=ONE),
            Term(credit=ReturnToGo(0.95, "turn"), scale=ONE, key=("prompt", "state")),
        ),
        regularisers=(regulariser.KL(0.01),),
        differences=("episodes are counted once each; the authors' code counts their turns",),
    ),
    Recipe(
        "hgpo",
        "Hierarchy-of-Groups Policy Optimization for Long-Horizon Agentic Tasks",
        "2602.22817",
        terms=(Term(credit=NestedGroups(), baseline=ZERO, scale=ONE),),
        regularisers=(regulariser.KL(0.01),),
        requirements=(Requirement.OBSERVATION_HISTORIES,),
    ),
    Recipe(
        "trloo",
        KERNEL,
        "2602.05885",
        terms=(
            Term(
                credit=ReturnToGo(1.0, "turn"),
                baseline=baseline.LeaveOneOut(),
                scale=ONE,
                key=TURN_KEY,
            ),
        ),
        gate=gate.Clip(0.2, 0.28),
        aggregation=aggregation.SequenceSum(),
    ),
    Recipe(
        "dr_kernel",
        KERNEL,
        "2602.05885",
        terms=(
            Term(
                credit=ReturnToGo(1.0, "turn"),
                baseline=baseline.LeaveOneOut(),
                scale=ONE,
                key=TURN_KEY,
            ),
        ),
        selection=(CoverageRejection(),),
        rejection=(rejection.RatioBand("geometric"), rejection.RatioVeto()),
        gate=gate.Clip(0.2, 0.28),
        aggregation=aggregation.SequenceSum(),
        requirements=(Requirement.ENGINE_LOG_PROBS, Requirement.COVERAGE_PROFILE),
    ),
    Recipe(
        "igpo",
        "Information Gain-based Policy Optimization: A Simple and Effective Approach for "
        "Multi-Turn LLM Agents",
        "2510.14967",
        terms=(
            Term(Standardised(TurnGains(), correction=0), ReturnToGo(1.0, "turn"), ZERO, scale=ONE),
        ),
        aggregation=aggregation.SequenceSum(),
        regularisers=(regulariser.KL(0.001), regulariser.EntropyBonus(0.001)),
        requirements=(Requirement.ANSWER_PROBABILITY,),
        differences=(
            "gains are of probabilities and normalised together with outcomes, as in the paper and "
            "by default in the authors' code; its script takes log-probabilities, each kind by "
            "itself",
        ),
        version=2,
    ),
    Recipe(
        "infopo",
        "InfoPO: Information-Driven Policy Optimization for User-Centric Agents",
        "2603.00656",
        terms=(
            Term(scale=Z),
            Term(
                Standardised(GAIN, nonzero=True, steps=True),
                ReturnToGo(0.0),
                ZERO,
                scale.VarianceGate(),
                weight=0.1,
            ),
        ),
        regularisers=(regulariser.EntropyBonus(0.001),),
        requirements=(Requirement.OBSERVATION_GAIN,),
        assumptions=(
            "the weight is 0.1, that of one of the authors' tasks; others have 0.5 of either part",
        ),
        version=2,
    ),
    Recipe(
        "matchtir",
        "MatchTIR: Fine-Grained Supervision for Tool-Integrated Reasoning via Bipartite Matching",
        "2601.10712",
        terms=(
            Term(
                Mixture(((TaskReward(), 1.0), (StepSignal("match_score"), 1.0))),
                baseline=KEEP,
                scale=UNIT,
                weight=0.5,
            ),
            Term(
                Mixture(((TaskReward(), 1.0), (StepSignal("match_score"), 1.0))),
                ReturnToGo(0.9, "turn"),
                KEEP,
                UNIT,
                TURN_KEY,
                0.5,
            ),
        ),
        requirements=(Requirement.CALL_MATCHES,),
    ),
    Recipe(
        "spa_rl",
        "SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution",
        "2505.20732",
        terms=(
            Term(
                Mixture(((StepSignal("progress"), 1.0), (StepSignal("grounding"), 0.5))),
                GAE(),
                ZERO,
                ONE,
                (),
            ),
        ),
        modulation=(modulation.Whiten(eps=1e-8, steps=True),),
        requirements=(Requirement.CRITIC, Requirement.PROGRESS_ESTIMATOR),
    ),
    Recipe(
        "hiper",
        "HiPER: Hierarchical Reinforcement Learning with Explicit Credit Assignment for Large "
        "Language Model Agents",
        "2602.16165",
        terms=(Term(credit=HierarchicalGAE(), baseline=ZERO, scale=ONE, key=()),),
        regularisers=(regulariser.KL(0.01),),
        requirements=(Requirement.THREE_HEADED_CRITIC, Requirement.SUBGOAL_TOKENS),
        differences=("no penalties on keeping or changing a subgoal; they are rewards",),
    ),
    Recipe(
        "ui_s1",
        "UI-S1: Advancing GUI Automation via Semi-online Reinforcement Learning",
        "2509.11543",
        terms=(
            Term(baseline=KEEP, scale=UNIT),
            Term(SequenceSignal("step_return"), scale=UNIT, key=("prompt", "step")),
        ),
        selection=(selection.LeastSpread("step_return", 0.3),),
        regularisers=(regulariser.KL(1e-4),),
        requirements=(Requirement.REPLAYED_TRACES,),
        assumptions=(
            "a step is as right as its text or its effect is the trace's: 1, half for a call of "
            "the same tool, a tenth for a turn that is not void",
        ),
        differences=(
            "patches are the trace's turns; there are no thoughts to patch",
            "groups without spread stay in the denominator",
        ),
        version=3,
    ),
    Recipe(
        "empg",
        "Harnessing Uncertainty: Entropy-Modulated Policy Gradients for Long-Horizon LLM Agents",
        "2509.09265",
        mark="secondary",
        modulation=(StepEntropy(),),
        assumptions=(
            "from the listing on the authors' page, read again; there is no code to run beside it",
        ),
        differences=("means over the batch count turns",),
    ),
    Recipe(
        "archer",
        "ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL",
        "2402.19446",
        terms=(
            Term(
                credit=SegmentValue("utterance_q"),
                baseline=baseline.SignalBaseline("utterance_v"),
                scale=ONE,
                key=(),
            ),
        ),
        gate=gate.LogLikelihood(),
        aggregation=aggregation.SegmentSum(),
        requirements=(Requirement.UTTERANCE_CRITICS,),
        differences=(
            "the critics have 20 steps of 64 turns in a round; the authors' have 50 of 256, and "
            "three of the policy; there are no returns by which a baseline of tokens is fitted",
        ),
        version=2,
    ),
    Recipe(
        "mapo_mixed",
        "MAPO: Mixed Advantage Policy Optimization for Long-Horizon Multi-Turn Dialogue",
        "2603.06194",
        mark="secondary",
        terms=(
            Term(
                StepSignal("process_reward"),
                ReturnToGo(1.0, "turn"),
                scale=Z,
                key=("prompt", "turn"),
                weight=0.5,
            ),
            Term(StepSignal("process_reward"), SegmentReward(), scale=Z, weight=0.5),
        ),
        requirements=(Requirement.TURN_JUDGE,),
        assumptions=(
            "the formula is that of two other people's notes on the paper's third version, named "
            "MICA, which agree; the authors' code was not read",
            "returns are not discounted",
        ),
        differences=(
            "a judge's reward of every turn stands for how much nearer the turn brought the user "
            "to the state aimed at",
        ),
        version=2,
    ),
    Recipe(
        "a2tgpo",
        "A^2TGPO: Agentic Turn-Group Policy Optimization with Adaptive Turn-level Clipping",
        "2605.06200",
        mark="secondary",
        terms=(
            Term(),
            Term(Standardised(GAIN, TURN_KEY), RescaledReturn(), ZERO, ONE, TURN_KEY, 0.3),
        ),
        ratio=ratio.GeometricRatio(segment="turn"),
        gate=InformativeClip(Standardised(GAIN, TURN_KEY)),
        requirements=(Requirement.ANSWER_PROBABILITY,),
        assumptions=(
            "weight, discount and the clip's factor 1 + 0.3 (2 sigmoid(z) - 1), z the turn's "
            "normalised gain, are those that another's article reads in the authors' code",
            "the ranges 0.2 that the factor widens are PPO's",
        ),
        differences=(
            "turns are known as such; the authors' code begins one where the advantage changes",
            "the answer's turn has a gain of its own, too",
        ),
        version=2,
    ),
    Recipe(
        "spae",
        "Step Potential Advantage Estimation: Harnessing Intermediate Confidence and Correctness "
        "for Efficient Mathematical Reasoning",
        "2601.03823",
        mark="secondary",
        terms=(Term(scale=ONE),),
        modulation=(
            modulation.Saturation(),
            modulation.PotentialShaping(),
            modulation.Whiten(eps=1e-8, steps=True),
        ),
        selection=(selection.ZeroVariance(removed=True),),
        gate=gate.Clip(0.2, 0.28),
        requirements=(Requirement.ANSWER_PROBES,),
        assumptions=(
            "the sum of both parts, the potential, the threshold 0.9 and the first gain of 0 are "
            "the authors', who have published no training code; the factor after saturation, the "
            "shaping and both weights of 0.5 are those of another's notes on the paper",
            "gains are scaled, and their mean is taken, over turns, each counted once",
            "the clip's ranges are DAPO's",
        ),
        differences=(
            "accuracy is the share of probed answers that are right, theirs the mean probability "
            "of the right answer's tokens; confidence is the geometric mean of the probabilities "
            "of what was said, theirs e to minus the mean entropy",
            "groups of equal rewards are left out after means and deviations over the batch were "
            "taken",
        ),
        version=2,
    ),
    Recipe(
        "score",
        CORRECT,
        "2409.12917",
        mark="secondary",
        terms=(Term(ProgressBonus(10.0), SegmentReward(), OTHERS, ONE, TURN_KEY),),
        gate=gate.LogLikelihood(),
        aggregation=aggregation.SequenceSum(),
        regularisers=(regulariser.KL(0.01),),
        requirements=(Requirement.ATTEMPTS,),
        assumptions=(
            "the second stage by the paper's text; the authors have given no code, and another's "
            "has the weights 0.5 of the bonus and 0.1 of the penalty",
            "the weights 10 and 0.01 are recalled",
            "attempts are turns; each is held responsible for its own reward and bonus alone, less "
            "the mean of the prompt's other attempts of its number",
            "a log-likelihood is a sum over steps",
        ),
        version=3,
    ),
    Recipe(
        "score_first_stage",
        CORRECT,
        "2409.12917",
        mark="secondary",
        terms=(Term(ProgressBonus(0.0, first=1), ReturnToGo(1.0, "turn"), OTHERS, ONE, TURN_KEY),),
        gate=gate.LogLikelihood(),
        aggregation=aggregation.SequenceSum(),
        regularisers=(regulariser.KL(0.01), SegmentKL(0.1)),
        requirements=(Requirement.ATTEMPTS,),
        assumptions=(
            "the first stage by the paper's text, in which the usual penalty of all steps stays "
            "beside the larger one of the first attempt; the authors have given no code",
            "the weights 0.01 and 0.1 are recalled",
            "attempts are turns; the first one's reward does not count, its steps are worth what "
            "the later ones earn, less the mean of the prompt's others, and the penalty holds them",
            "a log-likelihood is a sum over steps",
        ),
        version=3,
    ),
)
