"""Device-resident storage of transitions in the form the learners use: one flat row each, actions
scaled to [-1, 1], the end of the task turned into a discount."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.types import Spec, Transitions


class Batch(NamedTuple):
    """Rows for one update. `obs`, `next_obs` [B, S]; `action` [B, A] in [-1, 1] (int64 [B] where
    discrete); `reward` [B]; `discount` [B] = gamma * (1 - terminated); `noise` [K, B, A] standard
    normal draws for the policy samples of the update (K of them), or None; `subset` [k] the
    target critics of a min-of-k update, or None.

    Drawing the noise with the batch makes an update a pure function of state and batch.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    noise: Tensor | None = None
    subset: Tensor | None = None


class Buffer:
    """A ring of at most `capacity` rows; `append` overwrites the oldest.

    A row is [obs, action, reward, discount, next_obs] in one contiguous tensor, so that a batch is
    one gather. Discrete actions are stored as a number, exact in float32 below 2^24.
    """

    def __init__(
        self, spec: Spec, capacity: int, gamma: float, device: torch.device | str = "cpu"
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"buffer capacity is {capacity}, it must be at least 1")
        self.spec, self.capacity, self.gamma = spec, capacity, gamma
        width = 2 * spec.obs_dim + spec.action_dim + 2
        self.rows = torch.zeros(capacity, width, device=device)
        self.size, self.position = 0, 0
        if not spec.discrete:
            low = torch.tensor(spec.action_low, device=device)
            high = torch.tensor(spec.action_high, device=device)
            self._centre, self._half = (high + low) / 2, (high - low) / 2

    def __len__(self) -> int:
        return self.size

    def append(self, data: Transitions) -> None:
        """Add rows in order. More rows than the capacity keep the last `capacity` of them."""
        action = data.action.to(self.rows.device)
        if self.spec.discrete:
            action = action.reshape(-1, 1).float()
        else:
            action = ((action - self._centre) / self._half).clamp(-1, 1)
        discount = self.gamma * (1.0 - data.terminated.to(self.rows.device).float())
        columns = [
            data.obs.to(self.rows),
            action.to(self.rows.dtype),
            data.reward.to(self.rows)[:, None],
            discount[:, None],
            data.next_obs.to(self.rows),
        ]
        new = torch.cat(columns, 1)[-self.capacity :]
        head = min(len(new), self.capacity - self.position)
        self.rows[self.position : self.position + head] = new[:head]
        self.rows[: len(new) - head] = new[head:]
        self.position = (self.position + len(new)) % self.capacity
        self.size = min(self.capacity, self.size + len(new))

    def gather(self, index: Tensor) -> Tensor:
        """Raw rows [B, width] at `index` [B]."""
        return self.rows.index_select(0, index)

    def sample_rows(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` rows, uniformly with replacement."""
        if self.size == 0:
            raise ConfigError("the buffer is empty; append transitions before sampling")
        draw = torch.randint(self.size, (count,), generator=generator, device=self.rows.device)
        return self.gather(draw)

    def batch(self, rows: Tensor) -> Batch:
        """Split raw rows into the fields of a `Batch`."""
        s, a = self.spec.obs_dim, self.spec.action_dim
        action = rows[:, s : s + a]
        return Batch(
            obs=rows[:, :s],
            action=action[:, 0].long() if self.spec.discrete else action,
            reward=rows[:, s + a],
            discount=rows[:, s + a + 1],
            next_obs=rows[:, s + a + 2 :],
        )

    def sample(self, count: int, generator: torch.Generator) -> Batch:
        return self.batch(self.sample_rows(count, generator))

    def sample_obs(self, count: int, generator: torch.Generator) -> Tensor:
        """Start states [count, S]: without replacement where there are enough rows."""
        if count <= self.size:
            index = torch.randperm(self.size, generator=generator, device=self.rows.device)[:count]
        else:
            index = torch.randint(self.size, (count,), generator=generator, device=self.rows.device)
        return self.rows[index, : self.spec.obs_dim]

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows[: self.size].clone(), "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rows = state["rows"]
        self.size, self.position = len(rows), state["position"]
        self.rows[: self.size] = rows


def sample_mixed(
    real: Buffer, imagined: Buffer, count: int, real_ratio: float, generator: torch.Generator
) -> Tensor:
    """`int(count * real_ratio)` real rows followed by imagined ones, [count, width]; the split is
    exact in every batch."""
    from_real = int(count * real_ratio)
    if from_real == count:
        return real.sample_rows(count, generator)
    rows = imagined.sample_rows(count - from_real, generator)
    if from_real == 0:
        return rows
    return torch.cat([real.sample_rows(from_real, generator), rows])
