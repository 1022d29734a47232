"""Updates and imagined steps per second on synthetic data, beside the machine's matrix-product rate
and, on request, other libraries that do the same work in turn."""

import datetime
import os
import platform
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from experiments.bench import profile as bench_profile
from experiments.bench.curves import AXES, Axis, measure_curves
from experiments.bench.memory import peak_of
from experiments.bench.peer_programs import Step, window
from experiments.bench.peers import PEERS, PeerError, PeerName, Running
from experiments.bench.workloads import WORKLOADS, Name
from experiments.runs.manifest import processor, version
from mbrl.config import Positive, Settings
from mbrl.errors import ConfigError
from mbrl.precision import matmul_precision

WINDOWS = 5


@dataclass(frozen=True)
class Bench(Settings):
    """Measure speed on one thread, beside the matrix-product rate of the machine."""

    workloads: tuple[Name, ...] = ()
    """Which to run; none named: all."""
    peers: tuple[PeerName, ...] | None = None
    """Measure other libraries in turn with this one (none named: all), in environments of their own
    that are made at first use; without it recorded figures are shown."""
    medium: bool = False
    """Measure this library also with products of medium precision (bfloat16), in turn."""
    seconds: Positive = 2.0
    """Length of each of the five windows whose median counts."""
    profile: bool = False
    """Also show which operations take the time, and what share of it the products do."""
    memory: bool = True
    """Also the peak resident size, of a process that does nothing else; of peers, of theirs."""
    curves: tuple[Axis, ...] | None = None
    """Instead of workloads: cost against one size after the other (none named: all six)."""
    figure: Path | None = None
    """Where the figure of the curves goes (png; the curves' extra package is matplotlib)."""
    out: Path | None = None
    """A JSON file for everything that was measured."""
    home: Path = Path("~/.longreach/peers")
    """Folder of the peers' environments."""
    quick: bool = False
    """Small sizes and short windows, to see that it works; the figures mean nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.figure is not None and self.curves is None:
            raise ConfigError(
                f"--figure {self.figure} is drawn of --curves alone; add it, or leave it out"
            )


def measure(command: Bench, console: Console) -> dict[str, Any]:
    """Everything measured, ready for JSON."""
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "versions": {n: version(n) for n in ("longreach", "torch", "numpy")},
        "settings": {**asdict(command), "out": None, "home": None, "figure": None},
        "workloads": {},
    }
    if command.curves is not None:
        axes = command.curves or tuple(AXES)
        measured = measure_curves(axes, command.seconds, command.quick, console)
        return record | {"ceiling": ceiling(command.quick), "curves": measured}
    for name in command.workloads or tuple(WORKLOADS):
        console.print(f"{name}: {WORKLOADS[name].title}", style="dim")
        with tempfile.TemporaryDirectory() as folder:
            record["workloads"][name] = _measure_one(name, command, Path(folder))
    return record


def _measure_one(name: Name, command: Bench, folder: Path) -> dict[str, Any]:
    """One workload and its peers, window by window in turn, between two ceilings."""
    workload, quick = WORKLOADS[name], command.quick
    seconds = 0.02 if quick else command.seconds
    step, count = workload.build(quick, folder)
    step()
    running, reasons = ({}, {}) if command.peers is None else _start_peers(name, command)
    before, load = ceiling(command.quick), os.getloadavg()[0]
    ours: list[float] = []
    medium: list[float] = []
    theirs: dict[str, list[float]] = {peer: [] for peer in running}
    for _ in range(WINDOWS):
        ours.append(window(step, count, seconds))
        if command.medium:
            with matmul_precision("medium"):
                medium.append(window(step, count, seconds))
        for peer in list(running):
            try:
                theirs[peer].append(running[peer].rate(seconds))
            except PeerError as error:
                reasons[peer] = str(error)
                del running[peer]
    after = ceiling(command.quick)
    peaks = {peer: process.peak() for peer, process in running.items()}
    for process in running.values():
        process.close()
    products = (max(before.values()) + max(after.values())) / 2
    rate = statistics.median(ours)
    return {
        "rate": rate,
        "windows": ours,
        "peak_mb": peak_of(name, seconds, quick) if command.memory else None,
        "ceiling_before": before,
        "ceiling_after": after,
        "load_before": load,
        "share": rate / products,
        "of_products": None if workload.work is None else rate * workload.work(quick) / products,
        "aim": workload.aim,
        "profile": bench_profile.shares(step, seconds) if command.profile else {},
        "peers": {
            peer: {
                "version": process.version,
                "peak_mb": peaks[peer],
                "rate": statistics.median(theirs[peer]),
                "windows": theirs[peer],
                "share": statistics.median(theirs[peer]) / products,
                "times_faster": statistics.median(
                    a / b for a, b in zip(ours, theirs[peer], strict=True)
                ),
            }
            for peer, process in running.items()
        },
        "not_run": reasons,
    } | ({"medium": _medium(ours, medium)} if medium else {})


def _medium(ours: list[float], medium: list[float]) -> dict[str, Any]:
    """The rate with products of medium precision, beside the windows before them."""
    times = statistics.median(b / a for a, b in zip(ours, medium, strict=True))
    return {"rate": statistics.median(medium), "windows": medium, "times_faster": times}


def _start_peers(name: Name, command: Bench) -> tuple[dict[str, Running], dict[str, str]]:
    running: dict[str, Running] = {}
    reasons: dict[str, str] = {}
    for peer, description in PEERS.items():
        if name in description.workloads and (not command.peers or peer in command.peers):
            try:
                running[peer] = Running(peer, name, command.home.expanduser())
            except (PeerError, OSError) as error:
                reasons[peer] = str(error)
    return running, reasons


def ceiling(quick: bool = False) -> dict[str, float]:
    """GFLOP/s of three float32 products: the best of them is what a workload is divided by."""
    rates = {}
    for label, members, size in (("256", 1, 256), ("2048", 1, 2048), ("10 x 256", 10, 256)):
        size = min(size, 256) if quick else size
        a, b, out = (torch.randn(members, size, size) for _ in range(3))
        work = 2e-9 * members * size**3
        seconds = 0.002 if quick else 0.2
        step = _product(a, b, out)
        step()
        rates[label] = statistics.median(window(step, 1, seconds) * work for _ in range(WINDOWS))
    return rates


def _product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Step:
    if len(a) == 1:
        return lambda: torch.mm(a[0], b[0], out=out[0])
    return lambda: torch.bmm(a, b, out=out)


def machine() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    return (
        f"{processor()}, {os.cpu_count()} cores, {capability}, {platform.system()}, one thread used"
    )
