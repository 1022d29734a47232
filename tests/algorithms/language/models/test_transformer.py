"""The transformer against Llama of the transformers library, and its cache against whole passes."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from algorithms.language.learner import log_probs_and_entropy_at
from algorithms.language.models import transformer
from algorithms.language.models.passes import passes, together
from algorithms.language.models.transformer import Transformer, TransformerConfig
from mbrl.errors import ConfigError
from tests.algorithms.language.small import TINY, tiny

SIZE = 30


def halved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows for the library's order: it rotates a head's first half against its second, not
    neighbours."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def llama(model: Transformer, tied: bool) -> Any:
    """Llama with the weights of a model of two layers and four heads."""
    transformers = pytest.importorskip("transformers")
    other = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=SIZE,
            hidden_size=32,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            rms_norm_eps=1e-6,
            tie_word_embeddings=tied,
        )
    ).double()
    with torch.no_grad():
        theirs = other.state_dict()
        theirs["model.embed_tokens.weight"].copy_(model.embedding.weight)
        theirs["lm_head.weight"].copy_(model.head.weight)
        theirs["model.norm.weight"].copy_(model.norm.weight)
        for i, block in enumerate(model.blocks):
            q, k, v = block.qkv.weight.chunk(3)
            q, k = halved(q, 4), halved(k, 4)
            gate, up = block.gate_up.weight.chunk(2)
            for name, weight in {
                "self_attn.q_proj": q,
                "self_attn.k_proj": k,
                "self_attn.v_proj": v,
                "self_attn.o_proj": block.out.weight,
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": block.down.weight,
                "input_layernorm": block.attention_norm.weight,
                "post_attention_layernorm": block.unit_norm.weight,
            }.items():
                theirs[f"model.layers.{i}.{name}.weight"].copy_(weight)
    return other


def spread(tied: bool) -> Transformer:
    """A model whose weights are far from 0."""
    config = TransformerConfig(width=32, layers=2, heads=4, hidden=40, tied=tied)
    model = Transformer(SIZE, config, torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(weight.numel()))
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_llama(tied: bool) -> None:
    model = spread(tied)
    tokens = torch.randint(SIZE, (3, 20), generator=torch.Generator().manual_seed(1))
    # The library takes norms and angles in float32, whatever the weights are.
    with torch.no_grad():
        torch.testing.assert_close(
            model(tokens), llama(model, tied)(tokens).logits, rtol=0, atol=1e-5
        )


def test_an_update_on_answers_of_all_lengths_has_llamas_loss_and_gradient() -> None:
    model = spread(tied=True)
    other = llama(model, tied=True)
    tokens = torch.randint(SIZE, (9, 17), generator=torch.Generator().manual_seed(1))
    prompt, lengths = 5, 1 + torch.arange(9)[:, None] * 5 % 12
    mask = torch.arange(12) < lengths
    wanted = torch.where(mask, tokens[:, prompt:], -100)  # which cross_entropy leaves out
    logits = other(tokens[:, :-1], logits_to_keep=12).logits
    expected = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
    expected.backward()

    said = torch.cat([torch.zeros(9, prompt - 1, dtype=torch.bool), mask], 1)
    todo = passes(said, 4)
    assert len(todo) > 2
    pieces = [log_probs_and_entropy_at(model, tokens, said, 1.0, None, one) for one in todo]
    loss = -together(pieces, todo, 16)[..., 0].sum() / mask.sum()
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-6)
    for ours, theirs in (
        (model.embedding, other.model.embed_tokens),
        (model.norm, other.model.norm),
        (model.blocks[0].out, other.model.layers[0].self_attn.o_proj),
        (model.blocks[1].down, other.model.layers[1].mlp.down_proj),
        (model.blocks[1].attention_norm, other.model.layers[1].input_layernorm),
    ):
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=0, atol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_logits_and_gradients_of_some_places_are_those_of_the_whole(share: float) -> None:
    model = tiny(torch.float64)
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.size, (7, 13), generator=g)
    here = torch.rand(7, 13, generator=g) < share
    here[3] = False
    weight = torch.randn(int(here.sum()), model.size, generator=g, dtype=torch.float64)
    found = []
    for logits in (model.logits_at(tokens, here), model(tokens)[here]):
        gradients = torch.autograd.grad((logits * weight).sum(), list(model.parameters()))
        found.append((logits, *gradients))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("room", [1, 32])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_the_cache_gives_the_logits_of_whole_passes(
    dtype: torch.dtype, near: float, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has to grow all the time."""
    monkeypatch.setattr(transformer, "LEAST_ROOM", room)
    model = tiny(dtype)
    g = torch.Generator().manual_seed(0)
    rows, steps = 5, 24
    tokens = torch.randint(model.size, (rows, steps), generator=g)
    with torch.no_grad():
        whole = model(tokens)
        lengths = torch.tensor([6, 9, 1, 4, 9])
        cache = model.cache(rows, 60)
        first = torch.zeros(rows, 9, dtype=torch.int64)
        real = torch.zeros(rows, 9, dtype=torch.bool)
        for i, n in enumerate(lengths.tolist()):
            first[i, 9 - n :], real[i, 9 - n :] = tokens[i, :n], True
        logits = model.extend(first, real, cache)
        at = lengths.clone()
        torch.testing.assert_close(logits, whole[torch.arange(rows), at - 1], rtol=0, atol=near)
        for step in range(18):
            take = (torch.rand(rows, generator=g) < 0.7) & (at < steps)
            if step == 6:  # some rows go on by themselves, and come back
                part_rows = torch.tensor([3, 1])
                part = cache.select(part_rows)
                more = tokens[part_rows].gather(1, at[part_rows][:, None])
                model.extend(more, torch.ones(2, 1, dtype=torch.bool), part)
                cache.put_back(part, part_rows)
                at[part_rows] += 1
                continue
            new = torch.where(take[:, None], tokens.gather(1, at.clamp_max(steps - 1)[:, None]), 0)
            logits = model.extend(new, take[:, None], cache)
            at += take
            torch.testing.assert_close(
                logits[take], whole[torch.arange(rows), at - 1][take], rtol=0, atol=near
            )


def test_a_part_that_said_much_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "LEAST_ROOM", 1)
    model = tiny(torch.float64)
    tokens = torch.randint(model.size, (3, 21), generator=torch.Generator().manual_seed(0))
    every = torch.ones(3, 21, dtype=torch.bool)
    with torch.no_grad():
        whole, cache = model(tokens), model.cache(3, 40)
        model.extend(tokens[:, :2], every[:, :2], cache)
        rows = torch.tensor([2, 0])
        part = cache.select(rows)
        model.extend(tokens[rows, 2:20], every[:2, 2:20], part)
        cache.put_back(part, rows)
        taken = torch.tensor([20, 2, 20])
        logits = model.extend(tokens.gather(1, taken[:, None]), every[:, :1], cache)
        wanted = whole[torch.arange(3), taken]
    torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-9)


def test_what_does_not_fit_is_refused() -> None:
    model = tiny()
    tokens, real = torch.zeros(1, 3, dtype=torch.int64), torch.ones(1, 3, dtype=torch.bool)
    with pytest.raises(ConfigError, match="3 columns do not fit into a cache of 2"):
        model.extend(tokens, real, model.cache(1, 2))
    with pytest.raises(ConfigError, match="width is 20, it must be a multiple of twice the 4"):
        TransformerConfig(width=20)
    with pytest.raises(ConfigError, match="layers is 0"):
        TransformerConfig(layers=0)


def test_a_seed_gives_its_weights() -> None:
    a, b = (Transformer(9, TINY, torch.Generator().manual_seed(5)) for _ in range(2))
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y)
    deep = a.blocks[0].out.weight.detach().std()
    assert float(deep) == pytest.approx(0.02 / 2, rel=0.2)  # over sqrt(2 layers 2)
