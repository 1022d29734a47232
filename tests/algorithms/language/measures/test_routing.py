"""Experts that are replayed: in the model, in old log-probs, in updates."""

from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.learner import ModelConfig
from algorithms.language.measures.routing import RoutedSampler, RoutedUpdates
from algorithms.language.models.experts import (
    Experts,
    Replayed,
    layers_with_experts,
    rounded,
    routing,
)
from algorithms.language.models.passes import passes
from algorithms.language.models.transformer import Transformer, TransformerConfig
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import continued, lenient, part_of, rounds, shake

SIZES = TransformerConfig(width=16, layers=2, heads=2, hidden=12, experts=4, active=2)


def model(dtype: torch.dtype = torch.float64) -> Transformer:
    made = Transformer(30, SIZES, torch.Generator().manual_seed(0)).to(dtype)
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim >= 2:
                weight.mul_(12)
    return made


def agent_of(recipe: str, **settings: Any) -> LanguagePolicyGradient:
    usual = {"model": ModelConfig(transformer=SIZES), "prompts": 4, "group": 3, "turn_tokens": 3}
    config = LanguageConfig(task="addition", recipe=recipe, **usual | settings)
    agent = LanguagePolicyGradient(None, config)
    agent.task = lenient(agent.task)
    with torch.no_grad():
        for weight in agent.model.parameters():
            if weight.ndim >= 2:
                weight.mul_(12)
    return agent


def test_a_token_takes_its_experts_by_hand() -> None:
    units = Experts(5, 3, 4, 2).double()
    shake(units, 0)
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    found = units(x)
    for i in range(2):
        for j in range(3):
            numbers = units.router(x[i, j]).tolist()
            best = sorted(range(4), key=lambda e: -numbers[e])[:2]
            weights = torch.tensor([numbers[e] for e in best]).double().softmax(0)
            total = torch.zeros(5, dtype=torch.float64)
            for w, e in zip(weights, best, strict=True):
                both = x[i, j] @ units.gate_up[e]
                gate, up = both[:3], both[3:]
                total += w * ((gate * gate.sigmoid() * up) @ units.down[e])
            torch.testing.assert_close(found[i, j], total)


def test_its_own_experts_replayed_change_nothing() -> None:
    made = model()
    tokens = torch.randint(4, 30, (3, 7), generator=torch.Generator().manual_seed(1))
    here = torch.rand(3, 7, generator=torch.Generator().manual_seed(2)) < 0.5
    ids = routing(made, tokens)
    assert ids.shape == (2, 3, 7, 2) and len(ids.unique()) == 4
    plain = made.logits_at(tokens, here)
    # The sum over experts may be in another order.
    torch.testing.assert_close(Replayed(made, ids).logits_at(tokens, here), plain)
    other = Replayed(made, (ids + 1) % 4).logits_at(tokens, here)
    assert not torch.allclose(other, plain)
    torch.testing.assert_close(made.logits_at(tokens, here), plain, rtol=0, atol=0)
    assert all(layer.forced is None and layer.noted is None for layer in layers_with_experts(made))
    # Step by step with a cache it is the same model.
    cache = made.cache(3, 7)
    steps = [made.extend(tokens[:, [i]], torch.ones(3, 1).bool(), cache) for i in range(7)]
    torch.testing.assert_close(torch.stack(steps, 1), made(tokens))


def test_routers_learn_under_replay() -> None:
    made = model()
    tokens = torch.randint(4, 30, (2, 5), generator=torch.Generator().manual_seed(3))
    logits = Replayed(made, routing(made, tokens)).logits_at(tokens, torch.ones(2, 5).bool())
    logits.square().sum().backward()
    assert all(
        float(layer.router.weight.grad.abs().sum()) > 0 for layer in layers_with_experts(made)
    )


def test_rounded_weights() -> None:
    made, few = model(torch.float32), None
    few = rounded(made, 4)
    for a, b in zip(made.parameters(), few.parameters(), strict=True):
        big = a.detach().abs() > 1e-6
        apart = ((a - b).abs() / a.abs())[big]
        assert float(apart.max()) <= 2**-4 + 1e-6
        assert a is not b
    assert any(
        not torch.equal(a, b) for a, b in zip(made.parameters(), few.parameters(), strict=True)
    )


def test_updates_take_the_experts_of_the_policy_before_them() -> None:
    agent = agent_of("mini_rl_r2", minibatches=2)
    part = part_of(agent, RoutedUpdates)
    agent.collect()
    assert part.acts == 0.0 and agent.data is not None
    whole = agent.data.rollouts
    before = routing(agent.model, whole.tokens[:, :-1])
    assert torch.equal(part.experts(whole), before)
    agent.update(agent.next_batch())
    shake(agent.model, 5)  # as if it had learned much
    batch = agent.next_batch()
    part.before_update(batch.rollouts)
    todo = passes(batch.data.mask, 256)
    found = agent.current(batch.rollouts, todo)[0]
    ids = part.experts(batch.rollouts)
    tokens = batch.rollouts.tokens
    with torch.no_grad():
        every = torch.ones(tokens[:, :-1].shape).bool()
        logits = Replayed(agent.model, ids).logits_at(tokens[:, :-1], every)
        wanted = logits.view(*every.shape, -1).log_softmax(-1)
        wanted = wanted.gather(-1, tokens[:, 1:, None])[..., 0]
        own = agent.model(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    mask = batch.data.mask
    torch.testing.assert_close(found[mask], wanted[mask], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(found[mask], own[mask], atol=1e-3)
    agent.update(batch)
    assert part.changed > 0
    agent.collect()
    assert part.acts is not None and part.acts > 0


def test_the_sampler_s_experts_bring_its_log_probs_nearer() -> None:
    """A sampler with few bits takes other experts; the policy with its experts is nearer to it."""
    apart: dict[str, float] = {}
    for recipe, kind in (("mini_rl_r2", RoutedUpdates), ("mini_rl_r3", RoutedSampler)):
        agent = agent_of(recipe, sampler_bits=3, prompts=40)
        batch = agent.estimated(agent.sample_round())
        t, part = batch.data, part_of(agent, kind)
        d = (t.log_probs["old"] - t.log_probs["behaviour"])[t.mask]
        apart[recipe] = float((d.exp() - 1 - d).mean())
        if recipe == "mini_rl_r3":
            assert part.acts is not None and part.acts > 0.05
            ids = routing(agent.sampling_model(), batch.rollouts.tokens[:, :-1])
            assert torch.equal(part.experts(batch.rollouts), ids)
    assert apart["mini_rl_r3"] < apart["mini_rl_r2"]


def test_models_without_experts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"set model\.transformer\.experts to 2 or more"):
        LanguageConfig(recipe="mini_rl_r3")
    with pytest.raises(ConfigError, match="of which no more are active"):
        TransformerConfig(experts=2, active=3)
    with pytest.raises(ConfigError, match="experts is 1"):
        TransformerConfig(experts=1)


@pytest.mark.parametrize("recipe", ["mini_rl_r2", "mini_rl_r3"])
def test_they_resume_exactly(recipe: str, tmp_path: Path) -> None:
    agent = agent_of(recipe, sampler_bits=4, staleness=2)
    continued(agent, tmp_path, 2, 2, rounds)


def test_many_experts_are_noted_exactly() -> None:
    """32^8 sets of experts are more than whole numbers of 32 bits' precision."""
    sizes = TransformerConfig(width=16, layers=1, heads=2, hidden=4, experts=32, active=8)
    agent = agent_of("mini_rl_r3", model=ModelConfig(transformer=sizes))
    agent.collect()
    found = agent.trainer.data.rollouts
    taken = routing(agent.model, found.tokens[:, :-1])
    assert torch.equal(part_of(agent, RoutedSampler).experts(found), taken)
