"""50 updates with a fixed seed, against recorded numbers: a refactor must not move them. A file
changes only together with the algorithm's `version`; WRITE_GOLDEN=1 writes them anew."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms import ALGORITHMS
from experiments.settings import build_config, merge
from mbrl.types import Dataset
from tests.draws import same_draws
from tests.small import CONFIGS, OFFLINE, suited

GOLDEN = Path(__file__).parent / "golden"


def measured(name: str, data: Dataset) -> dict[str, Any]:
    cls, _ = ALGORITHMS[name]
    values = CONFIGS[name]
    for part in ("imagination", "rollouts"):
        if part in values:  # what a diagnosis reports beside is no part of the algorithm
            values = merge(values, {part: {"diagnose": 0}})
    agent = cls(data.spec, build_config(name, values), seed=7)
    seen: dict[str, float] = {}

    def log(event: str, agent: Any, metrics: dict[str, torch.Tensor]) -> None:
        if event == "step":
            seen.update({k: float(v) for k, v in metrics.items()})

    agent.fit(data, 50, callbacks=[log])
    action, _ = agent.act(data.transitions.obs[:4])
    return {"version": cls.version, "metrics": seen, "actions": action.flatten().tolist()}


@same_draws
@pytest.mark.parametrize("name", OFFLINE)
def test_golden(name: str, pendulum: Dataset, cartpole: Dataset) -> None:
    file, got = GOLDEN / f"{name}.json", measured(name, suited(name, pendulum, cartpole))
    if os.environ.get("WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(got, indent=1) + "\n")
    kept = json.loads(file.read_text())
    assert got["version"] == kept["version"], "a new version needs a new golden file"
    assert got["metrics"].keys() == kept["metrics"].keys()
    for key, value in kept["metrics"].items():
        assert got["metrics"][key] == pytest.approx(value, rel=2e-3, abs=2e-4), key
    assert got["actions"] == pytest.approx(kept["actions"], rel=2e-3, abs=2e-3)
