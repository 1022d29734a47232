"""Recipes for what a policy cannot sample by itself: prefixes of right answers, corrected steps,
hints, teachers. Where a paper does not say otherwise they are GRPO's objective on other rounds."""

from mbrl.policy_gradient.axes.aggregation import SequenceMean, SequenceSum
from mbrl.policy_gradient.axes.baseline import LeaveOneOut, Zero
from mbrl.policy_gradient.axes.gate import Clip, DetachedClip
from mbrl.policy_gradient.axes.gate_origin import ConsistentHint, ShapedTeacher, UnweightedApart
from mbrl.policy_gradient.axes.modulation import Assigned, HintWeight, TeacherAdvantage
from mbrl.policy_gradient.axes.regulariser import KL, Divergence, Imitation
from mbrl.policy_gradient.axes.rejection import TruncatedRatio
from mbrl.policy_gradient.axes.reward import Affine
from mbrl.policy_gradient.axes.scale import One
from mbrl.policy_gradient.recipe import Recipe, Term
from mbrl.policy_gradient.requirements import Requirement

MEAN = SequenceMean()
PROGRAM = "the task's program stands for the model that finds and corrects the step"
OURS = "the objective around it is GRPO's, as is its penalty"
TCOD = (
    "TCOD: Exploring Temporal Curriculum in On-Policy Distillation for Multi-turn Autonomous Agents"
)
TCOD_ASSUMED = (
    "departs from the authors' code, so that it was not compared with it; the depth grows by one "
    "turn every five rounds, as there"
)
TCOD_DIFFERENT = (
    "the divergence is the reverse one of whole distributions; there log pi_teacher - log pi_old "
    "of the tokens said is the advantage under PPO's clip, which is its gradient in the mean",
)
INTERNALISED = "Multimodal Policy Internalization for Conversational Agents"
FEEDBACK = "Expanding the Capabilities of Reinforcement Learning via Text Feedback"
FEEDBACK_ASSUMED = (
    "departs from the authors' code, so that it was not compared with it; as there a second "
    "attempt is worth a tenth of what it earned less the mean of the first ones, without its "
    "tokens of log-prob below -5 after the bare prompt",
    OURS,
)
FEEDBACK_DIFFERENT = (
    "feedback is the next right step, of the task's program, and the second attempt does not see "
    "the first; right first attempts have none",
)

HINTS = (
    Recipe(
        "prefix_rl",
        "Reuse your FLOPs: Scaling RL on Hard Problems by Conditioning on Very Off-Policy Prefixes",
        mark="secondary",
        aggregation=MEAN,
        regularisers=(KL(),),
        requirements=(Requirement.SOLVED_PREFIXES,),
        assumptions=(
            "one right trace of each hard problem, prefixes of 0.4 to 0.8 of it, three problems "
            "with one for each without, and no gradient there are those of another's notes",
            OURS,
        ),
        differences=(
            "hard problems are those of which the first policy solves half or less; there those "
            "that it solves in none of 512 attempts, which also are the problems without a prefix",
            "how much of a trace is drawn for every group; there three times for a trace, once",
        ),
        version=2,
    ),
    Recipe(
        "scope",
        "Recycling Failures: Salvaging Exploration in RLVR via Fine-Grained Off-Policy Guidance",
        mark="reconstructed",
        gate=ShapedTeacher(),
        aggregation=MEAN,
        regularisers=(KL(),),
        requirements=(Requirement.CORRECTED_STEPS,),
        assumptions=(
            "the end after the corrected step is the policy's",
            "corrected answers replace at most a quarter of a group, where less than half is right",
            "the teacher's steps count by pi / (pi + 0.1), those of LUFFY",
            OURS,
        ),
        differences=(PROGRAM,),
    ),
    Recipe(
        "adhint",
        "ADHint: Adaptive Hints with Difficulty Priors for Reinforcement Learning",
        mark="reconstructed",
        modulation=(HintWeight(),),
        gate=ConsistentHint(),
        aggregation=MEAN,
        regularisers=(KL(),),
        requirements=(Requirement.HINTED_PREFIXES,),
        assumptions=(
            "another's notes on the paper tell what weighs by what, not how: a hint grows linearly "
            "with the share of wrong answers, here to 0.8 of a demonstration and without noise",
            "answers without and with a hint are compared apart; right ones without and wrong ones "
            "with a hint weigh 1 + d, the others 1 - d, d how much more often those with a hint "
            "are right",
            "a hint's steps weigh e^-|entropy - mean entropy of own steps|, and nothing where A < "
            "0",
            OURS,
        ),
        version=2,
    ),
    Recipe(
        "int_rl",
        "InT: Self-Proposed Interventions Enable Credit Assignment in LLM Reasoning",
        mark="secondary",
        terms=(Term(baseline=LeaveOneOut(), scale=One()),),
        gate=DetachedClip(high=0.02),
        aggregation=SequenceSum(),
        regularisers=(Imitation(1.0),),
        requirements=(Requirement.INTERVENTIONS,),
        assumptions=(
            "read in the authors' code and in that of the trainer it calls; not run beside it",
            "eight rounds of interventions come before those of rewards",
        ),
        differences=(
            f"{PROGRAM}; there the model itself does, with the reference solution",
            "four ends judge an intervention, not 32, at the temperature of training",
            "a turn that the correction completes ends, as the conversation goes on",
            "likelihoods of corrections are summed over their tokens; there the mean of all tokens",
            "an answer that is alone with its prompt counts its reward; there nothing",
        ),
        version=2,
    ),
    Recipe(
        "fission_grpo",
        "Robust Tool Use via Fission-GRPO: Learning to Recover from Execution Errors",
        "2601.15625",
        mark="secondary",
        aggregation=MEAN,
        regularisers=(KL(),),
        requirements=(Requirement.ERROR_CONTEXTS,),
        assumptions=(
            "that recoveries are compared among themselves, the newest errors first, is said in "
            "others' notes",
            "half as many contexts as a round has problems are gone on from at once, the newest "
            "first, of at most four times as many that wait",
            OURS,
        ),
        differences=(
            "the task's program makes the diagnoses",
            "recovered groups are in the updates of the round, not in further ones",
        ),
    ),
    Recipe(
        "cleaner",
        "CLEANER: Self-Purified Trajectories Boost Agentic Reinforcement Learning",
        mark="secondary",
        gate=Clip(0.2, 0.28, dual=10.0),
        requirements=(Requirement.PURIFIED_TURNS,),
        assumptions=(
            "departs from the authors' code, so that it was not compared with it; the objective "
            "is that of its script, and old log-probs are measured on the purified text, as there",
        ),
        differences=(
            "a turn is a call alone, so that there is one granularity of repairs",
            "no penalty for long answers",
        ),
        version=2,
    ),
    Recipe(
        "policy_rollout",
        INTERNALISED,
        mark="secondary",
        aggregation=MEAN,
        regularisers=(KL(),),
        requirements=(Requirement.SHOWN_DOCUMENTS,),
        assumptions=(
            "the objective is that of others' notes: half of a group sees the document, advantages "
            "are of the whole group, and both policies of every ratio see none",
            "GRPO's penalty and clip",
        ),
        differences=("the document is the task's hint", "without the stages before it"),
    ),
    Recipe(
        "policy_rollout_weighted",
        INTERNALISED,
        mark="reconstructed",
        rejection=(TruncatedRatio("sequence", cap=2.0),),
        aggregation=MEAN,
        regularisers=(KL(),),
        requirements=(Requirement.SHOWN_DOCUMENTS, Requirement.ENGINE_LOG_PROBS),
        assumptions=(
            "as policy_rollout, but answers weigh what they are likely without the document over "
            "what they were with it, at most 2",
        ),
    ),
    Recipe(
        "agent_rlvr",
        "Agent-RLVR: Training Software Engineering Agents via Guidance and Environment Rewards",
        mark="reconstructed",
        aggregation=MEAN,
        regularisers=(KL(),),
        requirements=(Requirement.GUIDED_ATTEMPTS,),
        assumptions=(
            "guidance comes where the whole group failed, and its answers are a group that counts "
            "as if it had been sampled without",
            OURS,
        ),
        differences=(
            "rewards and ratios in place of preferences between right and wrong attempts",
            "guidance is the task's hint, the same after every failure",
        ),
    ),
    Recipe(
        "cog_rethinker",
        "Cog-Rethinker: Hierarchical Metacognitive Reinforcement Learning for LLM Reasoning",
        mark="secondary",
        gate=Clip(high=0.28),
        regularisers=(Imitation(0.5),),
        requirements=(Requirement.RESCUED_PROMPTS,),
        assumptions=(
            "DAPO's loss plus a weight times that of supervised learning is what the paper's "
            "reviews say; the weight is half",
            "groups of equal rewards stay in the mean, without an advantage",
        ),
        differences=(
            "the part to begin with, after the prompt, stands for decomposition after examples "
            "of it; a wrong answer there for reflection after examples of that",
        ),
        version=2,
    ),
    Recipe(
        "rltf_sd",
        FEEDBACK,
        mark="secondary",
        modulation=(Assigned(0.1),),
        gate=UnweightedApart(),
        aggregation=MEAN,
        regularisers=(KL(),),
        requirements=(Requirement.TEXT_FEEDBACK,),
        assumptions=FEEDBACK_ASSUMED,
        differences=FEEDBACK_DIFFERENT,
        version=2,
    ),
    Recipe(
        "rltf_fm",
        FEEDBACK,
        mark="secondary",
        modulation=(Assigned(0.1),),
        gate=UnweightedApart(),
        aggregation=MEAN,
        regularisers=(KL(), Imitation(0.1)),
        requirements=(Requirement.FEEDBACK_TOKENS,),
        assumptions=(
            *FEEDBACK_ASSUMED,
            "predicting the feedback weighs 0.1, as there",
        ),
        differences=(
            *FEEDBACK_DIFFERENT,
            "it is added to rltf_sd; there either of both is added to learning from both attempts",
        ),
        version=2,
    ),
    Recipe(
        "tt_opd",
        "Healthcare AI GYM for Medical Agents",
        mark="secondary",
        aggregation=MEAN,
        regularisers=(KL(), Divergence(4.0, where="near")),
        requirements=(Requirement.INFORMED_TEACHER,),
        assumptions=(
            "weight 4 and a teacher that keeps 0.995 of its weights in five updates are those of "
            "the authors' page",
            "the divergence is that of the first half of the tokens that a turn may have",
            OURS,
        ),
        differences=(
            "the teacher is told the task's hint; there that the answer is right, or what to look "
            "at again, and every 30 updates it is the policy itself",
            "the divergence is averaged over all steps of an answer",
            "rewards do not depend on lengths",
        ),
        version=2,
    ),
    Recipe(
        "openclaw_rl",
        "OpenClaw-RL: Train Any Agent Simply by Talking",
        "2603.10165",
        terms=(Term(Affine(), baseline=Zero(), scale=One()),),
        modulation=(TeacherAdvantage(),),
        gate=Clip(0.2, 0.28),
        aggregation=MEAN,
        requirements=(Requirement.HINDSIGHT_TEACHER,),
        differences=(
            "the task's verdict and hint stand for those of a judge",
            "a conversation is one sample; there each of its turns is",
            "differences of log-probs are held in [-5, 5]",
        ),
        version=2,
    ),
    Recipe(
        "on_policy_distillation",
        "On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes",
        "2306.13649",
        mark="secondary",
        terms=(Term(weight=0.0),),
        aggregation=MEAN,
        regularisers=(Divergence(),),
        requirements=(Requirement.EXPERT_DISTRIBUTION,),
        assumptions=(
            "the mean over an answer's tokens is the paper's; the authors' code was not found, and "
            "another's takes the mean over all tokens",
        ),
        differences=("its own answers alone, the reverse divergence",),
    ),
    Recipe(
        "tcod",
        TCOD,
        mark="secondary",
        terms=(Term(weight=0.0),),
        aggregation=MEAN,
        regularisers=(Divergence(),),
        requirements=(Requirement.EXPERT_DISTRIBUTION, Requirement.GROWING_DEPTH),
        assumptions=(TCOD_ASSUMED, "conversations break off at the depth"),
        differences=TCOD_DIFFERENT,
    ),
    Recipe(
        "tcod_backward",
        TCOD,
        mark="secondary",
        terms=(Term(weight=0.0),),
        aggregation=MEAN,
        regularisers=(Divergence(),),
        requirements=(Requirement.EXPERT_DISTRIBUTION, Requirement.TEACHER_FIRST),
        assumptions=(TCOD_ASSUMED, "the expert begins, and leaves so many of its turns"),
        differences=TCOD_DIFFERENT,
    ),
    Recipe(
        "latr",
        "Lookahead Tree-Based Rollouts for Enhanced Trajectory-Level Exploration in Reinforcement "
        "Learning with Verifiable Rewards",
        regularisers=(KL(0.01),),
        requirements=(Requirement.LOOKAHEAD_TREES,),
        differences=(
            "branches are compared after 4 and 8 tokens, not 20, 30 and 50: answers are short",
            "what a tree does not fill is sampled as ever",
            "trees end together, when those of all prompts have 98 % of their places",
        ),
        version=2,
    ),
)
