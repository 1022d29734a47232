"""The command for a GPU, tried on the CPU, and what a captured update must keep to."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from algorithms import ALGORITHMS
from experiments.__main__ import main
from experiments.bench.gpu import GPU, measure_gpu
from experiments.settings import build_config
from mbrl.errors import ConfigError
from mbrl.graphs import GraphedUpdates
from mbrl.types import Dataset
from tests.small import CONFIGS


@pytest.mark.long
def test_the_whole_command_on_the_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["gpu", "--out", str(tmp_path), "--device", "cpu", "--tiny", "--minutes", "0.01"]
    words += ["--steps", "30"]
    assert main(words) == 0
    record = json.loads((tmp_path / "gpu.json").read_text())
    for values in record["graphs"].values():
        assert values["weights_apart"] == 0 and values["eager"] > 0 and values["graph"] is None
    assert all(v["updates"] > 0 and v["fit_seconds"] > 0 for v in record["presets"].values())
    assert all(v["steps"] == 30 and v["resumed_apart"] == 0 for v in record["runs"].values())
    assert "updates per second" in " ".join(capsys.readouterr().out.split())

    def refuse(*args: Any) -> None:
        raise AssertionError("what is recorded is not measured again")

    monkeypatch.setattr("experiments.bench.gpu._published", refuse)
    assert main(words) == 0


def test_a_trial_is_no_record_of_the_real_thing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.bench.gpu._graphs", lambda *given: {"eager": 1.0})
    trial = GPU(tmp_path, parts=("graphs",), device="cpu", tiny=True)
    console = Console(quiet=True)
    measured = measure_gpu(trial, console)
    assert measure_gpu(trial, console)["graphs"] == measured["graphs"]
    for other in (replace(trial, tiny=False), replace(trial, minutes=5.0)):
        with pytest.raises(ConfigError, match=r"was measured with (tiny True|minutes 10.0),"):
            measure_gpu(other, console)
    monkeypatch.setattr("experiments.bench.gpu.machine", lambda: "another")
    with pytest.raises(ConfigError, match="was measured with device "):
        measure_gpu(trial, console)


def places(value: Any) -> list[int]:
    """Where all tensors that an object holds lie."""
    if isinstance(value, torch.Tensor):
        return [value.data_ptr()]
    if isinstance(value, dict):
        return [p for v in value.values() for p in places(v)]
    if isinstance(value, list | tuple):
        return [p for v in value for p in places(v)]
    if isinstance(value, torch.nn.Module):
        return [p for v in value.state_dict().values() for p in places(v)]
    if isinstance(value, torch.optim.Optimizer):
        return places(value.state_dict()["state"])
    return []


@pytest.mark.parametrize("name", ["td3_bc", "iql", "sac_n", "edac", "rebrac"])
def test_state_stays_where_it_is(name: str, pendulum: Dataset) -> None:
    """A replay reads and writes the memory that was captured, so that an update must not put a new
    tensor in the place of an old one."""
    agent: Any = ALGORITHMS[name][0](pendulum.spec, build_config(name, CONFIGS[name]))
    agent.fit(pendulum, 4, callbacks=[])
    before = [places(v) for v in vars(agent.learner).values()]
    for _ in range(3):
        agent.update(agent.next_batch())
    assert [places(v) for v in vars(agent.learner).values()] == before


def test_off_a_gpu_updates_are_those_of_the_agent(pendulum: Dataset) -> None:
    agents: list[Any] = []
    for _ in range(2):
        agent: Any = ALGORITHMS["td3_bc"][0](pendulum.spec, build_config("td3_bc", {}))
        agent.prepare(pendulum, lambda metrics: None)
        agents.append(agent)
    replayed = GraphedUpdates(agents[0])
    assert replayed.period == 2
    for _ in range(3):
        metrics = replayed()
        other = agents[1].update(agents[1].next_batch())
        assert all(torch.equal(metrics[k], other[k]) for k in other)
    assert agents[0].updates == 3


def test_a_rate_that_decays_is_refused(pendulum: Dataset) -> None:
    agent: Any = ALGORITHMS["iql"][0](pendulum.spec, build_config("iql", {"decay_steps": 10}))
    with pytest.raises(ConfigError, match="decay_steps to 0"):
        GraphedUpdates(agent)
