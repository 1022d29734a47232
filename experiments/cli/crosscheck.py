"""The verb `crosscheck`: SAC of this library against that of stable-baselines3, with the same
networks, settings, task and start states, and a bootstrap interval of the difference of means."""

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from scipy import stats

from algorithms import SAC, SACConfig
from algorithms.learners.soft_actor_critic import LearnerConfig
from experiments.runs.folders import write_json
from experiments.studies.stable_baselines import StableBaselines
from mbrl import tasks
from mbrl.config import Count, Settings
from mbrl.errors import optional_packages
from mbrl.evaluation import evaluate
from mbrl.terminal import terminal

HIDDEN, RATE, WARMUP = (64, 64), 1e-3, 100


@dataclass(frozen=True)
class Crosscheck(Settings):
    """Train SAC here and in stable-baselines3 on Pendulum, and compare the last returns."""

    seeds: Count = 5  # runs of each
    steps: Count = 10_000  # environment steps, one update each after the first 100
    episodes: Count = 100  # fixed start states, the same for both
    workers: Count = 2  # runs side by side, one thread each
    out: Path | None = None  # write the numbers to this JSON file

    def main(self) -> int:
        jobs = [(kind, seed, self) for seed in range(self.seeds) for kind in ("ours", "sb3")]
        with ProcessPoolExecutor(self.workers, mp_context=get_context("spawn")) as pool:
            results = list(pool.map(_job, jobs))
        means: dict[str, list[float]] = {"ours": [], "sb3": []}
        seconds: dict[str, list[float]] = {"ours": [], "sb3": []}
        for (kind, _, _), (mean, took) in zip(jobs, results, strict=True):
            means[kind].append(mean)
            seconds[kind].append(took)
        gap, low, high = difference(np.array(means["ours"]), np.array(means["sb3"]))
        console = terminal()
        for kind in means:
            listed = ", ".join(f"{m:.1f}" for m in means[kind])
            each = np.mean(seconds[kind])
            console.print(f"{kind}: mean {np.mean(means[kind]):.1f} ({listed}); {each:.0f} s a run")
        console.print(
            f"difference of means {gap:.1f}, 95 % bootstrap interval [{low:.1f}, {high:.1f}] "
            f"({self.seeds} seeds each, {self.steps} steps, {self.episodes} fixed starts)"
        )
        if self.out is not None:
            record = {
                "task": "Pendulum-v1",
                "seeds": self.seeds,
                "steps": self.steps,
                "episodes": self.episodes,
                "hidden": HIDDEN,
                "learning_rate": RATE,
                "returns": means,
                "seconds": seconds,
                "difference": gap,
                "interval": [low, high],
            }
            self.out.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.out, record)
        return 0


def difference(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """Difference of means and its 95 % bootstrap interval (seeds are the replication unit); the
    interval is the point itself for a single seed."""
    gap = float(ours.mean() - theirs.mean())
    if len(ours) < 2:
        return gap, gap, gap
    result = stats.bootstrap(
        (ours, theirs),
        lambda a, b, axis: a.mean(axis) - b.mean(axis),
        method="percentile",
        n_resamples=10_000,
        rng=np.random.default_rng(0),
    )
    interval = result.confidence_interval
    return gap, float(interval.low), float(interval.high)


def _job(job: tuple[str, int, Crosscheck]) -> tuple[float, float]:
    kind, seed, settings = job
    torch.set_num_threads(1)
    began = time.perf_counter()
    train = _train_ours if kind == "ours" else _train_theirs
    agent: Any = train(seed, settings)
    task = tasks.make("Pendulum-v1")
    return float(evaluate(agent, task, settings.episodes).mean()), time.perf_counter() - began


def _train_ours(seed: int, settings: Crosscheck) -> SAC:
    task = tasks.make("Pendulum-v1")
    learner = LearnerConfig(
        hidden=HIDDEN, actor_lr=RATE, critic_lr=RATE, alpha_lr=RATE, init="torch"
    )
    agent = SAC(task.spec, SACConfig(learner=learner, warmup=WARMUP), seed=seed)
    return agent.learn(task, settings.steps, callbacks=[])


def _train_theirs(seed: int, settings: Crosscheck) -> StableBaselines:
    import gymnasium

    with optional_packages("sb3", "runs of stable-baselines3"):
        from stable_baselines3 import SAC as Theirs

    model = Theirs(
        "MlpPolicy",
        gymnasium.make("Pendulum-v1"),
        learning_rate=RATE,
        learning_starts=WARMUP,
        policy_kwargs={"net_arch": list(HIDDEN)},
        seed=seed,
        device="cpu",
    )
    return StableBaselines(model.learn(settings.steps))


def main(arguments: list[str]) -> int:
    return tyro.cli(Crosscheck, args=arguments, prog="python -m experiments crosscheck").main()
