"""What is to be known of a GPU, in one command: whether updates keep it busy, whole updates as CUDA
graphs, the published sizes of NEUBAY and PGD, and long runs with checkpoints. On a CPU it does the
same with eager updates, so that everything but the device is tried beforehand."""

import dataclasses
import datetime
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from algorithms import ALGORITHMS, load
from experiments.bench.measure import machine
from experiments.bench.peer_programs import peak, window
from experiments.bench.syncs import watched
from experiments.bench.workloads import SPEC, dataset
from experiments.runs import training
from experiments.runs.manifest import version
from experiments.settings import RunSettings, build_config, preset_config
from mbrl import data
from mbrl.agent import resolve_device
from mbrl.config import Count, Positive, Settings
from mbrl.errors import ConfigError
from mbrl.graphs import GraphedUpdates
from mbrl.training import Metrics, train

Section = Literal["graphs", "presets", "runs"]
GRAPHED: dict[str, tuple[str, dict[str, Any]]] = {
    "td3_bc": ("td3_bc", {}),
    "iql": ("iql", {"decay_steps": 0}),
    "sac_n": ("sac_n", {}),
    "edac": ("edac", {}),
    "rebrac": ("rebrac", {}),
}
PUBLISHED = ("neubay", "pgd")
LONG = ("edac", "ravl")
# Sizes with which the command takes seconds.
NETS: dict[str, Any] = {"hidden": [16, 16], "batch_size": 32}
MODEL = {"members": 3, "elites": 2, "hidden": [16], "min_epochs": 1, "max_epochs": 2}
MODEL |= {"weight_decay": [1e-5]}
TINY: dict[str, dict[str, Any]] = {
    "td3_bc": {"hidden": [16]},
    "iql": {"hidden": [16]},
    "rebrac": NETS,
    "sac_n": {"learner": NETS | {"critics": 3}},
    "edac": {"learner": NETS | {"critics": 3}},
    "ravl": {
        "learner": NETS | {"critics": 3},
        "model": MODEL,
        "imagination": {"starts": 32, "retain": 2, "rollout": {"horizon": 3}},
    },
    "neubay": {
        "learner": {
            "memory": {"width": 16, "layers": 1, "states": 8},
            "hidden": [16],
            "critics": 3,
            "tape": 64,
        },
        "model": MODEL,
        "rollouts": {"parallel": 4, "capacity": 5000, "cap": 20},
    },
    "pgd": {
        "td3_bc": {"hidden": [16]},
        "generation": {"windows": 16, "every": 10},
        "model": {"length": 4, "stride": 2, "width": 8, "levels": 2, "updates": 20, "steps": 4},
    },
}


@dataclass(frozen=True)
class GPU(Settings):
    """Measure a GPU: whole updates as CUDA graphs, NEUBAY and PGD at their published sizes, long
    runs of EDAC and RAVL with checkpoints. `--device cpu --tiny` tries the command itself."""

    out: Path
    """A folder for the record (gpu.json) and the runs; what is recorded is not done again."""
    parts: tuple[Section, ...] = ("graphs", "presets", "runs")
    """What to do."""
    device: str = "cuda"
    """cuda, cuda:N or cpu."""
    data: str = "pendulum/medium-replay"
    """What presets and runs learn from."""
    minutes: Positive = 10.0
    """Of updates, for each of NEUBAY and PGD, once their model is fitted."""
    epochs: Count = 20
    """Epochs of NEUBAY's ensemble, at most."""
    model_updates: Count = 10_000
    """Gradient steps of PGD's generator."""
    steps: Count = 200_000
    """Updates of each long run."""
    seconds: Positive = 2.0
    """Length of each window of the graphs' rates."""
    tiny: bool = False
    """Sizes that take seconds; the figures mean nothing."""


def measure_gpu(command: GPU, console: Console) -> dict[str, Any]:
    """Everything measured; written to `command.out` part by part. Raises `ConfigError` where the
    record there is of another device or other settings."""
    device, path = resolve_device(command.device), command.out / "gpu.json"
    command.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    now = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else machine(),
        "versions": {n: version(n) for n in ("longreach", "torch")},
        "settings": json.loads(json.dumps(dataclasses.asdict(command), default=str)),
    }
    _require_same(record, now, path)
    record |= now
    jobs: list[tuple[Section, str, Callable[[str], dict[str, Any]]]] = [
        *(("graphs", n, lambda n: _graphs(n, command, device)) for n in GRAPHED),
        *(("presets", n, lambda n: _published(n, command, device)) for n in PUBLISHED),
        *(("runs", n, lambda n: _long_run(n, command)) for n in LONG),
    ]
    for part, name, work in jobs:
        if part in command.parts and name not in record.setdefault(part, {}):
            console.print(f"{part}: {name}", style="dim")
            record[part][name] = work(name)
            path.write_text(json.dumps(record, indent=2) + "\n")
    return record


def _require_same(record: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Raise `ConfigError` where a record that is there was made with something else."""
    if not record:
        return
    before, given = ({**r["settings"], "device": r["device"]} for r in (record, now))
    names = [n for n in given if n not in ("out", "parts") and before.get(n) != given[n]]
    if names:
        raise ConfigError(
            f"{path} was measured with {', '.join(f'{n} {before.get(n)!r}' for n in names)}, and "
            "what is recorded is not done again; give another --out"
        )


def _config(name: str, values: dict[str, Any], tiny: bool) -> Any:
    return build_config(name, {**values, **(TINY[name] if tiny else {})})


def _graphs(name: str, command: GPU, device: torch.device) -> dict[str, Any]:
    """Updates a second, eager and replayed, on data of the bench's sizes; how far the weights of
    the two lie apart after the same updates; and whether an update makes the host wait."""
    algorithm, values = GRAPHED[name]
    rows = dataset(2_000 if command.tiny else 200_000)
    agents: list[Any] = []
    for _ in range(2):
        config = _config(algorithm, values, command.tiny)
        agent: Any = ALGORITHMS[algorithm][0](SPEC, config, device=command.device)
        agent.prepare(rows, lambda metrics: None)
        agents.append(agent)
    eager, graphed = agents
    replayed = GraphedUpdates(graphed)
    while eager.updates < graphed.updates + 20:
        eager.update(eager.next_batch())
    while graphed.updates < eager.updates:
        replayed()
    apart = _apart(eager, graphed)
    with watched(device):
        eager.update(eager.next_batch())

    def waited(step: Callable[[], Metrics]) -> Callable[[], None]:
        def many() -> None:
            for _ in range(20):
                step()
            _finish(device)

        return many

    seconds = 0.05 if command.tiny else command.seconds
    plain = window(waited(lambda: eager.update(eager.next_batch())), 20, seconds)
    fast = window(waited(replayed), 20, seconds)
    replayed.close()
    return {
        "eager": plain,
        "graph": fast if device.type == "cuda" else None,
        "weights_apart": apart,
        "peak_mb": _peak(device),
    }


def _apart(one: Any, other: Any) -> float:
    """The largest difference between the weights of two agents."""
    pairs = [
        (a, other.modules[name].state_dict()[key])
        for name, module in one.modules.items()
        for key, a in module.state_dict().items()
    ]
    return max(float((a - b).abs().max()) for a, b in pairs)


def _published(name: str, command: GPU, device: torch.device) -> dict[str, Any]:
    """The published sizes: seconds of the model's fit, then updates for so many minutes."""
    limits = {"neubay": {"max_epochs": command.epochs}, "pgd": {"updates": command.model_updates}}
    config = _config(name, {"model": limits[name]}, command.tiny)
    loaded = data.load(command.data)
    agent: Any = ALGORITHMS[name][0](loaded.spec, config, device=command.device)
    _forget_peak(device)
    began = time.perf_counter()
    agent.prepare(loaded, lambda metrics: None)
    _finish(device)
    fitted, begin = time.perf_counter() - began, time.perf_counter()

    def until_over(event: str, agent: Any, metrics: Metrics) -> bool:
        return time.perf_counter() - begin > 60 * command.minutes

    train(agent, 10**9, [until_over])
    _finish(device)
    passed = time.perf_counter() - begin
    return {
        "fit_seconds": fitted,
        "updates": agent.step,
        "updates_per_second": agent.step / passed,
        "peak_mb": _peak(device),
    }


def _long_run(name: str, command: GPU) -> dict[str, Any]:
    """A run of the preset with its checkpoints; two agents that are read from the last one go on in
    the same way."""
    settings = RunSettings(name, command.data, steps=command.steps, device=command.device)
    config = preset_config(name, command.data)
    if command.tiny:
        config = _config(name, {}, True)
    folder = command.out / name
    run = training.TrainingRun(folder)
    training.ensure(settings, config, folder)
    run.finish()
    result = json.loads((folder / "result.json").read_text())
    loaded = data.load(command.data)
    agents: list[Any] = [load(folder / "checkpoint.pt", command.device) for _ in range(2)]
    for agent in agents:
        agent.fit(loaded, 5, callbacks=[])
    return {
        "steps": result["step"],
        "seconds": result["seconds"],
        "updates_per_second": result["step"] / result["seconds"],
        "last_score": result["last_score"],
        "resumed_apart": _apart(*agents),
        "peak_mb": _peak(resolve_device(command.device)),
    }


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> float:
    """Peak memory in MB: of the GPU's tensors, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return peak()
