"""What `systems` measures of the parts: the queue between stages, streams of a control task,
gradients by several workers, and redundant conversations of a language model."""

import queue as queues
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from algorithms.language.imitation import Imitation, ImitationConfig
from algorithms.language.learner import ModelConfig
from algorithms.language.models.transformer import TransformerConfig
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.async_collector import AsyncCollector, weights_of, worker_config
from algorithms.language.sampling.data_parallel import GradientWorker
from algorithms.language.sampling.data_parallel import gradients as gradients_by
from algorithms.language.sampling.workers import Weights, Work, WorkerConfig, WorkerModel
from algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from experiments.studies import Outcome
from mbrl.distributed.acting import EnvironmentWorker, learn
from mbrl.distributed.cluster import connected
from mbrl.distributed.groups import WorkerGroup
from mbrl.distributed.streams import (
    CategoricalActs,
    InlineInference,
    NullSamples,
    PolicyWorker,
    RayInference,
    RaySamples,
)
from mbrl.distributed.transfer_queue import RayTransferQueue, Stage
from mbrl.errors import unknown_name
from mbrl.networks import CategoricalPolicy
from mbrl.tasks import make
from mbrl.training import train

COSTS = {"sample": 0.02, "old": 0.01, "learn": 0.03}  # seconds of a row in a stage
FILLS = {"sample": "answer", "old": "old", "learn": "loss"}
STAGES = {"sample": Stage(("prompt",)), "old": Stage(("answer",)), "learn": Stage(("old",))}
ROWS = 64
LATENCY = 0.004, 1.0  # of a step of an environment: median in seconds, deviation of its logarithm
MODEL = ModelConfig(transformer=TransformerConfig(width=64, layers=2, heads=4, hidden=128))
KINDS = ("inline", "local", "served")  # of inference
PER_TOKEN = 0.01  # seconds


class StageWorker:
    """A stage that sleeps for its work, `chunk` rows at a time."""

    def work(self, table: RayTransferQueue, stage: str, chunk: int) -> float:
        """All rows; how long it was at work."""
        busy, left = 0.0, ROWS
        while left:
            taken = table.take(stage, min(chunk, left))
            if taken is None:
                time.sleep(0.002)
                continue
            began = time.perf_counter()
            time.sleep(COSTS[stage] * len(taken.rows))
            busy += time.perf_counter() - began
            table.put(taken.rows, **{FILLS[stage]: taken.rows})
            left -= len(taken.rows)
        return busy

    def ready(self) -> bool:
        return True


def queue(settings: dict[str, Any], seed: int) -> Outcome:
    """Three stages of unequal cost on one batch: `rate` in rows per second, `idle` of the stages'
    workers in percent."""
    ray = connected(3, "a measured queue")
    actors = {stage: ray.remote(num_cpus=0)(StageWorker).remote() for stage in STAGES}
    ray.get([actor.ready.remote() for actor in actors.values()])
    table = RayTransferQueue(("prompt", *FILLS.values()), STAGES)
    chunk = 4 if settings["streaming"] else ROWS
    table.ready("sample")  # its process is there
    began = time.perf_counter()
    table.put(table.open(ROWS), prompt=list(range(ROWS)))
    busy = ray.get([actor.work.remote(table, s, chunk) for s, actor in actors.items()])
    wall = time.perf_counter() - began
    ray.shutdown()
    return Outcome({"rate": ROWS / wall, "idle": 100 * (1 - sum(busy) / wall / len(STAGES))}, {})


def latency(draws: np.random.Generator) -> float:
    """Of a step of an environment, in seconds."""
    median, spread = LATENCY
    return float(median * np.exp(spread * draws.standard_normal()))


def acts_of(policy: Any, spec: Any) -> CategoricalActs:
    """How a copy of the policy acts."""
    copy = CategoricalPolicy(spec, (64, 64), activation="tanh")
    copy.load_state_dict(policy.state_dict())
    return CategoricalActs(copy)


def streams(settings: dict[str, Any], seed: int) -> Outcome:
    """CartPole with a slow simulator: `rate` in steps per second, `idle`: share of the environment
    workers' time in which they wait for actions. With a trainer `staleness` in versions, at the
    update, of the policies that acted."""
    if settings["inference"] not in KINDS:
        raise unknown_name("kind of inference", settings["inference"], KINDS)
    task, count, ring = make("CartPole-v1"), settings["workers"], settings["ring"]
    agent = PolicyGradient(task.spec, PolicyGradientConfig(envs=8, group=1), seed=seed)
    act, kind = acts_of(agent.policy, task.spec), settings["inference"]
    options: list[dict[str, Any]] = [
        {"ring": ring, "first": k * ring, "seed": seed, "latency": latency} for k in range(count)
    ]
    if kind == "inline":
        stream = InlineInference(PolicyWorker(act, count * ring))
        workers = [EnvironmentWorker(task, stream, NullSamples(), **o) for o in options]
        return _inline(workers, settings["seconds"])
    ray = connected(count + 1, "measured streams")
    samples: Any = RaySamples() if settings["learns"] else NullSamples()
    actor = ray.remote(num_cpus=0)(EnvironmentWorker)
    served = RayInference.served(act, count * ring, 0.001) if kind == "served" else None
    remote = [
        actor.remote(task, served or InlineInference(PolicyWorker(act, ring)), samples, **o)
        for o in options
    ]
    ray.get([w.run.remote(None, 1.0) for w in remote])  # warm
    running = [w.run.remote(None, settings["seconds"]) for w in remote]
    ages: list[float] = []
    if settings["learns"]:
        assert served is not None
        ages = _learning(ray, running, samples, served, agent, task.spec)
    results = ray.get(running)
    ray.shutdown()
    values = {
        "rate": sum(r["frames"] / r["wall"] for r in results),
        "idle": 100 * float(np.mean([r["waiting"] / r["wall"] for r in results])),
    }
    return Outcome(values | ({"staleness": float(np.mean(ages))} if ages else {}), {})


def _inline(workers: list[EnvironmentWorker], seconds: float) -> Outcome:
    """All in this process, one after the other: a worker is idle while others are stepped."""
    for worker in workers:
        worker.begin(None)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for worker in workers:
            worker.step()
    wall = time.perf_counter() - began
    idle = [1 - worker.stepping / wall for worker in workers]
    rate = sum(worker.frames for worker in workers) / wall
    return Outcome({"rate": rate, "idle": 100 * float(np.mean(idle))}, {})


def _learning(
    ray: Any, running: list[Any], samples: Any, served: RayInference, agent: Any, spec: Any
) -> list[float]:
    """Learn until nobody runs; the ages of the steps learned from."""
    version, ages = 0, list[float]()
    while ray.wait(running, num_returns=len(running), timeout=0)[1]:
        episodes = samples.take(8)
        if episodes is None:
            time.sleep(0.002)
            continue
        ages += [float(version - v) for e in episodes for v in e.version]
        learn(agent, episodes)
        version += 1
        ray.get(served.actor.load.remote(acts_of(agent.policy, spec), version))
    return ages


def warm(task: str, levels: tuple[int, ...], seed: int, steps: int) -> Any:
    """A model that has seen demonstrations."""
    agent: Any = Imitation(config=ImitationConfig(task=task, levels=levels, model=MODEL), seed=seed)
    train(agent, steps)
    return agent.model.state_dict()


def gradients(settings: dict[str, Any], seed: int) -> Outcome:
    """The gradient of a batch of 128 conversations by workers: `rate` in tokens per second, `idle`
    of the workers in percent. (On a machine with two busy cores.)"""
    config = LanguageConfig(task="brackets", model=MODEL, prompts=16, minibatches=1)
    agent = LanguagePolicyGradient(None, config, seed=seed)
    agent.collect()
    batch = agent.next_batch()
    tokens = int(batch.data.mask.sum())
    group = WorkerGroup(
        GradientWorker, (config,), size=settings["workers"], backend=settings["backend"]
    )
    group.call("load", weights_of(agent)).result()
    gradients_by(agent, batch, group)
    before, began = sum(group.busy()), time.perf_counter()
    for _ in range(settings["updates"]):
        gradients_by(agent, batch, group)
    wall = time.perf_counter() - began
    idle = 1 - (sum(group.busy()) - before) / wall / settings["workers"]
    group.close()
    return Outcome({"rate": settings["updates"] * tokens / wall, "idle": 100 * idle}, {})


class Decoders:
    """Workers that are threads, each with a model of its own, whose pieces of work take as long as
    their longest conversation has new tokens: an accelerator that decodes a batch at the pace of
    one. `busy` counts their seconds."""

    def __init__(self, config: WorkerConfig, count: int) -> None:
        self.models = [WorkerModel(config) for _ in range(count)]
        self.free, self.busy = list(range(count)), 0.0
        self.done: queues.Queue[tuple[int, int, list[dict[str, Any]], float]] = queues.Queue()

    def idle(self) -> int:
        return len(self.free)

    def give(self, work: Work, weights: Callable[[], Weights]) -> None:
        worker = self.free.pop()
        arguments = (worker, work, weights())
        threading.Thread(target=self._generate, args=arguments, daemon=True).start()

    def _generate(self, worker: int, work: Work, weights: Weights) -> None:
        began = time.perf_counter()
        before = [len(row["behaviour"]) for row in work.rows]
        rows = self.models[worker].generate(work, weights)
        new = max(len(row["behaviour"]) - n for row, n in zip(rows, before, strict=True))
        time.sleep(max(0.0, PER_TOKEN * new - (time.perf_counter() - began)))
        self.done.put((worker, work.number, rows, time.perf_counter() - began))

    def arrived(self) -> list[tuple[int, list[dict[str, Any]] | None]]:
        if len(self.free) == len(self.models):
            return []
        worker, number, rows, seconds = self.done.get()
        self.free.append(worker)
        self.busy += seconds
        return [(number, rows)]

    def close(self) -> None:
        """The threads end with their work."""


def rollouts(settings: dict[str, Any], seed: int) -> Outcome:
    """Conversations in grid_world by a model that hardly changes: `wall` in seconds of an update,
    `rate` in tokens learned from per second, `idle` of the workers in percent, `staleness` in
    rounds, `tokens`: mean length of the conversations taken, and `success` among them."""
    rounds = settings["staleness"]
    config = LanguageConfig(
        task="grid_world",
        levels=(4,),
        model=MODEL,
        prompts=4,
        group=4,
        minibatches=1,
        recipe="dual_clip_grpo",
        staleness=rounds,
        learning_rate=1e-9,
    )
    agent: Any = LanguagePolicyGradient(None, config, seed=seed)
    agent.model.load_state_dict(warm("grid_world", (4,), seed, 200))
    workers = Decoders(worker_config(agent, 8, 1), settings["workers"])
    source = AsyncCollector(
        agent, workers, chunk=1, redundancy=settings["redundancy"], drop_late=True
    )
    observed: list[tuple[float, float, float]] = []

    def observe(event: str, agent: Any, metrics: dict[str, Any]) -> None:
        if event == "step" and "rollout/length" in metrics:
            names = ("rollout/length", "rollout/age", "rollout/success")
            observed.append(tuple(float(metrics[name]) for name in names))  # type: ignore[arg-type]

    began = time.perf_counter()
    train(agent, settings["updates"], [observe], source)
    wall = time.perf_counter() - began
    tokens, age, success = np.array(observed).mean(0)
    values = {
        "wall": wall / settings["updates"],
        "rate": 16 * settings["updates"] * tokens / wall,
        "idle": 100 * (1 - workers.busy / wall / settings["workers"]),
        "staleness": age,
        "tokens": tokens,
        "success": 100 * success,
    }
    return Outcome({name: float(value) for name, value in values.items()}, {})
