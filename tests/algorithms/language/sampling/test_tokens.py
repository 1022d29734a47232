"""Sampling: the law that draws, exact log-probs, texts that belong to a seed."""

import random

import numpy as np
import pytest
import torch
from scipy import stats

from algorithms.language.models.vocabulary import Characters
from algorithms.language.sampling.rollouts import joined, roll_out
from algorithms.language.sampling.tokens import (
    Sampling,
    draw,
    log_probs_and_entropy,
    sampling_distribution,
)
from mbrl.errors import ConfigError
from tests.algorithms.language.small import Digits, tiny

LAWS = [Sampling(), Sampling(0.7), Sampling(1.0, 0.8), Sampling(1.4, 0.5)]


def slow_law(logits: list[float], temperature: float, top_p: float) -> dict[int, float]:
    """Probabilities by sorting and adding up, in plain Python."""
    weights = [np.exp(x / temperature) for x in logits]
    p = {i: w / sum(weights) for i, w in enumerate(weights)}
    kept, mass = [], 0.0
    for i in sorted(p, key=lambda i: -p[i]):
        if mass >= top_p:
            break
        kept.append(i)
        mass += p[i]
    total = sum(p[i] for i in kept)
    return {i: p[i] / total for i in kept}


@pytest.mark.parametrize("sampling", LAWS, ids=str)
def test_the_law_is_the_slow_one(sampling: Sampling) -> None:
    logits = 2 * torch.randn(40, 11, generator=torch.Generator().manual_seed(0)).double()
    log_p, kept = sampling_distribution(logits, sampling)
    for i in range(len(logits)):
        expected = slow_law(logits[i].tolist(), sampling.temperature, sampling.top_p)
        found = {j: p for j, p in enumerate(log_p[i].exp().tolist()) if p > 0}
        assert found == pytest.approx(expected)
        if kept is not None:
            assert {j for j in kept[i].tolist() if j >= 0} == set(expected)


def test_draws_follow_the_law() -> None:
    g = torch.Generator().manual_seed(0)
    log_p = torch.log_softmax(torch.randn(6, generator=g).double(), 0)
    log_p[2] = -torch.inf
    log_p = torch.log_softmax(log_p, 0)
    drawn = draw(log_p.expand(20_000, -1), torch.rand(20_000, dtype=torch.float64, generator=g))
    counts = torch.bincount(drawn, minlength=6).numpy()
    assert counts[2] == 0
    expected = 20_000 * np.delete(log_p.exp().numpy(), 2)
    assert stats.chisquare(np.delete(counts, 2), expected).pvalue > 0.01
    edges = draw(log_p.expand(2, -1), torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64))
    assert edges.tolist() == [0, 5]


@pytest.mark.parametrize("sampling", LAWS, ids=str)
def test_log_probs_are_those_of_whole_passes(sampling: Sampling) -> None:
    """The sampler's, through the cache in turns, against one pass over the conversation."""
    model, task = tiny(), Digits()
    problems = [task.problem(9, random.Random(i)) for i in range(6)]
    found = roll_out(
        model, Characters(), task, problems, sampling, torch.Generator().manual_seed(1), group=4
    )
    mask = found.data.mask
    logits = model(found.tokens)[:, :-1]
    log_prob, entropy, squares = log_probs_and_entropy(
        logits, found.tokens[:, 1:], sampling.temperature, found.kept
    )
    behaviour = found.data.log_probs["behaviour"]
    torch.testing.assert_close(log_prob[mask], behaviour[mask], rtol=0, atol=1e-9)
    for b, t in mask.nonzero()[::7].tolist():
        p = slow_law(logits[b, t].tolist(), sampling.temperature, sampling.top_p)
        token = int(found.tokens[b, t + 1])
        assert float(behaviour[b, t]) == pytest.approx(np.log(p[token]))
        values = np.array(list(p.values()))
        assert float(entropy[b, t].detach()) == pytest.approx(stats.entropy(values))
        assert float(squares[b, t].detach()) == pytest.approx((values**2).sum())
        plain = slow_law(logits[b, t].tolist(), 1.0, 1.0)
        assert float(found.model_log_prob[b, t]) == pytest.approx(np.log(plain[token]))
    (log_prob[mask].sum() + entropy[mask].sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_a_seed_gives_its_texts_whatever_stands_beside_them() -> None:
    model, task = tiny(), Digits()
    problems = [task.problem(9, random.Random(i)) for i in range(8)]

    def texts(seed: int) -> list[tuple[str, ...]]:
        g = torch.Generator().manual_seed(seed)
        return list(roll_out(model, Characters(), task, problems, Sampling(), g).turns)

    assert texts(0) == texts(0)
    assert texts(0) != texts(1)
    # Rows that end early are dropped from the work; the others' texts must not change. Row by row:
    seeds = torch.randint(2**62, (8,), generator=torch.Generator().manual_seed(0)).tolist()
    for row, turns in enumerate(texts(0)):
        chance = torch.rand(
            9, dtype=torch.float64, generator=torch.Generator().manual_seed(seeds[row])
        ).tolist()
        tokens = Characters().opening(problems[row].prompt)
        for turn in turns:
            said: list[int] = []
            while len(said) < 3 and (not said or said[-1] != Characters.end):
                logits = model(torch.tensor([tokens + said]))[0, -1].detach()
                p = logits.double().softmax(0).numpy()
                said.append(int(np.searchsorted(p.cumsum(), chance.pop(0))))
            assert Characters().decode(said) == turn
            tokens += [*said, *Characters().between("no")]


def test_greedy_turns_are_the_likeliest_tokens() -> None:
    model, task = tiny(), Digits()
    problems = [task.problem(9, random.Random(i)) for i in range(3)]
    g = torch.Generator().manual_seed(0)
    found = roll_out(model, Characters(), task, problems, Sampling(0.0), g)
    best = model(found.tokens)[:, :-1].argmax(-1)
    mask = found.data.mask
    assert torch.equal(best[mask], found.tokens[:, 1:][mask])
    assert float(found.data.log_probs["behaviour"].abs().max()) == 0.0


def test_conversations_can_be_joined_and_chosen() -> None:
    model, task = tiny(), Digits()
    g = torch.Generator().manual_seed(0)
    parts = [
        roll_out(
            model,
            Characters(),
            task,
            [task.problem(9, random.Random(i))],
            sampling,
            g,
            group=3,
        )
        for i, sampling in enumerate((Sampling(1.0, 0.5), Sampling(1.0, 0.9)))
    ]
    whole = joined(parts, Characters.pad)
    assert whole.turns == parts[0].turns + parts[1].turns
    back = whole.select([3, 4, 5])
    width = parts[1].tokens.shape[1]
    assert torch.equal(back.tokens[:, :width], parts[1].tokens)
    assert back.kept is not None and parts[1].kept is not None
    steps, most = parts[1].kept.shape[1:]
    assert torch.equal(back.kept[:, :steps, :most], parts[1].kept)
    assert (back.kept[:, :, most:] == -1).all()


@pytest.mark.parametrize(
    ("values", "reason"), [((-1.0, 1.0), "temperature is -1"), ((1.0, 0.0), r"top_p is 0\.0")]
)
def test_impossible_laws_are_refused(values: tuple[float, float], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Sampling(*values)
