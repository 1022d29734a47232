"""Discrete samplers on words of three letters: all laws, the samplers' too, by enumeration."""

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from mbrl.errors import ConfigError
from world_models.samplers import Process, TauLeaping, learn_few_steps, learn_on_own_path
from world_models.samplers.discrete import Learned, jump_probabilities

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


@pytest.mark.parametrize("world", [UNIFORM, MASKED], ids=["uniform", "masked"])
def test_networks_of_single_precision_are_sampled(world: Exact) -> None:
    """As the scores of double precision are, position by position."""

    def single(x: Tensor, level: float) -> Tensor:
        return world(x, level).float()

    generator = torch.Generator().manual_seed(0)
    x = world.process.start((30, LENGTH), generator)
    for now, then in itertools.pairwise(even(4)):
        law = jump_probabilities(world.process, x, single(x, now), now, then)
        exact = jump_probabilities(world.process, x, world(x, now), now, then)
        assert law.dtype == torch.float32
        assert torch.allclose(law.double(), exact, atol=1e-5)
        x = TauLeaping(world.process)(single, x, [now, then], generator)


def teacher(world: Exact) -> tuple[Tensor, list[float]]:
    levels, generator = even(24), torch.Generator().manual_seed(0)
    x = world.process.start((3000, LENGTH), generator)
    return TauLeaping(world.process).path(world, x, levels, generator), levels


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_learned_steps_are_nearer_to_the_data(steps: int) -> None:
    paths, levels = teacher(MASKED)
    learned = learn_few_steps(MASKED.process, MASKED, paths, levels, steps)
    plain = MASKED.divergence(MASKED.sampled(TauLeaping(MASKED.process), learned.levels))
    assert MASKED.divergence(MASKED.sampled(learned.sampler, learned.levels)) < 0.7 * plain


def on_own_path(world: Exact, steps: int, rows: int = 3000) -> Learned:
    generator = torch.Generator().manual_seed(0)
    x = world.process.start((rows, LENGTH), generator)
    return learn_on_own_path(world.process, world, x, even(24), steps, generator)


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_steps_learned_on_their_own_path_are_nearer_to_the_data(steps: int) -> None:
    learned = on_own_path(MASKED, steps)
    plain = MASKED.divergence(MASKED.sampled(TauLeaping(MASKED.process), learned.levels))
    assert MASKED.divergence(MASKED.sampled(learned.sampler, learned.levels)) < 0.7 * plain
    with pytest.raises(ConfigError, match="steps is 25"):
        on_own_path(MASKED, 25)


def test_the_first_of_them_is_nearest_to_the_teachers_own_law() -> None:
    """Enumerated: from the word of masks, the KL divergence of one step from eight of the
    teacher's."""
    levels = even(24)
    exact = MASKED.sampled(TauLeaping(MASKED.process), levels[:9])
    start = MASKED.states[-1:]
    scores = MASKED(start, levels[0])

    def divergence(factor: float) -> float:
        step = jump_probabilities(MASKED.process, start, scores, levels[0], levels[8], factor)[0]
        law = torch.einsum("a,b,c->abc", *step).flatten()
        seen = exact > 0
        return float((exact[seen] * (exact[seen] / law[seen]).log()).sum())

    best = min((0.05 * k for k in range(10, 150)), key=divergence)
    learned = on_own_path(MASKED, 3, 20_000)
    assert learned.sampler.coefficients is not None
    assert learned.sampler.coefficients[0] == pytest.approx(best, rel=0.05)


def test_its_later_steps_begin_where_its_earlier_ones_led() -> None:
    """The share of masks that the second step is asked about is what the first one, with its
    coefficient, leaves."""
    last: dict[float, Tensor] = {}

    def scores(x: Tensor, level: float) -> Tensor:
        last[level] = x
        return MASKED(x, level)

    levels, generator = even(24), torch.Generator().manual_seed(0)
    x = MASKED.process.start((20_000, LENGTH), generator)
    learned = learn_on_own_path(MASKED.process, scores, x, levels, 3, generator)
    assert learned.sampler.coefficients is not None
    begin = MASKED.states[-1:]
    shares = [
        float(
            jump_probabilities(
                MASKED.process, begin, MASKED(begin, levels[0]), levels[0], levels[8], factor
            )[0, 0, LETTERS]
        )
        for factor in (learned.sampler.coefficients[0], 1.0)
    ]
    found = float((last[levels[8]] == LETTERS).float().mean())
    assert found == pytest.approx(shares[0], abs=0.02) and abs(shares[0] - shares[1]) > 0.1


def test_a_teacher_of_as_many_steps_is_left_as_it_is() -> None:
    learned = on_own_path(MASKED, 24, 20_000)
    assert learned.sampler.coefficients is not None
    assert learned.sampler.coefficients[5:20] == pytest.approx([1.0] * 15, rel=0.25)


def test_where_only_independence_is_wrong_little_is_learned() -> None:
    """Uniform corruption: positions that jump independently are what few steps get wrong, and no
    coefficient mends that."""
    paths, levels = teacher(UNIFORM)
    learned = learn_few_steps(UNIFORM.process, UNIFORM, paths, levels, 3)
    plain = UNIFORM.divergence(UNIFORM.sampled(TauLeaping(UNIFORM.process), learned.levels))
    mended = UNIFORM.divergence(UNIFORM.sampled(learned.sampler, learned.levels))
    assert mended == pytest.approx(plain, rel=0.05)


def test_a_coefficient_is_the_most_likely_one() -> None:
    """Against a grid, from the probabilities of single transitions."""
    paths, levels = teacher(MASKED)
    learned = learn_few_steps(MASKED.process, MASKED, paths, levels, 4)
    x, after = paths[6, :300], paths[12, :300]
    scores = MASKED(x, levels[6])

    def likelihood(factor: float) -> float:
        total = 0.0
        for row in range(300):
            for i in range(LENGTH):
                if x[row, i] < LETTERS:
                    continue
                rates = factor * (levels[6] - levels[12]) * scores[row, i, :LETTERS]
                stay = math.exp(-float(rates.sum()))
                letter = int(after[row, i])
                if letter == LETTERS:
                    total += math.log(stay)
                else:
                    total += math.log((1 - stay) * float(rates[letter] / rates.sum()))
        return total

    grid = [0.05 * k for k in range(10, 60)]
    best = max(grid, key=likelihood)
    assert learned.sampler.coefficients is not None
    assert learned.sampler.coefficients[1] == pytest.approx(best, rel=0.15)


@pytest.mark.parametrize(
    ("world", "gain"), [(UNIFORM, 0.9), (MASKED, 1.0)], ids=["uniform", "masked"]
)
def test_learned_levels_are_no_worse_by_the_judge(world: Exact, gain: float) -> None:
    """Masked words are unmasked best in equal shares, which is where the levels begin."""
    paths, levels = teacher(world)
    paths, levels = paths[::2], levels[::2]

    def judge(sampler: TauLeaping, at: tuple[float, ...]) -> float:
        return world.divergence(world.sampled(sampler, at))

    plain = learn_few_steps(world.process, world, paths, levels, 3)
    moved = learn_few_steps(world.process, world, paths, levels, 3, judge)
    assert judge(moved.sampler, moved.levels) <= gain * judge(plain.sampler, plain.levels)
    assert len(moved.levels) == 4 and moved.levels[0] == levels[0] and moved.levels[-1] == 0.0


def test_impossible_settings() -> None:
    levels = even(24)
    paths = torch.zeros(25, 4, LENGTH, dtype=torch.long)
    with pytest.raises(ConfigError, match="tokens is 1"):
        Process(1)
    with pytest.raises(ConfigError, match="steps is 25"):
        learn_few_steps(UNIFORM.process, UNIFORM, paths, levels, 25)
    with pytest.raises(ConfigError, match="2 coefficients for 3 steps"):
        TauLeaping(UNIFORM.process, (1.0, 1.0))(UNIFORM, paths[0], even(3), torch.Generator())
