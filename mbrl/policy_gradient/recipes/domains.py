"""Recipes that schedule domains and stages, or learn several parts at once. Where a paper does not
say otherwise they are GRPO's objective, without its divergence, on other rounds."""

from mbrl.policy_gradient.axes.aggregation import Annealed, SequenceMean
from mbrl.policy_gradient.axes.gate import Clip
from mbrl.policy_gradient.axes.preference import MixedPreference
from mbrl.policy_gradient.axes.ratio import GeometricRatio
from mbrl.policy_gradient.axes.regulariser import KL, Imitation
from mbrl.policy_gradient.axes.reward import Mixture, SequenceSignal
from mbrl.policy_gradient.axes.reward_shaped import Decayed, ShortWhereEasy
from mbrl.policy_gradient.axes.scale import Std
from mbrl.policy_gradient.recipe import Recipe, Term
from mbrl.policy_gradient.requirements import Requirement

OURS = "the objective around it is GRPO's, without a divergence"
CODE = "departs from the authors' code, so that it was not compared with it"
READ = "read in the authors' code, which was not run beside it"

DOMAINS = (
    Recipe(
        "nemotron_cascade",
        "Nemotron-Cascade: Scaling Cascaded Reinforcement Learning for General-Purpose Reasoning "
        "Models",
        mark="secondary",
        requirements=(Requirement.DOMAIN_STAGES,),
        assumptions=(
            "GRPO without a divergence, by the mean over all steps, in one stage after another, is "
            "said in another's notes",
            "the optimiser's state goes on from stage to stage, unless it is to begin anew",
        ),
        differences=(
            "a stage is one part of a joint task, none of preferences before them, and lengths and "
            "filters are alike in all",
            "as many updates a round as `minibatches`; there one, so that no ratio is left",
        ),
    ),
    Recipe(
        "apriel",
        "Apriel-Reasoner: RL Post-Training for General-Purpose and Efficient Reasoning",
        "2604.02007",
        mark="secondary",
        terms=(Term(reward=ShortWhereEasy()),),
        requirements=(Requirement.DOMAIN_RATIOS,),
        assumptions=(
            CODE,
            "a part is drawn with a weight of its deficit: its share of the groups learned from, "
            "less those that it had, and no less than a hundredth of its share",
            "groups without an advantage are not learned from",
            "the penalty is R p (L - Lmin) / (2 (Lmax - Lmin + 1)), of right answers alone",
            OURS,
        ),
        differences=(
            "the code's weight of a part is its share times share / that of what was finished, "
            "from 1/10 to 10, which leaves some of the distance; it counts rollouts that ended, "
            "from the 50th on",
            "the code's penalty is one of the last tokens before the limit, linear from 0 to 1 and "
            "added to the reward: all of it for wrong answers, p to a power of it for right ones",
        ),
    ),
    Recipe(
        "try_again",
        "A Simple 'Try Again' Can Elicit Multi-Turn LLM Reasoning",
        mark="secondary",
        terms=(Term(reward=Mixture(((Decayed(0.5), 1.0), (SequenceSignal("repeated"), -0.5)))),),
        requirements=(Requirement.FURTHER_ATTEMPTS,),
        assumptions=(
            "the environment is read in the authors' code, the weight of repetitions is that of "
            "its README",
            OURS,
        ),
        differences=(
            "groups are compared as in GRPO, where the authors have a critic, too",
            "without their bonus of entropy, their wider clip above 1, and their choice of the "
            "quarter of groups whose rewards vary most",
        ),
    ),
    Recipe(
        "datamind",
        "Scaling Generalist Data-Analytic Agents",
        mark="secondary",
        gate=Clip(0.2, 0.28, dual=10.0),
        aggregation=Annealed(),
        regularisers=(Imitation(1.0),),
        requirements=(Requirement.EXPERT_ANSWERS,),
        assumptions=(READ, "one demonstration for each problem of the round"),
        differences=(
            "the task's demonstrations stand for the expert's trajectories",
            "groups that earned the same stay in the denominator; there is no penalty of long "
            "answers",
        ),
        version=2,
    ),
    Recipe(
        "spark",
        "SPARK: Synergistic Policy And Reward Co-Evolving Framework",
        terms=(Term(scale=Std(1e-9)),),
        regularisers=(KL(0.001),),
        requirements=(Requirement.JUDGED_ANSWERS,),
        differences=("one wording of each question, where the authors draw from many",),
        version=2,
    ),
    Recipe(
        "mpo",
        "InternVL3.5: Advancing Open-Source Multimodal Models in Versatility, Reasoning, and "
        "Efficiency",
        mark="secondary",
        terms=(Term(weight=0.0),),
        regularisers=(MixedPreference(),),
        requirements=(Requirement.PREFERENCE_PAIRS,),
        assumptions=(
            READ,
            "its second stage is the recipe gspo, begun with the run of this one",
            "beta is 0.1, that of the trainer their code extends",
        ),
        differences=(
            "delta moves once a round, by the policy that begins it, not at every update",
            "pairs are of the policy's own answers in every round; there of one policy, once",
        ),
    ),
    Recipe(
        "a2fm",
        "A^2FM: An Adaptive Agent Foundation Model for Tool-Aware Hybrid Reasoning",
        mark="secondary",
        terms=(Term(reward=SequenceSignal("routed")),),
        requirements=(Requirement.MODE_ROUTING,),
        assumptions=(
            "the reward is that of others' notes: a quarter of a group is forced into each mode, "
            "its first character is not learned, and right answers with steps to easy problems "
            "earn 1 - p^2, p the share of forced answers that are right",
            "easy is what half of the group's answers at once solve",
            OURS,
        ),
        version=2,
        differences=("two modes, at once and with steps; no third one with tools",),
    ),
    Recipe(
        "cory",
        "Coevolving with the Other You: Fine-Tuning LLM with Sequential Cooperative Multi-Agent "
        "Reinforcement Learning",
        "2410.06101",
        mark="secondary",
        terms=(Term(reward=SequenceSignal("team")),),
        regularisers=(KL(),),
        requirements=(Requirement.OBSERVER,),
        assumptions=(
            f"{CODE}; the sum of both rewards and the exchange of roles every five rounds are its",
            "the other policy has one update a round",
        ),
        differences=(
            "advantages and the divergence are GRPO's, where the authors have PPO with a critic",
            "the observer sees the end of an answer, without its steps",
        ),
    ),
    Recipe(
        "hill",
        "Learning to Hint for Reinforcement Learning",
        gate=Clip(high=0.28),
        requirements=(Requirement.HINTER,),
        assumptions=("the hinter begins like the policy, and has one update a round",),
        differences=(
            "the answer is looked for in hints by program alone; no model judges whether they "
            "give it away",
        ),
        version=2,
    ),
    Recipe(
        "dynaweb",
        "DynaWeb: Model-Based Reinforcement Learning of Web Agents",
        mark="secondary",
        ratio=GeometricRatio(),
        gate=Clip(3e-4, 4e-4),
        aggregation=SequenceMean(),
        regularisers=(Imitation(1.0),),
        requirements=(Requirement.IMAGINED_CONVERSATIONS,),
        assumptions=(
            "that the objective is GSPO's, and 40 to 50 % of the trajectories are an expert's, is "
            "said in another's notes; here 40 %",
        ),
        differences=(
            "the range is GSPO's; by these notes 0.2, which no mean over a sequence leaves",
            "the expert's trajectories are learned by heart; there they share the objective",
            "a quarter of the problems stay with the task, and the model goes on learning from "
            "them, as large as the policy and from nothing, with eight updates a round; there a "
            "larger one is trained before the policy and stays as it is",
            "conversations end where the task's do; there after five turns",
            "the task's demonstrations stand for the expert's trajectories",
        ),
        version=2,
    ),
    Recipe(
        "syn_grpo",
        "Syn-GRPO: Self-Evolving Data Synthesis for MLLM Perception Reasoning",
        mark="reconstructed",
        requirements=(Requirement.PROPOSED_PROBLEMS,),
        assumptions=(
            "a text that poses a problem earns 4 p (1 - p), p the share of answers that are right",
            "an eighth of the problems is varied, a quarter was posed before",
            "problems and answers are learned by one policy in one round",
            OURS,
        ),
        differences=(
            "the text is the problem, and a program knows its answer; there an image is generated "
            "from it by a server that works beside the training",
        ),
    ),
)
