"""The policy card: what was exported, what it was learned from, what goes in and comes out, and
where it is not valid. One dictionary, written as JSON and as Markdown."""

import math
import shlex
from dataclasses import asdict
from typing import Any

import torch

from experiments.export.files import NEEDED
from experiments.export.graph import Parts
from experiments.export.parity import LIMIT, Parity
from experiments.runs.manifest import environment, version
from mbrl import config as configs
from mbrl.data.fingerprint import fingerprint
from mbrl.data.out_of_data import QUANTILE
from mbrl.types import Dataset

FORMAT = "longreach policy card"
VERSION = 1
SHAPES = {  # of inputs and outputs, with what they are
    "obs": ("float32", "[batch, {obs}]", "raw observations, in the order of the table below"),
    "action_mask": ("bool", "[batch, {actions}]", "which of the actions are allowed"),
    "state": ("float32", "[batch, {state}]", "`next_state` of the step before; zeros at the "
              "first step of an episode"),
    "previous_action": ("float32", "[batch, {actions}]", "the action that was taken at the step "
                        "before, in the units below; not read at the first step"),
    "previous_reward": ("float32", "[batch]", "the reward of the step before; not read at the "
                        "first step"),
    "out_of_data": ("float32", "[batch]", "distance from the logged observations; 1 is the edge "
                    "of the data"),
    "fallback_used": ("bool", "[batch]", "whether the action is the fallback's"),
    "next_state": ("float32", "[batch, {state}]", "the state to give back at the next step"),
}  # fmt: skip


def content(
    agent: Any,
    parts: Parts,
    dataset: Dataset | None,
    asked: Dataset | None,
    parity: Parity,
    fallback: str | None,
    run: dict[str, Any] | None,
) -> dict[str, Any]:
    """The card of what was exported. `dataset` is as it was recorded, `asked` with the goals of a
    learner of goals (else the same). `run` holds what only a run's folder knows: `name`,
    `trained_with`, `value`."""
    run = run or {}
    made = environment("cpu")
    made["packages"] |= {name: version(name) for name in NEEDED}
    kind = {torch.float32: "float32", torch.float64: "float64"}[parts.dtype]
    card = {
        "format": FORMAT,
        "version": VERSION,
        "policy": {
            "algorithm": type(agent).__name__,
            "version": agent.version,
            "updates": agent.step,
            "seed": agent.seed,
            "task": agent.spec.task,
            "run": run.get("name"),
            "precision": kind,
            "config": configs.to_dict(agent.config),
        },
        "data": None if dataset is None else _data(dataset),
        "inputs": [_port(name, parts) for name in parts.inputs],
        "outputs": [_port(name, parts) for name in parts.outputs],
        "observations": _observations(parts, asked),
        "actions": _actions(parts, dataset),
        "encoding": None if dataset is None else dataset.provenance.log,
        "out_of_data": _score(parts, asked),
        "fallback": fallback,
        "value": run.get("value"),
        "limits": _limits(parts, dataset, run.get("value")),
        "checks": _checks(parts, dataset, run.get("name")),
        "parity": asdict(parity) | {"limit": LIMIT},
        "trained_with": run.get("trained_with"),
        "exported_with": made,
    }
    plain: dict[str, Any] = finite(configs.plain(card))
    return plain


def finite(value: Any) -> Any:
    """Nested values with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _data(dataset: Dataset) -> dict[str, Any]:
    rows, origin = dataset.transitions, dataset.provenance
    return {
        "name": origin.card,
        "version": origin.version,
        "fingerprint": fingerprint(dataset),
        "sha256": origin.sha256,
        "rows": len(dataset),
        "episodes": len(rows.episodes()),
        "licence": origin.licence or "not stated",
        "notes": list(origin.notes),
    }


def _port(name: str, parts: Parts) -> dict[str, str]:
    spec = parts.spec
    if name == "action":
        if spec.discrete:
            return _described(name, "int64", "[batch]", "number of the action in the table below")
        shape = f"[batch, {spec.action_dim}]"
        return _described(name, "float32", shape, "the action, in the units of the table below")
    kind, shape, text = SHAPES[name]
    sizes = {"obs": spec.obs_dim, "actions": spec.num_actions or spec.action_dim}
    if parts.stateful:
        sizes["state"] = parts.state_size()
    return _described(name, kind, shape.format(**sizes), text)


def _described(name: str, kind: str, shape: str, about: str) -> dict[str, str]:
    return {"name": name, "type": kind, "shape": shape, "about": about}


def _observations(parts: Parts, dataset: Dataset | None) -> list[dict[str, Any]]:
    spec = parts.spec
    names = spec.obs_names or tuple(f"obs[{i}]" for i in range(spec.obs_dim))
    entries: list[dict[str, Any]] = [{"name": name} for name in names]
    if dataset is None:
        return entries
    obs, log = dataset.transitions.obs, dataset.provenance.log or {}
    low, high = obs.amin(0).tolist(), obs.amax(0).tolist()
    described = log.get("obs", [])
    for i, entry in enumerate(entries):
        entry |= {"low": low[i], "high": high[i], "mean": float(obs[:, i].double().mean())}
        if i < len(described):
            column = described[i]["column"]
            number = described[i].get("kind", "number") == "number"  # a flag has no unit
            unit = log.get("units", {}).get(column) if number else None
            entry |= {"unit": unit, "from": origin(described[i])}
    return entries


def origin(entry: dict[str, Any]) -> str:
    """How an entry of an observation comes from a raw column."""
    column, kind = entry["column"], entry.get("kind", "number")
    if kind == "category":
        return f"1 where column {column} is {entry['label']!r}, else 0"
    if kind == "missing":
        return f"1 where column {column} is missing, else 0"
    if entry.get("fill") is not None:
        return (
            f"the number in column {column}; where it is missing the last one of the episode, "
            f"else {entry['fill']:g}"
        )
    return f"the number in column {column}"


def _actions(parts: Parts, dataset: Dataset | None) -> list[dict[str, Any]]:
    spec = parts.spec
    action = None if dataset is None else dataset.transitions.action
    if spec.discrete:
        count = int(spec.num_actions or 0)
        names = spec.action_names or tuple(map(str, range(count)))
        listed: list[dict[str, Any]] = [{"number": i, "name": n} for i, n in enumerate(names)]
        if action is not None:
            shares = (action.bincount(minlength=count) / len(action)).tolist()
            listed = [e | {"logged_share": s} for e, s in zip(listed, shares, strict=True)]
        return listed
    names = spec.action_names or tuple(f"action[{i}]" for i in range(spec.action_dim))
    bounds = zip(names, spec.action_low, spec.action_high, strict=True)
    listed = [{"name": name, "low": low, "high": high} for name, low, high in bounds]
    if action is not None and dataset is not None:
        units = (dataset.provenance.log or {}).get("units", {})
        spans = zip(action.amin(0).tolist(), action.amax(0).tolist(), strict=True)
        for entry, (low, high) in zip(listed, spans, strict=True):
            entry |= {"logged_low": low, "logged_high": high, "unit": units.get(entry["name"])}
    return listed


def _score(parts: Parts, dataset: Dataset | None) -> dict[str, Any] | None:
    if parts.score is None or dataset is None:
        return None
    scores = parts.score(dataset.transitions.obs.cpu())
    return {
        "prototypes": len(parts.score.prototypes),
        "edge": float(parts.score.edge),
        "edge_quantile": QUANTILE,
        "logged_share_above_1": float((scores > 1).float().mean()),
    }


def _limits(parts: Parts, dataset: Dataset | None, value: dict[str, Any] | None) -> list[str]:
    spec, limits = parts.spec, []
    if dataset is None:
        limits.append(
            f"It learned by acting in {spec.task}; it is not valid in another task, and no score "
            "says how far an observation is from what it has seen."
        )
    else:
        limits.append(
            "It is not valid outside the ranges of the observations below, nor where out_of_data "
            "is above 1: nothing was learned there."
        )
        limits.append(
            f"It learned from {len(dataset):,} rows of {dataset.provenance.card} alone. What acts "
            "differently from how these were recorded (other devices, other people, other times) "
            "is another task."
        )
    if spec.max_episode_steps is not None:
        limits.append(f"Its episodes had at most {spec.max_episode_steps} steps.")
    if dataset is not None and dataset.transitions.duration is not None:
        limits.append("Steps differed in length; it takes one action for each of them.")
    if dataset is not None and value is None:
        limits.append("Its value was not estimated from logged episodes.")
    return limits


def _checks(parts: Parts, dataset: Dataset | None, run: str | None) -> list[str]:
    name = shlex.quote(run or "RUN")
    checks = [
        "Give the file recorded observations on the machine where it is to act, and compare its "
        "actions with those recorded for them here."
    ]
    if dataset is not None:
        checks += [
            f"`python -m experiments value {name}` estimates its value on logged episodes.",
            f"`python -m experiments data check NEW --against {name}` compares new data with those "
            "it was trained on.",
            "Record out_of_data while it acts: of held-out logged rows about 1 % were above 1.",
        ]
    if parts.stateful:
        checks.append("Give zeros as the state at the first step of every episode.")
    return checks
