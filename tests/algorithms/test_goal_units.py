"""Learners of goals with standardised observations: the same functions in any units, for copies,
files and exports too."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import longreach as lr
from algorithms import ALGORITHMS
from algorithms.contrastive_rl import BilinearCritics
from algorithms.learners.goal_conditioned import GoalValues
from experiments.settings import build_config, preset_config
from mbrl.goals import GoalEntries
from mbrl.networks import Normaliser
from mbrl.types import Dataset, Spec, Transitions

NAMES = ("gcbc", "gcivl", "gciql", "hiql", "saw", "contrastive_rl", "hecrl")
HERE, GOAL, ELSE = (1, 3), (4, 5), (0, 2)  # of an observation
SPEC = Spec("plane", 6, 2, None, (-1.0,) * 2, (1.0,) * 2, 20, goal=GOAL, achieved=HERE)
OTHER = (1000.0, 1500.0)  # units and origin, as of degrees: LayerNorm would make up for units alone
Units = tuple[float, float]


def log(units: Units = (1.0, 0.0)) -> Dataset:
    """Wanderings over some hundred of a unit, far beyond what is added to small deviations; each
    entry has a mean and a deviation of its own, and goals are zeros, as where nobody had one."""
    generator = torch.Generator().manual_seed(0)
    action = 2 * torch.rand(12, 10, 2, generator=generator) - 1
    obs = torch.zeros(12, 11, 6)
    obs[..., HERE] = 300 * torch.randn(12, 11, 2, generator=generator)
    obs[:, 1:, HERE] = obs[:, :1, HERE] + 200 * action.cumsum(1)
    obs[..., ELSE] = torch.tensor([50.0, 900.0]) * torch.randn(12, 11, 2, generator=generator)
    obs[..., : len(HERE + ELSE)] += torch.tensor([100.0, -400.0, 0.0, 700.0])
    obs[..., (0, *HERE)] += units[1]  # all that HECRL's tokens have at one position
    obs *= units[0]
    end = torch.arange(10).expand(12, 10).flatten() == 9
    zero = torch.zeros(120)
    rows = Transitions(
        obs[:, :-1].flatten(0, 1), action.flatten(0, 1), zero, obs[:, 1:].flatten(0, 1),
        end & False, end,
    )  # fmt: skip
    return Dataset(rows, SPEC)


def made(name: str, **values: Any) -> Any:
    small = {"hidden": [8, 8], "batch_size": 16, "learning_rate": 1e-2, **values}
    small |= {"subgoal_steps": 3} if name in ("hiql", "saw", "hecrl") else {}
    small |= {"width": 8, "levels": 1, "candidates": 4} if name == "hecrl" else {}
    small |= {"entity_size": 1} if name == "hecrl" else {}
    small |= {"latent": 4} if name == "contrastive_rl" else {}
    return ALGORITHMS[name][0](SPEC, build_config(name, small), seed=0)


def fitted(name: str, units: Units = (1.0, 0.0)) -> Any:
    return made(name, normalise_obs=True).fit(log(units), 6, callbacks=[])


def asked(units: Units = (1.0, 0.0)) -> Tensor:
    """Observations of the log with goals from other rows of it [20, 6]."""
    obs, entries = log(units).transitions.obs[::6], GoalEntries(SPEC)
    return entries.with_goal(obs, entries.achieved_of(obs).roll(7, 0))


@torch.no_grad()
def outputs(agent: Any, obs: Tensor) -> dict[str, Tensor]:
    """Greedy actions, and what the values and critics say."""
    modules, goal = agent.learner.modules, GoalEntries(SPEC).goal_of(obs)
    action = torch.linspace(-1, 1, 2 * len(obs)).view(-1, 2)
    shown = {"action": agent.act(obs)[0]}
    if "near" in modules:
        shown["near"] = modules["near"](obs)
    for name, module in modules.items():
        if isinstance(module, BilinearCritics):
            shown[name] = module(obs, action, goal)
        elif isinstance(module, GoalValues):
            shown[name] = module.mean(obs, goal)
        elif name == "value":
            shown[name] = module(obs)
        elif name in ("critic", "critic_target"):
            shown[name] = module(torch.cat([obs, action], -1))
    return shown


@pytest.mark.parametrize("name", NAMES)
def test_other_units_give_the_same_functions(name: str) -> None:
    """Of all outputs, and of the losses, where those networks show that only training needs."""
    one, other = fitted(name), fitted(name, OTHER)
    expected, got = outputs(one, asked()), outputs(other, asked(OTHER))
    for part, values in expected.items():
        assert torch.allclose(values, got[part], atol=1e-4, rtol=1e-4), part
        assert float(values.std()) > 1e-3, part  # it says something
    losses, others = (a.update(a.next_batch()) for a in (one, other))
    for part, value in losses.items():
        assert float(value) == pytest.approx(float(others[part]), rel=1e-3, abs=1e-4), part


@pytest.mark.parametrize("name", NAMES)
def test_goals_have_the_moments_of_what_is_achieved(name: str) -> None:
    scales = [
        m for module in fitted(name).modules.values() for m in module.modules()
        if isinstance(m, Normaliser)
    ]  # fmt: skip
    assert len(scales) == {"gcbc": 1, "gciql": 4, "hecrl": 4, "saw": 3}.get(name, 2)
    for scale in scales:
        for values in (scale.mean, scale.std):
            assert torch.equal(values[list(GOAL)], values[list(HERE)])
        assert float(scale.std.min()) > 10


@pytest.mark.parametrize("name", NAMES)
def test_without_it_files_hold_what_they_held(name: str) -> None:
    """Only policies that had one before have a normaliser, which stays the identity."""
    agent = made(name).fit(log(), 1, callbacks=[])
    keys = {k for m in agent.modules.values() for k in m.state_dict() if "normaliser" in k}
    assert keys <= {"normaliser.mean", "normaliser.std"}
    for name, module in agent.modules.items():
        state = module.state_dict()
        assert ("normaliser.mean" in state) == hasattr(module, "log_std"), name
        assert not state.get("normaliser.mean", torch.zeros(1)).any()


@pytest.mark.parametrize("name", ["hiql", "contrastive_rl", "hecrl"])
def test_files_and_copies_keep_it(name: str, tmp_path: Path) -> None:
    agent = fitted(name)
    agent.save(tmp_path / "agent.pt")
    again = type(agent).load(tmp_path / "agent.pt")
    expected = outputs(agent, asked())
    for other in (again, copy.deepcopy(agent)):
        assert other.config.normalise_obs
        for part, values in outputs(other, asked()).items():
            assert torch.equal(values, expected[part]), part
    ends = [a.fit(log(), 2, callbacks=[]) for a in (agent, again)]  # the resumed one is the same
    assert torch.equal(*(a.act(asked())[0] for a in ends))


@pytest.mark.usefixtures("one_registry")
@pytest.mark.long
@pytest.mark.parametrize("name", ["hiql", "saw"])
def test_exports_take_raw_observations(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    agent = fitted(name)
    lr.export(agent, tmp_path / "out")
    program = torch.export.load(tmp_path / "out" / "policy.pt2").module()
    with torch.no_grad():
        out = program(asked())
    action = out[0] if isinstance(out, tuple | list) else out
    assert torch.allclose(action, agent.act(asked())[0], atol=1e-5)


@pytest.mark.parametrize("name", [*NAMES, "smore"])
def test_files_of_ones_own_have_it_and_published_data_have_not(name: str) -> None:
    assert preset_config(name, "my/log.csv").normalise_obs
    for data in ("pointmaze/medium-stitch", "ogbench/antmaze-large-navigate-v0"):
        assert not preset_config(name, data).normalise_obs
