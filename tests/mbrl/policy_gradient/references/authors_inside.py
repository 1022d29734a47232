"""Authors' formulas that stand in the middle of a longer function: their lines, run on a batch."""

import math
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from torch import Tensor

from tests.mbrl.policy_gradient.references.batches import EVEN
from tests.mbrl.policy_gradient.references.extract import Case, Sources
from tests.mbrl.policy_gradient.references.record_verl import Config

Batch = dict[str, Any]


def cases(s: Sources) -> Iterator[Case]:
    yield mc_grpo(s)
    yield cj_grpo(s)
    yield reinforce(s)
    yield dapo(s)
    yield simple_tir(s)
    yield archer(s)
    yield from a_lol(s)
    yield from of_sequences(s)
    yield nlpo(s)
    yield reinforce_ada(s)
    yield vcpo(s)


def mc_grpo(s: Sources) -> Case:
    """Advantages and who is left out, then the loss of the others: two places of one function."""
    path = "lotusroot-kim/MC-GRPO/src/open_r1/grpo_trainer_math.py"
    trainer = SimpleNamespace(
        args=SimpleNamespace(mc=True, delta=None, use_bias_correction_kl=False),
        beta=0.04,
        epsilon_low=0.2,
        epsilon_high=0.2,
        loss_type="grpo",
        use_vllm=False,
        tools=None,
        current_gradient_accumulation_steps=1,
    )

    def loss(b: Batch) -> Tensor:
        rewards = b["reward"].sum(1)
        given = {"self": trainer, "rewards": rewards, "actual_num_generations": EVEN}
        found = s.run(path, "median_mask = None", "advantages = advantages / mad_rewards", given)
        keep = ~found["median_mask"]
        given = {
            "self": trainer,
            "inputs": {"ref_per_token_logps": b["reference"][keep]},
            "advantages": found["advantages"][keep][:, None],
            "per_token_logps": b["log_prob"][keep],
            "log_importance_weights": (b["log_prob"] - b["old"])[keep],
            "completion_mask": b["mask"][keep],
            "entropy_mask": None,
        }
        first, last = "coef_1 = torch.exp(log_importance_weights)", "gradient_accumulation_steps"
        value: Tensor = s.run(path, first, last, given)["loss"]
        return value

    return Case("mc_grpo", "lotusroot-kim/MC-GRPO@da07745", loss, "distinct")


def cj_grpo(s: Sources) -> Case:
    """One answer after the other, as their sum over a step's tokens is that of a whole batch, whose
    answers have equally many there; ours may not."""
    path = "yjyddq/EOSER-ASS-RL/cj-grpo/cj_grpo_trainer_eoser_ass.py"
    trainer = SimpleNamespace(beta=0.04, epsilon=0.5, num_iterations=2, num_generations=EVEN)

    def loss(b: Batch) -> Tensor:
        given: Batch = {"self": trainer, "rewards": b["reward"].sum(1)}
        first = "mean_grouped_rewards = rewards.view(-1"
        advantages = s.run(path, first, "rewards - mean_grouped_rewards", given)["advantages"]
        segments, total, count = b["t"].segments["decode"], torch.zeros(()), 0
        for row, mask in enumerate(b["mask"].bool()):
            parts = [mask & (segments[row] == k) for k in segments[row][mask].unique()]
            names = {"old": "old", "ref": "reference"}
            inputs = {
                f"reversed_traj_{k}_per_token_logps": [b[v][row : row + 1]] * len(parts)
                for k, v in names.items()
            } | {"advantages": advantages[row : row + 1]}
            given = {
                "self": trainer,
                "inputs": inputs,
                "steps": len(parts),
                "reversed_traj_per_token_logps": [b["log_prob"][row : row + 1]] * len(parts),
                "reversed_traj_unmask_positions": [part[None].double() for part in parts],
            } | inputs
            found = s.run(path, "loss = torch.tensor(0.0", "per_token_loss, is_clipped", given)
            total, count = total + found["loss"] * len(parts), count + len(parts)
        return total / count

    return Case("cj_grpo", "yjyddq/EOSER-ASS-RL@5affb4e", loss, "even")


def reinforce(s: Sources) -> Case:
    """Returns and likelihood by verl; the paper has no code."""
    config = Config(global_batch_info={})

    def loss(b: Batch) -> Tensor:
        zero = torch.zeros_like(b["reward"])
        returns = s.verl.compute_gae_advantage_return(b["reward"], zero, b["mask"], 1.0, 1.0)[1]
        parts = (b["old"], b["log_prob"], returns, b["mask"], "seq-mean-token-sum", config)
        value: Tensor = s.verl.get_policy_loss_fn("gpg")(*parts)[0]
        return value

    return Case("reinforce", "verl 0.9.1", loss)


def dapo(s: Sources) -> Case:
    """The prompts that are kept; the trainer draws others in place of those that are not, so that
    the denominator is here that of all. No answer of the batch was cut off."""
    path = "mit-han-lab/vcpo/recipe/dapo/dapo_ray_trainer.py"

    def loss(b: Batch) -> Tensor:
        rewards = {"uid": b["prompt"], "reward": b["reward"].sum(1).tolist()}
        given = {
            "defaultdict": defaultdict,
            "metric_name": "reward",
            "new_batch": SimpleNamespace(non_tensor_batch=rewards),
            "num_prompt_in_batch": 0,
        }
        found = s.run(path, "prompt_uid2metric_vals = ", "len(kept_prompt_uids)", given)
        kept = torch.tensor([p in found["kept_prompt_uids"] for p in b["prompt"]]).double()
        return kept_alone(s, b, b["mask"] * kept[:, None], 0.28)

    return Case("dapo", "mit-han-lab/vcpo@c7f030f, recipe/dapo", loss, "even")


def simple_tir(s: Sources) -> Case:
    """The mask of the loss, without the sequences that have a void turn."""
    path = "ltzheng/SimpleTIR/recipe/simpletir/simpletir_ray_trainer.py"
    actor = SimpleNamespace(mask_tool_output=True, mask_void_turns=True)
    trainer = SimpleNamespace(
        config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(actor=actor))
    )

    def loss(b: Batch) -> Tensor:
        whole = ~((b["void"] > 0.5) & (b["mask"] > 0)).any(1)
        batch = {"info_mask": b["mask"], "void_turn_mask": whole.double()}
        given = {
            "self": trainer,
            "batch": SimpleNamespace(batch=batch),
            "response_length": b["mask"].shape[1],
            "response_mask": b["mask"],
        }
        first, last = 'loss_mask = batch.batch["info_mask"]', "reshape(-1, 1)"
        kept = s.run(path, first, last, given)["batch"].batch["loss_mask"]
        return kept_alone(s, b, kept)

    return Case("simple_tir", "ltzheng/SimpleTIR@e7b5b44", loss)


def kept_alone(s: Sources, b: Batch, kept: Tensor, high: float = 0.2) -> Tensor:
    """verl's GRPO on the steps that are `kept`, over the number of all."""
    advantage = s.verl.compute_grpo_outcome_advantage(b["reward"], b["mask"], b["prompt"], 1e-4)[0]
    value = s.clipped(b | {"mask": kept}, advantage * kept, 0.2, high)
    return value * kept.sum() / b["mask"].sum()


def archer(s: Sources) -> Case:
    """Utterances are turns: critics' numbers to an advantage, and the actor's loss."""
    path = "YifeiZhou02/ArCHer/archer/algorithms/archer/trainer.py"

    def loss(b: Batch) -> Tensor:
        turn, rows = b["t"].segments["turn"], []
        for i in range(len(turn)):
            for k in sorted(set(turn[i][b["mask"][i] > 0].tolist())):
                rows.append((i, (turn[i] == k) & (b["mask"][i] > 0)))
        q, v = (
            torch.stack([b[name][i][steps][0] for i, steps in rows])
            for name in ("utterance_q", "utterance_v")
        )
        given = {"q1": q, "q2": q + 1, "v1": v, "v2": v + 1}
        found = s.run(path, "q = torch.minimum(q1, q2)", "advantages = q - v", given)
        log_prob = torch.stack([b["log_prob"][i][steps].sum() for i, steps in rows])
        given = {"log_prob": log_prob, "advantages": found["advantages"]}
        line = "pg_loss = -torch.mean(log_prob.flatten()*advantages)"
        value: Tensor = s.run(path, line, line, given)["pg_loss"]
        return value

    return Case("archer", "YifeiZhou02/ArCHer@7c771a7", loss)


def a_lol(s: Sources) -> Iterator[Case]:
    """Their log-probs are negative ones."""
    path = "abaheti95/LoL-RL/train_generation_task_with_off_policy_PG.py"
    for recipe in ("a_lol", "a_lol_seq", "a_lol_ref_free", "a_lol_kl"):

        def loss(b: Batch, recipe: str = recipe) -> Tensor:
            given: dict[str, Any] = {
                "args": SimpleNamespace(learning_algorithm=recipe, ppo_clip=0.9, kl_beta=0.1),
                "per_token_log_probs": -b["log_prob"],
                "baseline_per_token_log_probs": -b["reference"],
                "response_mask": b["mask"],
                "current_epoch_loss_trajectories": defaultdict(list),
                "extra_data": {"rewards": b["reward"].sum(1).tolist()},
                "val_outputs": b["reference_value"][:, 0],
                "device": "cpu",
            }
            first = 'if args.learning_algorithm in ["a_lol_seq"]:'
            given |= s.run(path, first, "importance_sampling_ratio = 1.0", given)
            first = "# Multiply importance sampling with log probs"
            found = s.run(path, first, "per_response_loss = per_response_loss + kl_penalty", given)
            value: Tensor = found["per_response_loss"].mean()
            return value

        yield Case(recipe, "abaheti95/LoL-RL@9f8d816", loss)


def of_sequences(s: Sources) -> Iterator[Case]:
    """Trinity-RFT's losses of tokens, on whole sequences as the only tokens: the papers' forms."""
    folder = "yanxi-chen/Trinity-RFT/trinity/algorithm"
    f = s.functions(f"{folder}/utils.py", "masked_sum", "masked_mean")
    given = {
        "PolicyLossFn": SilentLoss,
        "aggregate_loss": s.functions(
            f"{folder}/utils.py", "aggregate_loss", **vars(f)
        ).aggregate_loss,
        "masked_mean": f.masked_mean,
    }
    losses = f"{folder}/policy_loss_fn"
    topr = s.functions(f"{losses}/topr_policy_loss.py", "TOPRPolicyLossFn", **given)
    rec = s.functions(f"{losses}/rec_policy_loss.py", "RECPolicyLossFn", **given).RECPolicyLossFn
    regularised = rec(regularizer="k2", regularizer_coef=0.05)  # half of the weight: see its note
    for recipe, kind, below in (
        ("topr", topr.TOPRPolicyLossFn(), "behaviour"),
        ("rep_opmd", regularised, "old"),
    ):

        def loss(b: Batch, kind: Any = kind, below: str = below, recipe: str = recipe) -> Tensor:
            total = b["reward"].sum(1, keepdim=True)
            if recipe == "topr":
                advantage = 2 * total - 1
            else:
                prompt = torch.from_numpy(b["prompt"])
                means = [total[prompt == p].mean() for p in prompt]
                advantage = total - torch.stack(means)[:, None]
            whole = [(b[name] * b["mask"]).sum(1, keepdim=True) for name in ("log_prob", below)]
            ones = torch.ones_like(total)
            value: Tensor = kind(
                logprob=whole[0], old_logprob=whole[1], action_mask=ones, advantages=advantage
            )[0]
            return value

        yield Case(recipe, "yanxi-chen/Trinity-RFT@9051d63", loss)


class SilentLoss:
    """Stands in for the base of Trinity-RFT's losses."""

    def __init__(self, backend: str = "") -> None:
        del backend


def nlpo(s: Sources) -> Case:
    """The buffer of stable-baselines3, which theirs extends, and the loss of their training."""
    path = "allenai/RL4LMs/rl4lms/algorithms/nlpo/nlpo.py"

    def loss(b: Batch) -> Tensor:
        rows, steps = b["mask"].shape
        space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        buffer = RolloutBuffer(steps, space, space, gae_lambda=0.95, gamma=0.99, n_envs=rows)
        mask = b["mask"].T.numpy()
        rewards = b["reward"] - 0.1 * (b["old"] - b["reference"])
        buffer.rewards = rewards.T.numpy() * mask
        buffer.values = b["value"].T.numpy() * mask
        buffer.episode_starts = 1 - mask
        buffer.episode_starts[0] = 1
        buffer.compute_returns_and_advantage(torch.zeros(rows), np.ones(rows))
        here = b["mask"] > 0
        given = {
            "th": torch,
            "self": SimpleNamespace(normalize_advantage=True),
            "rollout_data": SimpleNamespace(
                advantages=torch.as_tensor(buffer.advantages.T, dtype=torch.float64)[here],
                old_log_prob=b["old"][here],
            ),
            "log_prob": b["log_prob"][here],
            "clip_range": 0.2,
        }
        first = "advantages = rollout_data.advantages"
        value: Tensor = s.run(path, first, "th.min(policy_loss_1, policy_loss_2).mean()", given)[
            "policy_loss"
        ]
        return value

    return Case("nlpo", "allenai/RL4LMs@97df0bd", loss, "even")


def reinforce_ada(s: Sources) -> Case:
    """Statistics over all answers, and the balanced choice among them, in the order of their draws;
    all answers stay in the denominator here."""
    folder = "RLHFlow/Reinforce-Ada/verl/trainer/ppo"
    name = "compute_grpo_outcome_advantage"
    f = s.functions(f"{folder}/core_algos.py", name)
    config = {"global_stat_est": True}

    def loss(b: Batch) -> Tensor:
        right, draw = b["reward"].sum(1) > 0, b["uniform"][:, 0]
        kept, counts = torch.zeros(len(right)), tuple[dict[Any, int], ...]([{}, {}])
        for p in set(b["prompt"].tolist()):
            mine = sorted(np.flatnonzero(b["prompt"] == p).tolist(), key=lambda i: float(draw[i]))
            caches = [[i for i in mine if bool(right[i]) == side] for side in (True, False)]
            for known, cache in zip(counts, caches, strict=True):
                known[p] = len(cache)
            choose = s.functions(
                f"{folder}/ray_trainer.py", "downsample_cache", concat_dataproto_fragments=list
            ).downsample_cache
            kept[choose({p: caches[0]}, {p: caches[1]}, p, 4)] = 1
        advantage = getattr(f, name)(
            b["reward"], b["mask"], b["prompt"], 1e-4, True, config, *counts
        )[0]
        mask = b["mask"] * kept[:, None]
        value = s.clipped(b | {"mask": mask}, advantage * mask)
        return value * mask.sum() / b["mask"].sum()

    return Case("reinforce_ada", "RLHFlow/Reinforce-Ada@05be605", loss)


def vcpo(s: Sources) -> Case:
    """Their baseline and scale; weight, mean and likelihood are written out."""
    path = "mit-han-lab/vcpo/recipe/fully_async_policy/staleness_utils.py"
    f = s.functions(path, "get_weighted_mean")
    names = ("List", "TrajRecord")
    baseline = s.functions(
        path, "compute_opob_baseline", **vars(f), **dict.fromkeys(names, list)
    ).compute_opob_baseline

    def loss(b: Batch) -> Tensor:
        total = b["reward"].sum(1)
        drift = ((b["old"] - b["behaviour"]) * b["mask"]).sum(1)
        records = [
            SimpleNamespace(
                group_uid=int(p),
                reward_scalar=float(r),
                rollout_seq_is=math.exp(d),
                grad_norm_unscaled=math.sqrt(n),
                response_length=1,
            )
            for p, r, d, n in zip(
                b["prompt"],
                total.tolist(),
                drift.tolist(),
                b["gradient_norm_squared"][:, 0].tolist(),
                strict=True,
            )
        ]
        advantage = torch.zeros_like(total)
        for p in set(b["prompt"].tolist()):
            mine = torch.from_numpy(b["prompt"] == p)
            std = float(torch.std(total[mine], unbiased=False))
            scale = 1 / std if std > 1e-8 else 0.0
            advantage[mine] = (total[mine] - baseline(records, p)) * scale
        moved = ((b["log_prob"].detach() - b["behaviour"]) * b["mask"]).sum(1)
        weight = moved.exp().clamp(max=8.0)
        likelihood = (b["log_prob"] * b["mask"]).sum(1) / b["mask"].sum(1)
        return -(weight * advantage * likelihood).mean()

    return Case("vcpo", "mit-han-lab/vcpo@c7f030f", loss)
