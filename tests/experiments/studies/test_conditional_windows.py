"""Windows that begin in given observations: whose starts are whose, and the fit that is kept."""

from pathlib import Path

import torch

from experiments.studies import conditional_windows as windows

TINY = windows.DEFAULTS | {
    "length": 8,
    "model": {"width": 8, "levels": 2, "updates": 30},
    "conditional": 5,
}


def test_learning_and_judging_begin_in_other_rows(tmp_path: Path) -> None:
    made = windows.conditional_windows(TINY, 0, tmp_path / "model", 50)
    learn, judge = made.learn, made.judge
    assert len(judge.values) == 50 and len(learn) > 1000
    assert judge.mask.sum() == 3 and judge.mask[0, :3].all()
    apart = (judge.values[:, None, 0, :3] - learn[None, :, 0, :3]).abs().amax(-1)
    assert float(apart.min(1).values.min()) > 0


def test_the_network_is_fitted_once(tmp_path: Path) -> None:
    first = windows.conditional_windows(TINY, 0, tmp_path / "model", 5)
    again = windows.conditional_windows(TINY, 0, tmp_path / "model", 5)
    x, sigma = torch.randn(2, 8, first.generator.tokens.size), torch.ones(2)
    assert torch.equal(first.network(x, sigma), again.network(x, sigma))
    assert not torch.equal(first.network(x, sigma), first.generator.network(x, sigma))
