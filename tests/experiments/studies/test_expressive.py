"""The study of several modes: shares and entropies in literal numbers, scripted policies, and a
cell."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from experiments.studies import expressive
from mbrl.tasks import make
from mbrl.tasks.modes import RADIUS


def test_entropy_and_share_of_samples_astray() -> None:
    way = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 1], [-1, -1, -1, -1]])
    quarter = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    entropy, astray = expressive.division(way)
    assert entropy == pytest.approx((1.0 + 0.0 + quarter) / 3)
    assert astray == pytest.approx(4 / 16)
    for none in (None, torch.full((2, 3), -1)):
        assert math.isnan(expressive.division(none)[0])


def test_goals_of_scripted_samples() -> None:
    """One of four at the middle, which is no goal; the others at the first or the second."""
    turn = torch.arange(expressive.ANGLES * expressive.DRAWS) % 4

    def explore(obs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return RADIUS * obs * torch.tensor([1.0, -1.0, -1.0, 0.0])[turn][:, None]

    way = expressive.ways(SimpleNamespace(explore=explore), make("Modes-v0"))
    assert way is not None and way.shape == (expressive.ANGLES, expressive.DRAWS)
    assert [float((way == mode).float().mean()) for mode in (0, 1, -1)] == [0.25, 0.5, 0.25]


def test_sides_of_scripted_episodes() -> None:
    """Rows go above, below, below, or straight on, which ends at the obstacle."""
    side = torch.tensor([1.0, -1.0, -1.0, 0.0]).repeat(expressive.ANGLES * expressive.DRAWS // 4)

    def explore(obs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        over = (obs[:, 0] < -0.05) & (side != 0)
        aim = torch.where(
            over[:, None], torch.stack([0 * side, 0.7 * side], 1), obs.new_tensor([1.0, 0])
        )
        return (aim - obs) / (aim - obs).norm(dim=1, keepdim=True)

    way = expressive.ways(SimpleNamespace(explore=explore), make("Obstacle-v0"))
    assert way is not None
    assert [float((way == mode).float().mean()) for mode in (1, 0, -1)] == [0.25, 0.5, 0.25]


def test_other_tasks_have_no_known_modes() -> None:
    assert expressive.ways(SimpleNamespace(), make("Pendulum-v1")) is None
    assert expressive.evaluations(SimpleNamespace(), torch.zeros(2, 1)) == 1.0


def test_a_cell_and_its_figure(tmp_path: Path) -> None:
    small = {"hidden": [8], "flow": {"steps": 2}}
    settings = expressive.DEFAULTS | {
        "algorithm": "generative_bc", "config": small, "steps": 20, "episodes": 10,
    }  # fmt: skip
    outcome = expressive.measure(settings, 0, tmp_path / "cell")
    assert outcome.values["evaluations"] == 2.0
    assert outcome.values["score"] == outcome.curves["score"][-1]
    assert 0 <= outcome.values["astray"] <= 1
    record = {"values": outcome.values, "curves": outcome.curves}
    files = expressive.draw({"modes/expert, flow_bc": [record, record]}, tmp_path, "")
    assert [f.name for f in files] == ["scores.png"] and files[0].exists()
