"""Likelihoods of masked models against the authors' code, in float64.

LLaDA: ML-GSAI/LLaDA at b7e6c35, `get_log_likelihood` (get_log_likelihood.py), of the answer of
five tokens at the eight draws of masked places in `HIDDEN`, which its own process made.

d1: dllm-reasoning/d1 at 837888f, `DiffuGRPOTrainer._get_per_token_logps`
(diffu-grpo/diffu_grpo_trainer.py), of four rows whose prompts are masked where
1 / (1 + exp(-normal(181, 4, 8))) is below 0.45, and whose answers are all masked.

EOSER and ASS: yjyddq/EOSER-ASS-RL at 5affb4e, `generate`, `eoser_generate`, `ass_generate` and
`eoser_ass_generate` (eval/generate.py) at temperature 0, in one block of 16 places after three,
with the end token 0; digests of all states and of the answers.

The model's logits at place i are W_i of the token there plus 0.3 times the sum of W_i of all
tokens, W = normal(180, 8, 7, 7); 6 is the mask. Decoding has W = normal(200, 19, 7, 7), less 50 for
the mask and 1 more for the end token.
"""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from algorithms.masked_diffusion import fitting
from algorithms.masked_diffusion.decoding import DecodingConfig, decode
from algorithms.masked_diffusion.finetuning import MaskedFinetuning, Round
from tests.algorithms.beside.inputs import array, digest, normal

MASK, PROMPT, ANSWER = 6, 3, 5
HIDDEN = [
    [1, 1, 1, 1, 1], [0, 1, 0, 0, 0], [0, 1, 0, 1, 1], [0, 1, 1, 1, 1],
    [0, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1], [1, 1, 0, 0, 1],
]  # fmt: skip
ROWS = [
    [1, 4, 2, 0, 5, 3, 3, 1], [2, 2, 0, 1, 1, 4, 5, 3],
    [5, 1, 3, 2, 0, 0, 4, 4], [0, 3, 1, 5, 2, 3, 1, 0],
]  # fmt: skip


def logits(weights: Tensor, prompt: Tensor, region: Tensor) -> Tensor:
    tokens = torch.cat([prompt, region], 1)
    each = [w[tokens[:, i]] + 0.3 * w[tokens].sum(1) for i, w in enumerate(weights)]
    return torch.stack(each, 1)[:, PROMPT:]


def model(prompt: Tensor, region: Tensor) -> Tensor:
    return logits(torch.as_tensor(normal(180, PROMPT + ANSWER, 7, 7)), prompt, region)


def test_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = torch.tensor(HIDDEN).bool()
    prompt, answer = torch.tensor([[1, 4, 2]]), torch.tensor([[0, 5, 3, 3, 1]])
    region = torch.where(hidden, MASK, answer)
    monkeypatch.setattr(fitting, "masked_at_random", lambda *drawn: (region, hidden))
    monkeypatch.setattr(torch, "randint", lambda *shape, **kinds: hidden.sum(1))
    rows = (prompt.expand(8, -1), answer.expand(8, -1))
    got = fitting.bound(model, *rows, MASK, torch.Generator())
    assert got.double().mean().item() == pytest.approx(-16.71223215, rel=1e-7)


def test_one_step_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.tensor(ROWS)
    prompt, answer = tokens[:, :PROMPT], tokens[:, PROMPT:]
    drawn = 1 / (1 + torch.as_tensor(-normal(181, 4, PROMPT + ANSWER)).exp())[:, :PROMPT]
    monkeypatch.setattr(torch, "rand", lambda *shape, **kinds: drawn)
    order = torch.zeros_like(answer)
    owner = SimpleNamespace(
        config=SimpleNamespace(
            likelihood="one_step", hidden_prompt=0.45, decoding=SimpleNamespace(temperature=1.0)
        ),
        layout=SimpleNamespace(codec=SimpleNamespace(pad=-1), mask=MASK),
        generator=None,
        evaluations=0,
        order=lambda decoded: decoded.step.argsort(dim=1, stable=True),
    )
    decoded = SimpleNamespace(answer=answer, step=order)
    done = Round(prompt, cast(Any, decoded), torch.zeros(4))
    inputs = MaskedFinetuning.inputs(cast(Any, owner), done)
    got = MaskedFinetuning.log_probs(cast(Any, owner), cast(Any, model), done, inputs)
    assert digest([array(got)]) == pytest.approx(-5.259607142, rel=1e-8)


@pytest.mark.parametrize(
    ("config", "states", "answer"),
    [
        (DecodingConfig(steps=5, temperature=0.0), -12.89429236, 8.39907278),
        (DecodingConfig(steps=5, temperature=0.0, end_from=0.4), 19.9607276, 7.398641882),
        (DecodingConfig(ascending=True, temperature=0.0), 12.81609166, 3.399268648),
        (
            DecodingConfig(ascending=True, temperature=0.0, end_from=0.5),
            15.44232474,
            3.399268648,
        ),
    ],
)
def test_decoding(config: DecodingConfig, states: float, answer: float) -> None:
    weights = torch.as_tensor(normal(200, PROMPT + 16, 7, 7))
    weights[..., MASK] -= 50
    weights[..., 0] += 1
    prompt = torch.tensor([[1, 4, 2], [3, 3, 0], [5, 1, 4]])
    done = decode(
        lambda *seen: logits(weights, *seen), prompt, 16, MASK, 0, config, torch.Generator()
    )
    got = [digest([array(done.states)]), digest([array(done.answer)])]
    assert got == pytest.approx([states, answer], rel=1e-8)
