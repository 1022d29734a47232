"""Masked and perturbed policies, against renormalisation and layers worked out by hand."""

import math

import pytest
import torch

from algorithms.language.measures.policies import (
    MASK_ROUNDS,
    EntropyTemperature,
    Masked,
    Perturbed,
    Tempered,
)
from algorithms.language.models.passes import passes
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.tokens import Sampling
from algorithms.language.schedule import check_plain
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Estimate
from tests.algorithms.language.cases import learner, lenient, part_of


def shaken(agent: LanguagePolicyGradient) -> None:
    """The model, as if it had learned since."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in agent.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)


def likeliest(log_p: list[float], share: float) -> set[int]:
    """The fewest likeliest tokens that together have `share`."""
    kept, mass = set[int](), 0.0
    for i in sorted(range(len(log_p)), key=lambda i: -log_p[i]):
        if mass > share:
            break
        kept.add(i)
        mass += float(torch.tensor(log_p[i], dtype=torch.float64).exp())
    return kept


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7), Sampling(1.3, 0.8)])
def test_masked_log_probs_are_renormalised_on_the_copy_s_top(sampling: Sampling) -> None:
    agent = learner("guessing", "nlpo", levels=(8,), turn_tokens=3, sampling=sampling)
    agent.task = lenient(agent.task)
    shaken(agent)
    found = agent.sample_round()
    part = part_of(agent, Masked)
    t, kept = found.data, found.kept
    assert kept is not None
    with torch.no_grad():
        now, before = (
            (model(found.tokens[:, :-1]).double() / sampling.temperature).log_softmax(-1)
            for model in (agent.model, part.earlier)
        )
        current = agent.current(found, passes(found.data.mask, 256))[0]
    reference = agent.measured(agent.anchors["reference"], found)[0]
    first = agent.anchors["reference"](found.tokens[:, :-1]).double() / sampling.temperature
    narrower = 0
    for i, step in t.mask.nonzero().tolist():
        allowed = likeliest(before[i, step].tolist(), 0.9)
        if sampling.top_p < 1:
            inside = [now[i, step, k] if k in allowed else -torch.inf for k in range(now.shape[-1])]
            law = torch.tensor(inside, dtype=torch.float64).log_softmax(-1).tolist()
            allowed = likeliest(law, sampling.top_p)
        assert {k for k in kept[i, step].tolist() if k >= 0} == allowed
        token = int(found.tokens[i, step + 1])
        assert token in allowed
        narrower += len(allowed) < now.shape[-1]
        at = sorted(allowed)
        wanted = float(now[i, step, token] - now[i, step, at].logsumexp(-1))
        for value in (t.log_probs["behaviour"], t.log_probs["old"], current):
            assert float(value[i, step]) == pytest.approx(wanted, abs=1e-4)
        wanted = float((first[i, step, token] - first[i, step, at].logsumexp(-1)).detach())
        assert float(reference[i, step]) == pytest.approx(wanted, abs=1e-4)
    assert narrower == int(t.mask.sum())


def test_the_mask_is_renewed_after_some_rounds() -> None:
    agent = learner("addition", "nlpo", turn_tokens=2)
    part, found = part_of(agent, Masked), agent.sample_round()
    first = next(part.earlier.parameters()).clone()
    shaken(agent)
    for k in range(1, MASK_ROUNDS + 1):
        part.measure(found)
        new = torch.equal(next(part.earlier.parameters()), next(agent.model.parameters()))
        assert new == (k == MASK_ROUNDS)
        assert new or torch.equal(next(part.earlier.parameters()), first)


def test_workers_do_not_know_the_mask() -> None:
    for task, recipe in (("addition", "nlpo"), ("retrieval", "ps_grpo")):
        with pytest.raises(
            ConfigError, match=f"recipe {recipe} changes how conversations are held"
        ):
            check_plain(LanguageConfig(task=task, recipe=recipe), "workers", "leave workers at 0")
    check_plain(LanguageConfig(task="addition", recipe="ppo"), "workers", "leave workers at 0")


def perturbed(scale: float, **settings: int) -> LanguagePolicyGradient:
    agent = learner("addition", "alp", turn_tokens=3, minibatches=1, **settings)
    agent.task = lenient(agent.task)
    with torch.no_grad():
        part_of(agent, Perturbed).scales[0].fill_(math.log(scale) if scale else -math.inf)
    return agent


def test_perturbations_of_0_leave_the_log_probs() -> None:
    agent = perturbed(0.0)
    found = agent.sample_round()
    with torch.no_grad():
        log_prob, entropy = agent.current(found, passes(found.data.mask, 256))
    assert torch.equal(log_prob, found.data.log_probs["old"])
    assert torch.equal(entropy, found.data.entropy)


def test_noise_goes_into_the_layers() -> None:
    agent = perturbed(0.5)
    found = agent.sample_round()
    seed, model = part_of(agent, Perturbed).seed, agent.model
    with torch.no_grad():
        log_prob = agent.current(found, passes(found.data.mask, 3))[0]
    for i in range(len(found)):
        tokens = found.tokens[i : i + 1, :-1]
        hidden = model.embedding(tokens)
        noise = torch.randn(hidden.shape[1:], generator=torch.Generator().manual_seed(seed + i))
        at = torch.arange(tokens.shape[1], dtype=torch.float64)
        angle = at[:, None] * 10_000.0 ** -(torch.arange(0, 8, 2, dtype=torch.float64) / 8)
        turn = torch.polar(torch.ones_like(angle), angle).to(torch.complex64)
        hidden = model.blocks[0](hidden + 0.5 * noise, turn)
        law = model.head(model.norm(hidden))[0].log_softmax(-1)
        for step in found.data.mask[i].nonzero().flatten().tolist():
            wanted = float(law[step, found.tokens[i, step + 1]].detach())
            assert float(log_prob[i, step]) == pytest.approx(wanted, abs=1e-4)


def test_parts_of_a_minibatch_have_one_noise_and_its_gradient() -> None:
    gradients, scales = [], []
    for size in (256, 4):
        agent = perturbed(0.3, rows_at_once=size, group=8)
        before = part_of(agent, Perturbed).scales[0].detach().clone()
        agent.collect()
        batch = agent.next_batch()
        generator = torch.Generator().manual_seed(0)
        signs = torch.rand(batch.estimate.advantage.shape, generator=generator) - 0.5
        agent.update(batch._replace(estimate=Estimate(signs, batch.estimate.weight)))
        gradients.append([p.grad for p in agent.model.parameters()])
        scales.append(part_of(agent, Perturbed).scales[0].detach())
        assert not torch.equal(before, scales[-1])  # the objective trains it
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(*scales)


def test_every_update_has_its_own_noise() -> None:
    agent = perturbed(0.3)
    part, seeds = part_of(agent, Perturbed), set()
    for _ in range(3):
        agent.collect()
        seeds.add(part.seed)
        agent.update(agent.next_batch())
    assert len(seeds) == 3


def slow_factor(log_p: list[float], statistics: tuple[float, float, float]) -> float:
    entropy = -sum(math.exp(x) * x for x in log_p)
    apart = math.log(entropy) - statistics[0]
    h = apart / statistics[1] if apart > 0 else apart / statistics[2]
    return 1 + 0.05 * min(max(h, -1.0), 1.0)


def test_temperatures_follow_the_entropy_of_the_round_before() -> None:
    agent = learner("addition", "hapo", prompts=8, turn_tokens=4, sampling=Sampling(0.8))
    part = part_of(agent, EntropyTemperature)
    assert agent.sampling_model() is agent.model
    first = part.measure(agent.sample_round())
    assert part.acts == 0.0 and part.statistics is not None
    logs = sorted(math.log(max(float(h), 1e-8)) for h in first.data.entropy[first.data.mask])
    pivot = logs[round(0.8 * (len(logs) - 1))]
    statistics = (pivot, logs[-1] - pivot, pivot - logs[0])
    assert part.statistics == pytest.approx(statistics, rel=1e-5)
    assert isinstance(agent.sampling_model(), Tempered)
    found = agent.sample_round()
    t, factors = found.data, []
    with torch.no_grad():
        logits = agent.model(found.tokens[:, :-1]).double()
    for i, step in t.mask.nonzero().tolist():
        token = int(found.tokens[i, step + 1])
        plain = (logits[i, step] / 0.8).log_softmax(-1)
        factors.append(slow_factor(plain.tolist(), statistics))
        hot = (logits[i, step] / (0.8 * factors[-1])).log_softmax(-1)
        assert float(t.log_probs["behaviour"][i, step]) == pytest.approx(
            float(hot[token]), abs=1e-4
        )
        assert float(t.log_probs["old"][i, step]) == pytest.approx(float(plain[token]), abs=1e-4)
    assert min(factors) < 1 < max(factors)  # colder where it is sure, hotter where it is not
    part.measure(found)
    mean = sum(factors) / len(factors)
    spread = (sum((f - mean) ** 2 for f in factors) / (len(factors) - 1)) ** 0.5
    assert part.acts == pytest.approx(spread, rel=1e-3)
