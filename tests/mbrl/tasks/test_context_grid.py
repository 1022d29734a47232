"""ContextGrid-v0: mazes, shortest paths by walking, and what mazes have in common."""

import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.tasks.context_grid import MOVES, ContextGrid


def test_one_path_leads_from_any_room_to_any_other() -> None:
    task = ContextGrid(size=5, contexts=4, common=0.3)
    passages = task.open.flatten(1).sum(1)
    assert (passages == 2 * (25 - 1)).all()  # both ways through each of a tree's passages
    assert (task.distances() < 25).all()
    border = task.open.view(4, 5, 5, 4)
    assert not (border[:, 0, :, 0].any() | border[:, -1, :, 1].any())
    assert not (border[:, :, 0, 2].any() | border[:, :, -1, 3].any())


def test_distances_are_those_of_steps() -> None:
    """Walking every move from every room, breadth first, by `step` alone."""
    task = ContextGrid(size=4, contexts=3, common=0.0)
    for context in range(3):
        reached, frontier, steps = {0: 0}, [(0, 0)], 0
        goal = None
        while frontier and goal is None:
            steps += 1
            following = []
            for row, column in frontier:
                state = torch.tensor([[row, column, context]], dtype=torch.float32).repeat(4, 1)
                step = task.step(state, torch.arange(4))
                for (r, c, _), end in zip(step.state.int().tolist(), step.terminated, strict=True):
                    if end:
                        goal = steps
                    if r * 4 + c not in reached:
                        reached[r * 4 + c] = steps
                        following.append((r, c))
            frontier = following
        assert goal == task.distances()[context, 0]


def test_what_is_common() -> None:
    same = ContextGrid(contexts=5, common=1.0)
    assert (same.open == same.open[0]).all() and (same.goal == same.goal[0]).all()
    apart = ContextGrid(contexts=5, common=0.0)
    alike = [
        float((task.open[0] == task.open[k]).float().mean())
        for task in (apart, ContextGrid(contexts=5, common=0.67))
        for k in range(1, 5)
    ]
    assert max(alike[:4]) < min(alike[4:]) < 1
    assert (apart.goal // 7 + apart.goal % 7 >= 7).all()
    assert not torch.equal(ContextGrid(maps=1).open, ContextGrid(maps=2).open)


def test_steps_and_observations() -> None:
    task = ContextGrid(size=4, contexts=3)
    state = task.reset(300, torch.Generator().manual_seed(0))
    assert (state[:, :2] == 0).all() and set(state[:, 2].tolist()) == {0.0, 1.0, 2.0}
    obs = task.observe(state)
    assert obs.shape == (300, task.spec.obs_dim) and (obs[:, :11].sum(1) == 3).all()
    rebuilt, possible = task.state_from_obs(obs)
    assert possible.all() and torch.equal(rebuilt, state)
    wrong = obs.clone()
    wrong[:, -1] = 1 - wrong[:, -1]
    assert not task.state_from_obs(wrong)[1].any()
    for action in range(4):
        step = task.step(state, torch.full((300,), action))
        blocked = obs[:, -4 + action] > 0
        moved = step.state[:, :2] - state[:, :2]
        expected = torch.tensor(MOVES[action]).float() * (~blocked)[:, None]
        assert torch.equal(moved, expected) and torch.equal(step.obs, task.observe(step.state))
        assert torch.equal(task.terminates(obs, step.reward, step.obs), step.terminated)
    before = task.goal[0].item()
    path = task.distances()[0]
    neighbour = int((path == 1).nonzero()[0])
    state = torch.tensor([[neighbour // 4, neighbour % 4, 0]]).float().repeat(4, 1)
    step = task.step(state, torch.arange(4))
    assert step.reward.sum() == 1 and step.terminated.sum() == 1
    place = step.state[step.terminated][0]
    assert int(place[0] * 4 + place[1]) == before


@pytest.mark.parametrize("options", [{"size": 1}, {"contexts": 0}, {"common": 1.2}])
def test_wrong_options(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="ContextGrid-v0"):
        ContextGrid(**options)  # type: ignore[arg-type]


def test_a_maze_that_is_not_told_is_the_same_without_its_number() -> None:
    told, plain = (ContextGrid(size=3, contexts=5, common=0.0, show_context=t) for t in (1, 0))
    assert told.spec.obs_dim == 6 + 5 + 4 and plain.spec.obs_dim == 6 + 4
    state = told.reset(20, torch.Generator().manual_seed(0))
    action = torch.arange(20) % 4
    for _ in range(4):
        one, other = told.step(state, action), plain.step(state, action)
        assert torch.equal(one.state, other.state) and torch.equal(one.reward, other.reward)
        assert torch.equal(one.obs[:, [*range(6), *range(11, 15)]], other.obs)
        state = one.state
    assert not plain.state_from_obs(plain.observe(state))[1].any()
    assert plain.state_from_obs(torch.zeros(2, 10, device="meta"))[1].is_meta
    with pytest.raises(ConfigError, match="show_context at 1"):
        plain.terminates(one.obs, action, one.obs)
    with pytest.raises(ConfigError, match="show_context 2"):
        ContextGrid(show_context=2)
