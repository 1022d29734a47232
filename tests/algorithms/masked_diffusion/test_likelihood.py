"""The bound of masked diffusion against the enumeration of all orders."""

import math
from itertools import permutations, product

import pytest
import torch

from algorithms.language.models.transformer import TransformerConfig
from algorithms.language.tasks import text_task
from algorithms.masked_diffusion import Layout, MaskedModel, MaskedModelConfig, bound, fit
from algorithms.masked_diffusion.fitting import masked_at_random
from mbrl.errors import ConfigError, DataError
from tests.algorithms.masked_diffusion.table import LENGTH, LETTERS, MASK, PROMPT, Table


def mean_over_orders(table: Table, answer: tuple[int, ...]) -> float:
    """The mean over all orders of the log-probability of filling in `answer` along the order."""
    totals = []
    for order in permutations(range(LENGTH)):
        region, total = [MASK] * LENGTH, 0.0
        for place in order:
            total += math.log(table.probability(region, place, answer[place]))
            region[place] = answer[place]
        totals.append(total)
    return sum(totals) / len(totals)


def test_the_bound_is_the_mean_over_orders() -> None:
    table = Table()
    answer = (0, 1, 1)
    many = 40_000
    each = bound(
        table,
        PROMPT.expand(many, -1),
        torch.tensor([answer]).expand(many, -1),
        MASK,
        torch.Generator().manual_seed(0),
    )
    assert float(each.mean()) == pytest.approx(
        mean_over_orders(table, answer), abs=4 * float(each.std()) / math.sqrt(many)
    )


def test_bounds_of_all_answers_are_below_one_probability() -> None:
    """exp of the bounds sums to 1 at most: every order alone sums to 1 (Jensen)."""
    table = Table(3)
    total = sum(math.exp(mean_over_orders(table, a)) for a in product(range(LETTERS), repeat=3))
    assert 0.5 < total <= 1.0


def test_as_many_places_are_masked_as_asked_for() -> None:
    answer = torch.zeros(6000, 4, dtype=torch.int64)
    count = torch.arange(6000) % 4 + 1
    region, hidden = masked_at_random(answer, 9, count, torch.Generator().manual_seed(0))
    assert torch.equal(hidden.sum(1), count)
    assert ((region == 9) == hidden).all()
    shares = hidden[count == 2].float().mean(0)
    assert torch.allclose(shares, torch.full((4,), 0.5), atol=0.06)


def small_layout() -> Layout:
    return Layout(text_task("brackets"))


def test_prompts_and_answers_are_read_back() -> None:
    layout = small_layout()
    import random

    rng = random.Random(0)
    problems = [layout.task.problem(layout.task.trained[0], rng) for _ in range(5)]
    texts = [layout.task.demonstration(p, [], rng) for p in problems]
    answers = layout.answers(texts)
    assert answers.shape == (5, layout.answer) and layout.texts(answers) == texts
    assert (layout.rewards(problems, answers) == 1).all()
    wrong = answers.clone()
    wrong[:, 0] = layout.codec.end  # nothing was said
    assert (layout.rewards(problems, wrong) == 0).all()
    prompts = layout.prompts(problems)
    assert (prompts[:, -1] == layout.codec.answer).all() and prompts.max() < layout.mask


def test_nothing_to_fit_and_answers_that_are_too_long_are_named() -> None:
    layout = small_layout()
    with pytest.raises(DataError, match=rf"has 90 characters, the region of .* {layout.answer} "):
        layout.answers(["()" * 45])
    sizes = MaskedModelConfig(TransformerConfig(width=8, layers=1, heads=2, hidden=8))
    model = MaskedModel(layout, sizes)
    for values in ({"updates": 0}, {"updates": 1, "rows": 0}):
        with pytest.raises(ConfigError, match=f"{list(values)[-1]} is 0"):
            fit(model, layout, **values)
    tokens = torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(ConfigError, match="samples is 0"):
        bound(model, tokens, tokens, layout.mask, torch.Generator(), samples=0)


def test_several_turns_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"guessing.*turns"):
        Layout(text_task("guessing"))


def test_a_model_learns_and_never_says_a_mask() -> None:
    layout = small_layout()
    sizes = TransformerConfig(width=16, layers=1, heads=2, hidden=32)
    model = MaskedModel(layout, MaskedModelConfig(sizes), torch.Generator().manual_seed(0))
    early = fit(model, layout, 1, rows=16)
    late = fit(model, layout, 60, rows=16, learning_rate=1e-2)
    assert float(late) < 0.5 * float(early)
    region = torch.full((2, layout.answer), layout.mask)
    logits = model(torch.zeros(2, layout.prompt, dtype=torch.int64), region)
    assert logits.shape == (2, layout.answer, layout.mask)


def test_every_place_sees_what_stands_after_it() -> None:
    layout = small_layout()
    model = MaskedModel(layout, None, torch.Generator().manual_seed(0))
    prompt = torch.zeros(1, layout.prompt, dtype=torch.int64)
    region = torch.full((1, layout.answer), layout.mask)
    other = region.clone()
    other[0, -1] = 5
    assert not torch.allclose(model(prompt, region)[0, 0], model(prompt, other)[0, 0])
