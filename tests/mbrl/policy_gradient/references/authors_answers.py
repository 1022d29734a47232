"""Authors' functions of whole answers: baselines, weights, ratios, penalties.

Where a paper's epsilon is not the recipe's, the recipe's is passed: it is no part of the formula.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from torch import Tensor

from tests.mbrl.policy_gradient.references.batches import given as given_advantages
from tests.mbrl.policy_gradient.references.extract import Case, Sources

EPS = 1e-4  # of `scales.Std`
Batch = dict[str, Any]


def cases(s: Sources) -> Iterator[Case]:
    yield bnpo(s)
    yield from negative(s)
    yield ngrpo(s)
    yield from gdpo(s)
    yield riskpo(s)
    yield drpo(s)
    yield adora(s)
    yield calibrl(s)
    yield areal(s)
    yield mini_o3(s)
    yield grpo_roc(s)
    yield epo(s)
    yield from rejection(s)
    yield vtrace(s)
    yield stable_reinforce(s)
    yield a2c(s)


def at_end(value: Tensor, mask: Tensor) -> Tensor:
    """[B, T]: a number per answer [B] at its last step."""
    last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    found = torch.zeros_like(mask)
    found[torch.arange(len(mask)), last] = value
    return found


def bnpo(s: Sources) -> Case:
    path = "changyi7231/BNPO/recipe/bnpo/src/bnpo_ray_trainer.py"
    f = s.functions(path, "compute_bnpo_outcome_advantage")

    def loss(b: Batch) -> Tensor:
        given = f.compute_bnpo_outcome_advantage(b["reward"], b["mask"], b["prompt"])
        return s.clipped(b, given[0])

    return Case("bnpo", "changyi7231/BNPO@a9c51b9", loss)


def negative(s: Sources) -> Iterator[Case]:
    path = "TianHongZXY/RLVR-Decomposed/verl/trainer/ppo/core_algos.py"
    names = ("compute_psr_nsr_outcome_advantage", "compute_policy_loss")
    f = s.functions(path, *names)
    for recipe, kind in (("psr", "positive"), ("nsr", "negative"), ("w_reinforce", "weighted")):

        def loss(b: Batch, kind: str = kind) -> Tensor:
            reward, mask = b["reward"], b["mask"]
            given = f.compute_psr_nsr_outcome_advantage(reward, reward, mask, 1.0, kind, 0.1)
            parts = (b["old"], b["log_prob"], given[0], mask, 0.2, reward)
            found: Tensor = f.compute_policy_loss(*parts)[0]
            return found

        yield Case(recipe, "TianHongZXY/RLVR-Decomposed@a5d4e7c", loss, "even")


def ngrpo(s: Sources) -> Case:
    path = "nangongrui-ngr/NGRPO/verl/trainer/ppo/core_algos.py"
    f = s.functions(path, "compute_ngrpo_outcome_advantage", "compute_policy_loss")

    def loss(b: Batch) -> Tensor:
        given = f.compute_ngrpo_outcome_advantage(b["reward"], b["mask"], b["prompt"])
        parts = (b["old"], b["log_prob"], given[0], b["mask"], 0.2, b["reward"], None, 0.16, 0.24)
        found: Tensor = f.compute_policy_loss(*parts)[0]
        return found

    return Case("ngrpo", "nangongrui-ngr/NGRPO@e7a3804", loss)


def gdpo(s: Sources) -> Iterator[Case]:
    path = "NVlabs/GDPO/verl-GDPO/verl/trainer/ppo/core_algos.py"
    f = s.functions(path, "compute_grpo_outcome_advantage", "compute_policy_loss")
    for recipe in ("gdpo", "gdpo_conditioned"):

        def loss(b: Batch, conditioned: bool = recipe == "gdpo_conditioned") -> Tensor:
            passed = (b["reward"].sum(1) > 0).double() if conditioned else 1.0
            length = at_end(b["length_reward"][:, 0] * passed, b["mask"])
            z = [
                f.compute_grpo_outcome_advantage(value, b["mask"], b["prompt"], EPS)[0]
                for value in (b["reward"], length)
            ]
            whole = s.verl.verl_F.masked_whiten(z[0] + z[1], b["mask"]) * b["mask"]
            parts = (b["old"], b["log_prob"], whole, b["mask"], 0.2)
            found: Tensor = f.compute_policy_loss(*parts)[0]
            return found

        yield Case(recipe, "NVlabs/GDPO@b080e63", loss)


def riskpo(s: Sources) -> Case:
    name = "compute_grpo_bundle_rvar_outcome_advantage_quantile_tracking"
    f = s.functions("RTkenny/RiskPO/verl/trainer/ppo/core_algos.py", name)
    config = {
        "norm_adv_by_std_in_grpo": True,
        "quantile_down": 0.2,
        "quantile_up": 0.8,
        "credit_assign_mode": "sum-mean",
        "use_q_track_mode": "track",
        "use_mixing_risk_measure": True,
        "w_mix": 1.5,
        "natural_baseline_adv": False,
    }

    def loss(b: Batch) -> Tensor:
        bundle = b["t"].groups["bundle"][:, 0].numpy()
        low, high = float(b["quantile_low"][0, 0]), float(b["quantile_high"][0, 0])
        tracked = {"q_track_down": low, "q_track_up": high, "config": config}
        given = getattr(f, name)(b["reward"], b["mask"], b["prompt"], bundle, **tracked)
        return s.clipped(b, given[0])

    return Case("riskpo", "RTkenny/RiskPO@65ec40c", loss, "even")


def drpo(s: Sources) -> Case:
    path = "Optimization-AI/DRPO/verl/verl/trainer/ppo/core_algos.py"
    f = s.functions(path, "compute_policy_loss_drpo")

    def loss(b: Batch) -> Tensor:
        uid, right = torch.as_tensor(b["prompt"].tolist()), b["reward"].sum(1)
        parts = (b["old"], b["log_prob"], b["mask"], uid, right)
        found: Tensor = f.compute_policy_loss_drpo(*parts, 1e-4, 1e3, 10.0, 0.1)[0]
        return found

    return Case("drpo_decoupled", "Optimization-AI/DRPO@405f702", loss, "even", valued=False)


def adora(s: Sources) -> Case:
    path = "ShadeCloak/ADORA/ADORA/verl/trainer/ppo/core_algos.py"
    f = s.functions(path, "compute_grpo_outcome_advantage_ADORA", "compute_policy_loss")

    def loss(b: Batch) -> Tensor:
        parts = (b["reward"], b["mask"], b["prompt"], EPS, 0.5, 0.1, 10**6)
        given = f.compute_grpo_outcome_advantage_ADORA(*parts)[0]
        found: Tensor = f.compute_policy_loss(b["old"], b["log_prob"], given, b["mask"], 0.2)[0]
        return found

    return Case("adora", "ShadeCloak/ADORA@c518485", loss)


def calibrl(s: Sources) -> Case:
    f = s.functions("zhh6425/CalibRL/src/core_algos.py", "compute_mix_policy_loss", "agg_loss")

    def loss(b: Batch) -> Tensor:
        given = s.verl.compute_grpo_outcome_advantage(b["reward"], b["mask"], b["prompt"], EPS)[0]
        passed = b["reward"].sum(1, keepdim=True) > 0.1
        none = torch.zeros_like(b["mask"], dtype=torch.bool)
        parts = (b["old"], b["log_prob"], b["expert"], given, b["mask"], none, passed)
        more = {"clip_ratio_c": 1e9, "mix_policy_loss": "expert-guided"}
        found = f.compute_mix_policy_loss(*parts, cliprange=0.2, **more)
        whole: Tensor = found["pg_loss"] + found["guided_loss"]
        return whole

    return Case("calibrl", "zhh6425/CalibRL@0efd799", loss)


def areal(s: Sources) -> Case:
    names = ("ppo_actor_loss_fn", "apply_rejection_sampling", "_check_bounds")
    path = "inclusionAI/AReaL/areal/utils/functional/functional.py"
    f = s.functions(path, *names, RejectionSamplingResult=SimpleNamespace)
    config = SimpleNamespace(
        metric="ratio", level="token", action="mask", agg="mean", upper=5.0, lower=None
    )

    def loss(b: Batch) -> Tensor:
        given = s.verl.compute_grpo_outcome_advantage(b["reward"], b["mask"], b["prompt"], EPS)[0]
        parts = (b["log_prob"], b["proximal"], b["behaviour"], given, 0.2, b["mask"].bool())
        found: Tensor = f.ppo_actor_loss_fn(*parts, rejection_sampling=config)[0]
        return found

    return Case("areal", "inclusionAI/AReaL@4aef98d", loss)


def mini_o3(s: Sources) -> Case:
    path = "Mini-o3/Mini-o3/verl/trainer/ppo/core_algos.py"
    f = s.functions(path, "compute_grpo_outcome_advantage")

    def loss(b: Batch) -> Tensor:
        given = f.compute_grpo_outcome_advantage(b["reward"], b["mask"], b["prompt"])[0]
        finished = ~b["t"].truncated.any(1, keepdim=True)
        return s.clipped(b, given * finished)

    return Case("mini_o3", "Mini-o3/Mini-o3@8654dbf", loss)


def grpo_roc(s: Sources) -> Case:
    given: dict[str, Any] = {}
    f = s.functions(
        "microsoft/rStar/rstar2_agent/down_sample/roc.py",
        "resample_of_correct",
        pprint=lambda *_: None,
        decode_prompt_response_str=lambda *_: (None, given["penalty"]),
        calc_error_ratio_penalty_weights=lambda penalty: (np.array(penalty), {}),
        calc_format_penalty_weights=lambda penalty: (np.zeros(len(penalty)), {}),
        filter_by_mask=lambda batch, mask, _: mask,
    )

    def loss(b: Batch) -> Tensor:
        rows = torch.zeros(len(b["mask"]), dtype=torch.bool)
        for p in np.unique(b["prompt"]):  # answers to a prompt are kept by half, rounded up
            mine = np.flatnonzero(b["prompt"] == p)
            given["penalty"] = b["penalty"][mine, 0].tolist()
            whole = SimpleNamespace(
                non_tensor_batch={"uid": b["prompt"][mine]},
                batch={"token_level_scores": b["reward"][mine]},
            )
            config = {
                "roc_error_ratio": True,
                "roc_answer_format": False,
                "min_zero_reward_trace_num": 1,
                "min_non_zero_reward_trace_num": 1,
                "down_sample_to_n": -(-len(mine) // 2),
            }
            rows[mine] = f.resample_of_correct(whole, None, config)[0]
        kept = {k: v[rows] for k, v in b.items() if isinstance(v, Tensor)}
        prompt = b["prompt"][rows.numpy()]
        z = s.verl.compute_grpo_outcome_advantage(kept["reward"], kept["mask"], prompt, 1e-6)[0]
        share = kept["mask"].sum() / b["mask"].sum()  # all samples stay in the denominator here
        return share * s.clipped(kept, z, 0.2, 0.28)

    return Case("grpo_roc", "microsoft/rStar@ecbfb94", loss)


def epo(s: Sources) -> Case:
    penalty = s.functions(
        "WujiangXu/EPO/verl/workers/actor/dp_actor.py", "generate_entropy_penalty"
    ).generate_entropy_penalty

    def loss(b: Batch) -> Tensor:
        given = s.verl.compute_grpo_outcome_advantage(b["reward"], b["mask"], b["prompt"], EPS)[0]
        entropy, past = b["entropy_now"], b["entropy_history"].flatten().numpy()
        each = (past, entropy.reshape(-1, 1), np.arange(len(past)), "token", 0.8, 1.2, 0.1)
        outside = penalty(None, *each)[0].reshape(entropy.shape)
        held, over = (s.verl.agg_loss(x, b["mask"], "token-mean") for x in (entropy, outside))
        return s.clipped(b, given) - 0.001 * (held - over)

    return Case("epo", "WujiangXu/EPO@5b6fa98", loss)


def rejection(s: Sources) -> Iterator[Case]:
    """Corrections for the engine that sampled, of verl's helper for them."""
    path = "verl/verl/trainer/ppo/rollout_corr_helper.py"
    names = ("compute_rollout_rejection_mask", "_parse_rollout_rs_thresholds")
    constants = {
        "SAFETY_BOUND": 20.0,
        "SUPPORTED_ROLLOUT_RS_OPTIONS": {"seq_sum_k1", "seq_mean_k1"},
        "TOKEN_LEVEL_ROLLOUT_RS_OPTIONS": set(),
        "compute_rs_metrics": lambda **_: {},
    }
    f = s.functions(path, *names, **constants)
    for recipe, kind, bounds, weighted in (
        ("masked_is_grpo", "seq_sum_k1", "1e-9_3.0", True),
        ("geometric_rejection_grpo", "seq_mean_k1", "0.999_1.001", False),
    ):

        def loss(
            b: Batch, kind: str = kind, bounds: str = bounds, weighted: bool = weighted
        ) -> Tensor:
            z = s.verl.compute_grpo_outcome_advantage(b["reward"], b["mask"], b["prompt"], EPS)[0]
            # k1 is -log ratio there: its bounds are those of the inverse ratio.
            log_ratio = b["behaviour"] - b["old"]
            kept = f.compute_rollout_rejection_mask(log_ratio, b["mask"], kind, bounds)[0]
            whole = (-log_ratio * b["mask"]).sum(1, keepdim=True).exp() if weighted else 1.0
            terms = z * whole * kept
            return s.clipped(b, terms)

        yield Case(recipe, "verl 0.9.1", loss)


def vtrace(s: Sources) -> Case:
    f = s.functions(
        "facebookresearch/torchbeast/torchbeast/core/vtrace.py",
        "from_importance_weights",
        VTraceReturns=SimpleNamespace,
    )

    def loss(b: Batch) -> Tensor:
        mask = b["mask"]
        ends = b["t"].terminated.double()
        discount = 0.99 * (1 - ends) * mask
        parts = ((b["old"] - b["behaviour"]) * mask, discount, b["reward"], b["value"] * mask)
        rows = [x.transpose(0, 1) for x in parts]
        found = f.from_importance_weights(*rows, torch.zeros(len(mask))).pg_advantages
        likelihood = -b["log_prob"] * found.transpose(0, 1)
        value: Tensor = s.verl.agg_loss(likelihood, mask, "token-mean")
        return value - 0.01 * s.verl.agg_loss(b["entropy_now"], mask, "token-mean")

    return Case("vtrace", "facebookresearch/torchbeast@0af07b0", loss, "even")


def stable_reinforce(s: Sources) -> Case:
    folder = "yfzhang114/r1_reward/openrlhf/models"
    mean = s.functions(f"{folder}/utils.py", "masked_mean").masked_mean
    policy = s.functions(f"{folder}/loss.py", "PolicyLoss", masked_mean=mean).PolicyLoss()

    def loss(b: Batch) -> Tensor:
        parts = (b["log_prob"], b["old"], given_advantages(b["t"]), b["mask"])
        found: Tensor = policy.forward(*parts)
        return found

    return Case("stable_reinforce", "yfzhang114/r1_reward@3693413", loss, given=True)


def a2c(s: Sources) -> Case:
    """The buffer of stable-baselines3, a sequence an environment, and the loss of its A2C."""

    def loss(b: Batch) -> Tensor:
        rows, steps = b["mask"].shape
        space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        buffer = RolloutBuffer(steps, space, space, gae_lambda=1.0, gamma=0.99, n_envs=rows)
        mask = b["mask"].T.numpy()
        buffer.rewards = b["reward"].T.numpy() * mask
        buffer.values = b["value"].T.numpy() * mask
        buffer.episode_starts = 1 - mask
        buffer.episode_starts[0] = 1
        buffer.compute_returns_and_advantage(torch.zeros(rows), np.ones(rows))
        given = torch.as_tensor(buffer.advantages.T, dtype=torch.float64)
        likelihood, entropy = (
            s.verl.agg_loss(x, b["mask"], "token-mean")
            for x in (-given * b["log_prob"], b["entropy_now"])
        )
        found: Tensor = likelihood - 0.01 * entropy
        return found

    return Case("a2c", f"stable-baselines3 {stable_baselines3.__version__}", loss, "even")
