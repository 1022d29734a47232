"""The workloads of `bench`: updates, fits, rollouts, windows and text, on synthetic data."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from algorithms import ALGORITHMS, NEUBAYConfig
from algorithms.learners.recurrent_actor_critic import RecurrentActorCritic, RecurrentLearnerConfig
from algorithms.pets import CrossEntropyPlanner, PlannerConfig
from experiments.bench import language as bench_language
from experiments.bench.peer_programs import Step
from experiments.bench.windows import SMALL, WIDE, sampling
from experiments.settings import build_config, preset
from mbrl import config as configs
from mbrl import tasks
from mbrl.callbacks import Checkpointer, Recorder
from mbrl.networks import SquashedGaussianPolicy
from mbrl.sequences import SequenceBuffer
from mbrl.training import Callback
from mbrl.types import Dataset, Spec, Transitions
from world_models.ensemble import EnsembleDynamics
from world_models.ensemble_network import EnsembleConfig, nll_gradients
from world_models.fitting import Fit
from world_models.rollout import RolloutConfig, rollout
from world_models.trajectory_diffusion import DiffusionConfig

Name = Literal[
    "td3_bc",
    "sac_n",
    "edac",
    "sac",
    "sac_small",
    "online_sac",
    "online_sac_small",
    "edac_small",
    "cql_small",
    "td3_bc_small",
    "rebrac_small",
    "model_fit",
    "ensemble_128",
    "rollout_penalty",
    "rollout_single",
    "pets_plan",
    "recurrent",
    "windows_heun_128",
    "windows_few_128",
    "windows_heun_small",
    "windows_few_small",
    "language_sample",
    "language_train",
    "language_update",
]
Build = Callable[[bool, Path], tuple[Step, int]]
SMALL_NETS = (64, 64)  # the networks of local presets
SPEC = Spec("bench", 17, 6, action_low=(-1.0,) * 6, action_high=(1.0,) * 6)


@dataclass(frozen=True)
class Workload:
    """What is measured. `aim` and `recorded` are rates divided by the matrix-product rate in
    GFLOP/s; `recorded` are other libraries', measured once on another machine."""

    title: str
    unit: str
    build: Build
    aim: float | None = None
    recorded: dict[str, float] = field(default_factory=dict)
    work: Callable[[bool], float] | None = None  # GFLOP of products a unit, quick or not
    against: Name | None = None  # another workload that this one is compared with


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
        callbacks = _callbacks(agent, quick, folder)

        def step() -> None:
            metrics = agent.advance() | agent.update(agent.next_batch())
            agent.step += 1
            for callback in callbacks:
                callback("step", agent, metrics)

        return step, 1

    return build


def _callbacks(agent: Any, quick: bool, folder: Path) -> tuple[Callback, ...]:
    """Those that record and save a run, begun."""
    recorder = Recorder(folder, tensorboard=not quick)
    saver = Checkpointer(folder / "checkpoint.pt", parts={"recorder": recorder.state_dict})
    for callback in (recorder, saver):
        callback("start", agent, {})
    return recorder, saver


def _online(hidden: Sequence[int]) -> Build:
    """Steps of SAC in Pendulum with an update after each, as a run does them."""

    def build(quick: bool, folder: Path) -> tuple[Step, int]:
        task = tasks.make("Pendulum-v1")
        agent = ALGORITHMS["sac"][0](task.spec, build_config("sac", soft_config(2, 0.0, hidden)))
        agent.learn(task, 512, callbacks=[])  # past the steps without updates
        callbacks = _callbacks(agent, quick, folder)
        collector = agent.collector(task, agent.acted)

        def step() -> None:
            updates = collector.collect(agent)
            metrics = agent.advance()
            for _ in range(updates):
                metrics |= agent.update(agent.next_batch())
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


def _epoch(model: EnsembleDynamics, rows: int) -> tuple[Step, int]:
    """An epoch of the model's fit, and its updates."""
    data = dataset(rows).transitions
    x, y = model.encode(data.obs, data.action), model.targets(data)
    fit = Fit(model.network, model.config, len(data), 0, model.device)
    batches = fit.train.shape[1] // model.config.batch_size
    return lambda: fit.epoch(x, y, nll_gradients), batches


def _model_fit(quick: bool, folder: Path) -> tuple[Step, int]:
    return _epoch(_model(quick), 2_000 if quick else 50_000)


def ensemble_epoch(members: int, hidden: Sequence[int], rows: int) -> tuple[Step, int]:
    """An epoch of the fit of so many members of these widths, and its updates."""
    config = EnsembleConfig(
        members=members, elites=members, hidden=tuple(hidden), holdout_max=1, weight_decay=(5e-5,)
    )
    return _epoch(EnsembleDynamics(SPEC, config), rows)


LARGE_ENSEMBLE = {True: (8, (16, 16)), False: (128, (200,) * 4)}  # members, widths; by `quick`


def _large_ensemble(quick: bool, folder: Path) -> tuple[Step, int]:
    """NEUBAY's 128 members with LayerNorm, an epoch of ten batches at a time."""
    members, hidden = LARGE_ENSEMBLE[quick]
    config = dataclasses.replace(
        NEUBAYConfig().model, members=members, elites=members, hidden=hidden, holdout_max=1
    )
    return _epoch(EnsembleDynamics(SPEC, config), 10 * 256 + 1)


def _large_ensemble_products(quick: bool) -> float:
    """GFLOP of an update: forward, and the gradients of weights and of every layer's input but the
    first."""
    members, hidden = LARGE_ENSEMBLE[quick]
    sizes = (SPEC.obs_dim + SPEC.action_dim, *hidden, 2 * (SPEC.obs_dim + 1))
    first, *others = (a * b for a, b in itertools.pairwise(sizes))
    return 2e-9 * members * 256 * (2 * first + 3 * sum(others))


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


def _untrained(quick: bool) -> EnsembleDynamics:
    """A model that predicts as if it were fitted."""
    model = _model(quick)
    model.network.requires_grad_(False)
    model.holdout_mse = torch.zeros(model.num_members)
    return model


def rollouts(config: RolloutConfig, states: int = 50_000) -> Build:
    """Rollouts from so many states."""

    def build(quick: bool, folder: Path) -> tuple[Step, int]:
        model, policy = _untrained(quick), SquashedGaussianPolicy(SPEC, (256, 256))
        draw = torch.Generator().manual_seed(0)
        starts = torch.randn(min(1_500, states) if quick else states, SPEC.obs_dim, generator=draw)
        count = len(starts) * config.horizon
        return lambda: rollout(model, policy.explore, starts, config, draw), count

    return build


def _plans(quick: bool, folder: Path) -> tuple[Step, int]:
    """Plans of PETS with the settings of mbrl-lib's for its cartpole, from one observation, each
    from where the one before leaves it."""
    config = PlannerConfig(horizon=3, population=20, particles=7) if quick else PlannerConfig()
    planner = CrossEntropyPlanner(SPEC, _untrained(quick), config, seed=0)
    draw = torch.Generator().manual_seed(0)
    obs = torch.randn(1, SPEC.obs_dim, generator=draw)
    plan: Tensor | None = None

    def step() -> None:
        nonlocal plan
        _, plan = planner.step(obs, plan, draw)

    return step, 1


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
    return Workload(title, "windows/s", build, aim, recorded or {}, work, against)


def soft_config(critics: int, eta: float, hidden: Sequence[int]) -> dict[str, Any]:
    """The values of a config of `edac` with `critics` of these widths; SAC's, or SAC-N's, where
    `eta` is 0."""
    return {"learner": {"critics": critics, "eta": eta, "hidden": list(hidden)}}


WORKLOADS: dict[Name, Workload] = {
    "td3_bc": Workload(
        "TD3+BC, 2 critics 2x256, batch 256",
        "updates/s",
        _updates("td3_bc", {}),
        aim=2.05,
        recorded={"CORL": 1.18, "d3rlpy": 0.86, "unifloral": 2.05},
    ),
    "sac_n": Workload(
        "SAC-N, 10 critics 3x256, batch 256",
        "updates/s",
        _updates("edac", soft_config(10, 0.0, (256, 256, 256))),
        aim=0.21,
        recorded={"CORL": 0.114, "edge-of-reach": 0.114, "unifloral": 0.200},
    ),
    "edac": Workload(
        "EDAC (RAVL's learner), 10 critics 3x256, batch 256",
        "updates/s",
        _updates("edac", soft_config(10, 1.0, (256, 256, 256))),
        aim=0.17,
        recorded={"CORL": 0.066, "edge-of-reach": 0.067, "unifloral": 0.031},
    ),
    "sac": Workload(
        "SAC, 2 critics 2x256, batch 256",
        "updates/s",
        _updates("edac", soft_config(2, 0.0, (256, 256))),
        recorded={"stable-baselines3": 0.86},
    ),
    "sac_small": Workload(
        "SAC, 2 critics 2x64, batch 256",
        "updates/s",
        _updates("edac", soft_config(2, 0.0, SMALL_NETS)),
    ),
    "online_sac": Workload(
        "SAC in Pendulum, a step and an update, 2 critics 2x256, batch 256",
        "steps/s",
        _online((256, 256)),
    ),
    "online_sac_small": Workload(
        "SAC in Pendulum, a step and an update, 2 critics 2x64, batch 256",
        "steps/s",
        _online(SMALL_NETS),
    ),
    "edac_small": Workload(
        "EDAC (RAVL's learner), 10 critics 2x64, batch 256",
        "updates/s",
        _updates("edac", soft_config(10, 1.0, SMALL_NETS)),
    ),
    "cql_small": Workload(
        "CQL, 2 critics 2x64, 30 sampled actions a row, batch 256",
        "updates/s",
        _updates("cql", {"learner": {"hidden": list(SMALL_NETS)}}),
    ),
    "td3_bc_small": Workload(
        "TD3+BC, 2 critics 2x64, batch 256",
        "updates/s",
        _updates("td3_bc", {"hidden": list(SMALL_NETS)}),
    ),
    "rebrac_small": Workload(
        "ReBRAC, 2 critics 2x64 with LayerNorm, batch 256",
        "updates/s",
        _updates("rebrac", {"hidden": list(SMALL_NETS), "batch_size": 256}),
    ),
    "model_fit": Workload(
        "ensemble fit, 7 members 4x200 SiLU, batch 256 a member",
        "updates/s",
        _model_fit,
        aim=0.61,
        recorded={"OfflineRL-Kit": 0.38, "mbrl-lib": 0.43, "unifloral (ReLU)": 0.61},
    ),
    "ensemble_128": Workload(
        "ensemble fit, 128 members 4x200 LayerNorm, batch 256 a member",
        "updates/s",
        _large_ensemble,
        work=_large_ensemble_products,
    ),
    "recurrent": Workload(
        "recurrent actor-critic, tape of 512 positions, reduced preset",
        "updates/s",
        _recurrent,
    ),
    "rollout_penalty": Workload(
        "rollouts, 5 steps from 50,000 states, 7 members, MOPO penalty",
        "steps/s",
        rollouts(RolloutConfig(5, penalty="max_aleatoric", penalty_weight=1.0)),
        aim=400.0,
        recorded={"OfflineRL-Kit": 139.0, "unifloral": 283.0},
    ),
    "rollout_single": Workload(
        "rollouts, 5 steps from 50,000 states, one member a state",
        "steps/s",
        rollouts(RolloutConfig(5)),
        aim=1850.0,
        recorded={"mbrl-lib": 1630.0},
    ),
    "pets_plan": Workload(
        "plans of PETS, 350 of 15 steps, 20 particles, 5 iterations, 7 members", "plans/s", _plans
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
        bench_language.sample,
    ),
    "language_train": Workload(
        "transformer 4x128, 128 rows of 48 tokens",
        "tokens/s",
        bench_language.train,
    ),
    "language_update": Workload(
        "transformer 4x128, 128 answers of 1 to 32 tokens after 16, trained on",
        "tokens/s",
        bench_language.update,
    ),
}
