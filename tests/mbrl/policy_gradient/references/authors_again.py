"""Authors' functions of recipes that were written from others' notes at first."""

from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.mbrl.policy_gradient.cases import TURNS
from tests.mbrl.policy_gradient.references.batches import EVEN
from tests.mbrl.policy_gradient.references.extract import Case, Sources

EPS = 1e-4  # of `scales.Std`
Batch = dict[str, Any]


def cases(s: Sources) -> Iterator[Case]:
    yield lite_ppo(s)
    yield skywork_or1(s)
    yield fapo(s)
    yield q_hawkeye(s)
    yield igpo(s)
    yield infopo(s)
    yield ui_s1(s)
    yield red_drop(s)
    yield openclaw_rl(s)
    yield latr(s)
    yield hill(s)
    yield spark(s)


def of_rows(b: Batch, rows: Tensor) -> Batch:
    """The batch of some of its answers."""
    kept = {k: v[rows] for k, v in b.items() if isinstance(v, Tensor)}
    return kept | {"prompt": b["prompt"][rows.numpy()]}


def lite_ppo(s: Sources) -> Case:
    f = s.functions("alibaba/ROLL/roll/utils/functionals.py", "reward_norm")

    def loss(b: Batch) -> Tensor:
        kinds = {"norm_mean_type": "group", "norm_std_type": "batch"}
        given = f.reward_norm(b["reward"].sum(1), EVEN, **kinds)
        return s.clipped(b, given[:, None] * b["mask"])

    return Case("lite_ppo", "alibaba/ROLL@8eb27cc", loss, "even")


def skywork_or1(s: Sources) -> Case:
    """Which groups are kept, then the loss of these and the bonus of their entropy."""
    folder = "SkyworkAI/Skywork-OR1/verl/trainer/ppo"
    names = ("compute_grpo_outcome_advantage", "compute_policy_loss")
    f = s.functions(f"{folder}/core_algos.py", *names)
    mean = s.verl.verl_F.masked_mean

    def loss(b: Batch) -> Tensor:
        given = {"uids": b["prompt"], "reward_tensor": b["reward"]}
        first, last = "unique_uids = np.unique(uids)", "acc_dist[acc_idx] += 1"
        kept = s.run(f"{folder}/ray_trainer.py", first, last, given)["valid_mask"]
        c = of_rows(b, kept)
        z = f.compute_grpo_outcome_advantage(c["reward"], c["mask"], c["prompt"], EPS)[0]
        value = f.compute_policy_loss(c["old"], c["log_prob"], z, c["mask"], 0.2)[0]
        found: Tensor = value - mean(c["entropy_now"], c["mask"]) * b["entropy_weight"][0, 0]
        return found

    return Case("skywork_or1", "SkyworkAI/Skywork-OR1@64e96af", loss)


def fapo(s: Sources) -> Case:
    """Rewards of their two branches; the judge's verdict is the batch's."""
    f = s.functions(
        "yyDing1/FAPO/verl/trainer/ppo/core_algos.py",
        "compute_grpo_outcome_advantage",
        "compute_policy_loss",
        "agg_loss",
    )
    path = "yyDing1/FAPO/fapo/fapo_reasoning/reward_fn.py"

    def score(right: bool, flawed: bool) -> float:
        given: Batch = {"correct": right, "judge_fp_process": lambda _: flawed, "response": ""}
        line = "reward = 1.0 if correct else -1.0"
        given["result"] = {"score": s.run(path, line, line, given)["reward"]}
        if right and flawed:
            line = 'result["score"] = 0.0'
            given["result"] = s.run(path, line, line, given)["result"]
        found: float = given["result"]["score"]
        return found

    def loss(b: Batch) -> Tensor:
        pairs = zip(b["reward"].sum(1) > 0, b["flawed"][:, 0] > 0.5, strict=True)
        reward = torch.zeros_like(b["reward"])
        reward[:, 0] = torch.tensor([score(bool(r), bool(w)) for r, w in pairs])
        z = f.compute_grpo_outcome_advantage(reward, b["mask"], b["prompt"])[0]
        parts = (b["old"], b["log_prob"], z, b["mask"], 0.2, 0.2, 0.28, 10.0)
        found: Tensor = f.compute_policy_loss(*parts)[0]
        return found

    return Case("fapo", "yyDing1/FAPO@e6d1164", loss)


def q_hawkeye(s: Sources) -> Case:
    """Three places of one function; its divergence from the spoiled picture is in float32."""
    path = "AMAP-ML/Q-Hawkeye/src/virft/src/open_r1/trainer/grpo_trainer.py"
    divergence = s.functions(path, "_low_var_kl")._low_var_kl

    def loss(b: Batch) -> Tensor:
        scores = b["predicted_score"][:, 0]
        trainer = SimpleNamespace(
            beta=0.04,
            num_generations=EVEN,
            use_ua_grpo=True,
            score_min=1.0,
            score_max=5.0,
            ua_alpha=0.2,
            use_kl_prcp=True,
            prcp_gamma_base=1e-4 * float(b["contrast_weight"][0, 0]),
            _extract_score_from_text=float,
            _metrics=defaultdict(list),
        )
        given: Batch = {
            "self": trainer,
            "device": "cpu",
            "inputs": list(range(len(scores) // EVEN)),
            "is_conversational": lambda _: False,
            "completions": scores.tolist(),
            "rewards": b["reward"].sum(1),
            "sce_advantage": None,
            "per_token_logps": b["log_prob"],
            "ref_per_token_logps": b["reference"],
            "per_token_logps_deg": b["degraded"],
            "completion_mask": b["mask"],
            "_low_var_kl": divergence,
        }
        for first, last in (
            ("per_token_kl = torch.exp(ref_per_token_logps", "- 1"),
            ('if getattr(self, "use_ua_grpo", False):', "ua_scale = None"),
            ("mean_grouped_rewards = rewards.view(-1", "completion_mask.sum(dim=1)"),
            ("seq_loss_total = seq_loss_main", "seq_loss_main"),
            ("per_token_kl_prcp = _low_var_kl(", "dynamic_gamma * kl_prcp_token_avg"),
            ("seq_loss_total = seq_loss_main + loss_prcp_seq", "loss_prcp_seq"),
        ):
            given |= s.run(path, first, last, given)
        value: Tensor = given["seq_loss_total"].mean()
        return value

    return Case("q_hawkeye", "AMAP-ML/Q-Hawkeye@905262f", loss, "even", valued=False)


def turn_sums(b: Batch, name: str) -> Tensor:
    """[B, T]: at the last step of every turn the sum of a signal over it."""
    turn, mask = b["t"].segments["turn"], b["mask"]
    found = torch.zeros_like(mask)
    for i in range(len(mask)):
        for k in range(TURNS):
            at = torch.nonzero((turn[i] == k) & (mask[i] > 0))[:, 0]
            if len(at):
                found[i, at[-1]] = b[name][i, at].sum()
    return found


def igpo(s: Sources) -> Case:
    path = "debajoycs98/IGPO/verl/trainer/ppo/core_algos.py"
    names = ("compute_grpo_outcome_advantage", "_compute_turn_level_advantage")
    f = s.functions(path, names[1], "agg_loss", "kl_penalty")
    advantage = s.functions(path, names[0], **vars(f)).compute_grpo_outcome_advantage
    policy = s.functions(path, "compute_policy_loss", agg_loss=f.agg_loss).compute_policy_loss
    mode = "seq-mean-token-sum"

    def loss(b: Batch) -> Tensor:
        rewards, last = turn_sums(b, "information_gain"), b["mask"].sum(1).long() - 1
        rewards[torch.arange(len(last)), last] = b["reward"].sum(1)
        given = advantage(rewards, b["mask"], b["prompt"])[0]
        parts = (b["old"], b["log_prob"], given, b["mask"], 0.2, 0.2, 0.2, 1e9, mode)
        k3 = f.kl_penalty(b["log_prob"], b["reference"], "low_var_kl")
        kl, entropy = (f.agg_loss(x, b["mask"], mode) for x in (k3, b["entropy_now"]))
        found: Tensor = policy(*parts)[0] - entropy * 0.001 + kl * 0.001
        return found

    return Case("igpo", "debajoycs98/IGPO@8660196", loss, "even")


def infopo(s: Sources) -> Case:
    path = "kfq20/InfoPO/verl/trainer/ppo/core_algos.py"
    f = s.functions(path, "compute_info_grpo_advantage")

    def loss(b: Batch) -> Tensor:
        turn, share = b["t"].segments["turn"], torch.zeros_like(b["mask"])
        for k in range(TURNS):
            here = b["mask"] * (turn == k)
            mean = (b["information_gain"] * here).sum(1, keepdim=True) / here.sum(1, keepdim=True)
            share += torch.where(here > 0, mean, 0.0)
        given = f.compute_info_grpo_advantage(b["reward"], share, b["mask"], b["prompt"])[0]
        entropy = s.verl.agg_loss(b["entropy_now"], b["mask"], "token-mean")
        return s.clipped(b, given) - 0.001 * entropy

    return Case("infopo", "kfq20/InfoPO@c26e93c", loss)


def ui_s1(s: Sources) -> Case:
    """Which prompts are kept, and their advantages before: every answer is there once."""
    names = ("episode_norm_reward", "step_norm_reward")
    path = "X-PLUG/MobileAgent/UI-S1/uis1/core_uis1.py"
    parts = s.functions(path, *names)
    f = s.functions(path, "compute_uis1_outcome_advantage", **vars(parts))
    path = "X-PLUG/MobileAgent/UI-S1/verl/trainer/ppo/dapo_ray_trainer.py"
    filtering = SimpleNamespace(filter_groups=SimpleNamespace(std_threshold=0.3))
    trainer = SimpleNamespace(config=SimpleNamespace(algorithm=filtering))

    def loss(b: Batch) -> Tensor:
        step, worth = b["t"].groups["step"][:, 0].numpy(), b["step_return"][:, 0]
        whole = (b["reward"], worth, b["mask"], b["prompt"], np.arange(len(step)), step)
        z = f.compute_uis1_outcome_advantage(*whole, mode="mean_std_norm")[0]
        rows = {"uid": b["prompt"], "step_id": step, "seq_future_reward": worth.numpy()}
        given: Batch = {
            "self": trainer,
            "defaultdict": defaultdict,
            "metric_name": "seq_future_reward",
            "new_batch": SimpleNamespace(non_tensor_batch=rows),
        }
        first = "prompt_uid2metric_vals = defaultdict(list)"
        last = "or len(prompt_uid2metric_vals[uid]) == 1]"
        kept = s.run(path, first, last, given)["kept_prompt_uids"]
        there = torch.tensor([p in kept for p in b["prompt"]])[:, None]
        return s.clipped(b, z * there) + s.kl(b, 1e-4)  # all stay in the denominators here

    return Case("ui_s1", "X-PLUG/MobileAgent@11cea57", loss)


def red_drop(s: Sources) -> Case:
    """Dropped are those with the largest draws."""
    folder = "yanxi-chen/Trinity-RFT/trinity/algorithm"
    path = f"{folder}/advantage_fn/rec_advantage.py"

    def loss(b: Batch) -> Tensor:
        total, found = b["reward"].sum(1), torch.zeros_like(b["reward"])
        for p in np.unique(b["prompt"]):
            mine = np.flatnonzero(b["prompt"] == p)
            low = torch.tensor([float(b["uniform"][i, 0]) for i in mine if total[i] <= 0])
            drawn = {**vars(torch), "randperm": lambda _, low=low: low.argsort(descending=True)}
            given: Batch = {"GroupAdvantage": object, "torch": SimpleNamespace(**drawn)}
            kind = s.functions(path, "RECGroupedAdvantage", **given).RECGroupedAdvantage
            rows = [SimpleNamespace(reward=float(total[i]), action_mask=b["mask"][i]) for i in mine]
            kind(drop="balance").calculate_group_advantage(str(p), rows)
            for i, row in zip(mine, rows, strict=True):
                found[i] = row.advantages
        return s.verl.agg_loss(-found * b["log_prob"], b["mask"], "token-mean")

    return Case("red_drop", "yanxi-chen/Trinity-RFT@9051d63", loss)


def openclaw_rl(s: Sources) -> Case:
    """Advantages and clip; samples' means are summed over the batch and divided by its size."""
    root = "Gen-Verse/OpenClaw-RL"
    f = s.functions(f"{root}/slime/slime/utils/ppo_utils.py", "compute_policy_loss")
    path = f"{root}/openclaw-combine/combine_loss.py"
    args = SimpleNamespace(eps_clip=0.2, eps_clip_high=0.28)

    def loss(b: Batch) -> Tensor:
        earned = (2 * b["reward"].sum(1, keepdim=True) - 1) * b["mask"]
        given: Batch = {
            "args": args,
            "os": SimpleNamespace(getenv=lambda _, usual: usual),
            "compute_policy_loss": f.compute_policy_loss,
            "batch": {"teacher_log_probs": list(b["t"].log_probs["teacher"].nan_to_num())},
            "old_log_probs_list": list(b["old"]),
            "old_log_probs": b["old"].flatten(),
            "new_log_probs": b["log_prob"].flatten(),
            "grpo_advantages": earned.flatten(),
        }
        for first, last in (
            ('teacher_log_probs_list = batch.get("teacher', "torch.zeros_like(grpo_advantages)"),
            ('w_opd = float(os.getenv("OPENCLAW', "w_rl * grpo_advantages"),
            ("ppo_kl = old_log_probs - new_log_probs", "new_log_probs"),
            ("pg_loss, pg_clipfrac = compute_policy_loss(", ")"),
        ):
            given |= s.run(path, first, last, given)
        rows = given["pg_loss"].view_as(b["mask"])
        value: Tensor = s.verl.agg_loss(rows, b["mask"], "seq-mean-token-mean")
        return value

    return Case("openclaw_rl", "Gen-Verse/OpenClaw-RL@0d034dd", loss)


def group_relative(s: Sources, path: str, kl: float = 0.0, high: float = 0.2) -> Any:
    """The loss of a repository's own copy of verl, token-mean."""
    f = s.functions(path, "compute_grpo_outcome_advantage", "agg_loss", "kl_penalty")
    given = {"agg_loss": f.agg_loss, "deprecated": lambda *_: lambda function: function}
    policy = s.functions(path, "compute_policy_loss", **given).compute_policy_loss

    def loss(b: Batch) -> Tensor:
        z = f.compute_grpo_outcome_advantage(b["reward"], b["mask"], b["prompt"], EPS)[0]
        parts = (b["old"], b["log_prob"], z, b["mask"], 0.2, 0.2, high, 1e9, "token-mean")
        value: Tensor = policy(*parts)[0]
        if kl:
            k3 = f.kl_penalty(b["log_prob"], b["reference"], "low_var_kl")
            value = value + kl * f.agg_loss(k3, b["mask"], "token-mean")
        return value

    return loss


def latr(s: Sources) -> Case:
    path = "starreeze/latr/verl/trainer/ppo/core_algos.py"
    return Case("latr", "starreeze/latr@2adb0ed", group_relative(s, path, 0.01))


def hill(s: Sources) -> Case:
    """The loss of both its policies; what a hint earns is no part of it."""
    path = "Andree-9/HiLL/verl/trainer/ppo/core_algos.py"
    return Case("hill", "Andree-9/HiLL@195d94e", group_relative(s, path, high=0.28))


def spark(s: Sources) -> Case:
    """Rewards to advantages, the clip, and its divergence, which is in float32."""
    root = "InternLM/Spark/Lmm_XC/openrlhf"
    f = s.functions(f"{root}/models/utils.py", "masked_mean", "compute_approx_kl")
    policy = s.functions(f"{root}/models/loss.py", "PolicyLoss", masked_mean=f.masked_mean)
    path = f"{root}/trainer/ppo_utils/experience_maker.py"

    def loss(b: Batch) -> Tensor:
        given: Batch = {"rewards": b["reward"].sum(1).reshape(-1, EVEN)}
        first, last = "rewards = (rewards - rewards.mean", "(rewards.std(-1, keepdim=True) + 1e-9)"
        z = s.run(path, first, last, given)["rewards"].reshape(-1, 1)
        value: Tensor = policy.PolicyLoss().forward(b["log_prob"], b["old"], z, b["mask"])
        kl = f.compute_approx_kl(b["log_prob"], b["reference"], kl_estimator="k3")
        return value + 0.001 * f.masked_mean(kl, b["mask"])

    return Case("spark", "InternLM/Spark@bc47b93", loss, "even")
