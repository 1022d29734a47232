"""The table of schedulers, each with its paper."""

from typing import Any

from mbrl.errors import ConfigError, unknown_name
from mbrl.policy_gradient.schedulers.curricula import DART, DRIVE, DARTConfig, DRIVEConfig
from mbrl.policy_gradient.schedulers.difficulty_targeted import (
    DifficultyTargeted,
    DifficultyTargetedConfig,
)
from mbrl.policy_gradient.schedulers.entry import Entry
from mbrl.policy_gradient.schedulers.extra_rollouts import (
    DARS,
    XRPO,
    DARSConfig,
    ReinforceAda,
    ReinforceAdaConfig,
    XRPOConfig,
)
from mbrl.policy_gradient.schedulers.posteriors import (
    VADE,
    VADEConfig,
    WeightedPairs,
    WeightedPairsConfig,
)
from mbrl.policy_gradient.schedulers.pruning import GRPORoC, GRPORoCConfig
from mbrl.policy_gradient.schedulers.risk import MPTS, MPTSConfig
from mbrl.policy_gradient.schedulers.robust import (
    PromptGDRO,
    PromptGDROConfig,
    RolloutGDRO,
    RolloutGDROConfig,
)
from mbrl.policy_gradient.schedulers.scaler import SCALER, SCALERConfig
from mbrl.policy_gradient.schedulers.scheduler import Pool, Scheduler
from mbrl.policy_gradient.schedulers.uniform import BroRL, BroRLConfig, Uniform, UniformConfig
from mbrl.policy_gradient.schedulers.values import V0, V05, V0Config, V05Config

GDRO = "Group Distributionally Robust Optimization-Driven Reinforcement Learning for LLM Reasoning"
SHARE = "the first pass takes half of the budget; the paper has no budget of a round"

SCHEDULERS: dict[str, Entry] = {
    "uniform": Entry(Uniform, UniformConfig(), "(what trainers do without a scheduler)"),
    "brorl": Entry(
        BroRL,
        BroRLConfig(),
        "BroRL: Scaling Reinforcement Learning via Broadened Exploration",
        "2510.01180",
        "reconstructed",
        assumptions=(
            "groups grow by a factor while prompts become as many fewer",
            "the learning rate grows with the root of the factor",
            "the mass balance is derived from a step on the answers that were sampled, each once",
        ),
    ),
    "vade": Entry(
        VADE,
        VADEConfig(),
        "VADE: Variance-Aware Dynamic Sampling via Online Sample-Level Difficulty Estimation for "
        "Multimodal RL",
        "2511.18902",
        "secondary",
        assumptions=(
            "that p (1 - p)^2 of one draw from each posterior is the information is said in "
            "another's notes; the authors' code could not be had",
            "counts of answered prompts are halved before the new ones are added",
            "counts of the others go 2 % of the way back to the prior Beta(1, 1)",
        ),
        version=2,
    ),
    "dars": Entry(
        DARS,
        DARSConfig(),
        "Depth-Breadth Synergy in RLVR: Unlocking LLM Reasoning Gains with Adaptive Exploration",
        "2508.13755",
        differences=(SHARE, "what the budget cannot pay is cut in proportion"),
    ),
    "reinforce_ada_scheduler": Entry(
        ReinforceAda,
        ReinforceAdaConfig(),
        "Reinforce-Ada: An Adaptive Sampling Framework for Reinforce-Style LLM Training",
        "2510.04996",
        differences=(SHARE, "when the budget ends, what is left is dealt out evenly"),
    ),
    "gdro_prompt": Entry(
        PromptGDRO,
        PromptGDROConfig(),
        GDRO,
        "2601.19280",
        "secondary",
        assumptions=(
            "the paper's weights are e^(rate times a bin's smoothed mean loss, held to a range), "
            "mixed with even ones; its constants were not found",
            "log-weights add up what a bin lost, and shrink by 5 % a round; a tenth of prompts is "
            "drawn evenly over bins",
        ),
        differences=(
            "prompts are drawn by the weights; in the paper all are, and advantages are multiplied "
            "by the weight of their bin, up to a cap",
            "a bin's loss is 1 - success; in the paper it is that of the policy, penalty included",
            "bins are of the running success rate; in the paper ten, of a window of pass@8, which "
            "a prompt leaves when it is past a border by a margin",
        ),
    ),
    "gdro_rollout": Entry(
        RolloutGDRO,
        RolloutGDROConfig(),
        GDRO,
        "2601.19280",
        "secondary",
        assumptions=(
            "rollouts go with the root of a bin's variance, which the paper shows to be best and "
            "takes for its reason",
            "rollouts are rounded to whole numbers by largest remainder, from 2 to 64",
        ),
        differences=(
            "the price is solved for in every round; in the paper a bandit for every bin learns "
            "numbers of rollouts from the policy's loss plus a price for each, which dual steps "
            "follow, and those of the highest joint probability at the budget are taken",
            "bins are of the running success rate; in the paper of a window of pass@8",
        ),
    ),
    "xrpo_scheduler": Entry(
        XRPO,
        XRPOConfig(),
        "XRPO: Pushing the limits of GRPO with Targeted Exploration and Exploitation",
        "2510.06672",
        mark="secondary",
        assumptions=(
            "4 rollouts in the first pass, then 16 between two looks",
            "intervals of 95 %, weight 0.1 of the bonus, T all rollouts of the round",
            "the formulas are those of others' notes and code; the authors' could not be had",
        ),
        differences=(
            SHARE,
            "worked examples for prompts that are unsolved are those of the recipe xrpo_seeded, "
            "without this scheduler",
        ),
    ),
    "v0": Entry(
        V0,
        V0Config(),
        "V_0: A Generalist Value Model for Any Policy at State Zero",
        "2602.03584",
        "secondary",
        assumptions=(
            "the utility of rollouts, with its derivation, the greedy rule, from 2 to 128 of a "
            "prompt, and a context of 256 are those of another's notes; the authors' code has the "
            "value model alone",
            "prompts are drawn evenly, and those that were answered last are the context",
        ),
        differences=(
            "a kernel regression on the mean features of a prompt's tokens stands for the authors' "
            "TabPFN head on language embeddings",
            "the value model is that of `language fit-value`, pretrained on snapshots of warm "
            "starts of one task; in control its embedding of a task's parameters is random",
        ),
        version=2,
    ),
    "v_half_scheduler": Entry(
        V05,
        V05Config(),
        "V_{0.5}: Generalist Value Model as a Prior for Sparse RL Rollouts",
        "2603.10848",
        "secondary",
        assumptions=(
            "the rule is that of others' notes: from 4 to 16 rollouts, one more while it lowers "
            "the squared error by more than 0.0039 for rewards of -1 and 1",
            SHARE,
        ),
        differences=(
            "the prior is that of V_0's value model where `value` names a file, else each prompt's "
            "own discounted success rate; the recipe v_half takes its baseline from it",
        ),
        version=2,
    ),
    "difficulty_targeted": Entry(
        DifficultyTargeted,
        DifficultyTargetedConfig(),
        "Improving Data Efficiency for LLM Reinforcement Fine-tuning Through Difficulty-targeted "
        "Online Data Selection and Rollout Replay",
        "2506.05316",
        differences=(
            "attention is over the pool's own features; the authors train a projection of "
            "embeddings and a calibration beforehand",
            "references are left out of the draw, and count towards the budget",
        ),
    ),
    "drive": Entry(
        DRIVE,
        DRIVEConfig(),
        "DRIVE: Data Curation Best Practices for Reinforcement Learning with Verifiable Reward in "
        "Competitive Code Generation",
        "2511.06307",
        assumptions=(
            "the hardest are those of the lowest running success rate when a stage begins",
        ),
        differences=(
            "both stages draw from one pool; in the paper the second has 175 problems of its own, "
            "of which 72, 50 and 25 stay, and longer answers",
            "the last phase lasts",
        ),
        version=2,
    ),
    "scaler": Entry(
        SCALER,
        SCALERConfig(),
        "SCALER: Synthetic Scalable Adaptive Learning Environment for Reasoning",
        "2601.04809",
        differences=(
            "an environment is replaced by one that is not in the active set",
            "an environment is a text task, its levels the difficulties: those of a joint task, "
            "such as addition+sorting, where authors have 2,739",
        ),
    ),
    "mpts": Entry(
        MPTS,
        MPTSConfig(),
        "Model Predictive Task Sampling for Efficient and Robust Adaptation",
        "2501.11039",
        differences=(
            "20 steps of the optimiser in a round instead of one",
            "features are scaled to mean 0 and deviation 1",
        ),
    ),
    "weighted_pairs": Entry(
        WeightedPairs,
        WeightedPairsConfig(),
        "Beyond Variance: Prompt-Efficient RLVR via Rare-Event Amplification and Bidirectional "
        "Pairing",
        "2602.03452",
        "secondary",
        assumptions=(
            "the bands are of another's notes: of G answers from 1 to c are right, or wrong; c was "
            "not found, and they are (0.01, 0.4) and (0.6, 0.99)",
            "prompts are drawn evenly within a band, else those nearest to it",
        ),
        differences=(
            "pairs are chosen in every round by running success rates; there one, before training",
        ),
    ),
    "grpo_roc_scheduler": Entry(
        GRPORoC,
        GRPORoCConfig(),
        "rStar2-Agent: Agentic Reasoning Technical Report",
        "2508.20722",
        differences=("those of the recipe of the same name",),
    ),
    "dart_scheduler": Entry(
        DART,
        DARTConfig(),
        "Efficient Multi-turn RL for GUI Agents via Decoupled Training and Adaptive Data Curation",
        "2509.23866",
        "reconstructed",
        assumptions=(
            "rollouts fall linearly from a group at a success rate of 0.6 to 2 at 1",
            "episodes may last 1.5 times the turns of the task's longest success",
            "the latest success of a task stands in for one rollout of a round that failed",
        ),
        differences=("in control lengths of episodes and failed ones stay as they are",),
    ),
}


def scheduler(name: str, pool: Pool, *, budget: int, group: int, config: Any = None) -> Scheduler:
    """The scheduler of that name, with `config` or its default. Raises `ConfigError` with the
    nearest names if there is none."""
    if name not in SCHEDULERS:
        raise unknown_name("scheduler", name, SCHEDULERS)
    entry = SCHEDULERS[name]
    if config is not None and not isinstance(config, type(entry.config)):
        raise ConfigError(
            f"the scheduler {name} has a {type(entry.config).__name__}, not a "
            f"{type(config).__name__}; pass one, or None for the default"
        )
    made: Scheduler = entry.make(pool, budget, group, config or entry.config)
    return made
