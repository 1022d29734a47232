"""Whether new data are like those that a policy was trained on: every column by the two-sample
Kolmogorov-Smirnov statistic, ranges, labels, missing values, and the out-of-data score."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from mbrl.data.out_of_data import OutOfData
from mbrl.data.shared_encoding import SharedLog
from mbrl.errors import DataError
from mbrl.types import Dataset

STATISTIC = 0.1  # largest difference of two distribution functions (or of shares of actions)
P_VALUE = 0.01  # and it must be unlikely between two samples of one distribution
OUTSIDE = 0.01  # share of values outside the range of the training data
MISSING = 0.05  # difference of the shares of missing cells
BEYOND = 0.05  # share of observations whose out-of-data score is above 1


@dataclass(frozen=True)
class Column:
    """A column then and now. `statistic`: the largest difference of the two distribution functions
    (discrete actions: half the sum of differences of shares), with its `p_value`; `outside`: share
    of new values outside the range of the training data; means, and shares of missing cells (None
    where they are not known); `reasons` why it drifted, empty where it did not."""

    name: str
    kind: str  # "observation" or "action"
    statistic: float
    p_value: float
    outside: float
    mean_before: float | None
    mean_now: float | None
    missing_before: float | None = None
    missing_now: float | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drift:
    """The comparison; `out_of_data` is the share of new observations above 1, `drifted` names what
    changed, `sentence` says it."""

    rows_before: int
    rows_now: int
    rows_left_out: int
    columns: tuple[Column, ...]
    out_of_data: float
    drifted: tuple[str, ...]
    sentence: str
    new_labels: dict[str, dict[str, float]] = field(default_factory=dict)
    gone_labels: dict[str, list[str]] = field(default_factory=dict)
    action_shares: dict[str, tuple[float, float]] = field(default_factory=dict)


def compare(reference: Dataset, new: Dataset | SharedLog, score: OutOfData) -> Drift:
    """`new` against the data `reference` that a policy was trained on, whose out-of-data score is
    `score`. Raises `DataError` where observations or actions are not the same things."""
    log = new if isinstance(new, SharedLog) else None
    now = new.dataset if isinstance(new, SharedLog) else new
    _require_same(reference, now)
    columns = [*_observations(reference, now, log), *_actions(reference, now)]
    beyond = float((score(now.transitions.obs.cpu()) > 1).double().mean())
    drifted = [column.name for column in columns if column.reasons]
    labels = {} if log is None else log.new_labels
    drifted += [f"{name} (new labels)" for name in labels]
    if beyond > BEYOND:
        drifted.append("out-of-data score")
    return Drift(
        len(reference),
        len(now) if log is None else log.rows,
        0 if log is None else max(0, log.rows - len(now)),
        tuple(columns),
        beyond,
        tuple(drifted),
        _sentence(drifted, len(columns), beyond, now),
        labels,
        {} if log is None else log.gone_labels,
        _shares(reference, now),
    )


def _require_same(reference: Dataset, now: Dataset) -> None:
    mine, theirs = reference.spec, now.spec
    sizes = [(s.obs_dim, s.action_dim, s.num_actions) for s in (mine, theirs)]
    if sizes[0] != sizes[1]:
        raise DataError(
            f"{now.provenance.card} has (obs_dim, action_dim, num_actions) {sizes[1]}, the data of "
            f"the run {sizes[0]}; compare data of the same task"
        )
    for before, after in ((mine.obs_names, theirs.obs_names), (mine.action_names,
                                                               theirs.action_names)):  # fmt: skip
        if before and after and before != after:
            raise DataError(
                f"{now.provenance.card} holds {', '.join(after)}, the data of the run "
                f"{', '.join(before)}; give the log itself, which is then read as that of the run "
                "was"
            )


def _observations(reference: Dataset, now: Dataset, log: SharedLog | None) -> list[Column]:
    names = reference.spec.obs_names or tuple(f"obs[{i}]" for i in range(reference.spec.obs_dim))
    described = (reference.provenance.log or {}).get("obs", [])
    before, after = (d.transitions.obs.cpu().double().numpy() for d in (reference, now))
    columns = []
    for i, name in enumerate(names):
        missing: tuple[float, float] | None = None
        entry = described[i] if i < len(described) else {}
        if log is not None and entry.get("kind", "number") == "number":
            flags = [k for k, e in enumerate(described)
                     if e["column"] == entry["column"] and e.get("kind") == "missing"]  # fmt: skip
            known = float(before[:, flags[0]].mean()) if flags else 0.0
            missing = known, log.missing[entry["column"]]
        columns.append(_column(name, "observation", before[:, i], after[:, i], missing))
    return columns


def _actions(reference: Dataset, now: Dataset) -> list[Column]:
    before, after = (d.transitions.action.cpu().numpy() for d in (reference, now))
    if not reference.spec.discrete:
        size = reference.spec.action_dim
        names = reference.spec.action_names or tuple(f"action[{i}]" for i in range(size))
        return [_column(n, "action", before[:, i], after[:, i]) for i, n in enumerate(names)]
    count = int(reference.spec.num_actions or 0)
    counts = np.stack([np.bincount(a, minlength=count) for a in (before, after)])
    shares = counts / counts.sum(1, keepdims=True)
    apart = float(np.abs(shares[0] - shares[1]).sum() / 2)
    table = counts[:, counts.sum(0) > 0]
    p_value = float(stats.chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0
    outside = float(shares[1][counts[0] == 0].sum())
    reasons = _reasons(apart, p_value, outside, None, "shares differ")
    return [Column("action", "action", apart, p_value, outside, None, None, reasons=reasons)]


def _shares(reference: Dataset, now: Dataset) -> dict[str, tuple[float, float]]:
    """Shares of discrete actions then and now."""
    spec = reference.spec
    if not spec.discrete:
        return {}
    count = int(spec.num_actions or 0)
    names = spec.action_names or tuple(map(str, range(count)))
    before, after = (
        (d.transitions.action.bincount(minlength=count) / len(d)).tolist() for d in (reference, now)
    )
    return {n: (a, b) for n, a, b in zip(names, before, after, strict=True)}


def _column(
    name: str,
    kind: str,
    before: np.ndarray,
    after: np.ndarray,
    missing: tuple[float, float] | None = None,
) -> Column:
    result: Any = stats.ks_2samp(before, after, method="asymp")
    statistic, p_value = float(result.statistic), float(result.pvalue)
    outside = float(((after < before.min()) | (after > before.max())).mean())
    before_missing, now_missing = missing or (None, None)
    return Column(
        name, kind, statistic, p_value, outside, float(before.mean()), float(after.mean()),
        before_missing, now_missing, _reasons(statistic, p_value, outside, missing),
    )  # fmt: skip


def _reasons(
    statistic: float,
    p_value: float,
    outside: float,
    missing: tuple[float, float] | None,
    what: str = "distribution differs",
) -> tuple[str, ...]:
    reasons = []
    if statistic > STATISTIC and p_value < P_VALUE:
        reasons.append(f"{what} by {statistic:.2f}")
    if outside > OUTSIDE:
        reasons.append(f"{outside:.1%} outside the trained range")
    if missing is not None and abs(missing[1] - missing[0]) > MISSING:
        reasons.append(f"missing in {missing[1]:.1%}, before in {missing[0]:.1%}")
    return tuple(reasons)


def _sentence(drifted: list[str], count: int, beyond: float, now: Dataset) -> str:
    share = f"{beyond:.1%} of the observations are outside the data (about 1% is usual)"
    if not drifted:
        return (
            f"Like the training data: none of {count} columns of {now.provenance.card} drifted, "
            f"and {share}."
        )
    shown = ", ".join(drifted[:8]) + (f" and {len(drifted) - 8} more" if len(drifted) > 8 else "")
    return (
        f"Not like the training data: {shown} drifted, and {share}. The policy was not trained on "
        "data like these; value it on them, or train again, before it acts."
    )
