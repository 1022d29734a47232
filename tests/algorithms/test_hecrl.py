"""HECRL: which subgoal is taken, what the order of entities changes, and how long one is held."""

import math
from typing import Any

import pytest
import torch

from algorithms import GCIQL, HECRL
from algorithms.hecrl import chosen
from experiments.settings import build_config
from mbrl.agent import fit_normalisers
from mbrl.buffer import Batch
from mbrl.tasks import make

D = torch.float64
TASK = make("PushBlocks-3-v0")
SMALL = {
    "hidden": [8, 8],
    "batch_size": 12,
    "gamma": 0.9,
    "entity_size": 2,
    "width": 8,
    "levels": 2,
    "candidates": 5,
    "held_steps": 3,
    "subgoals": 2,
}


def made(**values: Any) -> Any:
    agent = HECRL(TASK.spec, build_config("hecrl", SMALL | values), seed=0)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for module in agent.modules.values():
            module.double()
            for p in module.parameters():
                p.add_(0.2 * torch.randn(p.shape, generator=generator, dtype=D))
    return agent


def observations(count: int, seed: int = 0) -> torch.Tensor:
    return TASK.observe(TASK.reset(count, torch.Generator().manual_seed(seed))).double()


def permuted(obs: torch.Tensor) -> torch.Tensor:
    """Blocks 2, 0, 1, each with its goal."""
    point, blocks, goals = TASK.parts(obs)
    order = [2, 0, 1]
    return torch.cat([point, blocks[:, order].flatten(1), goals[:, order].flatten(1)], 1)


def test_the_choice_of_a_subgoal_from_tables_of_values() -> None:
    """Columns: the best is near; the best is too far; none is near; the state itself is better; one
    candidate stands exactly at the limit."""
    near = torch.tensor([[-1.0, -9.0, -9.0, -1.0, -5.0], [-2.0, -4.0, -6.0, -2.0, -6.0]])
    value = torch.tensor([[-3.0, -1.0, -1.0, -3.0, -8.0], [-4.0, -7.0, -1.0, -4.0, -1.0]])
    direct = torch.tensor([-10.0, -10.0, -10.0, -2.0, -9.0])
    index, goal = chosen(near, value, direct, -5.0)
    assert index[[0, 1, 3, 4]].tolist() == [0, 1, 0, 0]
    assert goal.tolist() == [False, False, True, True, False]
    index, goal = chosen(near, value, direct, None)
    assert index.tolist()[:2] == [0, 0] and not goal.any()


def test_where_no_candidate_is_near_the_goal_is_taken_whatever_its_value() -> None:
    far, worst = torch.full((3, 1), -9.0), torch.tensor([-torch.inf])
    assert chosen(far, torch.zeros(3, 1), worst, -5.0)[1].tolist() == [True]


def test_a_value_that_is_as_large_as_the_best_keeps_the_subgoal() -> None:
    index, goal = chosen(torch.zeros(1, 1), torch.full((1, 1), -2.0), torch.tensor([-2.0]), -5.0)
    assert index.tolist() == [0] and goal.tolist() == [False]


def test_order_of_entities() -> None:
    """The same permutation of state, subgoal and goal gives the same losses, values and actions,
    and permuted samples from permuted noise."""
    learner = made().learner
    obs, later = observations(12), observations(12, 1)
    rows = torch.Generator().manual_seed(2)
    noise, level = (
        torch.randn(12, 8, generator=rows, dtype=D),
        torch.rand(12, generator=rows).double(),
    )
    order = [0, 1, 6, 7, 2, 3, 4, 5]
    subgoals = learner.subgoals
    subgoals.tokens.fit(obs)
    one = subgoals.loss(obs, later, noise, level + 0.1)
    two = subgoals.loss(permuted(obs), permuted(later), noise[:, order], level + 0.1)
    assert float(one) == pytest.approx(float(two), rel=1e-10)
    assert float(one) != pytest.approx(
        float(subgoals.loss(obs, permuted(later), noise, level + 0.1))
    )
    draws = torch.randn(4, 12, 8, generator=rows, dtype=D)
    samples = subgoals.sample(obs, draws)
    others = subgoals.sample(permuted(obs), draws[..., order])
    assert torch.allclose(torch.stack([permuted(s) for s in samples]), others, atol=1e-9)
    action = torch.rand(12, 2, generator=rows, dtype=D)
    pair = [torch.cat([o, action], -1) for o in (obs, permuted(obs))]
    assert torch.allclose(learner.critic(pair[0]), learner.critic(pair[1]), atol=1e-12)
    assert torch.allclose(learner.value(obs), learner.value(permuted(obs)), atol=1e-12)
    assert torch.allclose(learner.flat.unit(obs), learner.flat.unit(permuted(obs)), atol=1e-12)


def test_order_of_entities_in_standardised_units() -> None:
    """One block is near 0, one far and one spread: the moments are of all three together."""
    agent = HECRL(TASK.spec, build_config("hecrl", SMALL | {"normalise_obs": True}), seed=0)
    obs = 1000 * observations(40).float()
    obs[:, 4:6] += 5000.0
    obs[:, 6:8] *= 7.0
    point, blocks, _ = TASK.parts(obs)
    obs = torch.cat([point, blocks.flatten(1), blocks.flip(0).flatten(1)], 1)
    fit_normalisers(agent.modules, obs)
    learner = agent.learner
    for scale in (learner.flat.normaliser, learner.value.normaliser):
        for values, expected in (
            (scale.mean, blocks.mean((0, 1))),
            (scale.std, blocks.flatten(0, 1).std(0, correction=0)),
        ):
            own, entities = values[:2], values[2:].view(6, 2)
            assert torch.allclose(entities, expected.expand(6, 2), rtol=1e-4)
            assert not torch.allclose(own, expected, rtol=0.1)
    action = torch.rand(40, 2, generator=torch.Generator().manual_seed(2))
    pair = [torch.cat([o, action], -1) for o in (obs, permuted(obs))]
    for one, two in (
        (learner.critic(pair[0]), learner.critic(pair[1])),
        (learner.value(obs), learner.value(permuted(obs))),
        (learner.flat.unit(obs), learner.flat.unit(permuted(obs))),
    ):
        assert torch.allclose(one, two, atol=1e-5) and float(one.std()) > 1e-3


def test_the_diffusion_is_told_the_state_and_the_goal_and_keeps_both() -> None:
    subgoals, obs = made().learner.subgoals, observations(12)
    draws = torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(2), dtype=D)
    samples = subgoals.sample(obs, draws)
    entries = subgoals.tokens.entities.entries
    assert torch.equal(entries.goal_of(samples[1]), entries.goal_of(obs))
    for moved in (0, 2, 8):  # the point, a block, a goal
        other = obs.clone()
        other[:, moved] += 0.5
        assert not torch.allclose(
            entries.own_of(subgoals.sample(other, draws)), entries.own_of(samples)
        )


def test_the_diffusions_loss_against_a_loop() -> None:
    subgoals, obs, later = made().learner.subgoals, observations(12), observations(12, 1)
    rows = torch.Generator().manual_seed(2)
    noise, level = (
        torch.randn(12, 8, generator=rows, dtype=D),
        torch.rand(12, generator=rows).double(),
    )
    got, total = float(subgoals.loss(obs, later, noise, level + 0.1)), 0.0
    for i in range(12):
        s = float(level[i] + 0.1)
        x = later[i, :8] + s * noise[i]  # moments are 0 and 1 before the fit
        scaled, sets = x / math.sqrt(1 + s * s), []
        for k in range(4):
            here, goal = obs[i, 2 * k : 2 * k + 2], obs[i, 6 + 2 * k : 8 + 2 * k]
            goal = obs[i, :2] if k == 0 else goal
            kind = torch.tensor([float(k > 0)], dtype=D)
            sets.append(torch.cat([scaled[2 * k : 2 * k + 2], here, goal, kind]))
        out = subgoals.net(torch.stack(sets)[None], torch.tensor([math.log(s) / 4], dtype=D))[0]
        clean = x / (1 + s * s) + s / math.sqrt(1 + s * s) * out[:, :2].flatten()
        total += float(((clean - later[i, :8]) ** 2).sum()) * (1 + 1 / s**2)
    assert got == pytest.approx(total / (12 * 8), rel=1e-9)


def test_a_subgoal_is_held_and_the_goal_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, obs = made().policy, observations(4)
    draws: list[int] = []

    def subgoal(seen: torch.Tensor, generator: Any = None) -> torch.Tensor:
        draws.append(1)
        return torch.full((4, 6), float(len(draws)), dtype=D)

    monkeypatch.setattr(policy, "subgoal", subgoal)
    asked = []
    monkeypatch.setattr(policy.flat, "forward", lambda o: asked.append(o) or o[:, :2])
    state = None
    for _ in range(8):
        _, state = policy.step(obs, state, None)
        state = policy.observe_reward(state, torch.zeros(4))
    goals = torch.stack(asked)[:, :, 8:]
    assert [float(g[0, 0]) for g in goals[:6]] == [1.0] * 3 + [2.0] * 3
    assert torch.equal(goals[6], obs[:, 8:]) and len(draws) == 3
    # a row of zeros begins a new episode, beside one that goes on
    state[0] = 0
    _, after = policy.step(obs, state, None)
    assert after[:, -1].tolist() == [1.0, 3.0, 3.0, 3.0] and after[0, 0] == 4.0


@pytest.mark.parametrize("choice", ["filtered", "best", "any", "goal"])
def test_subgoals_against_a_loop(choice: str) -> None:
    policy, obs = made(choice=choice, reach=1.0).policy, observations(30)
    got = policy.subgoal(obs)
    noise = policy.subgoals.noise[:, None].expand(5, 30, 8)
    later = policy.subgoals.sample(obs, noise)
    fallen = 0
    for i in range(30):
        best, taken = -math.inf, obs[i, 8:]
        for k in range(5):
            seen = torch.cat([obs[i, :8], later[k, i, 2:8]])[None]
            near = float(policy.value(seen)[0, 0, 0])
            value = float(policy.value(later[k, i][None])[0, 0, 0])
            allowed = choice == "best" or (choice == "filtered" and near >= -1.0)
            if (allowed and value > best) or (choice == "any" and k == 0):
                best, taken = value, later[k, i, 2:8]
        if choice == "filtered" and float(policy.value(obs[i][None])[0, 0, 0]) > best:
            taken, fallen = obs[i, 8:], fallen + 1
        assert torch.allclose(got[i], taken, atol=1e-9)
    assert choice != "filtered" or 0 < fallen < 30


@pytest.mark.long
def test_values_of_a_chain_are_those_of_steps() -> None:
    """Five states in a row, each left to the next: V is -(1 - gamma^n) / (1 - gamma) n steps from
    the goal, by GCIQL's update on all pairs with the set networks."""
    spec = TASK.spec.__class__(
        "chain",
        10,
        1,
        None,
        (-1.0,),
        (1.0,),
        10,
        goal=tuple(range(5, 10)),
        achieved=tuple(range(5)),
    )
    config = build_config(
        "hecrl",
        {"hidden": [64, 64], "gamma": 0.8, "learning_rate": 3e-3, "tau": 0.05, "expectile": 0.5,
         "width": 8, "levels": 1},
    )  # fmt: skip
    learner = HECRL(spec, config, seed=0).learner
    eye = torch.eye(5)
    pairs = [(s, g) for g in range(5) for s in range(g + 1)]
    obs = torch.stack([torch.cat([eye[s], eye[g]]) for s, g in pairs])
    after = torch.stack([torch.cat([eye[min(s + 1, 4)], eye[g]]) for s, g in pairs])
    away = torch.tensor([float(s != g) for s, g in pairs])
    rows = Batch(
        obs, torch.zeros(15, 1), -away, after, 0.8 * away, policy_goal=obs[:, 5:], waypoint=after
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(1500):
        learner.update(learner.draw(rows, generator))
    value = learner.value(obs)[0, :, 0]
    expected = torch.tensor([-(1 - 0.8 ** (g - s)) / (1 - 0.8) for s, g in pairs])
    assert torch.allclose(value, expected, atol=0.15)


def test_gciql_is_what_it_was_beside() -> None:
    agent = GCIQL(TASK.spec, build_config("gciql", {"hidden": [8]}), seed=0)
    assert agent.policy is agent.learner.flat and set(agent.modules) == {
        "policy", "critic", "value", "critic_target",
    }  # fmt: skip
