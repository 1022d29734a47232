"""Decoding of a masked model: how many places, which ones, and with what probability."""

import math
from collections import Counter

import pytest
import torch

from algorithms.masked_diffusion import DecodingConfig, decode
from algorithms.masked_diffusion.decoding import Decoded
from mbrl.errors import ConfigError
from tests.algorithms.masked_diffusion.table import END, LENGTH, MASK, PROMPT, Table


def decoded(config: DecodingConfig, rows: int, table: Table | None = None) -> Decoded:
    generator = torch.Generator().manual_seed(0)
    prompt = PROMPT.expand(rows, -1)
    return decode(table or Table(), prompt, LENGTH, MASK, END, config, generator)


def test_steps_share_the_places() -> None:
    assert DecodingConfig(steps=5).counts(16) == [4, 3, 3, 3, 3]
    assert DecodingConfig(ascending=True).counts(16) == [1, 2, 4, 9]
    assert DecodingConfig(ascending=True).counts(128) == [1, 2, 4, 8, 16, 32, 65]
    assert DecodingConfig(ascending=True).counts(3) == [3]
    with pytest.raises(ConfigError, match=r"17.*16 places"):
        DecodingConfig(steps=17).counts(16)


def test_end_factors_rise_in_a_line_over_steps_or_over_places() -> None:
    """The authors' numbers for five steps from 0.01 to 1, and their share of places with ASS."""
    even = DecodingConfig(steps=5, end_from=0.01)
    assert even.end_factors(5) == pytest.approx([0.01, 0.2575, 0.505, 0.7525, 1.0])
    up = DecodingConfig(ascending=True, end_from=0.01)
    expected = [0.01 + 0.99 * share for share in (1 / 16, 3 / 16, 7 / 16, 15 / 16)]
    assert up.end_factors(4) == pytest.approx(expected)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_are_those_of_the_states_that_are_kept(temperature: float) -> None:
    table = Table()
    made = decoded(DecodingConfig(steps=2, temperature=temperature), 50)
    for row in range(50):
        for place in range(LENGTH):
            step = int(made.step[row, place])
            region = made.states[step, row].tolist()
            assert region[place] == MASK
            logits = table(PROMPT, torch.tensor([region]))[0, place] / temperature
            own = logits.log_softmax(-1)[made.answer[row, place]]
            assert float(made.log_prob[row, place]) == pytest.approx(float(own), abs=1e-6)
    assert (made.states[0] == MASK).all()
    assert ((made.states[1] == MASK).sum(1) == 1).all() and (made.answer != MASK).all()


def test_answers_come_as_often_as_their_paths_are_likely() -> None:
    """With one place a step from left to right an answer has one path, whose probability is the
    product over its steps."""
    table, rows = Table(1), 40_000
    made = decoded(DecodingConfig(steps=LENGTH, order="left"), rows, table=table)
    counts = Counter(map(tuple, made.answer.tolist()))
    total = 0.0
    for answer, count in counts.items():
        region, probability = [MASK] * LENGTH, 1.0
        for place in range(LENGTH):
            probability *= table.probability(region, place, answer[place])
            region[place] = answer[place]
        spread = math.sqrt(probability * (1 - probability) / rows)
        assert count / rows == pytest.approx(probability, abs=4 * spread)
        total += probability
    assert total == pytest.approx(1.0)
    assert made.step.tolist() == [list(range(LENGTH))] * rows


def test_the_surest_place_comes_first() -> None:
    table = Table(2)
    made = decoded(DecodingConfig(steps=LENGTH, temperature=0.0), 1, table=table)
    region = [MASK] * LENGTH
    for index in range(LENGTH):
        share = table(PROMPT, torch.tensor([region]))[0].softmax(-1).amax(-1)
        free = [p for p in range(LENGTH) if region[p] == MASK]
        best = max(free, key=lambda place: float(share[place]))
        assert int(made.step[0, best]) == index
        region[best] = int(made.answer[0, best])


def test_early_end_tokens_wait_and_stay_the_same() -> None:
    """EOSER changes the confidence of end tokens, not what is drawn; 1 changes nothing."""
    table = Table()
    table.logits[..., END] += 1.0

    def made(**factors: float) -> Decoded:
        return decoded(DecodingConfig(steps=LENGTH, **factors), 2000, table=table)  # type: ignore[arg-type]

    plain = made()
    assert torch.equal(plain.answer, made(end_from=1.0, end_to=1.0).answer)
    late = made(end_from=1e-6, end_to=1e-6)
    first = table(PROMPT, torch.full((1, LENGTH), MASK))[0].softmax(-1)[:, END]
    early = (late.answer[late.step == 0] == END).float().mean()
    assert float(early) == pytest.approx(float(first.prod()), abs=0.04)  # nothing else was drawn
    assert float((plain.answer[plain.step == 0] == END).float().mean()) > float(early) + 0.1
    once = decoded(DecodingConfig(steps=1, end_from=1e-6), 2000)
    assert torch.equal(once.answer, decoded(DecodingConfig(steps=1), 2000).answer)


def test_a_random_order_has_no_favourites() -> None:
    made = decoded(DecodingConfig(steps=LENGTH, order="random"), 6000)
    first = (made.step == 0).float().mean(0)
    assert torch.allclose(first, torch.full((LENGTH,), 1 / LENGTH), atol=0.03)
