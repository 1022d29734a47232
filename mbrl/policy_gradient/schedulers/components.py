"""The table of what schedules without being a scheduler of rounds, each with its paper."""

from mbrl.policy_gradient.schedulers.curricula import Horizon
from mbrl.policy_gradient.schedulers.entry import Entry
from mbrl.policy_gradient.schedulers.partial_episodes import ExIt, pivots
from mbrl.policy_gradient.schedulers.pruning import ARRoL, ARRoLConfig
from mbrl.policy_gradient.schedulers.self_consistency import (
    OnlineSelfConsistencyAllocation,
    OnlineSelfConsistencyConfig,
    SelfConsistencyAllocation,
    SelfConsistencyConfig,
)
from mbrl.policy_gradient.schedulers.uniform import templates

PETS_TITLE = (
    "PETS: A Principled Framework Towards Optimal Trajectory Allocation for Efficient Test-Time "
    "Self-Consistency"
)

COMPONENTS: dict[str, Entry] = {
    "scaling_inter": Entry(
        Horizon,
        None,
        "AgentGym-RL: Training LLM Agents for Long-Horizon Decision Making through Multi-Turn "
        "Reinforcement Learning",
        "2509.08755",
    ),
    "exit": Entry(
        ExIt,
        None,
        "Bootstrapping Task Spaces for Self-Improvement",
        "2509.04575",
        "secondary",
        assumptions=(
            "starts are drawn in proportion to the variance of their group's returns; that those "
            "of higher variance are preferred is said in others' notes",
            "a full buffer drops the start of lowest variance, the oldest of equal ones",
            "one turn more is worth its own reward, not what it is better than the best so far",
        ),
        differences=(
            "without prompts for another answer and the factor for novelty; in training on text "
            "tasks one turn alone is `--starts-steps 1`",
        ),
    ),
    "pivot_rl": Entry(
        pivots,
        None,
        "PivotRL: High Accuracy Agentic Post-Training at Low Compute Cost",
        mark="secondary",
        assumptions=(
            "that turns whose rewards differ are kept is said in others' notes",
            "hard turns are those of smallest mean reward",
        ),
    ),
    "arrol": Entry(
        ARRoL,
        ARRoLConfig(),
        "Prune as You Generate: Online Rollout Pruning for Faster and Better RLVR",
        mark="secondary",
        assumptions=(
            "that scores are calibrated by posteriors in bins and half of the survivors are to be "
            "right is said in others' notes, as the authors have given no code; ten bins, Beta "
            "posteriors, and the subset whose mean prediction is nearest to one half are ours",
        ),
        differences=(
            "a logistic regression on features of the prefix stands for the quality head, there a "
            "small network",
        ),
    ),
    "pets_allocation": Entry(
        SelfConsistencyAllocation,
        SelfConsistencyConfig(),
        PETS_TITLE,
        differences=(
            "the probability that an answer's share is the largest is an integral; there it is the "
            "mean of 500 draws",
            "the answers that can be are those in the pool of samples",
        ),
    ),
    "pets_allocation_online": Entry(
        OnlineSelfConsistencyAllocation,
        OnlineSelfConsistencyConfig(),
        PETS_TITLE,
        mark="secondary",
        assumptions=("a kind's curve weighs a question by how often it is of that kind",),
        differences=(
            "curves are counted over draws of the answers without replacement; there over draws by "
            "their shares, where equal majorities count in part",
        ),
        version=2,
    ),
    "prompt_augmentation": Entry(
        templates,
        None,
        "Prompt Augmentation Scales up GRPO Training on Mathematical Reasoning",
    ),
}
