"""prime-rl's hook: called as prime-rl calls it, against what its trainer made of a clipped loss."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from algorithms.language.adapters import loss
from algorithms.language.adapters.prime_rl import recipe_loss
from mbrl.errors import ConfigError
from mbrl.policy_gradient import recipe

RECORDED = json.loads((Path(__file__).parent / "others.json").read_text())["prime_rl"]


def answers(**changes: Any) -> list[Any]:
    """prime-rl's `LossInputs` of every answer."""
    names = {
        "trainer_logprobs": "now",
        "inference_logprobs": "then",
        "advantages": "advantages",
        "loss_mask": "mask",
    }
    assert {*names, "loss_weights", "ref_logprobs"} == set(RECORDED["inputs"])
    found = []
    for i in range(len(RECORDED["now"])):
        own = {k: torch.tensor(RECORDED[v][i]) for k, v in names.items()}
        kept = own | {"loss_weights": None, "ref_logprobs": None} | changes
        found.append(SimpleNamespace(**kept))
    return found


def test_a_mean_over_tokens_is_that_of_prime_rl() -> None:
    """Its clip of 0.2 on both sides is the loss of this recipe."""
    inputs = answers()
    total = sum(recipe_loss(a, "grpo_passk").loss for a in inputs)
    tokens = sum(a.loss_mask.sum() for a in inputs)
    assert float(total / tokens) == pytest.approx(RECORDED["loss"], rel=1e-6)


def test_a_mean_over_answers_weighs_them_alike() -> None:
    """The sum is that of the whole batch times the number of answers."""
    inputs = answers()
    padded = [
        torch.nn.utils.rnn.pad_sequence([getattr(a, name) for a in inputs], batch_first=True)
        for name in ("trainer_logprobs", "advantages", "loss_mask", "inference_logprobs")
    ]
    now, gain, mask, then = padded
    whole, _ = loss(recipe("gspo"), now, gain, mask, old=then)
    there = sum(bool(a.loss_mask.any()) for a in inputs)
    parts = [recipe_loss(a, "gspo") for a in inputs]
    assert float(sum(p.loss for p in parts)) == pytest.approx(float(whole) * there, rel=1e-6)
    assert parts[0].metrics["log_ratio"].ndim == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [("kl_cov", "a whole batch"), ("clip_cov", "a whole batch"), ("s_ppo", "the learning rate")],
)
def test_recipes_that_one_answer_cannot_serve_are_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        recipe_loss(answers()[0], name)


def test_weights_multiply_and_a_reference_is_read() -> None:
    one = answers()[0]
    half = answers(loss_weights=torch.full_like(one.advantages, 0.5))[0]
    assert float(recipe_loss(half, "cispo").loss) == pytest.approx(
        0.5 * float(recipe_loss(one, "cispo").loss)
    )
    with pytest.raises(ConfigError, match=r"log_probs\.reference"):
        recipe_loss(one, "grpo")
    near = answers(ref_logprobs=one.trainer_logprobs)[0]
    far = answers(ref_logprobs=one.trainer_logprobs - 1)[0]
    assert recipe_loss(far, "grpo").loss > recipe_loss(near, "grpo").loss


def test_what_compares_answers_is_refused() -> None:
    with pytest.raises(ConfigError, match="one answer at a time"):
        recipe_loss(answers()[0], "balanced_aggregation")
