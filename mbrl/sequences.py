"""Device-resident storage of whole episodes, and tapes of them for learners with memory."""

from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.types import Spec

# Columns of a row beside observation and action: reward, discount, real, last, and in a penalised
# buffer the reward before its penalty.
EXTRA = 4
LAST, UNKNOWN = 1.0, 2.0  # at an episode's last position; the latter where nothing is known of it


class Tape(NamedTuple):
    """Whole episodes one after the other, [T] positions in all.

    Position t of an episode holds what is known there, `x` [T, S + A + 1] (observation, action and
    reward before it, zeros at the start), and the step from it: `action` [T, A] in [-1, 1],
    `reward`, `discount` [T]. `first` marks where episodes begin, `mask` the positions that have a
    step, and `real` those whose step was recorded rather than imagined. `noise` [2, T, A] are draws
    for the update, `subset` the target critics of it.
    """

    x: Tensor
    first: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    real: Tensor
    mask: Tensor
    noise: Tensor | None = None
    subset: Tensor | None = None


class SequenceBuffer:
    """A ring of at most `capacity` positions that holds whole episodes; the oldest leave first.

    An episode of n steps takes n + 1 positions of S + A + 4 numbers: its memory is bounded by
    `bytes_at_most`. The ring is allocated at once, and the system hands its pages out as they are
    written. A `penalised` one has one number more: an agent learns from rewards with a penalty, and
    observes those without, as it will in the task.
    """

    def __init__(
        self,
        spec: Spec,
        capacity: int,
        gamma: float,
        device: torch.device | str = "cpu",
        *,
        penalised: bool = False,
    ) -> None:
        if capacity < 2:
            raise ConfigError(f"sequence capacity is {capacity}, it must be at least 2")
        self.spec, self.capacity, self.gamma, self.penalised = spec, capacity, gamma, penalised
        self.rows = torch.zeros(capacity, width(spec, penalised), device=device)
        self.position = 0
        self.episodes: deque[tuple[int, int]] = deque()  # start and length, oldest first
        self._table: Tensor | None = None

    @property
    def size(self) -> int:
        """Positions that are taken."""
        return sum(length for _, length in self.episodes)

    def append(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        terminated: Tensor,
        real: Tensor,
        observed: Tensor | None = None,
        *,
        end_known: bool = True,
    ) -> None:
        """Add one episode: `obs` [n + 1, S], `action` [n, A] in [-1, 1], `reward`, `terminated` and
        `real` [n]; `observed` [n] are the rewards before a penalty, if they differ; without
        `end_known` the last observation was not recorded. Raises `ConfigError` for an episode that
        is longer than the buffer."""
        length = len(obs)
        if length > self.capacity:
            raise ConfigError(
                f"an episode has {length} positions, the sequence buffer holds {self.capacity}; "
                "give it a larger capacity"
            )
        if self.position + length > self.capacity:
            self._drop(self.position, self.capacity)
            self.position = 0
        self._drop(self.position, self.position + length)
        rows = self.rows[self.position : self.position + length]
        s, a = self.spec.obs_dim, self.spec.action_dim
        rows.zero_()
        rows[:, :s] = obs
        rows[:-1, s : s + a] = action
        rows[:-1, s + a] = reward
        rows[:-1, s + a + 1] = self.gamma * (1.0 - terminated.to(rows.dtype))
        rows[:-1, s + a + 2] = real.to(rows.dtype)
        rows[-1, s + a + 3] = LAST if end_known else UNKNOWN
        if self.penalised:
            rows[:-1, s + a + 4] = reward if observed is None else observed
        self.episodes.append((self.position, length))
        self.position += length
        self._table = None

    def _drop(self, begin: int, end: int) -> None:
        """Forget the oldest episodes that reach into [begin, end)."""
        while self.episodes:
            start, length = self.episodes[0]
            if start >= end or start + length <= begin:
                return
            self.episodes.popleft()

    def sample(self, length: int, generator: torch.Generator) -> Tape:
        """A tape of exactly `length` positions: episodes drawn uniformly, one after the other, the
        last one cut where the tape ends."""
        if not self.episodes:
            raise ConfigError("the sequence buffer is empty; append episodes before sampling")
        device = self.rows.device
        if self._table is None:
            self._table = torch.tensor(list(self.episodes), device=device)
        starts, lengths = self._table.unbind(1)
        # Episodes have at least two positions.
        draw = torch.randint(len(starts), (length // 2 + 1,), generator=generator, device=device)
        return self._joined(starts[draw], lengths[draw], length)

    def places(
        self, count: int, generator: torch.Generator, *, ends: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`count` random positions, with or without those at which episodes end: where their
        episodes begin, how many positions those have, and the time of each in its own [count]."""
        device = self.rows.device
        starts, lengths = torch.tensor(list(self.episodes), device=device).unbind(1)
        known = lengths if ends else lengths - 1
        at = torch.randint(int(known.sum()), (count,), generator=generator, device=device)
        which = torch.searchsorted(known.cumsum(0), at, right=True)
        return starts[which], lengths[which], at - (known.cumsum(0) - known)[which]

    def histories(self, count: int, generator: torch.Generator) -> tuple[Tape, Tensor]:
        """`count` random positions that have a step, each with all that came before it in its
        episode: a tape of these histories, and where on it they end [count]."""
        starts, _, times = self.places(count, generator, ends=False)
        return self.beginnings(starts, times + 1)

    def beginnings(self, starts: Tensor, counts: Tensor) -> tuple[Tape, Tensor]:
        """A tape of the first `counts` [B] (1 or more) positions of the episodes that begin at
        `starts` [B], and where on it they end [B]."""
        ends = counts.cumsum(0)
        return self._joined(starts, counts, int(ends[-1])), ends - 1

    def _joined(self, starts: Tensor, counts: Tensor, length: int) -> Tape:
        """The first `counts` positions of episodes, one after the other, cut to `length`."""
        ends = counts.cumsum(0)
        at = torch.arange(length, device=self.rows.device)
        which = torch.searchsorted(ends, at, right=True)
        offset = at - (ends - counts)[which]
        return self.tape(starts[which] + offset, offset == 0)

    def tape(self, index: Tensor, first: Tensor) -> Tape:
        """The rows at `index` [T], which are whole episodes up to the last one's cut."""
        rows = self.rows[index]
        s, a = self.spec.obs_dim, self.spec.action_dim
        action, reward = rows[:, s : s + a], rows[:, s + a]
        observed = rows[:, s + a + 4] if self.penalised else reward
        before = torch.cat([action, observed[:, None]], -1).roll(1, 0)
        before = torch.where(first[:, None], torch.zeros_like(before), before)
        mask = rows[:, s + a + 3] == 0
        mask[-1] = False  # what comes after it is not on the tape
        return Tape(
            x=torch.cat([rows[:, :s], before], -1),
            first=first,
            action=action,
            reward=reward,
            discount=rows[:, s + a + 1],
            real=rows[:, s + a + 2] == 1,
            mask=mask,
        )

    def rewards(self) -> Tensor:
        """Of all steps [N], episode after episode."""
        column = self.spec.obs_dim + self.spec.action_dim
        parts = [self.rows[start : start + n - 1, column] for start, n in self.episodes]
        return torch.cat(parts)

    def state_dict(self) -> dict[str, Any]:
        """The episodes in order, without gaps."""
        table = list(self.episodes)
        parts = [self.rows[start : start + length] for start, length in table]
        return {
            "rows": torch.cat(parts) if parts else self.rows[:0].clone(),
            "starts": [start for start, _ in table],
            "lengths": [length for _, length in table],
            "position": self.position,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.episodes = deque(zip(state["starts"], state["lengths"], strict=True))
        for (start, length), part in zip(
            self.episodes, state["rows"].split(state["lengths"]), strict=True
        ):
            self.rows[start : start + length] = part
        self.position, self._table = state["position"], None


def width(spec: Spec, penalised: bool = False) -> int:
    """Numbers that a position takes."""
    return spec.obs_dim + spec.action_dim + EXTRA + penalised


def bytes_at_most(spec: Spec, capacity: int, penalised: bool = False) -> int:
    """Memory of a sequence buffer of `capacity` positions: 4 (S + A + 4) bytes each, 4 more in a
    penalised one."""
    return 4 * width(spec, penalised) * capacity
