"""Rows of a dataset, and, once the agent acts, of its own experience: the replay buffer."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from mbrl.buffer import Batch, Buffer, Rows, resized
from mbrl.collector import CollectorConfig
from mbrl.errors import ConfigError
from mbrl.logged_table import rows_of
from mbrl.training import Metrics
from mbrl.types import Dataset, Spec, Transitions

Columns = Callable[[Transitions], dict[str, torch.Tensor]]


def broken_off(before: Transitions, data: Transitions) -> Tensor:
    """[E] bool: where `data`, a row of each copy of the task, does not go on from the rows
    `before` it."""
    # Within an episode a row's next observation is the next row's own, bit for bit: the collector
    # hands on what it saw. A tolerance would need the unit of each entry, and the smallest
    # difference that matters in it.
    broken: Tensor = (before.next_obs != data.obs).any(-1)
    return broken


class LoggedRows:
    """Uniform batches of logged rows, or by the rows' weights where they have any. Online,
    experience joins them in a ring of `collection.capacity` rows, the logged data being its first;
    with a `collection.logged_share` the ring has experience alone, and that share of every batch,
    rounded, is logged rows.

    `normalise_rewards` multiplies rewards by `return_scale` of the data. `widths` and `columns` are
    further columns of the buffer, and how they follow from rows in time order.
    """

    model: Any = None
    learned: Any = None  # the world model, if it is fitted to the data
    mixes = True  # whether `collection.logged_share` is kept to

    def __init__(
        self,
        spec: Spec,
        gamma: float,
        batch_size: int,
        device: torch.device,
        *,
        collection: CollectorConfig | None = None,
        normalise_rewards: bool = False,
        widths: Mapping[str, int] | None = None,
        columns: Columns | None = None,
    ) -> None:
        self.spec, self.gamma, self.batch_size, self.device = spec, gamma, batch_size, device
        self.collection = collection or CollectorConfig()
        self.normalise_rewards, self.widths, self.columns = normalise_rewards, widths, columns
        self.buffer: Rows | None = None
        self.kept: Buffer | None = None  # the logged rows, where experience is apart from them
        self.logged = 0
        self.online = False  # whether the buffer holds experience
        self.reward_scale = 1.0
        self.waiting: Transitions | None = None  # rows whose columns need the step after them

    @classmethod
    def of(cls, spec: Spec, config: Any, device: torch.device) -> "LoggedRows":
        """With `gamma`, `batch_size` and, where it has it, `normalise_rewards` of `config`."""
        scaled = getattr(config, "normalise_rewards", False)
        return cls(spec, config.gamma, config.batch_size, device, normalise_rewards=scaled)

    @property
    def rows(self) -> Rows:
        """What batches are drawn from. Raises `ConfigError` while there is none."""
        if self.buffer is None:
            raise ConfigError(
                "the agent has no data yet; call fit(dataset, steps), prepare(dataset) or "
                "learn(task, steps)"
            )
        return self.buffer

    @property
    def empty(self) -> bool:
        """Whether logged rows were left behind and no experience has joined yet, because its
        columns wait for later steps: then there is nothing to learn from."""
        return self.online and self.kept is None and len(self.rows) == 0

    @property
    def least_experience(self) -> int:
        """Rows of experience before the first update: what a batch takes of them, where they are
        apart from the logged rows; else 0, since the logged rows are there."""
        share = self.collection.logged_share
        if share is None:
            return 0
        rows = self.batch_size - round(share * self.batch_size)
        return min(rows, self.collection.capacity)

    def allows(self, collection: CollectorConfig) -> None:
        """Raises `ConfigError` for settings that experience which has begun cannot follow."""
        if not self.online:
            return
        now = self.collection
        for name, fits in (
            ("capacity", collection.capacity == now.capacity),
            ("logged_share", collection.logged_share == now.logged_share
             or (self.kept is not None and collection.logged_share is not None)),
        ):  # fmt: skip
            if not fits:
                raise ConfigError(
                    f"collection.{name} is {getattr(collection, name)}, and the agent gathered its "
                    f"experience with {getattr(now, name)}; keep that, or begin with an agent that "
                    "has not acted"
                )

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Put the dataset on the device, unless there are rows. Raises `ConfigError` where rewards
        cannot be normalised."""
        if self.buffer is not None:
            return
        data = dataset.transitions
        if self.normalise_rewards:
            self.reward_scale = return_scale(drawn_episodes(data))
        self.buffer, self.logged = self.to_buffer(data), len(data)

    def to_buffer(self, data: Transitions) -> Rows:
        """Exactly the rows of `data` on the device, rewards times `reward_scale`; on the CPU they
        are `data` themselves and not a copy."""
        return rows_of(
            self.spec,
            data,
            self.gamma,
            self.device,
            columns=self.widths,
            values=self._values(data),
            reward_scale=self.reward_scale,
        )

    def _values(self, data: Transitions) -> dict[str, Tensor]:
        """The further columns of `data`."""
        values = {} if self.columns is None else dict(self.columns(data))
        if "next_unknown" in (self.widths or {}) and data.next_known is not None:
            values["next_unknown"] = ~data.next_known
        return values

    def _append(self, data: Transitions, every: int = 1) -> None:
        columns = self._values(data)
        rows = data if every == 1 else data.select(slice(None, None, every))
        if self.reward_scale != 1:
            rows = replace(rows, reward=rows.reward * self.reward_scale)
        self._ring.append(rows, **{name: value[::every] for name, value in columns.items()})

    @property
    def _ring(self) -> Buffer:
        assert isinstance(self.rows, Buffer)
        return self.rows

    def observe(self, data: Transitions, step: int) -> None:
        """Add one row of each copy of the task. Where columns look one step ahead, a row joins when
        the next one of its copy is there."""
        if not self.online:
            self.begin_experience()
        if self.columns is None:
            return self._append(data)
        data = data.to(self.device)  # of a task that may lie elsewhere than the rows of a file
        before, self.waiting = self.waiting, data
        if before is not None and len(before) == len(data):
            # Where another collector began in between, the row has no next one.
            broken = broken_off(before, data)
            before = replace(before, truncated=before.truncated | (broken & ~before.terminated))
            self._append(interleaved(before, data), every=2)

    def begin_experience(self) -> None:
        """Make room for experience, behind the logged rows or apart from them. Raises
        `ConfigError` where the logged rows have weights and would stay."""
        share = self.collection.logged_share
        if share != 0 and self.buffer is not None and self.buffer.weighted:
            raise ConfigError(
                "the logged rows have weights (imagined ones among them, say), and a replay buffer "
                "draws all rows alike; leave the logged rows behind with logged_share 0, or train "
                "without weights before the agent acts"
            )
        self.online = True
        if share is not None and self.buffer is not None:
            if share > 0:
                self.kept = resized(self.buffer, len(self.buffer))
            self.buffer = None
        if self.buffer is None:
            self.buffer = Buffer(
                self.spec, self.collection.capacity, self.gamma, self.device, self.widths
            )
        else:
            self._warn_of_room(len(self.buffer))
            self.buffer = resized(self.buffer, self.collection.capacity)

    def _warn_of_room(self, logged: int) -> None:
        room = self.collection.capacity
        if room < logged:
            warnings.warn(
                f"collection.capacity is {room}, and there are {logged} logged rows: the first "
                f"{logged - room} are forgotten as experience begins; give a larger one to keep "
                "them",
                stacklevel=4,
            )

    def advance(self, step: int, generator: torch.Generator) -> Metrics:
        return {}

    def sample(self, generator: torch.Generator) -> Batch:
        """A uniform batch, or one with the share of logged rows. (While no experience is there
        yet, all are logged.)"""
        if self.kept is None:
            return self.rows.sample(self.batch_size, generator)
        count = round((self.collection.logged_share or 0.0) * self.batch_size)
        if len(self.rows) == 0:
            count = self.batch_size
        parts = [self.kept.sample_rows(count, generator)]
        if count < self.batch_size:
            parts.append(self.rows.sample_rows(self.batch_size - count, generator))
        return self.rows.batch(torch.cat(parts))

    def state_dict(self) -> dict[str, Any]:
        """Experience, logged rows included; without experience the dataset is not kept."""
        return {
            "experience": self._ring.state_dict() if self.online else None,
            "logged": self.logged if self.online else 0,
            **({} if self.kept is None else {"kept": self.kept.state_dict()}),
            "reward_scale": self.reward_scale,
            "waiting": None if self.waiting is None else asdict(self.waiting),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reward_scale = state.get("reward_scale", 1.0)
        if state.get("experience") is None:
            return
        self.logged = state.get("logged", 0)
        self.buffer = self.kept = None
        self.begin_experience()
        self._ring.load_state_dict(state["experience"])
        if "kept" in state:
            self.kept = Buffer(self.spec, self.logged, self.gamma, self.device, self.widths)
            self.kept.load_state_dict(state["kept"])
        waiting = state.get("waiting")
        self.waiting = None if waiting is None else Transitions(**waiting).to(self.device)


def interleaved(first: Transitions, second: Transitions) -> Transitions:
    """The rows [E] of two steps as episodes of two rows each, copy after copy."""
    values = {}
    for name in Transitions.__dataclass_fields__:
        one, other = getattr(first, name), getattr(second, name)
        if one is not None and other is not None:
            values[name] = torch.stack([one, other], 1).flatten(0, 1)
    return Transitions(**values)


def drawn_episodes(data: Transitions) -> Transitions:
    """The episodes of `data` of which at least one row has a weight above 0."""
    if data.weight is None:
        return data
    spans = [(a, b) for a, b in data.episodes() if bool((data.weight[a:b] > 0).any())]
    return data.select(torch.cat([torch.arange(a, b) for a, b in spans]))


def return_scale(data: Transitions) -> float:
    """1000 over the range of the episodes' returns: what IQL's authors multiply the rewards of
    D4RL's locomotion by. Raises `ConfigError` where all returns are the same."""
    returns = data.returns()
    width = float(returns.max() - returns.min())
    if width == 0:
        raise ConfigError(
            f"all {len(returns)} episodes of the data have the return {float(returns[0]):g}, whose "
            "range rewards cannot be normalised by; set normalise_rewards to False"
        )
    return 1000.0 / width
