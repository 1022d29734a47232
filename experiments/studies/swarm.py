"""Policies of several sizes that share answers: how many of a round's groups are others'."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.swarm import SwarmNode, swarm_round
from experiments.reports import figures
from experiments.runs import folders
from experiments.runs.study import shared_jobs
from experiments.settings import merge
from experiments.studies import Outcome, language_training
from experiments.studies.language_training import accuracy
from mbrl import config as configs
from mbrl.files import replacing

VERSION = 2
WIDTHS = (32, 48, 64, 96)  # of the nodes' models
DEFAULTS: dict[str, Any] = {
    "task": "brackets",
    "recipe": "dual_clip_grpo",  # GRPO without its divergence, as in the paper
    "config": {"prompts": 8, "group": 8, "minibatches": 2, "learning_rate": 2e-4},
    "external": 0,  # of a round's groups
    "steps": 120,  # rounds
    "until": [0.1, 0.2, 0.3, 0.4],  # accuracy at which the warm starts of the nodes end
    "problems": 200,  # of each level, held out
    "samples": 2,  # answers to each
    "device": "cpu",
}
SHARES = (0, 2, 4, 6)
EVERY = 25  # rounds between two checkpoints


def shares() -> list[dict[str, Any]]:
    """A row for every number of groups of others among the eight of a round."""
    return [{"label": f"{8 - j} own, {j} of others", "external": j} for j in SHARES]


ROWS = {"shares": shares}


def needs(settings: dict[str, Any], seed: int, home: Path) -> dict[str, Path]:
    return {
        f"start{i}": language_training.warm_start(_warm(settings, i), 10 * seed + i, home)
        for i in range(len(WIDTHS))
    }


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Means over the nodes. `cumulative`: the sum over rounds of the mean reward of a node's own
    answers; `score` and `gain`, of the last policies on new problems of the trained levels, in
    percent and in points over the warm starts; `score_i` and `gain_i` of node i; `heard`: groups
    of others in a round; `sampled`: tokens that a node said. Curve `reward`: by round."""
    nodes, known = _nodes(settings, seed, folder)
    while (done := len(known["rewards"])) < settings["steps"]:
        swarm_round(nodes)
        known["rewards"].append(float(np.mean([_reward(node) for node in nodes])))
        known["heard"].append(float(np.mean([len(node.collector.others) for node in nodes])))
        if (done + 1) % EVERY == 0:
            _save(nodes, known, folder)
    rewards, before = known["rewards"], known["before"]
    after = [accuracy(node.agent, settings) for node in nodes]
    values = {
        "cumulative": sum(rewards),
        "score": float(np.mean(after)),
        "gain": float(np.mean(after) - np.mean(before)),
        "heard": float(np.mean(known["heard"])),
        "sampled": float(np.mean([node.agent.tokens["sampled"] for node in nodes])),
    }
    for i, (first, last) in enumerate(zip(before, after, strict=True)):
        values |= {f"score_{i}": last, f"gain_{i}": last - first}
    values = {k: float(f"{v:.6g}") for k, v in values.items()}
    return Outcome(values, {"reward": [round(r, 4) for r in rewards]})


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """The reward of own answers by round, a line a row."""
    lines = {}
    for label, records in rows.items():
        values = np.array([r["curves"]["reward"] for r in records])
        width = max(1, values.shape[1] // 20)
        kept = values.shape[1] // width * width
        smooth = values[:, :kept].reshape(len(values), -1, width).mean(2)
        at = np.arange(smooth.shape[1]) * width + width / 2
        lines[label] = figures.curve(at, smooth)
    path = folder / f"swarm{suffix}.png"
    figures.curves({"reward of own answers": lines}, "rounds", "", path)
    return [path]


def _nodes(
    settings: dict[str, Any], seed: int, folder: Path
) -> tuple[list[SwarmNode], dict[str, Any]]:
    """The nodes and what is known of their rounds, as they were saved last."""
    path, agents = folder / "rounds.json", []
    known = folders.read_json(path) if path.exists() else {"rewards": [], "heard": []}
    for i in range(len(WIDTHS)):
        if known["rewards"]:
            saved = folder / f"{len(known['rewards'])}-{i}.pt"
            agents.append(LanguagePolicyGradient.load(saved, device=settings["device"]))
        else:
            agents.append(_agent(settings, seed, i, folder))
    known.setdefault("before", [accuracy(agent, settings) for agent in agents])
    return [SwarmNode(a, i, settings["external"]) for i, a in enumerate(agents)], known


def _save(nodes: Sequence[SwarmNode], known: dict[str, Any], folder: Path) -> None:
    """The nodes first: what is known names the round that they are of."""
    for node in nodes:
        node.save(folder / f"{len(known['rewards'])}-{node.number}.pt")
    with replacing(folder / "rounds.json") as file:
        file.write(json.dumps(known).encode())


def _warm(settings: dict[str, Any], node: int) -> dict[str, Any]:
    shape = {"width": WIDTHS[node], "layers": 2, "heads": 4, "hidden": 2 * WIDTHS[node]}
    given = {
        "model": {"transformer": shape},
        "until": settings["until"][node],
        "learner": "imitation",
    }
    return language_training.DEFAULTS | {"task": settings["task"]} | given


def _agent(settings: dict[str, Any], seed: int, node: int, folder: Path) -> Any:
    warm, own = _warm(settings, node), 10 * seed + node
    start = language_training.finished(
        shared_jobs(folder).get(f"start{node}") or language_training.warm_start(warm, own, folder)
    )
    given = {"task": settings["task"], "model": warm["model"], "recipe": settings["recipe"]}
    config = configs.from_dict(LanguageConfig, merge(given, settings["config"]))
    agent = LanguagePolicyGradient(config=config, device=settings["device"], seed=own)
    agent.begin_with(start / "checkpoint.pt")
    return agent


def _reward(node: SwarmNode) -> float:
    return float(np.mean([sum(r.reward for r in row.replies) for row in node.collector.own]))
