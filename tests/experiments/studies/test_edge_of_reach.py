"""The plane of the edge-of-reach experiments: its exact value against dynamic programming, its edge
set against simulation, the patched targets against a loop; and the two studies on tiny budgets."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms.learners.soft_actor_critic import soft_value_target
from experiments import studies
from experiments.cli.table import Table
from experiments.studies import edge_of_reach, overestimation
from experiments.studies.plane import LIMIT, Plane
from experiments.tables import conclusions, plan, render, summary
from experiments.tables import table as tables
from mbrl.errors import ConfigError
from world_models import RolloutConfig, TrueDynamics, rollout

SETTINGS = edge_of_reach.DEFAULTS | {"reward": "bump", "centre": [2.0, 1.0], "horizon": 3}


def test_the_value_is_that_of_dynamic_programming() -> None:
    """On a lattice that holds the centre, with moves of 0, 0.5 and 1 in each coordinate."""
    gamma, half = 0.9, 12
    world = Plane(SETTINGS, gamma)
    axis = torch.arange(-half, half + 1) * 0.5
    points = torch.cartesian_prod(axis, axis)
    reward = world.mass.reward(points).reshape(len(axis), len(axis))
    value = torch.zeros_like(reward)
    moves = list(itertools.product(range(-2, 3), repeat=2))
    for _ in range(200):
        padded = torch.full((len(axis) + 4, len(axis) + 4), -torch.inf)
        padded[2:-2, 2:-2] = reward + gamma * value
        size = len(axis)
        options = [padded[2 + a : 2 + a + size, 2 + b : 2 + b + size] for a, b in moves]
        value = torch.stack(options).amax(0)
    torch.testing.assert_close(world.value(points), value.flatten(), atol=1e-4, rtol=1e-4)


def test_the_value_with_a_clock_counts_the_steps_left() -> None:
    world = Plane(SETTINGS | {"clock": True}, 0.9)
    obs = torch.tensor([[2.0, 1.0, 27 / 30], [2.0, 1.0, 1.0], [4.0, 1.0, 28 / 30]])
    near = math.exp(-1 / 8)
    expected = [1 + 0.9 + 0.81, 0.0, near + 0.9]
    np.testing.assert_allclose(world.value(obs).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("clock", [False, True])
def test_the_edge_is_what_only_ends_reach(clock: bool) -> None:
    """States that are started from are never in the edge set; of the ends of rollouts that walk
    straight out all are."""
    world = Plane(SETTINGS | {"clock": clock}, 0.9)
    generator = torch.Generator().manual_seed(0)
    starts = world.task.reset(500, generator)

    def outwards(obs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.sign(obs[:, :2])

    result = rollout(TrueDynamics(world.task), outwards, starts, RolloutConfig(3), generator)
    assert not world.at_edge(result.obs.flatten(0, 1)).any()
    last = result.next_obs[:, -1]
    beyond = last[:, :2].abs().amax(-1) > 2 + 3 - 1
    assert torch.equal(world.at_edge(last), beyond | torch.tensor(clock))
    assert world.at_edge(world.ring(400, generator)).all()


def test_with_the_whole_episode_there_is_no_edge() -> None:
    world = Plane(SETTINGS | {"clock": True, "horizon": LIMIT}, 0.9)
    assert not world.at_edge(torch.tensor([[0.0, 0.0, 1.0]])).any()


def test_patched_targets_against_a_loop() -> None:
    world, agent = edge_of_reach.build(SETTINGS | {"patch": "oracle", "learn_alpha": False}, 0)
    agent.prepare(edge_of_reach.starting_data(world, 0), lambda metrics: None)
    agent.advance()
    batch = agent.next_batch()
    batch = batch._replace(next_obs=torch.where(torch.arange(256)[:, None] < 100, 4.5, 0.5))
    batch = batch._replace(next_obs=batch.next_obs.expand(256, 2).contiguous())
    seen = {}
    kept = agent.learner.update_critic
    agent.learner.update_critic = lambda b, target: seen.update(y=target) or kept(b, target)
    metrics = agent.update(batch)
    plain = soft_value_target(agent.learner, batch)
    bonus = 1.0 * float(metrics["actor/entropy"]) / 0.01
    for i in range(256):
        gap, value = [max(0.0, abs(4.5 - c) - 1) for c in (2.0, 1.0)], 0.0
        for t in range(5000):
            value += 0.99**t * math.exp(-sum(g * g for g in gap) / 8)
            gap = [max(0.0, g - 1) for g in gap]
        if i < 100:
            expected = float(batch.reward[i]) + 0.99 * (value + bonus)
            assert float(seen["y"][i]) == pytest.approx(expected, rel=1e-3)
            break
    assert float(metrics["patched"]) == pytest.approx(100 / 256)
    torch.testing.assert_close(seen["y"][100:], plain[100:], atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("kind", ["random", "variance", "bootstrapped"])
def test_controls_patch_as_many_rows_as_the_oracle(kind: str) -> None:
    world, agent = edge_of_reach.build(SETTINGS | {"patch": kind}, 0)
    agent.prepare(edge_of_reach.starting_data(world, 0), lambda metrics: None)
    agent.advance()
    batch = agent.next_batch()
    edge = world.at_edge(batch.next_obs)
    chosen = agent._chosen(batch)
    assert chosen.sum() == edge.sum()
    if kind == "variance":
        q = edge_of_reach.greedy_values(agent.learner, batch.next_obs).std(0, correction=0)
        least = q[chosen].min() if chosen.any() else q.max()
        assert least >= q[~chosen].max()


def test_settings_that_cannot_be() -> None:
    for change, text in (
        ({"patch": "magic"}, "magic"),
        ({"horizon": 31}, "1..30"),
        ({"unit": 0.0}, "unit is 0.0"),
        ({"updates": 23}, "updates is 23, it must be at least 24"),
    ):
        with pytest.raises(ConfigError, match=text):
            edge_of_reach.build(SETTINGS | change, 0)


def test_networks_see_coordinates_in_their_unit() -> None:
    """Values and actions are those of networks without a unit at coordinates that are divided by
    hand; CORL's first layer is within 1 / sqrt(width)."""
    small = SETTINGS | {"hidden": [16, 16], "init": "corl", "critics": 3, "clock": True}
    made = []
    for unit in (1.0, 5.0):
        world, agent = edge_of_reach.build(small | {"unit": unit}, 0)
        agent.prepare(edge_of_reach.starting_data(world, 0), lambda metrics: None)
        made.append(agent)
    plain, scaled = made
    assert len(plain.learner.critic.weights) == 3
    first = plain.learner.critic.weights[0].detach()
    assert first.shape == (3, 5, 16) and 0.2 < float(first.abs().max()) <= 16**-0.5
    obs = torch.tensor([[10.0, -5.0, 0.5], [2.5, 0.0, 1.0]])
    divided = obs / torch.tensor([5.0, 5.0, 1.0])
    torch.testing.assert_close(scaled.learner.actor(obs), plain.learner.actor(divided))
    torch.testing.assert_close(
        edge_of_reach.greedy_values(scaled.learner, obs),
        edge_of_reach.greedy_values(plain.learner, divided),
    )


def test_a_stopped_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_of_reach, "SAVE_EVERY", 20)
    settings = SETTINGS | {"hidden": [8], "updates": 48, "unit": 5.0}

    def stop(world: Plane, agent: edge_of_reach.PatchedRAVL, metrics: object) -> dict[str, float]:
        if agent.step == 30:
            raise KeyboardInterrupt
        return evaluate(world, agent, metrics)  # type: ignore[arg-type]

    evaluate = edge_of_reach.evaluate
    whole = edge_of_reach.measure(settings, 0, tmp_path / "whole")
    monkeypatch.setattr(edge_of_reach, "evaluate", stop)
    with pytest.raises(KeyboardInterrupt):
        edge_of_reach.measure(settings, 0, tmp_path / "stopped")
    monkeypatch.setattr(edge_of_reach, "evaluate", evaluate)
    again = edge_of_reach.measure(settings, 0, tmp_path / "stopped")
    assert again.values == pytest.approx(whole.values, nan_ok=True) and again.curves == whole.curves
    assert whole.values["lag_ratio"] == whole.values["q"] / whole.values["lag_bound"]


TABLE = """
study = "edge_of_reach"
metrics = ["q", "bound", "lag_bound", "slope"]
seeds = [0]
conclusions = ["certified", "detector"]
settings = {updates = 48}
[[blocks]]
title = "one"
rows = [{label = "k = 1, a", horizon = 1}, {label = "k = 2, a", horizon = 2}]
[[blocks]]
title = "two"
study = "overestimation"
metrics = ["score", "excess", "blew_up"]
settings = {steps = 12, episodes = 2}
rows = [{label = "d, RAVL truth = 1", data = "pendulum/medium-replay"}]
"""


@pytest.mark.long
def test_a_table_of_two_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of different studies, chosen by title; figures of both; sentences below."""
    text = (
        TABLE.replace("settings = {updates = 48}\n", "")
        .replace("horizon = 1}", "horizon = 1, updates = 48}")
        .replace("horizon = 2}", "horizon = 2, updates = 48}")
    )
    text = text.replace(
        'replay"}',
        'replay", config = {learner = {hidden = [8, 8], critics = 2}, '
        "imagination = {truth = 1.0, starts = 20}}}",
    )
    file = tmp_path / "small.toml"
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    result = plan.load(str(file))
    assert [c.path.parts[0] for c in tables.choose(result, None, (), ("two",))] == [
        "overestimation"
    ]
    with pytest.raises(ConfigError, match="three"):
        tables.choose(result, None, (), ("three",))
    assert Table(str(file), workers=1).main() == 0
    home = tmp_path / "small"  # beside the user's file
    text = (home / "table.md").read_text()
    assert "value above the bound in" in text and "runs that did not, it passed" in text
    for name in ("values.png", "knob.png", "scores-2.png", "gaps-2.png", "knob-2.png"):
        assert (home / name).exists() and (home / name).with_suffix(".csv").exists()
    known = summary.collect(result, home, {}, {})
    assert known.blocks[0].entries["k = 1, a", "q"].last


def test_the_lagging_bound_in_closed_form() -> None:
    """At one temperature the target average closes tau (1 - gamma) of the gap to the bound at each
    update; with a clock the bound itself is reached, 30 steps of it at the start."""
    alpha, paid = torch.tensor(0.5), 1.0 + 0.5 * math.log(4)
    world = Plane(SETTINGS | {"reward": "bump"}, 0.99)
    result = torch.tensor([3.0], dtype=torch.double)
    for _ in range(700):
        result = edge_of_reach.followed(result, alpha, world)
    bound = paid / 0.01
    left = (1 - 0.005 * 0.01) ** 700
    assert float(result) == pytest.approx(bound + left * (3.0 - bound), rel=1e-6)
    world = Plane(SETTINGS | {"reward": "bump", "clock": True}, 0.99)
    result = torch.zeros(30, dtype=torch.double)
    for _ in range(20_000):
        result = edge_of_reach.followed(result, alpha, world)
    expected = [paid * (1 - 0.99**n) / 0.01 for n in range(30, 0, -1)]
    assert result.numpy() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("other", ["a, b", "a b"])
def test_two_rows_with_one_folder_must_agree(other: str) -> None:
    values = {"study": "edge_of_reach", "metrics": ["q"], "seeds": [0]}
    rows = [{"label": "a, b"}, {"label": other, "critics": 3}]
    with pytest.raises(ConfigError, match=other):
        plan._plan("x", values | {"rows": rows})


def test_a_row_has_a_plain_folder() -> None:
    assert plan.Row("bump (far), η = 0.1").folder == "bump-far-=-0.1"
    assert plan.Row("pendulum/expert@50000").folder == "pendulum-expert@50000"


def test_sensitivity_is_counted_over_all_blocks() -> None:
    """Two runs that blew up, one found; three that did not, all passed; Wilson's intervals from
    their formula."""
    outcomes = [(1, 500.0), (1, math.nan), (0, math.nan), (0, math.nan), (0, math.nan)]
    block = plan.Block("", (plan.Row("r"),), (plan.Column("q"),), (0,), "edge_of_reach")
    entry = summary.Entry(
        records=[
            {
                "key": {"seed": seed},
                "values": {"blew_up": b, "alarm": a, "lead": 100.0, "q": 1.0, "excess": 0.3},
            }
            for seed, (b, a) in enumerate(outcomes)
        ]
    )
    known = summary.Summary(
        plan.Plan("x", "x", (block,), conclusions=("detector",)),
        (summary.BlockSummary(block, {("r", "q"): entry}),),
    )
    first, second, third = conclusions.lines(known)
    assert "Of 2 runs that blew up, the detector found 1: 0.50 [0.09, 0.91]" in first
    z = 1.959964
    low = (1 + z * z / 6 - z * math.sqrt(z * z / 36)) / (1 + z * z / 3)
    assert f"it passed 3: 1.00 [{low:.2f}, 1.00]" in second
    assert "In the 2 of them whose return fell, the alarm came before the fall" in third


def test_one_run_under_two_labels_is_counted_once() -> None:
    values = {"q": 1.0, "excess": 0.5, "blew_up": 1.0, "alarm": 100.0}
    one = {"key": {"seed": 0}, "values": values}
    records = [one, {"key": {"seed": 0}, "values": dict(values)}, one | {"key": {"seed": 1}}]
    block = plan.Block("", (plan.Row("r"),), (plan.Column("q"),), (0,), "overestimation")
    entries = {("r", "q"): summary.Entry(records=records)}
    result = summary.Summary(
        plan.Plan("x", "x", (block,), conclusions=("detector",)),
        (summary.BlockSummary(block, entries),),
    )
    assert conclusions.lines(result)[0].startswith("Of 2 runs that blew up, the detector found 2")


def test_quantities_that_some_seeds_lack() -> None:
    some, none = (summary.Entry([0, 1], [first, math.nan]) for first in (2.0, math.nan))
    assert render.text_of(some, 2) == "2 (1 of 2)"
    assert render.text_of(none, 2) == "none"
    assert math.isnan(none.interval.estimate)


def test_when_a_return_fell() -> None:
    assert overestimation.fell([1, 2, 3, 4], [0, 10, 8, 7]) == 4
    assert math.isnan(overestimation.fell([1, 2, 3], [0, 10, 8]))
    assert math.isnan(overestimation.fell([1, 2], [0, -5]))


def test_every_study_describes_itself() -> None:
    for name in studies.STUDIES:
        result = studies.module(name)
        assert result.VERSION >= 1 and result.DEFAULTS and callable(result.draw)
