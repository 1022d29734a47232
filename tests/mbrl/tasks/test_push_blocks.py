"""Blocks on a plane against a plain simulation of one push, and their planner."""

import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.tasks.push_blocks import BOUND, HALF, REACH, PushBlocks, moved
from mbrl.tasks.push_planner import push_expert

D = torch.float64


def simulate(
    point: list[float], blocks: list[list[float]], move: list[float]
) -> tuple[list[float], list[list[float]]]:
    """The move in parts of a 128th, along x and then along y: whoever is bumped into moves too, and
    a part that would push a block over the edge does not happen."""
    point, blocks = list(point), [list(block) for block in blocks]
    for axis in (0, 1):
        part = 1 / 128 if move[axis] > 0 else -1 / 128
        for _ in range(round(128 * abs(move[axis]))):
            pushed: set[int] = set()
            bodies = [(point, 0.0)]
            for body, size in bodies:
                for i, block in enumerate(blocks):
                    gap = [block[k] - body[k] for k in (0, 1)]
                    gap[axis] -= part
                    reach = HALF + size - 1e-9
                    if i not in pushed and body is not block and max(map(abs, gap)) < reach:
                        pushed.add(i)
                        bodies.append((block, HALF))
            edges = [abs(blocks[i][axis] + part) <= BOUND + 1e-9 for i in pushed]
            if all(edges) and abs(point[axis] + part) <= REACH + 1e-9:
                point[axis] += part
                for i in pushed:
                    blocks[i][axis] += part
    return point, blocks


@pytest.mark.parametrize("count", [1, 2, 3])
def test_pushes_against_a_plain_simulation(count: int) -> None:
    """Moves and places are whole 128ths, so that parts meet the sides exactly."""
    task, generator = make(f"PushBlocks-{count}-v0"), torch.Generator().manual_seed(count)
    state, bumps = task.reset(12, generator), 0
    for _ in range(25):
        middle = state[:, 2 : 2 + 2 * count].view(12, count, 2)
        towards = (middle[:, 0] - state[:, :2]).clamp(-0.5, 0.5) * 2
        noise = 2 * torch.rand(12, 2, generator=generator, dtype=D) - 1
        action = ((towards + noise).clamp(-1, 1) * 64).round() / 64
        step = task.step(state, action)
        for i in range(12):
            point, blocks = simulate(
                state[i, :2].tolist(), middle[i].tolist(), (0.5 * action[i]).tolist()
            )
            expected = [*point, *(v for block in blocks for v in block)]
            assert step.state[i, : 2 + 2 * count].tolist() == pytest.approx(expected, abs=1e-9)
            bumps += expected[2:] != middle[i].flatten().tolist()
        assert task.state_from_obs(step.obs)[1].all()
        state = step.state
    assert bumps > 30


def test_a_row_of_blocks_stops_with_the_last_one() -> None:
    point = torch.tensor([[-1.0, 0.0]], dtype=D)
    blocks = torch.tensor([[[-0.5, 0.25], [1.5, 0.0], [0.5, -0.5]]], dtype=D)
    right = torch.tensor([[0.25, 0.0]], dtype=D)
    for first, last in ((-0.25, 1.75), (0.0, 2.0), (0.0, 2.0)):  # each against the next
        point, blocks = moved(point, blocks, right)
        assert blocks[0, :, 0].tolist() == [first, last, first + 1]
        assert point.tolist() == [[first - 0.5, 0.0]]
    assert blocks[0, :, 1].tolist() == [0.25, 0.0, -0.5]


def test_starts_goals_states_and_ends() -> None:
    task = make("PushBlocks-2-v0")
    state = task.reset(2000, torch.Generator().manual_seed(0))
    point, blocks, goals = task.parts(state)
    for places in (blocks, goals):
        assert float(places.abs().max()) <= 2.0 and float(places.std()) == pytest.approx(
            1.2, abs=0.1
        )
        assert float((places[:, 0] - places[:, 1]).abs().amax(-1).min()) >= 1.25
    assert float((point[:, None] - blocks).abs().amax(-1).min()) >= 0.5
    again, possible = task.state_from_obs(task.observe(state))
    assert possible.all() and torch.equal(again, state)
    wrong = task.observe(state[:4]).clone()
    wrong[0, :2] = wrong[0, 2:4]  # the point in a block
    wrong[1, 2:4] = wrong[1, 4:6]  # a block in a block
    wrong[2, 0] = torch.nan
    wrong[3, 4] = 2.1  # over the edge
    assert not task.state_from_obs(wrong)[1].any()
    at_goals = torch.cat([state[:, :2], goals.flatten(1), goals.flatten(1)], 1)
    near = at_goals.clone()
    near[:, 2] += 0.39
    far = near.clone()
    far[:, 3] += 0.2
    for rows, solved in ((at_goals, True), (near, True), (far, False)):
        assert bool((task.terminates(rows, rows, rows) == solved).all())
    assert task.spec.goal == (6, 7, 8, 9) and task.spec.achieved == (2, 3, 4, 5)
    with pytest.raises(ConfigError, match="blocks is 4, it must be 1 to 3"):
        PushBlocks(4)


def test_swapping_blocks_with_their_goals_swaps_the_result() -> None:
    task, generator = make("PushBlocks-3-v0"), torch.Generator().manual_seed(5)
    state = task.reset(40, generator)
    point, blocks, goals = task.parts(state)
    order = torch.tensor([2, 0, 1])
    other = torch.cat([point, blocks[:, order].flatten(1), goals[:, order].flatten(1)], 1)
    for _ in range(20):
        action = 2 * torch.rand(40, 2, generator=generator, dtype=D) - 1
        one, two = task.step(state, action), task.step(other, action)
        state, other = one.state, two.state
        assert torch.equal(task.parts(state)[1][:, order], task.parts(other)[1])
        assert torch.equal(one.reward, two.reward)


@pytest.mark.parametrize(
    ("count", "least"), [(1, 1.0), (2, 0.9), pytest.param(3, 0.7, marks=pytest.mark.long)]
)
def test_what_the_planner_solves(count: int, least: float) -> None:
    task = make(f"PushBlocks-{count}-v0")
    state = task.reset(30, torch.Generator().manual_seed(0))
    solved = torch.zeros(30, dtype=torch.bool)
    for _ in range(task.spec.max_episode_steps):
        step = task.step(state, push_expert(task.observe(state)))
        state, solved = step.state, solved | step.terminated
        if solved.all():
            break
    assert float(solved.double().mean()) >= least


def test_the_planner_stays_on_the_device_of_the_observations() -> None:
    task = make("PushBlocks-2-v0")
    obs = task.observe(task.reset(5, torch.Generator().manual_seed(0)))
    action = push_expert(obs)
    with torch.device("meta"):  # where tensors go whose device nobody names
        assert torch.equal(push_expert(obs), action)
