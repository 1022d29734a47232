"""Authors' functions of turns, where every turn is a row of its own; and the off-policy forms of
group-relative REINFORCE."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.mbrl.policy_gradient.cases import TURNS
from tests.mbrl.policy_gradient.references.extract import Case, Sources

EPS = 1e-4  # of `scales.Std`
Batch = dict[str, Any]


def cases(s: Sources) -> Iterator[Case]:
    yield from gigpo(s)
    yield hgpo(s)
    yield trloo(s)
    yield matchtir(s)
    yield hiper(s)
    yield spa_rl(s)
    yield from reinforce(s)


class Rows:
    """The turns of a batch as rows: those that are there, in order."""

    def __init__(self, b: Batch, every: bool = False) -> None:
        mask, turn = b["t"].mask, b["t"].segments["turn"]
        where = [(i, k) for i in range(len(mask)) for k in range(TURNS)]
        if not every:
            where = [(i, k) for i, k in where if bool((mask[i] & (turn[i] == k)).any())]
        self.sequence, self.turn = np.array(where).T
        at = torch.as_tensor(self.sequence)
        self.mask = mask[at] & (turn[at] == torch.as_tensor(self.turn)[:, None])
        self.reward = torch.where(self.mask, b["reward"][at], 0.0)
        self.prompt = b["prompt"][self.sequence]
        self.at = at

    def first(self, value: Tensor) -> Tensor:
        """A field [B, T] at the first step of every turn."""
        return value[self.at].gather(1, self.mask.int().argmax(1, keepdim=True))[:, 0]

    def returns(self, f: SimpleNamespace, gamma: float) -> Tensor:
        names = {
            "rewards": self.reward.sum(1).numpy(),
            "traj_uid": self.sequence,
            "active_masks": np.ones(len(self.sequence)),
        }
        batch = {"input_ids": self.mask}
        whole = SimpleNamespace(non_tensor_batch=names, batch=batch)
        found: Tensor = f.compute_step_discounted_returns(whole, gamma).double()
        return found

    def back(self, value: Tensor) -> Tensor:
        """[B, T] from a value at each row's steps."""
        found = torch.zeros(int(self.at.max()) + 1, self.mask.shape[1], dtype=value.dtype)
        return found.index_add(0, self.at, torch.where(self.mask, value, 0.0))


def gigpo(s: Sources) -> Iterator[Case]:
    names = ("compute_step_discounted_returns", "episode_norm_reward", "build_step_group")
    path = "WujiangXu/EPO/gigpo/core_gigpo.py"
    f = s.functions(path, *names, "step_norm_reward", "to_hashable")
    for recipe in ("gigpo", "gigpo_no_std"):

        def loss(b: Batch, plain: bool = recipe == "gigpo_no_std") -> Tensor:
            rows = Rows(b)
            mask, total = rows.mask.double(), b["reward"].sum(1)[rows.at]
            outcome = torch.zeros_like(mask)
            outcome[:, 0] = total
            once = (rows.prompt, rows.sequence, 1e-6, plain, False)
            episode = f.episode_norm_reward(outcome, mask, *once)
            state = rows.first(b["t"].groups["state"]).numpy()
            groups = f.build_step_group(state, rows.prompt)
            step = f.step_norm_reward(rows.returns(f, 0.95), mask, groups, 1e-6, plain)
            return s.clipped(b, rows.back(episode + step)) + s.kl(b, 0.01)

        yield Case(recipe, "WujiangXu/EPO@5b6fa98", loss)


def hgpo(s: Sources) -> Case:
    path = "OliverLeeXZ/SERL/recipe/hgpo/core_hgpo.py"
    names = ("compute_step_discounted_returns", "hgpo_advantage_estimate", "to_hashable")
    f = s.functions(path, *names)

    def loss(b: Batch) -> Tensor:
        rows = Rows(b)
        state = rows.first(b["t"].groups["state"]).numpy()
        mask = rows.mask.double()
        parts = (mask, rows.returns(f, 0.95), mask, state, rows.prompt, rows.sequence, 2)
        given = f.hgpo_advantage_estimate(*parts)
        return s.clipped(b, rows.back(given.double())) + s.kl(b, 0.01)

    return Case("hgpo", "OliverLeeXZ/SERL@5a2a85b", loss, "histories")


def trloo(s: Sources) -> Case:
    path = "hkust-nlp/KernelGYM/drkernel/verl_patch/trainer/code/ppo/core_algos.py"
    names = ("compute_multi_turn_rloo_outcome_advantage", "compute_multi_turn_returns")
    f = s.functions(path, *names)

    def loss(b: Batch) -> Tensor:
        rows = Rows(b, every=True)
        there = rows.mask.any(1)
        turn = torch.where(there, torch.as_tensor(rows.turn), -1)
        mask = rows.mask.double()
        parts = (rows.reward, mask, there, turn, rows.prompt, TURNS)
        given = f.compute_multi_turn_rloo_outcome_advantage(*parts)[0]
        return s.clipped(b, rows.back(given), 0.2, 0.28, "seq-mean-token-sum")

    return Case("trloo", "hkust-nlp/KernelGYM@3a84417", loss)


def matchtir(s: Sources) -> Case:
    path = "quchangle1/MatchTIR/Code/verl/trainer/ppo/core_algos.py"
    f = s.functions(path, "compute_grpo_outcome_advantage")

    def loss(b: Batch) -> Tensor:
        t = b["t"]
        earned = torch.where(t.mask, b["reward"] + b["match_score"], 0.0)
        turn, ends = t.segments["turn"], t.mask & ~torch.nn.functional.pad(t.mask[:, 1:], (0, 1))
        summed = torch.zeros_like(earned)
        for k in range(int(turn.max()) + 1):
            mine = turn == k
            summed += torch.where(ends & mine, (earned * mine).sum(1, keepdim=True), 0.0)
        given = f.compute_grpo_outcome_advantage(summed, b["mask"], b["prompt"])[0]
        return s.clipped(b, given)

    return Case("matchtir", "quchangle1/MatchTIR@f614ce1", loss, "runs")


def hiper(s: Sources) -> Case:
    names = ("compute_hae_advantage", "_as_torch_1d", "_group_indices_by_traj")
    f = s.functions("JonP07/HiPER-agent/hiper_hae/core_hae.py", *names)
    config = SimpleNamespace(
        gamma=1.0,
        lam_turn=1.0,
        lam_seg=0.95,
        value_key_low="value_low",
        value_key_high="value_high",
        value_key_term="value_term",
        assign_high_to_switch=False,
        assign_high_to_subgoal=True,
        assign_term_to_switch=True,
        norm_adv=True,
        bootstrap_truncated=True,
        keep_penalty=0.0,
        invalid_action_penalty_coef=0.0,
        keep_consistency_penalty=0.0,
    )

    def loss(b: Batch) -> Tensor:
        rows, t = Rows(b), b["t"]
        start = torch.nn.functional.one_hot(rows.mask.int().argmax(1), rows.mask.shape[1]).bool()
        subgoal, switch = ((b[name][rows.at] > 0.5) & rows.mask for name in ("subgoal", "switch"))
        batch = {
            "response_mask": rows.mask,
            "responses": rows.mask,
            "value_low": b["value"][rows.at],
            "value_high": b["value_high"][rows.at],
            "value_term": b["value_switch"][rows.at],
            **dict.fromkeys(("value_mask_low", "value_mask_high", "value_mask_term"), start),
        }
        option = rows.first(t.segments["option"])
        other_row = np.diff(rows.sequence).astype(bool)
        opens = np.r_[True, (option[1:] != option[:-1]).numpy() | other_row]
        other = {
            "traj_uid": rows.sequence,
            "turn_idx": rows.turn,
            "dones": (t.terminated[rows.at] & rows.mask).any(1).numpy(),
            "switch": opens,
            "rewards": rows.reward.sum(1),
        }
        whole = SimpleNamespace(batch=batch, non_tensor_batch=other)
        action = rows.mask & ~subgoal & ~switch
        masks = {"action_mask": action, "subgoal_mask": subgoal, "switch_mask": switch}
        f.compute_hae_advantage(whole, config, **masks)
        return s.clipped(b, rows.back(whole.batch["advantages"].double())) + s.kl(b, 0.01)

    return Case("hiper", "JonP07/HiPER-agent@9d3c118", loss)


def spa_rl(s: Sources) -> Case:
    path = "WangHanLinHenry/SPA-RL-Agent/fastchat/train/ppo_trainer.py"
    f = s.functions(path, "compute_advantages", masked_whiten=s.verl.verl_F.masked_whiten)
    config = SimpleNamespace(whiten_rewards=False, gamma=0.99, lam=0.95)

    def loss(b: Batch) -> Tensor:
        earned = b["progress"] + 0.5 * b["grounding"]
        trainer = SimpleNamespace(config=config)
        given = f.compute_advantages(trainer, b["value"], earned, b["mask"])[1]
        return s.clipped(b, given)

    return Case("spa_rl", "WangHanLinHenry/SPA-RL-Agent@ed20087", loss, "even")


class Loss:
    """What the losses of the framework inherit."""

    def __init__(self, backend: str = "") -> None:
        del backend


def reinforce(s: Sources) -> Iterator[Case]:
    f = s.functions("trinity/trinity/algorithm/utils.py", "masked_sum", "masked_mean")
    aggregate = s.functions(
        "trinity/trinity/algorithm/utils.py", "aggregate_loss", **vars(f)
    ).aggregate_loss
    given = {"PolicyLossFn": Loss, "aggregate_loss": aggregate, "masked_mean": f.masked_mean}
    folder = "trinity/trinity/algorithm/policy_loss_fn"
    rec = s.functions(f"{folder}/rec_policy_loss.py", "RECPolicyLossFn", **given).RECPolicyLossFn
    opmd = s.functions(f"{folder}/opmd_policy_loss.py", "OPMDPolicyLossFn", **given)
    folder = "trinity/trinity/algorithm/advantage_fn"
    plain: dict[str, Any] = {"GroupAdvantage": object}
    group = s.functions(f"{folder}/rec_advantage.py", "RECGroupedAdvantage", **plain)
    shifted = s.functions(f"{folder}/asymre_advantage.py", "ASYMREGroupAdvantage", **plain)

    def advantages(b: Batch, how: Any) -> Tensor:
        total, found = b["reward"].sum(1), torch.zeros_like(b["reward"])
        for p in np.unique(b["prompt"]):
            mine = np.flatnonzero(b["prompt"] == p)
            answers = [
                SimpleNamespace(reward=float(total[i]), action_mask=b["mask"][i]) for i in mine
            ]
            how.calculate_group_advantage(str(p), answers)
            for i, answer in zip(mine, answers, strict=True):
                found[i] = answer.advantages
        return found

    centred, asymmetric = group.RECGroupedAdvantage(), object.__new__(shifted.ASYMREGroupAdvantage)
    asymmetric.baseline_shift = -0.1
    likelihood = opmd.OPMDPolicyLossFn
    outer = {"epsilon_low_prime": 0.6, "epsilon_high_prime": 2.0}
    weighted = {"weight": "importance_sampling"}
    narrow = {"epsilon_low": 3e-4, "epsilon_high": 4e-4}
    whole = {"clip_mode": "gspo-one-side", "weight": "gspo_importance_sampling", **narrow}
    summed = {"loss_agg_mode": "seq-mean-token-sum"}
    for recipe, how, kind in (
        ("rec_one_side", centred, rec(clip_mode="one-side", **weighted)),
        ("rec_one_side_no_is", centred, rec(clip_mode="one-side")),
        ("rec_two_side", centred, rec(clip_mode="two-side", **weighted)),
        ("rec_ring", centred, rec(clip_mode="ring", **weighted, **outer)),
        ("rec_sequence", centred, rec(**whole)),
        ("opmd", centred, likelihood(tau=0.1, **summed)),
        ("asym_re", asymmetric, likelihood(tau=0.0, **summed)),
        ("red_weight", centred, rec(weight="advantage", temp=1.0)),
    ):

        def loss(b: Batch, how: Any = how, kind: Any = kind) -> Tensor:
            value: Tensor = kind(
                logprob=b["log_prob"],
                old_logprob=b["old"],
                action_mask=b["mask"],
                advantages=advantages(b, how),
            )[0]
            return value

        yield Case(recipe, "trinity-rft 0.6.0", loss)
