"""Parts of training systems, measured on this machine with artificial latencies, and a simulation
that is checked by them and then has many workers."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reports import figures
from experiments.studies import Outcome
from experiments.studies.systems_parts import gradients, queue, rollouts, streams
from mbrl.distributed.simulation import System, run, simulate
from mbrl.errors import unknown_name

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "part": "clock",
    "workers": 2,
    "updates": 20,
    "staleness": 0,  # versions; rollouts: rounds
    "redundancy": 0,  # conversations of a group beside those taken
    "system": {},  # other fields of `System`
    "backend": "ray",  # of gradients and the queue
    "streaming": True,  # queue: rows as they come, or stage after stage
    "inference": "served",  # streams: inline, local (a policy in every worker), served
    "ring": 1,  # streams: environments of a worker
    "learns": False,  # streams: whether a trainer learns from the episodes
    "seconds": 6.0,  # streams
}
SIZES = (2, 8, 32, 128, 512, 1000)  # workers of part scale


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """What the part measures, in percent where it is a share (`idle`: of the workers' time in which
    they had nothing to do)."""
    if settings["part"] not in PARTS:
        raise unknown_name("part of systems", settings["part"], PARTS)
    outcome: Outcome = PARTS[settings["part"]](settings, seed)
    return outcome


def system_of(settings: dict[str, Any], **changes: Any) -> System:
    names = ("workers", "staleness", "redundancy")
    return System(**({n: settings[n] for n in names} | settings["system"] | changes))


def clock(settings: dict[str, Any], seed: int) -> Outcome:
    """A system of sleeping actors of Ray, and the simulation of it from the same seed. `rate`:
    conversations learned from per second; `lost`: seconds of work lost with a killed worker, over
    the mean length of a conversation; `length`: mean of those taken over the mean of all."""
    system = system_of(settings)
    real = run(system, settings["updates"], np.random.default_rng(seed))
    system = dataclasses.replace(system, restart=real.restart)  # what it was in fact
    again = simulate(system, settings["updates"], np.random.default_rng(seed))
    values: dict[str, float] = {}
    for name, one in (("", real), ("_simulated", again)):
        lost = one.lost * one.wall * system.workers / max(one.deaths, 1) / one.every
        values |= {
            f"rate{name}": one.rate,
            f"idle{name}": 100 * one.idle,
            f"staleness{name}": one.staleness,
            f"wasted{name}": 100 * one.wasted,
            f"kills{name}": float(one.deaths),
            f"lost{name}": lost,
            f"length{name}": one.taken / one.every,
        }
    return Outcome(values, {})


def scale(settings: dict[str, Any], seed: int) -> Outcome:
    """The simulation with as many conversations a batch as there are workers. Values: with the
    most workers. Curves over the number of workers: conversations learned from per second and
    worker, and the idle share."""
    each: list[dict[str, float]] = []
    for workers in SIZES:
        system = system_of(settings, workers=workers, batch=max(1, workers // 4))
        one = simulate(system, settings["updates"], np.random.default_rng(seed))
        each.append(
            {
                "rate": one.rate / workers,
                "idle": 100 * one.idle,
                "staleness": one.staleness,
                "wasted": 100 * one.wasted,
                "length": one.taken / one.every,
            }
        )
    curves = {name: [values[name] for values in each] for name in ("rate", "idle")}
    return Outcome(each[-1], curves | {"workers": [float(n) for n in SIZES]})


PARTS = {
    "clock": clock,
    "scale": scale,
    "queue": queue,
    "streams": streams,
    "gradients": gradients,
    "rollouts": rollouts,
}


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """The simulated systems over their number of workers; measured rows have no figure."""
    if not all("workers" in record["curves"] for records in rows.values() for record in records):
        return []
    titles = {"rate": "conversations per second and worker", "idle": "idle share in %"}
    panels = {
        title: {
            label.removeprefix("simulated, "): figures.curve(
                np.log2(records[0]["curves"]["workers"]),
                np.array([r["curves"][key] for r in records]),
            )
            for label, records in rows.items()
        }
        for key, title in titles.items()
    }
    path = folder / f"systems{suffix}.png"
    figures.curves(panels, "workers, as a power of two", "", path)
    return [path]
