"""The verb `bench`: updates and imagined steps a second on synthetic data, beside the machine's
matrix-product rate and, on request, other libraries doing the same work in turn."""

import dataclasses
import datetime
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from rich.console import Console

from algorithms import ALGORITHMS, NEUBAYConfig
from algorithms.recurrent_actor_critic import RecurrentActorCritic, RecurrentLearnerConfig
from experiments import bench_language
from experiments.bench_peers import PEERS, PeerError, Running, Step, window
from experiments.bench_windows import SMALL, WIDE, sampling
from experiments.grid import grid
from experiments.settings import build_config, preset
from mbrl import config as configs
from mbrl.callbacks import Checkpointer, Recorder
from mbrl.networks import SquashedGaussianPolicy
from mbrl.sequences import SequenceBuffer
from mbrl.types import Dataset, Spec, Transitions
from world_models.ensemble import EnsembleConfig, EnsembleDynamics, gaussian_nll
from world_models.fitting import Fit
from world_models.rollout import RolloutConfig, rollout
from world_models.trajectory_diffusion import DiffusionConfig

Name = Literal[
    "td3_bc",
    "sac_n",
    "edac",
    "sac",
    "model_fit",
    "ensemble_128",
    "rollout_penalty",
    "rollout_single",
    "recurrent",
    "windows_heun_128",
    "windows_few_128",
    "windows_heun_small",
    "windows_few_small",
    "language_sample",
    "language_train",
]
Build = Callable[[bool, Path], tuple[Step, int]]
SPEC = Spec("bench", 17, 6, action_low=(-1.0,) * 6, action_high=(1.0,) * 6)
WINDOWS = 5
WIDTH = 170  # of the table where the output is no terminal


@dataclass(frozen=True)
class Workload:
    """What is measured. `aim` and `recorded` are rates divided by the matrix-product rate in
    GFLOP/s; `recorded` are other libraries', measured once on another machine."""

    title: str
    unit: str
    aim: float | None
    recorded: dict[str, float]
    build: Build
    work: Callable[[bool], float] | None = None  # GFLOP of products a unit, quick or not
    against: Name | None = None  # another workload that this one is compared with


@dataclass(frozen=True)
class Bench:
    """Measure speed on one thread, beside the matrix-product rate of the machine."""

    workloads: tuple[Name, ...] = ()
    """Which to run; none named: all."""
    peers: bool = False
    """Measure other libraries in turn with this one, in environments of their own that are made
    at first use; otherwise recorded figures are shown."""
    seconds: float = 2.0
    """Length of each of the five windows whose median counts."""
    out: Path | None = None
    """A JSON file for everything that was measured."""
    home: Path = Path("~/.longreach/peers")
    """Folder of the peers' environments."""
    quick: bool = False
    """Small sizes and short windows, to see that it works; the figures mean nothing."""


def bench_main(arguments: list[str]) -> int:
    command = tyro.cli(Bench, args=arguments, prog="python -m experiments bench")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    try:
        record = measure(command, console)
    finally:
        torch.set_num_threads(threads)
    show(record, console)
    if command.out is not None:
        command.out.parent.mkdir(parents=True, exist_ok=True)
        command.out.write_text(json.dumps(record, indent=2) + "\n")
    return 0


# Measuring.


def measure(command: Bench, console: Console) -> dict[str, Any]:
    """Everything measured, ready for JSON."""
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "versions": {n: _version(n) for n in ("longreach", "torch", "numpy")},
        "settings": {**asdict(command), "out": None, "home": None},
        "workloads": {},
    }
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
    running, reasons = _start_peers(name, command) if command.peers else ({}, {})
    before, load = ceiling(command.quick), os.getloadavg()[0]
    ours: list[float] = []
    theirs: dict[str, list[float]] = {peer: [] for peer in running}
    for _ in range(WINDOWS):
        ours.append(window(step, count, seconds))
        for peer in list(running):
            try:
                theirs[peer].append(running[peer].rate(seconds))
            except PeerError as error:
                reasons[peer] = str(error)
                del running[peer]
    after = ceiling(command.quick)
    for process in running.values():
        process.close()
    products = (max(before.values()) + max(after.values())) / 2
    rate = statistics.median(ours)
    return {
        "rate": rate,
        "windows": ours,
        "ceiling_before": before,
        "ceiling_after": after,
        "load_before": load,
        "share": rate / products,
        "of_products": None if workload.work is None else rate * workload.work(quick) / products,
        "aim": workload.aim,
        "peers": {
            peer: {
                "version": process.version,
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
    }


def _start_peers(name: Name, command: Bench) -> tuple[dict[str, Running], dict[str, str]]:
    running: dict[str, Running] = {}
    reasons: dict[str, str] = {}
    for peer, description in PEERS.items():
        if name in description.workloads:
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
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {os.cpu_count()} cores, {capability}, {platform.system()}, one thread used"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# Workloads.


def dataset(rows: int) -> Dataset:
    draw = torch.Generator().manual_seed(0)
    ends = torch.zeros(rows, dtype=torch.bool)
    ends[999::1000] = True
    transitions = Transitions(
        obs=torch.randn(rows, SPEC.obs_dim, generator=draw),
        action=torch.rand(rows, SPEC.action_dim, generator=draw) * 2 - 1,
        reward=torch.randn(rows, generator=draw),
        next_obs=torch.randn(rows, SPEC.obs_dim, generator=draw),
        terminated=torch.zeros(rows, dtype=torch.bool),
        truncated=ends,
    )
    return Dataset(transitions, SPEC)


def _updates(algorithm: str, values: dict[str, Any]) -> Build:
    """Batches and updates as a run does them: metrics, recorder and checkpoints included."""

    def build(quick: bool, folder: Path) -> tuple[Step, int]:
        agent = ALGORITHMS[algorithm][0](SPEC, build_config(algorithm, values))
        agent.prepare(dataset(2_000 if quick else 200_000), lambda metrics: None)
        recorder = Recorder(folder, tensorboard=not quick)
        saver = Checkpointer(folder / "checkpoint.pt", parts={"recorder": recorder.state_dict})
        callbacks = (recorder, saver)
        for callback in callbacks:
            callback("start", agent, {})

        def step() -> None:
            metrics = agent.update(agent.next_batch())
            agent.step += 1
            for callback in callbacks:
                callback("step", agent, metrics)

        return step, 1

    return build


def _model(quick: bool) -> EnsembleDynamics:
    hidden = (32, 32) if quick else (200, 200, 200, 200)
    config = EnsembleConfig(hidden=hidden, holdout_max=1, weight_decay=(5e-5,))
    model = EnsembleDynamics(SPEC, config)
    with torch.no_grad():
        model.network.mlp.weights[-1].mul_(0.01)  # steps small enough to stay finite
    return model


def _model_fit(quick: bool, folder: Path) -> tuple[Step, int]:
    model, data = _model(quick), dataset(2_000 if quick else 50_000).transitions
    x, y = model.encode(data.obs, data.action), model.targets(data)
    fit = Fit(model.network, model.config, len(data), 0, model.device)
    batches = fit.train.shape[1] // model.config.batch_size
    return lambda: fit.epoch(x, y, gaussian_nll), batches


def _large_ensemble(quick: bool, folder: Path) -> tuple[Step, int]:
    """NEUBAY's 128 members with LayerNorm, an epoch of ten batches at a time."""
    members, hidden = (8, (16, 16)) if quick else (128, (200, 200, 200, 200))
    config = dataclasses.replace(
        NEUBAYConfig().model, members=members, elites=members, hidden=hidden, holdout_max=1
    )
    model, data = EnsembleDynamics(SPEC, config), dataset(10 * 256 + 1).transitions
    x, y = model.encode(data.obs, data.action), model.targets(data)
    fit = Fit(model.network, model.config, len(data), 0, model.device)
    batches = fit.train.shape[1] // config.batch_size
    return lambda: fit.epoch(x, y, gaussian_nll), batches


def _recurrent(quick: bool, folder: Path) -> tuple[Step, int]:
    """An update of NEUBAY's learner in the reduced preset; the table `sequence-cost` has other
    lengths of its tape."""
    values = preset("neubay", "pendulum/medium")["config"]["learner"]
    tape = 64 if quick else values["tape"]
    learner_config = configs.from_dict(RecurrentLearnerConfig, values | {"tape": tape})
    draw = torch.Generator().manual_seed(0)
    learner = RecurrentActorCritic(SPEC, learner_config, torch.device("cpu"), draw)
    buffer, data = SequenceBuffer(SPEC, 10_000, 0.99), dataset(8_000).transitions
    for begin in range(0, 8_000, 200):
        rows = slice(begin, begin + 200)
        obs = torch.cat([data.obs[rows], data.next_obs[begin + 199 : begin + 200]])
        real = torch.ones(200, dtype=torch.bool)
        buffer.append(obs, data.action[rows], data.reward[rows], data.terminated[rows], real)

    def step() -> None:
        learner.update(learner.draw(buffer.sample(tape, draw), draw))

    return step, 1


def _rollouts(config: RolloutConfig) -> Build:
    def build(quick: bool, folder: Path) -> tuple[Step, int]:
        model, policy = _model(quick), SquashedGaussianPolicy(SPEC, (256, 256))
        model.network.requires_grad_(False)
        model.holdout_mse = torch.zeros(model.num_members)
        draw = torch.Generator().manual_seed(0)
        starts = torch.randn(1_500 if quick else 50_000, SPEC.obs_dim, generator=draw)
        count = len(starts) * config.horizon
        return lambda: rollout(model, policy.explore, starts, config, draw), count

    return build


def _windows(
    network: str,
    config: DiffusionConfig,
    sampler: str,
    steps: int,
    *,
    aim: float | None = None,
    recorded: dict[str, float] | None = None,
    against: Name | None = None,
) -> Workload:
    build, work = sampling(SPEC, config, sampler, steps)
    title = f"windows of {config.length}, {network}, {steps} steps of {sampler}"
    return Workload(title, "windows/s", aim, recorded or {}, build, work, against)


def _sac(critics: int, eta: float, hidden: Sequence[int]) -> Build:
    return _updates("edac", {"learner": {"critics": critics, "eta": eta, "hidden": list(hidden)}})


WORKLOADS: dict[Name, Workload] = {
    "td3_bc": Workload(
        "TD3+BC, 2 critics 2x256, batch 256",
        "updates/s",
        2.05,
        {"CORL": 1.18, "d3rlpy": 0.86, "unifloral": 2.05},
        _updates("td3_bc", {}),
    ),
    "sac_n": Workload(
        "SAC-N, 10 critics 3x256, batch 256",
        "updates/s",
        0.21,
        {"CORL": 0.114, "edge-of-reach": 0.114, "unifloral": 0.200},
        _sac(10, 0.0, (256, 256, 256)),
    ),
    "edac": Workload(
        "EDAC (RAVL's learner), 10 critics 3x256, batch 256",
        "updates/s",
        0.17,
        {"CORL": 0.066, "edge-of-reach": 0.067, "unifloral": 0.031},
        _sac(10, 1.0, (256, 256, 256)),
    ),
    "sac": Workload(
        "SAC, 2 critics 2x256, batch 256",
        "updates/s",
        None,
        {"stable-baselines3": 0.86},
        _sac(2, 0.0, (256, 256)),
    ),
    "model_fit": Workload(
        "ensemble fit, 7 members 4x200 SiLU, batch 256 a member",
        "updates/s",
        0.61,
        {"OfflineRL-Kit": 0.38, "mbrl-lib": 0.43, "unifloral (ReLU)": 0.61},
        _model_fit,
    ),
    "ensemble_128": Workload(
        "ensemble fit, 128 members 4x200 LayerNorm, batch 256 a member",
        "updates/s",
        None,
        {},
        _large_ensemble,
    ),
    "recurrent": Workload(
        "recurrent actor-critic, tape of 512 positions, reduced preset",
        "updates/s",
        None,
        {},
        _recurrent,
    ),
    "rollout_penalty": Workload(
        "rollouts, 5 steps from 50,000 states, 7 members, MOPO penalty",
        "steps/s",
        400.0,
        {"OfflineRL-Kit": 139.0, "unifloral": 283.0},
        _rollouts(RolloutConfig(5, penalty="max_aleatoric", penalty_weight=1.0)),
    ),
    "rollout_single": Workload(
        "rollouts, 5 steps from 50,000 states, one member a state",
        "steps/s",
        1850.0,
        {"mbrl-lib": 1630.0},
        _rollouts(RolloutConfig(5)),
    ),
    "windows_heun_128": _windows(
        "U-Net 128 wide", WIDE, "heun", 128, aim=0.048, recorded={"PGD's code (JAX)": 0.048}
    ),
    "windows_few_128": _windows(
        "U-Net 128 wide", WIDE, SMALL.sampler, SMALL.steps, aim=0.48, against="windows_heun_128"
    ),
    "windows_heun_small": _windows("U-Net of local presets", SMALL, "heun", 256),
    "windows_few_small": _windows(
        "U-Net of local presets", SMALL, SMALL.sampler, SMALL.steps, against="windows_heun_small"
    ),
    "language_sample": Workload(
        "transformer 4x128, 128 answers of 32 tokens after 16",
        "tokens/s",
        None,
        {},
        bench_language.sample,
    ),
    "language_train": Workload(
        "transformer 4x128, 128 rows of 48 tokens",
        "tokens/s",
        None,
        {},
        bench_language.train,
    ),
}


# Showing.


def show(record: dict[str, Any], console: Console) -> None:
    table = grid(
        "workload",
        "who",
        "rate",
        "GFLOP/s before, after",
        "rate / GFLOP/s",
        "of products",
        "aim",
        "ours is",
    )
    for name, found in record["workloads"].items():
        workload = WORKLOADS[name]
        ends = [max(found[key].values()) for key in ("ceiling_before", "ceiling_after")]
        aim = "" if workload.aim is None else f"{workload.aim:g}"
        rate = f"{_digits(found['rate'])} {workload.unit}"
        products = f"{ends[0]:.0f}, {ends[1]:.0f}"
        whole = found["of_products"]
        part = "" if whole is None else f"{whole:.0%}"
        table.add_row(name, "longreach", rate, products, _digits(found["share"]), part, aim, "")
        if workload.against in record["workloads"]:
            base = record["workloads"][workload.against]["share"]
            times = f"{found['share'] / base:.2f} times as fast"
            table.add_row("", workload.against, "", "", _digits(base), "", "", times)
        for peer, other in found["peers"].items():
            who = f"{peer} {other['version']}"
            times = f"{other['times_faster']:.2f} times as fast"
            rate = f"{_digits(other['rate'])} {workload.unit}"
            table.add_row("", who, rate, "", _digits(other["share"]), "", "", times)
        for peer, share in workload.recorded.items():
            if peer not in found["peers"]:
                times = f"{found['share'] / share:.2f} times as fast"
                table.add_row("", f"{peer} (recorded)", "", "", _digits(share), "", "", times)
        for peer, reason in found["not_run"].items():
            table.add_row("", peer, f"not run: {reason}", "", "", "", "", "")
        table.add_section()
    console.print(table)
    versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items() if v)
    console.print(f"{record['date']}; {record['machine']}; {versions}", soft_wrap=True)
    if record["settings"]["quick"]:
        console.print("quick: sizes and windows too small for these figures to mean anything")


def _digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"
