"""Models in few bits: number formats against their definition, gradients against a plain layer at
the rounded point, and one precision for sampling and learning against two."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from algorithms.language.learner import ModelConfig
from algorithms.language.models.passes import passes
from algorithms.language.models.quantised import (
    LARGEST,
    Precision,
    QuantisedLinear,
    in_precision,
    quantised,
)
from algorithms.language.models.transformer import Transformer, TransformerConfig
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient, apart
from algorithms.language.sampling.async_collector import worker_config
from algorithms.language.sampling.workers import Inline, WorkerModel
from mbrl.errors import ConfigError
from tests.algorithms.language.small import TINY, tiny

FEW: list[Precision] = ["fp8", "int8", "int4", "int3"]


def numbers(precision: Precision) -> torch.Tensor:
    """Every number of a format, from its definition (for fp8 that of the Open Compute Project: one
    sign, four bits of exponent with bias 7, three of mantissa, no infinity)."""
    if precision != "fp8":
        most = int(LARGEST[precision])
        return torch.arange(-most, most + 1, dtype=torch.float64)
    small = [m / 8 * 2.0**-6 for m in range(8)]
    large = [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)][:-1]
    positive = torch.tensor([*small, *large], dtype=torch.float64)
    return torch.cat([-positive, positive])


@pytest.mark.parametrize("precision", FEW)
def test_each_number_is_the_nearest_of_the_format(precision: Precision) -> None:
    x = torch.randn(5, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[3] = 0.0
    allowed = numbers(precision)
    got = quantised(x, precision)
    for row, rounded in zip(x, got, strict=True):
        scale = row.abs().max() / LARGEST[precision] or torch.tensor(1.0)
        error = (row[:, None] / scale - allowed).abs().min(1).values * scale
        torch.testing.assert_close((row - rounded).abs(), error)
    torch.testing.assert_close(quantised(got, precision), got)


def test_groups_of_128_share_a_scale() -> None:
    x = torch.randn(150, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x *= torch.logspace(0, 3, 300, dtype=torch.float64)
    tokens, weights = quantised(x, "int4"), quantised(x, "int4", 128)
    for j in (0, 128, 256):
        columns = slice(j, j + 128)
        for i in range(150):
            scale = x[i, columns].abs().max() / 7
            want = (x[i, columns] / scale).round() * scale
            torch.testing.assert_close(tokens[i, columns], want)
        for i in (0, 128):
            block = x[i : i + 128, columns]
            want = (block / (block.abs().max() / 7)).round() * block.abs().max() / 7
            torch.testing.assert_close(weights[i : i + 128, columns], want)


def test_gradients_are_those_of_a_plain_layer_at_the_rounded_point() -> None:
    linear = nn.Linear(6, 4).double()
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    QuantisedLinear(linear, "int4")(x).square().sum().backward()
    plain = nn.Linear(6, 4).double()
    plain.weight.data = quantised(linear.weight.detach(), "int4", 128)
    plain.bias.data = linear.bias.detach().clone()
    at = quantised(x.detach(), "int4").requires_grad_()
    plain(at).square().sum().backward()
    for ours, theirs in ((x, at), (linear.weight, plain.weight), (linear.bias, plain.bias)):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_model_in_few_bits_is_the_model_with_rounded_layers() -> None:
    """A slow pass written out: every linear layer but the head gets rounded inputs and weights."""
    model, x = tiny(), torch.randint(20, (2, 7))
    handles = []
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and name != "head":

            def slow(layer: nn.Linear, inputs: Any, output: Any) -> Any:
                own = quantised(layer.weight, "int4", 128)
                return F.linear(quantised(inputs[0], "int4"), own)

            handles.append(layer.register_forward_hook(slow))
    want = model(x)
    for handle in handles:
        handle.remove()
    view = in_precision(model, "int4")
    torch.testing.assert_close(view(x), want)
    assert (view(x) - model(x)).abs().max() > 0.1
    here = torch.zeros(2, 7, dtype=torch.bool)
    here[0, 3:] = here[1, 6] = True
    torch.testing.assert_close(view.logits_at(x, here), want[here])
    cache = view.cache(2, 7)
    real = torch.ones_like(x, dtype=torch.bool)
    with torch.no_grad():
        view.extend(x[:, :4], real[:, :4], cache)
        for i in (4, 5, 6):
            logits = view.extend(x[:, i : i + 1], real[:, :1], cache)
    torch.testing.assert_close(logits, want[:, -1])


def test_samplers_see_new_weights() -> None:
    linear = nn.Linear(3, 2)
    view, x = QuantisedLinear(linear, "int8"), torch.ones(1, 3)
    with torch.no_grad():
        before = view(x)
        linear.weight += 1.0
        torch.testing.assert_close(view(x), before + 3.0, atol=0.05, rtol=0.0)


def test_half_way_goes_away_from_zero_whatever_the_order_of_sums() -> None:
    x = torch.tensor([[3.0, 1.5, -0.5], [3.0, 1.5 - 1e-7, -0.5 + 1e-8]])
    for row in quantised(x, "int3"):
        torch.testing.assert_close(row, torch.tensor([3.0, 2.0, -1.0]))


def agent(**changes: Any) -> LanguagePolicyGradient:
    values = {"task": "guessing", "levels": (8,), "prompts": 3, "group": 2, "minibatches": 1}
    model = ModelConfig(transformer=TINY)
    config = LanguageConfig(model=model, **(values | changes))  # type: ignore[arg-type]
    made = LanguagePolicyGradient(config=config)
    made.model.load_state_dict(tiny(torch.float32).state_dict())
    made.model.double()
    return made


@pytest.mark.parametrize("precision", FEW)
def test_one_precision_has_one_policy(precision: Precision) -> None:
    both = agent(sampling_precision=precision, training_precision=precision)
    both.collect()
    assert both.of_round["rollout/precision_gap"] < 1e-9
    alone = agent(sampling_precision=precision)
    alone.collect()
    assert alone.of_round["rollout/precision_gap"] > 1e-3
    assert alone.of_round["rollout/precision_kl"] > 0


def test_the_ratio_of_one_precision_begins_at_one() -> None:
    both = agent(sampling_precision="int4", training_precision="int4", recipe="nsr")
    both.collect()
    batch = both.next_batch()
    t = batch.rollouts.data
    now, _ = both.current(batch.rollouts, passes(t.mask, 256))
    torch.testing.assert_close(now[t.mask], t.log_probs["behaviour"][t.mask])
    before = both.model.blocks[0].qkv.weight.detach().clone()
    both.update(batch)
    assert (both.model.blocks[0].qkv.weight - before).abs().max() > 0


def test_how_far_two_precisions_are_apart() -> None:
    learner, sampler = torch.tensor([[-1.0, -2.0, -9.0]]), torch.tensor([[-1.5, -2.0, -1.0]])
    mask = torch.tensor([[True, True, False]])
    got = apart(learner.double(), sampler.double(), mask)
    assert float(got["rollout/precision_gap"]) == pytest.approx(0.5)
    assert float(got["rollout/precision_kl"]) == pytest.approx((math.exp(0.5) - 1.5) / 2)


def test_workers_sample_in_the_precision() -> None:
    one = agent(sampling_precision="int4", recipe="nsr")
    told = worker_config(one, None, 1)
    assert told.precision == "int4"
    assert Inline(told).model.config.precision == "int4"
    assert WorkerModel(told).config.precision == "int4"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training_precision": "int4"}, "the sampler's precision, or full"),
        ({"sampling_precision": "fp8", "training_precision": "int4"}, "the sampler's precision"),
        ({"sampling_precision": "int4", "recipe": "archer"}, "full precision"),
        ({"sampling_precision": "int5"}, "int5"),
    ],
)
def test_precisions_that_do_not_go(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agent(**changes)


def test_experts_stay_in_full_precision() -> None:
    config = TransformerConfig(width=16, layers=1, heads=2, hidden=8, experts=2, active=1)
    with pytest.raises(ConfigError, match="experts"):
        in_precision(Transformer(20, config), "int8")
