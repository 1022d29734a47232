"""Transitions in the form the learners use: one flat row each, actions scaled to [-1, 1], the end
of the task turned into a discount; stored so in a ring on the device."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mbrl.errors import ConfigError, DataError
from mbrl.networks import ActionScale
from mbrl.types import Spec, Transitions


class Batch(NamedTuple):
    """Rows for one update. `obs`, `next_obs` [B, S]; `action` [B, A] in [-1, 1] (int64 [B] where
    discrete); `reward` [B]; `discount` [B] = gamma * (1 - terminated); `noise` [K, B, A] standard
    normal draws for the policy samples of the update (K of them), or None; `subset` [k] the
    target critics of a min-of-k update, or None; `shift` [K, S] uniform draws from -1 to 1 that all
    observations of an update are moved along, or None.

    Columns that some algorithms add: `next_action` [B, A], the logged action at `next_obs`, and
    `has_next` [B], 1 where there is one, else 0; `halted` [B], 1 where a pessimistic model ended
    the episode; `penalty` [B], what a target is lowered by; `expert` [B], 1 where the row is an
    expert's, else 0; `next_unknown` [B], 1 where what the last step of the task led to was not
    recorded, else 0; `to_go` [B], the discounted return from the row on; `ahead` [B], how many rows
    its episode has from the row on; `real`, how many rows were
    recorded (they come first) rather than imagined. `action_mask`, `next_action_mask` [B, n] bool
    say which discrete actions are allowed at `obs` and `next_obs`, in tasks that tell.

    Goals of relabelled rows (`algorithms.sources.relabelled`): `policy_goal` [B, G] what the policy
    is to reach; `waypoint` [B, S] the observation some steps on the way there, and `low_goal`
    [B, G] what is achieved after as many steps of the episode.

    Drawing the noise with the batch makes an update a pure function of state and batch.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    noise: Tensor | None = None
    subset: Tensor | None = None
    next_action: Tensor | None = None
    has_next: Tensor | None = None
    halted: Tensor | None = None
    penalty: Tensor | None = None
    expert: Tensor | None = None
    next_unknown: Tensor | None = None
    to_go: Tensor | None = None
    ahead: Tensor | None = None
    policy_goal: Tensor | None = None
    waypoint: Tensor | None = None
    low_goal: Tensor | None = None
    shift: Tensor | None = None
    action_mask: Tensor | None = None
    next_action_mask: Tensor | None = None
    real: int | None = None


MASKS = ("action_mask", "next_action_mask")


class Rows(ABC):
    """Rows to draw batches from.

    A row is [obs, action, reward, discount, next_obs, columns] of float32 numbers. Discrete actions
    are a number, exact in float32 below 2^24. `columns` are further fields of `Batch` by name, with
    their width (0: a number a row).
    """

    def __init__(self, spec: Spec, gamma: float, columns: Mapping[str, int] | None) -> None:
        self.spec, self.gamma = spec, gamma
        self.columns = dict(columns or {})
        if spec.action_mask:
            self.columns |= dict.fromkeys(MASKS, spec.num_actions or 0)

        further = [max(1, size) for size in self.columns.values()]
        self.sizes = [spec.obs_dim, spec.action_dim, 1, 1, spec.obs_dim, *further]
        self.width = sum(self.sizes)  # numbers in a row
        self._cumulative: Tensor | None = None  # of the rows' weights, the last is 1

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the rows are."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def gather(self, index: Tensor) -> Tensor:
        """Raw rows [B, width] at `index` [B]."""

    @abstractmethod
    def obs(self, index: Tensor) -> Tensor:
        """Observations [B, S] at `index` [B]."""

    @abstractmethod
    def whole(self) -> Batch:
        """All rows, in their order."""

    @property
    def weighted(self) -> bool:
        """Whether rows are drawn by weights of their own."""
        return self._cumulative is not None

    def weigh(self, weight: Tensor) -> None:
        """Draw row i with probability `weight` [N] i over the sum of all. Raises `DataError` for
        weights that are negative or not finite, or all 0."""
        total = weight.double().cumsum(0).to(self.device)
        if not bool((weight >= 0).all()) or not 0 < float(total[-1]) < torch.inf:
            raise DataError(
                f"weights of rows must be finite, 0 or more and not all 0; they are from "
                f"{float(weight.min()):g} to {float(weight.max()):g}"
            )
        self._cumulative = total / total[-1]

    def sample_index(self, count: int, generator: torch.Generator) -> Tensor:
        """Where `count` rows stand [count], with replacement, uniformly or by their weights."""
        if len(self) == 0:
            raise ConfigError("the buffer is empty; append transitions before sampling")
        if self._cumulative is not None:
            draw = torch.rand(
                count, generator=generator, device=self.device, dtype=self._cumulative.dtype
            )
            # The first row whose cumulative weight lies above: one of weight 0 never does.
            return torch.searchsorted(self._cumulative, draw, right=True)
        return torch.randint(len(self), (count,), generator=generator, device=self.device)

    def sample_rows(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` raw rows of `sample_index`."""
        return self.gather(self.sample_index(count, generator))

    def batch(self, rows: Tensor) -> Batch:
        """Split raw rows into the fields of a `Batch`."""
        obs, action, reward, discount, next_obs, *further = rows.split_with_sizes(self.sizes, 1)
        columns: dict[str, Any] = {}
        for (name, size), value in zip(self.columns.items(), further, strict=True):
            if name in MASKS:
                columns[name] = value > 0
            else:
                columns[name] = value.squeeze(1) if size == 0 else value
        return Batch(
            obs=obs,
            action=action.squeeze(1).long() if self.spec.discrete else action,
            reward=reward.squeeze(1),
            discount=discount.squeeze(1),
            next_obs=next_obs,
            **columns,
        )

    def sample(self, count: int, generator: torch.Generator) -> Batch:
        return self.batch(self.sample_rows(count, generator))

    def sample_obs(self, count: int, generator: torch.Generator) -> Tensor:
        """Start states [count, S]: without replacement where there are enough rows."""
        size, device = len(self), self.device
        if count <= size:
            return self.obs(torch.randperm(size, generator=generator, device=device)[:count])
        return self.obs(torch.randint(size, (count,), generator=generator, device=device))


class Buffer(Rows):
    """A ring of at most `capacity` rows in one contiguous tensor, so that a batch is one gather;
    `append` overwrites the oldest. `columns` that `append` is not given are 0."""

    def __init__(
        self,
        spec: Spec,
        capacity: int,
        gamma: float,
        device: torch.device | str = "cpu",
        columns: Mapping[str, int] | None = None,
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"buffer capacity is {capacity}, it must be at least 1")
        super().__init__(spec, gamma, columns)
        self.capacity = capacity
        self.rows = torch.zeros(capacity, self.width, device=device)
        self.size, self.position = 0, 0
        if not spec.discrete:
            self._centre, self._half = action_range(spec, device)

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def __len__(self) -> int:
        return self.size

    def append(self, data: Transitions, **columns: Tensor) -> None:
        """Add rows in order. More rows than the capacity keep the last `capacity` of them. Raises
        `DataError` where the task masks actions and `data` has no masks."""
        columns |= masks_of(data, self.spec)
        discount = data.discounts(self.gamma).to(self.rows.device)
        fields = [
            data.obs.to(self.rows),
            self._stored_action(data.action),
            data.reward.to(self.rows)[:, None],
            discount[:, None],
            data.next_obs.to(self.rows),
        ]
        for name, size in self.columns.items():
            value = columns.get(name, self.rows.new_zeros(len(data), max(1, size)))
            if name == "next_action":
                value = self._stored_action(value)
            fields.append(value.to(self.rows).reshape(len(data), -1))
        new = torch.cat(fields, 1)[-self.capacity :]
        head = min(len(new), self.capacity - self.position)
        self.rows[self.position : self.position + head] = new[:head]
        self.rows[: len(new) - head] = new[head:]
        self.position = (self.position + len(new)) % self.capacity
        self.size = min(self.capacity, self.size + len(new))

    def _stored_action(self, action: Tensor) -> Tensor:
        action = action.to(self.rows.device)
        if self.spec.discrete:
            return action.reshape(-1, 1).to(self.rows.dtype)
        scaled = ((action - self._centre) / self._half).clamp(-1, 1)
        return scaled.to(self.rows.dtype)

    def gather(self, index: Tensor) -> Tensor:
        return self.rows.index_select(0, index)

    def obs(self, index: Tensor) -> Tensor:
        return self.rows[index, : self.spec.obs_dim]

    def whole(self) -> Batch:
        return self.batch(self.rows[: self.size])

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows[: self.size].clone(), "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rows = state["rows"]
        self.size, self.position = len(rows), state["position"]
        # Rows of an old checkpoint may lack the columns, which stand last.
        self.rows[: self.size, : rows.shape[1]] = rows
        self.rows[: self.size, rows.shape[1] :] = 0.0


def action_range(spec: Spec, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Centre and half of the width [A] of the range of continuous actions."""
    scale = ActionScale(spec).to(device)
    return scale.centre, scale.half_range


def resized(rows: Rows, capacity: int) -> Buffer:
    """A ring of another capacity with the newest rows, as many as fit."""
    new = Buffer(rows.spec, capacity, rows.gamma, rows.device, rows.columns)
    count = min(len(rows), capacity)
    oldest = rows.position if isinstance(rows, Buffer) and len(rows) else 0
    newest = torch.arange(len(rows) - count, len(rows), device=rows.device) + oldest
    new.load_state_dict(
        {"rows": rows.gather(newest % max(1, len(rows))), "position": count % capacity}
    )
    return new


def transitions(rows: Rows) -> Transitions:
    """Rows with actions in the task's units; without the episodes' boundaries, which a buffer does
    not keep."""
    batch = rows.whole()
    action = batch.action
    if not rows.spec.discrete:
        action = ActionScale(rows.spec).to(action.device).to_task(action)
    ended, unknown = batch.discount == 0, batch.next_unknown
    return Transitions(
        batch.obs,
        action,
        batch.reward,
        batch.next_obs,
        ended,
        torch.zeros_like(ended),
        next_known=None if unknown is None else unknown == 0,
        action_mask=batch.action_mask,
        next_action_mask=batch.next_action_mask,
    )


def masks_of(data: Transitions, spec: Spec) -> dict[str, Tensor]:
    """The masks of `data` by name, where the task has them. Raises `DataError` where `data` has
    none."""
    if not spec.action_mask:
        return {}
    masks = {name: getattr(data, name) for name in MASKS}
    if any(mask is None for mask in masks.values()):
        raise DataError(
            f"task {spec.task!r} masks actions, but the data have no action_mask and "
            "next_action_mask; record them, or use a spec with action_mask=False"
        )
    return masks


def sample_mixed(
    real: Rows, imagined: Rows, count: int, real_ratio: float, generator: torch.Generator
) -> Batch:
    """`int(count * real_ratio)` real rows followed by imagined ones; the split is exact in every
    batch. Both buffers have the same columns."""
    from_real = int(count * real_ratio)
    if from_real == count:
        rows = real.sample_rows(count, generator)
    else:
        rows = imagined.sample_rows(count - from_real, generator)
        if from_real > 0:
            rows = torch.cat([real.sample_rows(from_real, generator), rows])
    return imagined.batch(rows)._replace(real=from_real)
