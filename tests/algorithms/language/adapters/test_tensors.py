"""Recipes as functions of plain tensors."""

import math

import pytest
import torch

from algorithms.language.adapters import advantages, loss
from algorithms.language.adapters.tensors import needs, of_advantages, of_loss
from mbrl.errors import ConfigError
from mbrl.policy_gradient import RECIPES, estimate, recipe
from mbrl.policy_gradient import loss as objective
from tests.mbrl.policy_gradient import cases

READ_REWARDS = ("calibrl",)  # in the loss


@pytest.mark.parametrize("name", RECIPES)
def test_they_are_the_recipe_itself(name: str) -> None:
    """On a batch with gaps, turns and groups that are all right, all wrong or of one."""
    chosen = recipe(name)
    t, log_prob, entropy = cases.batch(0)
    known = estimate(chosen, t)
    value, _ = objective(chosen, log_prob, t, known, entropy)
    (right,) = torch.autograd.grad(value, log_prob)
    everything = {
        f"{part}.{key}": tensor
        for part in ("log_probs", "groups", "segments", "signals")
        for key, tensor in getattr(t, part).items()
    } | {"entropy": t.entropy, "sum_prob_squared": t.sum_prob_squared}
    fields = {k: everything[k] for k in needs(of_advantages(chosen)) if k in everything}
    keys = {k for term in chosen.terms for k in term.key}
    fields |= {k: v for k, v in everything.items() if k.partition(".")[2] in keys}
    own = {"truncated": t.truncated.any(1), "fields": fields}
    found, weight = advantages(chosen, t.reward, t.mask, t.groups["prompt"][:, 0], **own)
    torch.testing.assert_close(found * weight, known.advantage * known.weight)
    fields = {k: everything[k] for k in needs(of_loss(chosen)) if k in everything}
    fields |= {k: v for k, v in everything.items() if k.partition(".")[2] in keys}
    mine, _ = loss(
        chosen,
        log_prob,
        found,
        t.mask,
        old=t.log_probs["old"],
        weight=weight,
        reference=t.log_probs["reference"],
        entropy=entropy,
        reward=t.reward if name in READ_REWARDS else None,
        prompt=t.groups["prompt"][:, 0],
        fields=fields,
    )
    torch.testing.assert_close(mine, value)
    torch.testing.assert_close(torch.autograd.grad(mine, log_prob)[0], right)


def test_four_answers_by_hand() -> None:
    """Two prompts under names of any kind; rewards of answers; the first answer has one token."""
    reward = torch.tensor([1.0, 0.0, 3.0, 1.0])
    mask = torch.tensor([[1, 0], [1, 1], [1, 1], [1, 1]])
    found, weight = advantages(recipe("dr_grpo"), reward, mask, ["a", "a", "b", "b"])
    assert torch.equal(found, torch.tensor([[0.5, 0], [-0.5, -0.5], [1, 1], [-1, -1]]))
    assert torch.equal(weight, mask.float())
    log_prob = torch.full((4, 2), -1.0, requires_grad=True)
    value, metrics = loss(recipe("reinforce"), log_prob, reward, mask)
    value.backward()
    # Mean over answers of minus reward times the sum of log-probs, at a ratio of 1.
    assert log_prob.grad is not None
    assert torch.equal(log_prob.grad, -reward[:, None] * mask / 4)
    assert metrics["policy/ratio_max"] == 1


def test_a_truncated_answer_is_left_out_where_a_recipe_says_so() -> None:
    reward, mask = torch.tensor([1.0, 0.0, 0.0]), torch.ones(3, 2)
    cut = torch.tensor([False, False, True])
    _, weight = advantages(recipe("dapo"), reward, mask, [0, 0, 0], truncated=cut)
    assert weight[:2].all() and not weight[2].any()


@pytest.mark.parametrize("name", ["grpo", "rloo", "dr_grpo"])
def test_a_reward_behind_an_answer_is_the_answers(name: str) -> None:
    """On a tool's token after it, before it, or between two of its turns."""
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1]])
    reward = torch.tensor([[0, 0, 0, 1.0], [0, 0, 0, 0.25], [0.5, 0, 0.125, 0]])
    wanted = advantages(recipe(name), torch.tensor([1.0, 0.25, 0.625]), mask, [0, 0, 0])
    for ours, theirs in zip(advantages(recipe(name), reward, mask, [0, 0, 0]), wanted, strict=True):
        assert torch.equal(ours, theirs)


def test_numbers_of_answers_are_no_numbers_of_tokens() -> None:
    """As many answers as tokens: a weight [B] would be taken for one of every step."""
    log_prob, mask = torch.full((2, 2), -1.0), torch.ones(2, 2)
    advantage, weight = torch.tensor([1.0, -1.0]), torch.tensor([1.0, 0.0])
    first = loss("rloo", log_prob, advantage, mask, weight=weight)[0]
    assert first == loss("rloo", log_prob, advantage, mask, weight=weight[:, None])[0] != 0
    each = weight[:, None].expand(2, 2)
    assert first == loss("rloo", log_prob, advantage[:, None].expand(2, 2), mask, weight=each)[0]
    with pytest.raises(ConfigError, match=r"weight is \(3,\) and mask \(2, 2\)"):
        loss("rloo", log_prob, advantage, mask, weight=torch.ones(3))


def test_a_loss_of_half_precision_is_summed_in_single() -> None:
    generator = torch.Generator().manual_seed(0)
    log_prob = (-torch.rand(4, 6, generator=generator)).bfloat16()
    old = (log_prob.float() + 0.01 * torch.randn(4, 6, generator=generator)).bfloat16()
    advantage, mask = torch.tensor([1.0, -1.0, 0.5, -0.5]), torch.ones(4, 6)
    half, metrics = loss("gspo", log_prob, advantage, mask, old=old)
    whole, single = loss("gspo", log_prob.float(), advantage, mask, old=old.float())
    assert half.dtype == torch.float32 and torch.allclose(half, whole) and float(half) != 0
    assert torch.allclose(metrics["policy/ratio_max"], single["policy/ratio_max"])


def test_lists_are_taken_and_no_answers_refused() -> None:
    reward, mask, tokens = [1.0, 0.0, 1.0], [[1, 1], [1, 0], [1, 1]], [[5, 6], [5, 6], [7, 8]]
    wanted = advantages("rloo", torch.tensor(reward), torch.tensor(mask), ["a", "a", "b"])
    for prompt in (tokens, torch.tensor(tokens)):
        made = advantages("rloo", reward, mask, prompt, truncated=[False, True, False])
        assert torch.equal(made[0], wanted[0])
    with pytest.raises(ConfigError, match=r"mask is \(0, 3\).*one answer or more"):
        advantages("rloo", torch.zeros(0), torch.zeros(0, 3))


def test_what_is_missing_is_named() -> None:
    reward, mask = torch.zeros(2), torch.ones(2, 3)
    with pytest.raises(ConfigError, match=r"ppo needs signals.value.*a critic"):
        advantages(recipe("ppo"), reward, mask)
    with pytest.raises(ConfigError, match=r"gigpo needs groups.state"):
        advantages(
            recipe("gigpo"), reward, mask, fields={"segments.turn": torch.zeros(2, 3).long()}
        )
    with pytest.raises(ConfigError, match=r"grpo needs log_probs.reference"):
        loss(recipe("grpo"), torch.zeros(2, 3), reward, mask)
    with pytest.raises(ConfigError, match="current policy's entropy"):
        loss(recipe("skywork_or1"), torch.zeros(2, 3), reward, mask)
    with pytest.raises(ConfigError, match="calibrl reads rewards"):
        loss(recipe("calibrl"), torch.zeros(2, 3), reward, mask)
    with pytest.raises(ConfigError, match=r"3 prompts are given for 2 answers"):
        advantages(recipe("rloo"), reward, mask, [0, 1, 2])
    with pytest.raises(ConfigError, match=r"mask is \(2,\)"):
        advantages(recipe("rloo"), reward, torch.ones(2))
    with pytest.raises(ConfigError, match=r"no field 'value'"):
        advantages(recipe("ppo"), reward, mask, fields={"value": torch.zeros(2, 3)})
    with pytest.raises(ConfigError, match=r"signals.value is \(2,\)"):
        advantages(recipe("ppo"), reward, mask, fields={"signals.value": torch.zeros(2)})


def test_the_mean_of_an_empty_batch_is_no_nan() -> None:
    value, _ = loss(recipe("gspo"), torch.zeros(2, 3), torch.zeros(2), torch.zeros(2, 3))
    assert math.isfinite(value)


def test_rewards_of_any_kind_of_number_count_the_same() -> None:
    """Whole numbers have a mean that is none, and squares of hundreds overflow half precision."""
    mask, prompt = torch.ones(4, 2), [torch.tensor(i) for i in (0, 0, 1, 1)]
    for name in ("grpo", "dr_grpo", "cispo"):
        right, _ = advantages(recipe(name), torch.tensor([300.0, 0, 0, 1]), mask, [0, 0, 1, 1])
        torch.testing.assert_close(advantages(name, [300, 0, 0, 1], mask, prompt)[0], right)
        for kind in (torch.int64, torch.float16, torch.float64):
            reward = torch.tensor([300, 0, 0, 1]).to(kind)
            found, _ = advantages(recipe(name), reward, mask, prompt)
            torch.testing.assert_close(found.float(), right)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"reward": torch.tensor([1.0, torch.nan, 0, 0])}, "reward of answer 1 is not finite"),
        ({"mask": torch.tensor([[1.0, -100]] * 4)}, "numbers other than 0 and 1"),
        ({"truncated": torch.tensor([True])}, "one flag for each of the 4 answers"),
        ({"prompt": None}, "every advantage is 0; say which answers share one"),
    ],
)
def test_what_would_mislead_is_refused(options: dict, text: str) -> None:
    given = {"reward": torch.tensor([1.0, 0, 0, 1]), "mask": torch.ones(4, 2)}
    given |= {"prompt": [0, 0, 1, 1]}
    with pytest.raises(ConfigError, match=text):
        advantages(recipe("grpo"), **(given | options))
    advantages(recipe("grpo"), torch.ones(4), torch.ones(4, 2))  # equal rewards: 0 is right


def test_ids_of_groups_are_any_and_parts_are_numbered() -> None:
    """Numbers of states as a trainer has them, with -1 where the policy chose nothing."""
    reward, mask = torch.tensor([1.0, 0, 0, 0.5]), torch.tensor([[1, 1, 0]] * 2 + [[1, 1, 1]] * 2)
    state = torch.tensor([[0, 1, 0], [0, 2, 0], [0, 1, 2], [3, 2, 1]])
    turn = torch.tensor([[0, 1, 0]] * 2 + [[0, 1, 1]] * 2)

    def made(state: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        fields = {"groups.state": state, "segments.turn": turn}
        return advantages("gigpo", reward, mask, [0, 0, 0, 0], fields=fields)[0]

    wanted = made(state, turn)
    assert wanted[0, 0] != wanted[0, 1]
    others = torch.where(mask.bool(), 1_000 * state - 7, -1)
    assert torch.equal(made(others, torch.where(mask.bool(), turn, -1)), wanted)
    assert torch.equal(made(others.float(), turn), wanted)
    with pytest.raises(ConfigError, match=r"and 11; .* here below 3"):
        made(state, turn + 10)
    with pytest.raises(ConfigError, match="not whole"):
        made(state + 0.5, turn)
    with pytest.raises(ConfigError, match="state"):
        made(state[:3], turn)
