"""Passes of rows of like length, against the whole batch row by row."""

import random

import pytest
import torch

from algorithms.language.learner import measured
from algorithms.language.models import passes as under_test
from algorithms.language.models.passes import passes, together
from algorithms.language.models.transformer import Transformer, TransformerConfig
from algorithms.language.sampling.tokens import log_probs_and_entropy


def masks(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Steps chosen here and there up to a length of the row's own; one row has none."""
    rng = random.Random(seed)
    mask = torch.zeros(rows, columns, dtype=torch.bool)
    for i in range(1, rows):
        last = rng.randrange(columns)
        mask[i, last] = True
        mask[i, : last // 2] = rng.random() < 0.5
    return mask


@pytest.mark.parametrize(("tokens", "at_once"), [(1, 100), (40, 100), (40, 3), (10_000, 100)])
def test_every_row_is_in_one_pass_as_far_as_it_is_read(
    monkeypatch: pytest.MonkeyPatch, tokens: int, at_once: int
) -> None:
    monkeypatch.setattr(under_test, "TOKENS", tokens)
    mask = masks(17, 12)
    found = passes(mask, at_once)
    assert sorted(i for rows, _ in found for i in rows.tolist()) == list(range(17))
    for k, (rows, steps) in enumerate(found):
        lasts = [max((j for j in range(12) if mask[i, j]), default=0) for i in rows.tolist()]
        assert steps == max(lasts) + 1 and len(rows) <= at_once
        assert (len(rows) - 1) * steps < tokens  # without its last row it is too small
        if k + 1 < len(found):
            assert len(rows) * steps >= tokens or len(rows) == at_once
            assert min(lasts) + 1 >= found[k + 1].steps


def test_pieces_are_laid_where_their_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "TOKENS", 30)
    mask, value = masks(9, 11), torch.randn(9, 11, 2)
    todo = passes(mask, 4)
    whole = together([value[rows, :steps] for rows, steps in todo], todo, 13)
    assert whole.shape == (9, 13, 2) and len(todo) > 2
    for rows, steps in todo:
        for i in rows.tolist():
            assert torch.equal(whole[i, :steps], value[i, :steps])
            assert not whole[i, steps:].any()


def test_what_is_measured_in_passes_is_that_of_single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "TOKENS", 50)
    generator = torch.Generator().manual_seed(0)
    model = Transformer(20, TransformerConfig(width=16, layers=2, heads=2, hidden=24), generator)
    model.double()
    tokens, mask = torch.randint(20, (13, 16), generator=generator), masks(13, 15, seed=3)
    kept = torch.randint(-1, 20, (13, 15, 6), generator=generator)
    kept[..., 0] = tokens[:, 1:]
    for sets in (None, kept):
        found = measured(model, tokens, mask, 0.7, sets, 100)
        for i in range(13):
            own = None if sets is None else sets[i : i + 1]
            wanted = log_probs_and_entropy(
                model(tokens[i : i + 1, :-1]), tokens[i : i + 1, 1:], 0.7, own
            )
            for a, b in zip(found, wanted, strict=True):
                torch.testing.assert_close(a[i][mask[i]], b[0][mask[i]])
