"""Algorithms are put together, not inherited: no class of `algorithms/` stands more than two below
its root, and every agent builds a learner and a source."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from algorithms import ALGORITHMS
from mbrl.agent import Agent
from mbrl.types import Dataset
from tests.small import CONFIGS, suited

ROOT = Path(__file__).resolve().parents[2]


def classes() -> list[type]:
    found = []
    for file in sorted((ROOT / "algorithms").rglob("*.py")):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        module = importlib.import_module(name.removesuffix(".__init__"))
        found += [c for _, c in inspect.getmembers(module, inspect.isclass)]
    control = {c for c in found if c.__module__.startswith("algorithms")}
    control = {c for c in control if ".language" not in c.__module__}
    return sorted((c for c in control if not c.__name__.endswith("Config")), key=str)


def depth(cls: type) -> int:
    """Classes of `algorithms/` from the root to `cls`."""
    return sum(c.__module__.startswith("algorithms") for c in cls.__mro__)


@pytest.mark.parametrize("cls", classes(), ids=lambda c: f"{c.__module__}.{c.__name__}")
def test_no_class_is_deeper_than_two(cls: type) -> None:
    assert depth(cls) <= 2


@pytest.mark.parametrize("name", ALGORITHMS)
def test_agents_are_a_learner_and_a_source(name: str, pendulum: Dataset, cartpole: Dataset) -> None:
    from experiments.settings import build_config

    cls, config = ALGORITHMS[name]
    assert issubclass(cls, Agent)
    spec = suited(name, pendulum, cartpole).spec
    agent: Any = cls(spec, build_config(name, CONFIGS[name]))
    assert isinstance(agent.config, config)
    for part, names in (
        (agent.learner, ("policy", "modules", "optimisers", "config")),
        (agent.source, ("collection", "logged", "model", "state_dict", "load_state_dict")),
    ):
        assert all(hasattr(part, n) for n in names), part
