"""Recipes that others stand on: REINFORCE, PPO, GRPO and what the trainers of the field offer."""

from mbrl.policy_gradient import (
    aggregation,
    baselines,
    gates,
    modulation,
    ratios,
    regularisers,
    rejection,
    scales,
    selection,
)
from mbrl.policy_gradient.credit import GAE, Outcome, ReturnToGo
from mbrl.policy_gradient.recipe import Recipe, Term

CENTRED = Term(scale=scales.One())

BASE = (
    Recipe(
        "reinforce",
        "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning",
        terms=(Term(baseline=baselines.Zero(), scale=scales.One(), credit=ReturnToGo()),),
        gate=gates.LogLikelihood(),
        aggregation=aggregation.SequenceSum(),
    ),
    Recipe(
        "rloo",
        "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback "
        "in LLMs",
        "2402.14740",
        terms=(Term(baseline=baselines.LeaveOneOut(), scale=scales.One()),),
        gate=gates.LogLikelihood(),
        aggregation=aggregation.SequenceSum(),
    ),
    Recipe(
        "remax",
        "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning "
        "Large Language Models",
        "2310.10505",
        terms=(Term(baseline=baselines.Recorded("greedy_return"), scale=scales.One()),),
        gate=gates.LogLikelihood(),
        aggregation=aggregation.SequenceSum(),
        parts=("a greedy answer to every prompt",),
    ),
    Recipe(
        "ppo",
        "Proximal Policy Optimization Algorithms",
        "1707.06347",
        terms=(Term(credit=GAE(), baseline=baselines.Zero(), scale=scales.One(), key=()),),
        modulation=(modulation.Whiten(eps=1e-8, steps=True),),
        parts=("a critic",),
    ),
    Recipe(
        "grpo",
        "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
        "2402.03300",
        aggregation=aggregation.SequenceMean(),
        regularisers=(regularisers.KL(0.04),),
    ),
    Recipe(
        "dr_grpo",
        "Understanding R1-Zero-Like Training: A Critical Perspective",
        "2503.20783",
        terms=(CENTRED,),
        aggregation=aggregation.SequenceSum(length=1024.0),
    ),
    Recipe(
        "reinforce_pp_baseline",
        "REINFORCE++: An Efficient RLHF Algorithm with Robustness to Both Prompt and Reward Models",
        "2501.03262",
        terms=(Term(scale=scales.BatchStd()),),
        regularisers=(regularisers.KL(0.01, "k2"),),
    ),
    Recipe(
        "lite_ppo",
        "Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning",
        "2508.08221",
        terms=(Term(scale=scales.BatchStd()),),
    ),
    Recipe(
        "grpo_passk",
        "Pass@k Training for Adaptively Balancing Exploration and Exploitation of Large Reasoning "
        "Models",
        "2508.10751",
        terms=(Term(baseline=baselines.SecondBest(), scale=scales.One()),),
        differences=("the form for k = the size of the group, undivided by its deviation",),
    ),
    Recipe(
        "opo",
        "On-Policy RL with Optimal Reward Baseline",
        "2505.23585",
        terms=(Term(baseline=baselines.LengthWeighted(), scale=scales.One()),),
        gate=gates.LogLikelihood(),
        aggregation=aggregation.SequenceSum(),
    ),
    Recipe(
        "optimal_token_baseline",
        "The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL",
        terms=(Term(credit=ReturnToGo(), baseline=baselines.TokenOptimal(), scale=scales.One()),),
        gate=gates.LogLikelihood(),
        aggregation=aggregation.SequenceSum(),
        parts=("the sum of squared probabilities of the old policy",),
    ),
    Recipe(
        "dapo",
        "DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
        "2503.14476",
        selection=(selection.ZeroVariance(), selection.Finished()),
        gate=gates.Clip(0.2, 0.28),
    ),
    Recipe(
        "dual_clip_grpo",
        "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning",
        "1912.09729",
        gate=gates.Clip(dual=3.0),
        differences=("the clip of the paper on the advantages of GRPO",),
    ),
    Recipe(
        "two_sided_grpo",
        "INTELLECT-2: A Reasoning Model Trained Through Globally Decentralized Reinforcement "
        "Learning",
        "2505.07291",
        gate=gates.Clip(cap=4.0),
        regularisers=(regularisers.KL(0.001),),
    ),
    Recipe(
        "gspo",
        "Group Sequence Policy Optimization",
        "2507.18071",
        ratio=ratios.Geometric(),
        gate=gates.Clip(3e-4, 4e-4),
        aggregation=aggregation.SequenceMean(),
    ),
    Recipe(
        "gspo_token",
        "Group Sequence Policy Optimization",
        "2507.18071",
        ratio=ratios.Geometric(token=True),
        gate=gates.Clip(3e-4, 4e-4),
        aggregation=aggregation.SequenceMean(),
    ),
    Recipe(
        "gmpo",
        "Geometric-Mean Policy Optimization",
        "2507.20673",
        gate=gates.GeometricClip(),
        aggregation=aggregation.SequenceMean(),
    ),
    Recipe(
        "cispo",
        "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention",
        "2506.13585",
        gate=gates.DetachedClip(high=4.0),
    ),
    Recipe(
        "sapo_soft_gate",
        "Soft Adaptive Policy Optimization",
        "2511.20347",
        gate=gates.SoftGate(),
        aggregation=aggregation.SequenceMean(),
    ),
    Recipe(
        "vespo",
        "VESPO: Variational Sequence-Level Soft Policy Optimization",
        terms=(Term(credit=Outcome()),),
        ratio=ratios.Product(),
        gate=gates.SmoothWeight(),
        mark="secondary",
    ),
    Recipe(
        "luspo",
        "Length-Unbiased Sequence Policy Optimization",
        ratio=ratios.Geometric(),
        gate=gates.Clip(3e-4, 4e-4),
        aggregation=aggregation.SequenceSum(),
        mark="secondary",
    ),
    Recipe(
        "truncated_is_grpo",
        "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
        rejection=(rejection.Truncated(cap=2.0),),
        parts=("log-probs of the engine that sampled",),
    ),
    Recipe(
        "masked_is_grpo",
        "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch",
        rejection=(rejection.Masked("sequence", high=3.0),),
        parts=("log-probs of the engine that sampled",),
    ),
    Recipe(
        "geometric_rejection_grpo",
        "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch",
        rejection=(rejection.Band("geometric"),),
        parts=("log-probs of the engine that sampled",),
    ),
    Recipe(
        "off_policy_mask_grpo",
        "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models",
        "2512.02556",
        rejection=(rejection.OffPolicySequenceMask(),),
        aggregation=aggregation.SequenceMean(),
        regularisers=(regularisers.KL(0.001, "k3", weighted=True),),
    ),
    Recipe(
        "top_entropy_grpo",
        "Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement "
        "Learning for LLM Reasoning",
        "2506.01939",
        selection=(selection.TopEntropy(0.2),),
        gate=gates.Clip(0.2, 0.28),
    ),
)
