"""The grid with goals against scipy's shortest paths and counts, and cells of its table."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csgraph

from experiments import studies
from experiments.studies import imagined
from experiments.studies.goal_grid import (
    LEVELS,
    LIMIT,
    ROWS,
    SIZE,
    GoalGrid,
    Rates,
    record,
    success,
)
from experiments.tables import plan
from mbrl.errors import ConfigError
from tests.draws import same_draws

GRID = GoalGrid()


class Shortest(torch.nn.Module):
    """Walks shortest paths: the optimum."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        tokens = obs.view(-1, 4, SIZE).argmax(-1)
        number = {tuple(cell): i for i, cell in enumerate(GRID.cells.tolist())}
        cell = torch.tensor([number[tuple(t[:2])] for t in tokens.tolist()])
        goal = torch.tensor([number[tuple(t[2:])] for t in tokens.tolist()])
        return GRID.distance[GRID.moves[cell], goal[:, None]].argmin(1)


class Always(torch.nn.Module):
    """One action for ever."""

    def __init__(self, action: int) -> None:
        super().__init__()
        self.action = action

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.full((len(obs),), self.action)


def test_distances_against_scipy() -> None:
    free = [(r, c) for r in range(SIZE) for c in range(SIZE) if ROWS[r][c] == "."]
    edges = [[abs(a - c) + abs(b - d) == 1 for c, d in free] for a, b in free]
    expected = csgraph.shortest_path(np.array(edges, float), unweighted=True)
    assert np.array_equal(GRID.distance.numpy(), expected)
    assert expected.max() == 15


def test_levels_are_disjoint_and_novel_in_the_way_that_they_say() -> None:
    goals = {level: set(GRID.levels[level].tolist()) for level in LEVELS}
    assert sum(map(len, goals.values())) == len(set.union(*goals.values())) == len(GRID.cells)
    tokens = {
        k: [{int(GRID.cells[g, axis]) for g in v} for axis in (0, 1)] for k, v in goals.items()
    }
    assert tokens["easy"][0] <= tokens["train"][0] and tokens["easy"][1] <= tokens["train"][1]
    assert not tokens["hard"][0] & (tokens["train"][0] | tokens["easy"][0])


def test_success_of_the_optimum_and_of_one_action() -> None:
    for level in LEVELS:
        assert success(GRID, Shortest(), level, 100) == (100.0, 100.0)
    for action in range(4):
        start, goal = GRID.pairs("easy", 200, torch.Generator().manual_seed(7))
        reached, ratio = 0, 0.0
        for cell, aim in zip(start.tolist(), goal.tolist(), strict=True):
            at = cell
            for step in range(1, LIMIT + 1):
                at = int(GRID.moves[at, action])
                if at == aim:
                    reached, ratio = reached + 1, ratio + int(GRID.distance[cell, aim]) / step
                    break
        measured = success(GRID, Always(action), "easy", 200)
        assert measured == pytest.approx((reached / 2, ratio / 2))


def rows_as_cells(data: Any) -> tuple[np.ndarray, ...]:
    tokens = data.transitions.obs.view(-1, 4, SIZE).argmax(-1).numpy()
    after = data.transitions.next_obs.view(-1, 4, SIZE).argmax(-1).numpy()
    return tokens[:, :2], tokens[:, 2:], after[:, :2], data.transitions.action.numpy()


def truly_wrong(data: Any) -> np.ndarray:
    """Rows that do not obey the picture of the grid, or pay elsewhere than at the instruction."""
    before, goal, after, action = rows_as_cells(data)
    wrong = []
    for (r, c), aim, reached, a, pay in zip(
        before, goal, after, action, data.transitions.reward, strict=True
    ):
        dr, dc = ((-1, 0), (1, 0), (0, -1), (0, 1))[a]
        inside = 0 <= r + dr < SIZE and 0 <= c + dc < SIZE and ROWS[r + dr][c + dc] == "."
        there = (r + dr, c + dc) if inside else (r, c)
        wrong.append(tuple(reached) != there or (pay == 1 and tuple(reached) != tuple(aim)))
    return np.array(wrong)


def test_rows_without_faults_happened_and_faults_have_their_rates() -> None:
    draws = torch.Generator().manual_seed(3)
    honest, wrong = record(GRID, ("easy", "hard"), 60, 0.3, draws)
    assert not wrong.any() and not truly_wrong(honest).any()
    assert len(honest.transitions.episodes()) == 120
    for rates, low, high in (
        (Rates(teleport=0.3), 0.25, 0.32),  # some land where the action leads
        (Rates(missing=0.3), 0.18, 0.32),  # some steps after lead back, or nowhere
        (Rates(label=0.5), 0.02, 0.12),  # the last row of half of the episodes
    ):
        data, wrong = record(GRID, ("hard",), 200, 0.3, draws, rates)
        assert np.array_equal(wrong.numpy(), truly_wrong(data))
        assert low < float(wrong.double().mean()) < high
    _, aims, reached, _ = rows_as_cells(data)
    paid = data.transitions.reward.numpy() == 1
    elsewhere = (aims != reached).any(1)[paid].mean()
    assert 0.4 < elsewhere < 0.6
    hard = {tuple(GRID.cells[g].tolist()) for g in GRID.levels["hard"].tolist()}
    assert {tuple(a) for a in aims.tolist()} <= hard


@same_draws
def test_a_cell_of_each_source(tmp_path: Path) -> None:
    small = {"episodes": 60, "updates": 20, "pairs": 20, "config": {"hidden": [8]}}
    for row in (
        {"source": "real", "algorithm": "bc"},
        {"source": "oracle", "algorithm": "discrete_cql"},
        {"source": "imagined", "rate": 0.5, "filter": "consistency"},
    ):
        settings = studies.settings_of("imagined", small | row)
        values = imagined.measure(settings, 0, tmp_path).values
        assert (
            all(0 <= values[level] <= 100 for level in LEVELS) and values["path"] <= values["hard"]
        )
        assert ("kept" in values) == (row["source"] == "imagined")
        again = imagined.measure(settings, 0, tmp_path)
        assert again.values == values
    assert values["caught"] > 60 and values["wrong"] < 60  # of 75 % before
    with pytest.raises(ConfigError, match="source"):
        imagined.measure(settings | {"source": "dreamt"}, 0, tmp_path)


def test_the_table_has_every_algorithm_source_and_rate(tmp_path: Path) -> None:
    table = tomllib.loads((plan.TABLES / "imagined.toml").read_text())
    assert [block["rows"] for block in table["blocks"]] == list(imagined.ROWS)
    rows = imagined.ROWS["sources"]()
    assert len(rows) == 3 * (2 + 3 * 4) and len({row["label"] for row in rows}) == len(rows)
    records = {row["label"]: [{"values": {"hard": 10.0}}] * 2 for row in rows}
    (file,) = imagined.draw(records, tmp_path, "")
    assert (
        file.stat().st_size > 1000 and "imagined consistency" in (tmp_path / "hard.csv").read_text()
    )
    assert imagined.draw({"bc label, imagined": []}, tmp_path, "-2") == []
