"""What is allowed in a dataset and worth a second look: columns that give the action away, episodes
that all end alike, repeated rows; and how much of the actions a log covers."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mbrl.data.issues import Finding, warning
from mbrl.data.neighbours import Neighbours
from mbrl.networks.normaliser import moments
from mbrl.types import Dataset, Transitions

PART = 100_000  # rows in memory at a time, where all of them count
ROWS = 5000  # looked at, spread evenly over the data
NEIGHBOURS = 10
UNSEEN = 1e-12  # deviation below which `mbrl.networks.Normaliser` leaves a column as it is
SMALL_REWARD, LARGE_REWARD = 0.01, 1000.0
LEAK = 0.99  # share of an action's variance that one column explains


def suspicions(dataset: Dataset) -> list[Finding]:
    """Warnings about a dataset that can be used."""
    about_rows = [*_repeated(dataset), *_same_lengths(dataset), *_leaks(dataset)]
    return [*about_rows, *_constant(dataset), *unit_of_reward(dataset)]


def _name(names: tuple[str, ...], kind: str, index: int) -> str:
    return names[index] if names else f"{kind}[{index}]"


def _repeated(dataset: Dataset) -> list[Finding]:
    rows = dataset.transitions
    each = parts(len(rows))
    hashes = np.concatenate([_hashes(rows, part) for part in each])
    hashes.sort()
    again = hashes[1:] == hashes[:-1]
    repeated = int(again.sum())
    if repeated < max(1, 0.001 * len(hashes)):
        return []
    among = np.unique(hashes[1:][again])
    places = (p.start + np.isin(_hashes(rows, p), among).nonzero()[0] for p in each)
    row = next(int(place[0]) for place in places if len(place))
    text = f"{repeated} rows repeat another one in every value, the first one is row {row}"
    share = repeated / len(hashes)
    return [Finding("warning", f"{text}; was something recorded or exported twice?", row, share)]


def parts(rows: int) -> list[slice]:
    """Slices that are in memory one at a time: a file may be larger than that."""
    return [slice(i, i + PART) for i in range(0, rows, PART)]


def _hashes(rows: Transitions, part: slice) -> np.ndarray:
    """A hash of 64 bits for each row, equal where all values are: rows that differ share one with
    probability 2^-64 (the finaliser of SplitMix64, after each column)."""
    columns = [rows.obs, rows.action.reshape(len(rows), -1), rows.reward[:, None], rows.next_obs]
    code = np.zeros(len(rows.reward[part]), np.uint64)
    for column in columns:
        table = column[part].cpu().numpy().astype(np.float64) + 0.0  # -0 is 0
        for values in np.ascontiguousarray(table.T).view(np.uint64):
            code = (code ^ values) + np.uint64(0x9E3779B97F4A7C15)
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
                code = (code ^ (code >> np.uint64(shift))) * np.uint64(factor)
            code ^= code >> np.uint64(31)
    return code


def _same_lengths(dataset: Dataset) -> list[Finding]:
    rows = dataset.transitions
    spans = rows.episodes()
    lengths = {b - a for a, b in spans}
    ended = bool(rows.terminated[[b - 1 for _, b in spans]].all())
    if len(spans) < 3 or len(lengths) > 1 or not ended or lengths == {1}:
        return []
    steps = lengths.pop()
    text = f"all {len(spans)} episodes end terminated after exactly {steps} steps: is this a limit "
    return [
        warning(
            f"{text}of the recording? Then they are truncated, and values go on after them "
            f"(horizon={steps} with done_means by-length, or --last-row truncated)"
        )
    ]


def _leaks(dataset: Dataset) -> list[Finding]:
    """Single columns from which the action can be read off: unless the action follows from that
    column by a rule, it was recorded after the decision."""
    rows = dataset.transitions
    pick = np.unique(np.linspace(0, len(rows) - 1, ROWS).astype(int))
    obs = rows.obs[pick].cpu().numpy().astype(np.float64)
    action = rows.action[pick].cpu().numpy()
    if dataset.spec.discrete:
        columns = [("the action", (action == k).astype(float)) for k in np.unique(action)]
    else:
        names = dataset.spec.action_names
        columns = [(_name(names, "action", k), action[:, k]) for k in range(action.shape[1])]
    findings = []
    for i in range(obs.shape[1]):
        explained = [_explained(obs[:, i], column) for _, column in columns]
        given_away = [n for (n, _), share in zip(columns, explained, strict=True) if share > LEAK]
        if dataset.spec.discrete and len(given_away) < len(columns):
            continue
        if given_away:
            name = _name(dataset.spec.obs_names, "obs", i)
            actions = " and ".join(dict.fromkeys(given_away))
            text = f"{name} alone gives {actions} away: was it recorded after the decision? "
            findings.append(warning(f"{text}Then leave it out; a policy cannot see it in time"))
    return findings


def _explained(column: np.ndarray, action: np.ndarray) -> float:
    """Share of the variance of `action` [N] that a step function of `column` [N] explains, fitted
    on every other row in order of the column and judged on the rest."""
    order = np.argsort(column, kind="stable")
    x, y = column[order], action[order].astype(np.float64)
    if y.var() < 1e-12 or x[0] == x[-1]:
        return 0.0
    _, group = np.unique(x[0::2], return_inverse=True)
    levels = group.max() + 1
    if levels > len(x) // 8:  # a number: the neighbours in order of size predict
        guess = np.interp(x[1::2], x[0::2], y[0::2])
    else:
        values = np.unique(x[0::2])
        means = np.bincount(group, y[0::2]) / np.bincount(group)
        guess = means[np.clip(np.searchsorted(values, x[1::2]), 0, len(values) - 1)]
    rest = float(((y[1::2] - guess) ** 2).mean() / y.var())
    return 1.0 - rest


def _constant(dataset: Dataset) -> list[Finding]:
    obs = dataset.transitions.obs
    if len(obs) < 2:
        return []
    _, spread = moments(obs)
    still = torch.stack([(obs[part] == obs[0]).all(0) for part in parts(len(obs))]).all(0)
    small = ~still & (spread < UNSEEN)

    def named(which: Tensor) -> str:
        indices = which.nonzero().flatten().tolist()
        return ", ".join(_name(dataset.spec.obs_names, "obs", i) for i in indices[:10])

    findings = []
    if still.any():
        text = f"{named(still)} never changes: leave it out, or check how it was recorded"
        findings.append(warning(text))
    if small.any():
        findings.append(
            warning(
                f"{named(small)} varies by less than {UNSEEN:g}, which learners take for constant: "
                "give it in another unit"
            )
        )
    return findings


def unit_of_reward(dataset: Dataset) -> list[Finding]:
    """A warning where rewards are of another size than that for which settings are made."""
    reward = dataset.transitions.reward
    most = float(reward.abs().max())
    typical = sum(float(reward[p].double().abs().sum()) for p in parts(len(reward))) / len(reward)
    if most == 0 or (most >= SMALL_REWARD and typical <= LARGE_REWARD):
        return []
    power = 10.0 ** round(-math.log10(most if most < SMALL_REWARD else typical))
    given = (
        f"no reward is beyond {most:.3g}"
        if most < SMALL_REWARD
        else (f"rewards are {typical:.3g} on average")
    )
    return [
        warning(
            f"{given}: the settings of most learners are made for rewards near 1, and what they "
            f"learn depends on the unit: multiply rewards by {power:g}"
        )
    ]


def action_coverage(dataset: Dataset) -> dict[str, Any]:
    """Shares of discrete actions, or range and spread of each component; and `local_spread`, the
    standard deviation of the actions taken at the nearest observations against that of all
    (discrete: the share of pairs that differ, among neighbours against among all)."""
    rows = dataset.transitions
    pick = np.unique(np.linspace(0, len(rows) - 1, ROWS).astype(int))
    obs = rows.obs[pick].cpu().numpy().astype(np.float64)
    action = rows.action[pick].cpu().numpy()
    scale = obs.std(axis=0)
    near = min(NEIGHBOURS, len(pick) - 1)
    result: dict[str, Any] = {"neighbours": near}
    if near < 1:
        return result | {"local_spread": 0.0} | _actions(dataset)
    places = obs / np.where(scale > 0, scale, 1.0)
    index = Neighbours(places).nearest(places, near + 1)
    own = np.arange(len(pick))[:, None]
    last = np.argsort(index == own, axis=1, kind="stable")  # among equal ones it may be missing
    others = np.take_along_axis(index, last, 1)[:, :near]
    there = action[np.hstack([own, others])]  # [N, near + 1] or [N, near + 1, A], itself first
    if dataset.spec.discrete:
        shares = np.bincount(action, minlength=int(dataset.spec.num_actions or 0)) / len(action)
        apart = float((there[:, 1:] != there[:, :1]).mean())
        overall = 1.0 - float((shares**2).sum())
    else:
        apart = float(np.sqrt((there.var(axis=1, ddof=1) / _variance(action)).mean()))
        overall = 1.0
    return result | {"local_spread": apart / overall if overall > 0 else 0.0} | _actions(dataset)


def _variance(action: np.ndarray) -> np.ndarray:
    variance = action.var(axis=0, ddof=1)
    return np.where(variance > 0, variance, 1.0)


def _actions(dataset: Dataset) -> dict[str, Any]:
    action = dataset.transitions.action
    if dataset.spec.discrete:
        counts = action.bincount(minlength=int(dataset.spec.num_actions or 0))
        return {"shares": (counts / len(action)).tolist()}
    low, high = action.min(0).values.tolist(), action.max(0).values.tolist()
    return {"low": low, "high": high, "std": action.std(0, correction=0).tolist()}
