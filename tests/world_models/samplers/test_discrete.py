"""Discrete samplers on words of three letters: all laws, those of the samplers too, by enumeration."""

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from mbrl.errors import ConfigError
from world_models.samplers import Process, TauLeaping, learn_few_steps
from world_models.samplers.discrete import jump_probabilities, shortest

LETTERS, LENGTH = 3, 3


def words(states: int) -> Tensor:
    return torch.tensor(list(itertools.product(range(states), repeat=LENGTH)))


def language() -> Tensor:
    """A law [V^L] of words in which letters hang together."""
    weight = [
        math.exp(1.5 * (a == b) + 1.0 * (b == c) - 0.7 * (a == 2)) for a, b, c in words(3).tolist()
    ]
    law = torch.tensor(weight).double()
    return law / law.sum()


class Exact:
    """Scores and laws of a process from the enumerated law of the data."""

    def __init__(self, process: Process) -> None:
        self.process, self.states = process, words(process.states)
        self.data = torch.zeros(len(self.states)).double()
        self.data[self.index(words(LETTERS))] = language()

    def index(self, x: Tensor) -> Tensor:
        k = self.process.states
        return (x * torch.tensor([k**2, k, 1])).sum(-1)

    def law(self, level: float) -> Tensor:
        """p_s [K^L], word by word."""
        kernel = self.process.kernel(level)
        total = torch.zeros_like(self.data)
        for word, weight in zip(self.states, self.data, strict=True):
            if weight > 0:
                rows = [kernel[letter] for letter in word.tolist()]
                total += weight * torch.einsum("a,b,c->abc", *rows).flatten()
        return total

    def __call__(self, x: Tensor, level: float) -> Tensor:
        law = self.law(level)
        k = self.process.states
        found = torch.empty(*x.shape, k).double()
        for i, v in itertools.product(range(LENGTH), range(k)):
            changed = x.clone()
            changed[:, i] = v
            found[:, i, v] = law[self.index(changed)] / law[self.index(x)].clamp_min(1e-300)
        return found

    def sampled(self, sampler: TauLeaping, levels: Sequence[float]) -> Tensor:
        """The exact law [K^L] of the sampler's words: every step's transition between all words."""
        now = self.start()
        factors = sampler.coefficients or (1.0,) * (len(levels) - 1)
        for (a, b), factor in zip(itertools.pairwise(levels), factors, strict=True):
            scores = self(self.states, a).nan_to_num(0.0, 0.0, 0.0)
            steps = jump_probabilities(self.process, self.states, scores, a, b, factor)
            after = torch.zeros_like(now)
            for word, weight in enumerate(now):
                if weight > 0:
                    after += weight * torch.einsum("a,b,c->abc", *steps[word]).flatten()
            now = after
        return now

    def start(self) -> Tensor:
        if self.process.kind == "masked":
            law = torch.zeros_like(self.data)
            law[-1] = 1.0
            return law
        return torch.full_like(self.data, 1 / len(self.data))

    def divergence(self, law: Tensor) -> float:
        """KL from the data's law."""
        seen = self.data > 0
        return float((self.data[seen] * (self.data[seen] / law[seen].clamp_min(1e-12)).log()).sum())


UNIFORM, MASKED = Exact(Process(LETTERS)), Exact(Process(LETTERS, "masked"))


def even(steps: int, high: float = 4.0) -> list[float]:
    """Levels whose share of corrupted tokens falls evenly."""
    top = 1 - math.exp(-high)
    return [-math.log(1 - top * (1 - n / steps)) for n in range(steps)] + [0.0]


@pytest.mark.parametrize("world", [UNIFORM, MASKED], ids=["uniform", "masked"])
def test_kernels_are_the_exponential_of_the_rates(world: Exact) -> None:
    process, k = world.process, world.process.states
    rate = torch.full((k, k), 1 / LETTERS).double()
    if process.kind == "masked":
        rate = torch.zeros(k, k).double()
        rate[:, -1] = 1.0
    generator = rate - torch.diag(rate.sum(1))
    assert torch.allclose(process.kernel(0.7), torch.linalg.matrix_exp(0.7 * generator))


@pytest.mark.parametrize("world", [UNIFORM, MASKED], ids=["uniform", "masked"])
def test_the_reverse_rates_undo_the_forward_ones(world: Exact) -> None:
    """d p_s / ds from the reverse process equals that of the forward one, by differences."""
    level, h = 0.8, 1e-5
    law = world.law(level)
    expected = (world.law(level - h) - law) / h
    rates = world.process.rates(world.states, world(world.states, level))
    change = torch.zeros_like(law)
    for word, (i, v) in itertools.product(
        range(len(law)), itertools.product(range(LENGTH), range(world.process.states))
    ):
        flow = float(law[word] * rates[word, i, v])
        target = world.states[word].clone()
        target[i] = v
        change[world.index(target)] += flow
        change[word] -= flow
    assert torch.allclose(change, expected, atol=1e-3)


@pytest.mark.parametrize("world", [UNIFORM, MASKED], ids=["uniform", "masked"])
def test_many_steps_sample_the_data(world: Exact) -> None:
    sampler = TauLeaping(world.process)
    errors = [world.divergence(world.sampled(sampler, even(steps))) for steps in (8, 16, 64)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.02


def test_samples_have_the_law_that_enumeration_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    levels, sampler = even(4), TauLeaping(UNIFORM.process, (1.0, 0.8, 1.3, 1.0))
    x = UNIFORM.process.start((20_000, LENGTH), generator)
    found = sampler(UNIFORM, x, levels, generator)
    share = torch.bincount(UNIFORM.index(found), minlength=27).double() / len(found)
    exact = UNIFORM.sampled(sampler, levels)
    assert ((share - exact).abs() < 4.5 * (exact / len(found)).sqrt() + 1e-4).all()


def test_masked_words_are_complete_at_the_end() -> None:
    generator = torch.Generator().manual_seed(0)
    x = MASKED.process.start((50, LENGTH), generator)
    assert (x == LETTERS).all()
    for factor in (0.3, 3.0):
        sampler = TauLeaping(MASKED.process, (factor,) * 3)
        assert (sampler(MASKED, x, even(3), generator) < LETTERS).all()


@pytest.fixture(scope="module")
def teacher() -> tuple[Tensor, list[float]]:
    levels, generator = even(24), torch.Generator().manual_seed(0)
    x = UNIFORM.process.start((3000, LENGTH), generator)
    return TauLeaping(UNIFORM.process).path(UNIFORM, x, levels, generator), levels


def test_learned_steps_are_nearer_to_the_data(teacher: tuple[Tensor, list[float]]) -> None:
    paths, levels = teacher
    for steps in (3, 4):
        learned = learn_few_steps(UNIFORM.process, UNIFORM, paths, levels, steps)
        plain = UNIFORM.divergence(UNIFORM.sampled(TauLeaping(UNIFORM.process), learned.levels))
        mended = UNIFORM.divergence(UNIFORM.sampled(learned.sampler, learned.levels))
        assert mended < 0.8 * plain


def test_a_learned_schedule_explains_the_teacher_better(
    teacher: tuple[Tensor, list[float]],
) -> None:
    paths, levels = teacher
    thin = list(range(0, 25, 3))
    paths, levels = paths[thin], [levels[n] for n in thin]
    plain = learn_few_steps(UNIFORM.process, UNIFORM, paths, levels, 4)
    chosen = learn_few_steps(UNIFORM.process, UNIFORM, paths, levels, 4, schedule=True)
    assert sum(chosen.losses) <= sum(plain.losses) + 1e-6
    assert len(chosen.levels) == 5 and chosen.levels[0] == levels[0] and chosen.levels[-1] == 0.0


def test_shortest_ways_are_those_of_a_search() -> None:
    generator = torch.Generator().manual_seed(0)
    costs = {
        (a, b): float(torch.rand((), generator=generator))
        for a in range(6)
        for b in range(a + 1, 7)
    }
    for steps in (1, 2, 4, 6):
        found = shortest(costs, 6, steps)
        ways = [(0, *w, 6) for w in itertools.combinations(range(1, 6), steps - 1)]
        best = min(ways, key=lambda w: sum(costs[e] for e in itertools.pairwise(w)))
        assert tuple(found) == best


def test_impossible_settings(teacher: tuple[Tensor, list[float]]) -> None:
    paths, levels = teacher
    with pytest.raises(ConfigError, match="tokens is 1"):
        Process(1)
    with pytest.raises(ConfigError, match="steps is 25"):
        learn_few_steps(UNIFORM.process, UNIFORM, paths, levels, 25)
    with pytest.raises(ConfigError, match="2 coefficients for 3 steps"):
        TauLeaping(UNIFORM.process, (1.0, 1.0))(UNIFORM, paths[0], even(3), torch.Generator())
