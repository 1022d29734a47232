"""Interventions that recover and then correct, beside full demonstrations and corrections alone, at
the same number of recorded frames: RaC: Robot Learning for Long-Horizon Tasks by Scaling Recovery
and Correction (arXiv 2509.07953), with a scripted corrector in a chain of doors."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithms import BC, BCConfig
from experiments.recording.door_corrector import DoorCorrector
from experiments.recording.interventions import (
    POLICY,
    RULES,
    Rules,
    record_demonstrations,
    record_interventions,
)
from experiments.reports import figures
from experiments.studies import Outcome
from mbrl.data.loading import joined_rows
from mbrl.errors import unknown_name
from mbrl.evaluation import START_SEED
from mbrl.tasks import Task, make
from mbrl.tasks.door_chain import DOORS
from mbrl.types import Dataset, Provenance, Transitions

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "method": "rac",  # a name of METHODS
    "first": 150,  # frames of demonstrations that every method begins with
    "frames": 100,  # recorded in each round
    "updates": 2000,  # of a new clone in each round
    "episodes": 200,  # fixed starts of an evaluation
    "slide": 0.0,  # of the task: how far from the door a point ends that misses it
}
METHODS: dict[str, Rules | None] = {
    "demonstrations": None,
    "correct": RULES["correct"],  # HG-DAgger
    "recover": RULES["recover"],
    "rac without ends": RULES["rac-goes-on"],
    "rac": RULES["rac"],
}
ROUNDS = (1, 2, 4)  # after which the clone is reported


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Record in four rounds, each with the clone of all frames so far, and clone anew after each.

    Of the clone after `n` rounds (n = 0: the first demonstrations alone; 1, 2 and 4): `success n`,
    per cent of episodes that pass all doors; `recoveries n`, how often in an episode a held point
    freed itself. `doors 4` is the mean number of doors passed at the end; `recovering`, the
    per cent of the recorded frames that recover; `filled`, of frames that are demonstrations
    because the clone no longer failed.
    """
    if settings["method"] not in METHODS:
        raise unknown_name("method", settings["method"], METHODS)
    rules = METHODS[settings["method"]]
    task = make("DoorChain-v0", slide=settings["slide"])
    draws = torch.Generator().manual_seed(seed)
    parts = [record_demonstrations(task, _Expert(), settings["first"], draws)]
    corrector = DoorCorrector(parts[0].obs)
    clone = _clone(task, parts, settings["updates"], seed)
    values: dict[str, float] = {}
    steps, successes = [0.0], [evaluate(task, clone, settings["episodes"])["success"]]
    filled = 0
    for turn in range(1, ROUNDS[-1] + 1):
        frames = settings["frames"]
        if rules is not None:
            recorded = record_interventions(task, clone.policy, corrector, frames, draws, rules)
            kept = cloned(recorded)
            frames -= len(kept)
            filled += frames
            parts += [kept] if len(kept) else []
        if frames > 0:
            parts.append(record_demonstrations(task, corrector, frames, draws))
        clone = _clone(task, parts, settings["updates"], seed)
        result = evaluate(task, clone, settings["episodes"])
        steps.append(float(turn * settings["frames"]))
        successes.append(result["success"])
        if turn in ROUNDS:
            values |= {f"{name} {turn}": result[name] for name in ("success", "recoveries")}
    segment = torch.cat([part.segment for part in parts[1:] if part.segment is not None])
    total = settings["frames"] * ROUNDS[-1]
    assert len(segment) == total  # of every method
    values |= {
        "success 0": successes[0],
        "doors 4": result["doors"],
        "recovering": 100 * float((segment == 2).double().mean()),
        "filled": 100 * (0 if rules is None else filled) / total,
    }
    return Outcome(values, {"frames": steps, "success": successes})


class _Expert(DoorCorrector):
    """The corrector where nothing is known yet: it only demonstrates."""

    def __init__(self) -> None:
        self.places = torch.empty(0, 2)


def cloned(rows: Transitions) -> Transitions:
    """The rows that are cloned: those that the policy did not make itself."""
    assert rows.segment is not None
    return rows.select(rows.segment > POLICY)


def _clone(task: Task, parts: list[Transitions], updates: int, seed: int) -> BC:
    rows = Dataset(joined_rows(parts), task.spec, Provenance(card="recorded with interventions"))
    config = BCConfig(hidden=(64, 64), learning_rate=1e-3, batch_size=128)
    return BC(task.spec, config, seed=seed).fit(rows, updates, callbacks=[])


@torch.no_grad()
def evaluate(task: Task, agent: Any, episodes: int) -> dict[str, float]:
    """Of the greedy policy from fixed starts of DoorChain-v0: `success`, per cent of episodes that
    pass all doors, `doors`, the mean number passed, and `recoveries`, how often in an episode a
    held point freed itself."""
    state = task.reset(episodes, torch.Generator().manual_seed(START_SEED))
    freed = torch.zeros(episodes, dtype=torch.float64)
    on = torch.ones(episodes, dtype=torch.bool)
    for _ in range(task.spec.max_episode_steps or 0):
        step = task.step(state, agent.policy(task.observe(state)))
        freed += on & (state[:, 2] > 0) & (step.state[:, 2] == 0)
        state = torch.where(on[:, None], step.state, state)
        on &= ~step.terminated
        if not bool(on.any()):
            break
    passed = state[:, 3]
    return {
        "success": 100 * float((passed == DOORS).double().mean()),
        "doors": float(passed.mean()),
        "recoveries": float(freed.mean()),
    }


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Success against the recorded frames, a line a method."""
    lines = {
        label: figures.curve(
            np.array(records[0]["curves"]["frames"]),
            np.array([record["curves"]["success"] for record in records]),
        )
        for label, records in rows.items()
        if records
    }
    file = folder / f"frames{suffix}.png"
    axis = "frames recorded after the first demonstrations"
    figures.curves({"DoorChain-v0": lines}, axis, "success, %", file, top=100)
    return [file]
