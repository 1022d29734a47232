"""The grid of colours against a plain simulation and search, and cells of the study."""

from collections import deque
from pathlib import Path

import pytest
import torch

from experiments.studies import temporal_abstraction as study
from experiments.studies.pin_pad import MOVES, ROWS, PinPad, State, Walks, agreement, walks

SMALL = {
    "walks": 4,
    "base": {"width": 8, "updates": 3, "batch_size": 4},
    "controller": {"updates": 2, "batch_size": 4},
    "rl": {"iterations": 3, "episodes": 8, "steps": 6},
    "episodes": 10,
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cells() -> list[tuple[int, int]]:
    return [(r, c) for r in range(5) for c in range(5) if ROWS[r][c] != "#"]


def test_steps_against_a_plain_simulation() -> None:
    world, places = PinPad((0, 2, 4), generator()), cells()
    state, solved, wrong = world.reset(300), 0, 0
    for _ in range(30):
        toward = world.optimal(state)
        noise = torch.randint(4, (300,), generator=generator(int(state.cell.sum())))
        action = torch.where(torch.rand(300, generator=world.generator) < 0.8, toward, noise)
        after, reward, over = world.step(state, action)
        for i in range(300):
            (r, c), done = places[int(state.cell[i])], int(state.done[i])
            dr, dc = MOVES[int(action[i])]
            new = (r + dr, c + dc)
            if new not in places:
                new = (r, c)
            mark, paid, ended = ROWS[new[0]][new[1]], 0.0, bool(state.over[i])
            if new != (r, c) and mark.isdigit() and not ended:
                if int(mark) == (0, 2, 4)[done]:
                    done += 1
                    paid, ended = float(done == 3), done == 3
                else:
                    ended, wrong = True, wrong + 1
                solved += paid == 1.0
            assert places[int(after.cell[i])] == new and int(after.done[i]) == done
            assert float(reward[i]) == paid and bool(over[i]) == ended
        state = after
    assert solved > 50 and wrong > 5


def test_distances_against_a_plain_search() -> None:
    world, places = PinPad((0, 1), generator()), cells()
    for i, start in enumerate(places):
        for colour in range(5):
            todo, seen, least = deque([(start, 0)]), {start}, None
            while todo and least is None:
                (r, c), steps = todo.popleft()
                for dr, dc in MOVES:
                    new = (r + dr, c + dc)
                    if new in seen or new not in places:
                        continue
                    mark = ROWS[new[0]][new[1]]
                    if mark == str(colour):
                        least = steps + 1
                    elif not mark.isdigit():
                        seen.add(new)
                        todo.append((new, steps + 1))
            if ROWS[start[0]][start[1]] == str(colour):
                least = 0
            assert int(world.distance[colour, i]) == least


def test_walks_do_their_orders() -> None:
    data = walks([(0, 2, 4), (3, 1, 0)], 40, 28, 0.1, generator())
    assert data.obs.shape == (80, 28, 22) and (data.obs.sum(2) == 1).all()
    finished = (data.mask.sum(1) < 28).double().mean()
    assert finished > 0.9 and int(data.leg.max()) == 3
    for row, order in ((0, (0, 2, 4)), (79, (3, 1, 0))):
        world = PinPad(order, generator())
        state = State(data.obs[row, :1].argmax(1), torch.zeros(1).long(), torch.zeros(1).bool())
        for t in range(int(data.mask[row].sum())):
            assert torch.equal(world.observe(state)[0], data.obs[row, t])
            state, _, _ = world.step(state, data.action[row, t][None])
        assert bool(state.over) and int(state.done) == 3


def test_agreement_of_switches() -> None:
    leg = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2]])
    data = Walks(torch.zeros(1, 8, 1), leg, torch.ones(1, 8, dtype=torch.bool), leg)
    gate = torch.tensor([[1.0, 0, 0.9, 0, 0, 0.9, 0, 0]])  # near 3; 5 is none; 7 is missed
    f1, share = agreement(gate, data)
    assert f1 == pytest.approx(50.0) and share == pytest.approx(200 / 7)
    assert agreement(torch.zeros(1, 8), data) == (0.0, 0.0)
    assert agreement(torch.tensor([[0.0, 0, 0, 1, 0, 0, 0, 1]]), data)[0] == 100.0


def test_training_orders_hold_the_pairs_and_not_the_parts() -> None:
    for seed in range(5):
        orders = study.training_orders((0, 2, 4, 3), 12, 3, seed)
        assert len(set(orders)) == 12 and not {(0, 2, 4), (2, 4, 3)} & set(orders)
        pairs = {o[i : i + 2] for o in orders for i in (0, 1)}
        assert {(0, 2), (2, 4), (4, 3)} <= pairs and all(a != b for a, b in pairs)


@pytest.mark.parametrize(
    "row", [{}, {"gate": "always"}, {"learner": "actions"}, {"learner": "random"}]
)
def test_cells(row: dict[str, str], tmp_path: Path) -> None:
    outcome = study.measure(study.DEFAULTS | SMALL | row, 0, tmp_path)
    values = outcome.values
    assert set(values) == {"success", "first", "episodes", "f1", "switches"}
    assert 0 <= values["success"] <= 100 and values["episodes"] == 24
    if row.get("gate") == "always":
        assert values["switches"] == 100.0
    again = study.measure(study.DEFAULTS | SMALL | row, 0, tmp_path)
    assert again.values == values
    record = {"values": values, "curves": outcome.curves}
    files = study.draw({"order of four, codes": [record, record]}, tmp_path, "")
    assert [f.name for f in files] == ["abstraction.png"] and files[0].exists()
