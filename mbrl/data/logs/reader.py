"""A table and its `LogSchema` become the columns of a dataset, or a list of everything that is
wrong with them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from mbrl.data.assemble import following_rows
from mbrl.data.columns import Columns, Options
from mbrl.data.issues import Finding, error, note, warning
from mbrl.data.logs import encoding, expression
from mbrl.data.logs import table as tables
from mbrl.data.logs.schema import LogSchema, expand, listing
from mbrl.data.logs.table import Table
from mbrl.data.task_spec import bound, given_spec
from mbrl.errors import ConfigError, DataError, unknown_name
from mbrl.types import Spec

FILL_IN = "Fill it in, or drop those rows"


@dataclass(frozen=True)
class Log:
    """What a table holds: columns in time order, the spec with the names of their entries, how
    they were encoded (plain values, for `Provenance.log`), and the findings on the way. `columns`
    and `spec` are None where one of the findings is an error."""

    columns: Columns | None
    spec: Spec | None
    description: dict[str, Any]
    findings: list[Finding]


def read_log(
    table: Table, schema: LogSchema, options: Options, description: dict[str, Any] | None = None
) -> Log:
    """Read `table` as `schema` says. With the `description` of an earlier log, entries, labels and
    bounds are those of that one, so that the two can be compared."""
    reading = _Reading(table, schema, options, description or {})
    steps = (
        reading.choose, reading.sort, reading.end, reading.observe, reading.act, reading.reward,
        reading.finish,
    )  # fmt: skip
    for step in steps:
        step()
        if reading.blocked:
            break
    findings = reading.findings
    if reading.failed:
        return Log(None, None, {}, findings)
    return Log(reading.columns, reading.spec, reading.described(), findings)


@dataclass
class _Reading:
    """The steps of `read_log`: each adds its findings and goes on where it can, so that one look
    shows all that is wrong. A step that leaves nothing to go on with sets `blocked`."""

    table: Table
    schema: LogSchema
    options: Options
    known: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    blocked: bool = False
    columns: Columns = field(default_factory=Columns)
    spec: Spec | None = None
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    entries: list[encoding.Entry] = field(default_factory=list)
    actions: encoding.Actions | None = None

    @property
    def failed(self) -> bool:
        return any(f.severity == "error" for f in self.findings)

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Turn a `DataError` or `ConfigError` into a finding."""
        try:
            yield
        except (DataError, ConfigError) as problem:
            self.findings.append(error(str(problem)))

    def put(self, **columns: Any) -> None:
        self.columns = replace(self.columns, **columns)

    def choose(self) -> None:
        """Which columns are what."""
        every, schema = list(self.table), self.schema
        for option in ("obs", "action", "next_obs", "categorical"):
            with self.trying():
                self.names[option] = expand(option, getattr(schema, option), every)
        for option in ("episode", "order", "behaviour_prob"):
            name = getattr(schema, option)
            if name is not None and name not in every:
                with self.trying():
                    expand(option, [name], every)
        for option in ("obs", "action"):
            if not getattr(schema, option):
                text = f"no {option} columns are named; the columns are {listing(every)}"
                self.findings.append(error(f"{text}. Name them with --{option}"))
        both = set(self.names.get("obs", ())) & set(self.names.get("action", ()))
        if both:
            text = f"{listing(sorted(both))}: both obs and action; an observation comes before"
            self.findings.append(error(f"{text} the action and cannot hold it"))
        if self.names.get("next_obs") and len(self.names["next_obs"]) != len(self.names["obs"]):
            counts = f"{len(self.names['next_obs'])} columns, obs {len(self.names['obs'])}"
            self.findings.append(error(f"next_obs has {counts}; give one for each, in order"))
        rows = len(next(iter(self.table.values()), ()))
        if rows == 0:
            self.findings.append(error("the log has no rows"))
        if set(self.names.get("obs", ())) & {schema.reward}:
            text = (
                f"obs holds the reward {schema.reward} of the same row, which is known only after"
            )
            self.findings.append(warning(f"{text} acting"))
        self.blocked = self.failed
        for column in schema.unit_of():
            if column not in every:
                raise unknown_name("column of units", column, every)
        used = {n for names in self.names.values() for n in names}
        used |= {schema.reward, schema.episode or "", schema.order or "", schema.terminated or ""}
        used |= {schema.truncated or "", schema.behaviour_prob or ""}
        texts = (schema.reward, schema.terminated or "", schema.truncated or "")
        left = [n for n in every if n not in used and not any(n in text for text in texts)]
        if left:
            self.findings.append(
                note(f"columns left aside, as no option names them: {listing(left)}")
            )

    def sort(self) -> None:
        """Episode after episode, each in order of time; `duration` where a step has a length."""
        count = len(next(iter(self.table.values())))
        if self.schema.episode is None:
            episode = np.zeros(count, dtype=np.int64)
            flags = self.schema.terminated or self.schema.truncated
            text = "the end flags alone divide the log" if flags else "the whole log is one episode"
            self.findings.append(note(f"no episode column: {text}"))
        else:
            cells = tables.labels(self.table[self.schema.episode])
            if self._missing("episode", tables.is_missing(self.table[self.schema.episode])):
                return
            _, place, which = np.unique(cells.astype(str), return_index=True, return_inverse=True)
            episode = place[which.reshape(-1)]  # numbered by first row, so that order is kept
        if self.schema.order is None:
            self._require_grouped(episode)
            self.put(episode=episode)
            return
        with self.trying():
            when = tables.times(f"order {self.schema.order}", self.table[self.schema.order])
            if self._missing("order", np.isnan(when)):
                return
            by = np.lexsort((when, episode))
            self.table = {name: column[by] for name, column in self.table.items()}
            episode, when = episode[by], when[by]
            self.put(episode=episode)
            self._durations(episode, when)
        self.blocked = self.failed

    def _require_grouped(self, episode: np.ndarray) -> None:
        change = np.flatnonzero(episode[1:] != episode[:-1]) + 1
        starts = np.concatenate([[0], change])
        if len(np.unique(episode[starts])) < len(starts):
            seen, back = set(), 0
            for row in starts:
                if episode[row] in seen:
                    back = int(row)
                    break
                seen.add(episode[row])
            name = tables.labels(self.table[str(self.schema.episode)])[back]
            text = f"episode {name!r} comes back in row {back}: rows are not grouped by episode"
            self.findings.append(error(f"{text}. Name the time column with --order", back))
            self.blocked = True

    def _durations(self, episode: np.ndarray, when: np.ndarray) -> None:
        """Refuse equal times; time to the next row in steps, or a warning where steps differ."""
        inside = episode[1:] == episode[:-1]
        gaps = (when[1:] - when[:-1])[inside]
        if len(gaps) == 0:
            return
        equal = np.zeros(len(when), dtype=bool)
        equal[:-1] = inside & (when[1:] == when[:-1])
        if equal.any():
            row = int(np.argmax(equal))
            text = f"{self.schema.order} is the same in two rows of an episode (rows {row} and "
            text += f"{row + 1} of the sorted log); {int(equal.sum())} such pairs"
            self.findings.append(
                error(f"{text}. Drop repeated rows, or order by a finer time", row)
            )
            return
        if self.schema.step is not None:
            dates = tables.has_dates(self.table[str(self.schema.order)])
            length = tables.step_length(self.schema.step, dates)
            # Of last rows, whose own nobody recorded, the median.
            duration = np.full(len(when), np.median(gaps) / length)
            duration[:-1][inside] = gaps / length
            if np.abs(duration - 1).max() > 1e-6:
                self.put(duration=duration)
            low, mid, high = np.min(gaps), np.median(gaps), np.max(gaps)
            text = (
                f"steps last {low / length:.3g} to {high / length:.3g} (median {mid / length:.3g})"
            )
            text += f" in units of {self.schema.step}: discounted by time"
            if self.names["next_obs"]:
                text += "; last rows of episodes, whose length is not known, last the median"
            self.findings.append(note(text))
        elif gaps.max() > 1.5 * np.median(gaps) or gaps.min() < 0.5 * np.median(gaps):
            text = f"times between rows differ: {gaps.min():.4g} to {gaps.max():.4g}, median "
            text += f"{np.median(gaps):.4g}; each row counts as one step"
            self.findings.append(
                warning(f"{text}. --step LENGTH discounts by the time that passed")
            )

    def _missing(self, option: str, bad: np.ndarray, remedy: str = FILL_IN) -> bool:
        if bad.any():
            row = int(np.argmax(bad))
            text = f"{option} is missing in {int(bad.sum())} of {len(bad)} rows, first in row {row}"
            self.findings.append(error(f"{text}. {remedy}", row, bad))
            self.blocked = True
        return bool(bad.any())

    def observe(self) -> None:
        """Observations, with a name for each entry."""
        impute, episode = self.schema.missing == "impute", self.columns.need("episode")
        categorical = self.names["categorical"]
        with self.trying():
            fixed = self.known.get("obs")
            self.entries = (
                [encoding.Entry(**entry) for entry in fixed]
                if fixed
                else encoding.fit_entries(self.names["obs"], self.table, categorical, impute=impute)
            )
            self.put(obs=encoding.encode(self.entries, self.table, episode, rename={}))
            filled = {
                entry.column: int(tables.is_missing(self.table[entry.column]).sum())
                for entry in self.entries
                if entry.kind == "missing"
            }
            if any(filled.values()):
                counts = ", ".join(f"{name} {n}" for name, n in filled.items())
                self.findings.append(note(f"missing cells that were filled in: {counts}"))
            if self.names["next_obs"]:
                pairs = dict(zip(self.names["obs"], self.names["next_obs"], strict=True))
                after = encoding.encode(
                    self.entries,
                    self.table,
                    episode,
                    rename=pairs,
                    before=self.columns.need("obs"),
                )
                self.put(next_obs=after)
        if self.columns.obs is not None and self.schema.missing == "drop":
            self._drop_episodes()
        if self.columns.obs is not None:
            self._refuse_missing()

    def _drop_episodes(self) -> None:
        bad = np.isnan(self.columns.need("obs")).any(axis=1)
        episode = self.columns.need("episode")
        gone = np.isin(episode, np.unique(episode[bad]))
        if not gone.any():
            return
        text = f"{len(np.unique(episode[bad]))} of {len(np.unique(episode))} episodes dropped, as "
        text += f"an observation is missing in {int(bad.sum())} of their rows"
        self.findings.append(note(text))
        if gone.all():
            self.findings.append(error(f"{text}: no episode is left"))
            self.blocked = True
            return
        self.table = {name: column[~gone] for name, column in self.table.items()}
        arrays: dict[str, Any] = {
            name: array[~gone] for name, array in self.columns.arrays().items()
        }
        self.columns = replace(self.columns, **arrays)

    def _refuse_missing(self) -> None:
        """One error that counts the missing values of every column."""
        counts = {}
        for name in self.names["obs"]:
            bad = tables.is_missing(self.table[name])
            at = [i for i, e in enumerate(self.entries) if e.column == name]
            if bad.any() and np.isnan(self.columns.need("obs")[:, at]).any():
                counts[name] = int(bad.sum())
        if counts:
            text = ", ".join(f"{name} in {count}" for name, count in counts.items())
            self.findings.append(
                error(
                    f"observations are missing: {text} of {len(self.columns.need('obs'))} rows. "
                    "--missing impute fills them in and adds a column that says where; --missing "
                    "drop leaves those episodes out"
                )
            )

    def act(self) -> None:
        """Actions; those of rows that are dropped later may be missing."""
        action = self.known.get("action", {})
        with self.trying():
            discrete = self.options.discrete
            self.actions = encoding.read_actions(
                self.names["action"], self.table, self.names["categorical"], discrete,
                action.get("labels", ()),
            )  # fmt: skip
            if self.actions.note:
                self.findings.append(note(self.actions.note))
            self.put(action=self.actions.values)
        if self.schema.behaviour_prob is not None:
            with self.trying():
                name = self.schema.behaviour_prob
                self.put(behaviour_prob=tables.numbers(f"behaviour_prob {name}", self.table[name]))

    def end(self) -> None:
        """Where episodes end, and whether the task ended there."""
        first, last = self._edges()
        flags: dict[str, np.ndarray] = {}
        for option in ("terminated", "truncated"):
            text = getattr(self.schema, option)
            flags[option] = np.zeros(len(last), dtype=bool)
            if text is None:
                continue
            with self.trying():
                value = self._value(option, text, first, last)
                bad = (value != 0) & (value != 1)
                if bad.any():
                    row = int(np.argmax(bad))
                    raise DataError(
                        f"{option} is {value[row]:g} in row {row}; a flag is 0 or 1. An expression "
                        f"such as `{text}` > 0 makes one"
                    )
                flags[option] = value.astype(bool)
        self._inner_flags(flags, last)
        rest = last & ~flags["terminated"] & ~flags["truncated"]
        flags[self.schema.last_row] = flags[self.schema.last_row] | rest
        self.put(**flags)
        if self.schema.episode is None:
            ends = flags["terminated"] | flags["truncated"]
            self.put(episode=np.concatenate([[0], np.cumsum(ends)[:-1]]))
            if self.columns.duration is not None and not ends.all():  # up to the next episode
                duration = self.columns.duration.copy()
                duration[ends] = np.median(duration[~ends])
                self.put(duration=duration)
        if rest.any() and self.schema.terminated is None and self.schema.last_row == "truncated":
            text = f"nothing says where the task ended: all {int(rest.sum())} episodes count as cut"
            text += " off, so that what would have come after them counts too"
            self.findings.append(
                warning(f"{text}. --terminated COLUMN, or --last-row terminated, says otherwise")
            )

    def _value(self, option: str, text: str, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """A column or expression [N], with a warning for texts in it that no cell has."""
        absent: list[str] = []
        value = expression.evaluate(option, text, self.table, first, last, absent)
        self.findings += map(warning, absent)
        return value

    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        """[N] bool each: the first and the last row of every episode."""
        episode = self.columns.need("episode")
        change = episode[1:] != episode[:-1]
        return np.concatenate([[True], change]), np.concatenate([change, [True]])

    def _inner_flags(self, flags: dict[str, np.ndarray], last: np.ndarray) -> None:
        if self.schema.episode is None:
            return  # the flags alone say where episodes end
        for option, flag in flags.items():
            inner = flag & ~last
            if inner.any():
                row, text = int(np.argmax(inner)), getattr(self.schema, option)
                self.findings.append(
                    error(
                        f"{option} ({text}) is set in row {row}, where the episode goes on; "
                        f"{int(inner.sum())} such rows. If the column holds the outcome of the "
                        f"whole episode, say --{option} 'last and `{text}`'",
                        row,
                    )
                )

    def reward(self) -> None:
        with self.trying():
            first, last = self._edges()
            self.put(reward=self._value("reward", self.schema.reward, first, last))

    def finish(self) -> None:
        """Next observations, then what must not be missing in the rows that are left."""
        if self.columns.obs is None:
            return
        with self.trying():
            if self.columns.next_obs is None:
                self.columns, text = following_rows(self.columns, "the log")
                self.findings.append(note(text))
            else:
                self._known_next()
            self._require_values()
            self.put(episode=None)  # the flags say it now
            if not self.failed:
                self.spec = self._make_spec()

    def _known_next(self) -> None:
        """A terminated row needs no next observation."""
        after, obs = self.columns.need("next_obs"), self.columns.need("obs")
        unknown = np.isnan(after).any(axis=1)
        self._missing("next_obs", unknown & ~self.columns.need("terminated"))
        if unknown.any():
            after = np.where(unknown[:, None], obs, after)
            self.put(next_obs=after, next_known=~unknown)

    def _require_values(self) -> None:
        remedies = {}
        if "next(" in self.schema.reward:
            remedies["reward"] = (
                "next(x) has no value on the last row of an episode; fill(next(x), 0) gives it one"
            )
        checks: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "reward": np.isnan,
            "behaviour_prob": np.isnan,
            "action": lambda a: a < 0 if a.ndim == 1 else np.isnan(a).any(axis=1),
        }
        for option, missing in checks.items():
            column = getattr(self.columns, option)
            if column is not None:
                self._missing(option, missing(column), remedies.get(option, FILL_IN))

    def _make_spec(self) -> Spec:
        """The task's spec, or one with the bounds that the caller or the data give."""
        assert self.actions is not None
        names = tuple(entry.name for entry in self.entries)
        spec = given_spec(self.options)
        if spec is not None:
            if spec.obs_dim != len(names):
                raise DataError(
                    f"task {spec.task!r} has {spec.obs_dim} observations, the log has "
                    f"{len(names)}: {listing(names)}"
                )
            return replace(spec, obs_names=names)
        common: dict[str, Any] = {
            "task": "file", "obs_dim": len(names), "obs_names": names,
            "max_episode_steps": self.options.horizon,
        }  # fmt: skip
        if self.actions.labels:
            labels = self.actions.labels
            if self.options.action_low is not None or self.options.action_high is not None:
                raise ConfigError(
                    f"bounds are given and actions are discrete ({listing(labels)}); leave out "
                    "--action-low and --action-high, or say --discrete False"
                )
            return Spec(num_actions=len(labels), action_names=labels, **common)
        low, high = self._bounds()
        return Spec(
            action_dim=len(low), action_low=low, action_high=high,
            action_names=self.names["action"], **common,
        )  # fmt: skip

    def _bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        action, columns = self.columns.need("action"), self.names["action"]
        width, known = action.shape[1], self.known.get("action", {})
        low = bound(self.options.action_low, width) or tuple(known.get("low", ()))
        high = bound(self.options.action_high, width) or tuple(known.get("high", ()))
        seen = (tuple(action.min(axis=0).tolist()), tuple(action.max(axis=0).tolist()))
        taken = [end for end, given in (("low", low), ("high", high)) if not given]
        low, high = low or seen[0], high or seen[1]
        if taken:
            ranges = zip(columns, low, high, strict=True)
            text = ", ".join(f"{name} {a:.6g} to {b:.6g}" for name, a, b in ranges)
            what = "action bounds" if len(taken) == 2 else f"the {taken[0]} action bound"
            options = ", ".join(f"--action-{end}" for end in taken)
            self.findings.append(note(f"{what} taken from the log: {text}; {options} set others"))
        for name, a, b in zip(columns, low, high, strict=True):
            if not a < b:
                raise DataError(
                    f"action {name} is {a:.6g} in every row; with one action there is nothing to "
                    "choose. Leave the column out, or give its bounds"
                )
        return low, high

    def described(self) -> dict[str, Any]:
        """How the columns were encoded, as plain values."""
        assert self.spec is not None and self.actions is not None
        plain = {k: v for k, v in asdict(self.schema).items() if v != getattr(LogSchema(), k)}
        action: dict[str, Any] = {"columns": list(self.names["action"])}
        if self.actions.labels:
            action["labels"] = list(self.actions.labels)
        else:
            action |= {"low": list(self.spec.action_low), "high": list(self.spec.action_high)}
        return {
            "schema": {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()},
            "obs": [entry.to_dict() for entry in self.entries],
            "action": action,
            "units": self.schema.unit_of(),
        }
