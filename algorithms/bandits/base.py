"""What contextual bandit learners have in common: an oracle, and a rule from its predictions to
probabilities of actions."""

import copy
import dataclasses
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algorithms.bandits.oracle import OracleConfig, make_oracle
from mbrl.config import require_same
from mbrl.errors import ConfigError, DataError
from mbrl.types import EXACT


class Rows(NamedTuple):
    """Decisions with their outcomes: `context` [B, D] float, `action` [B] int64, `reward` [B] in
    [0, 1], and `probability` [B] with which the action was taken, above 0."""

    context: Tensor
    action: Tensor
    reward: Tensor
    probability: Tensor


def as_rows(rows: Rows) -> Rows:
    """Columns of any kind of array or number as tensors: contexts in single precision, actions as
    whole numbers, the others in single precision at least. Raises `DataError` for actions that are
    none, for columns of other lengths, and for contexts that single precision rounds."""
    action = torch.as_tensor(rows.action)
    if action.is_floating_point() or action.is_complex():
        raise DataError(f"actions are of {action.dtype}; give whole numbers, the actions' indices")
    context = as_context(rows.context)
    reward, probability = (_single(torch.as_tensor(c)) for c in (rows.reward, rows.probability))
    columns = Rows(context, action.long(), reward, probability)
    count = len(context) if context.ndim else 0
    if any(column.shape != (count,) for column in columns[1:]) or count == 0:
        raise DataError(
            f"rows have shapes {[tuple(column.shape) for column in columns]}; give a context "
            "[B, D] and action, reward and probability [B], with a row at least"
        )
    return columns


def as_context(context: Tensor) -> Tensor:
    """Contexts of any kind of array in single precision. Raises `DataError` for whole numbers that
    it rounds, such as times, which it could not tell apart."""
    given = torch.as_tensor(context)
    single, exact = given.float(), given.double()
    lost = (exact.abs() > EXACT) & (exact == exact.round()) & (single.double() != exact)
    if lost.any():
        raise DataError(
            f"a context has {float(exact[lost][0]):.17g}, which 32-bit numbers do not keep; "
            "subtract an offset (times: since the first one) or change the unit"
        )
    return single


def _single(column: Tensor) -> Tensor:
    """A column in single precision, or in double where it has that."""
    return column if column.dtype in (torch.float32, torch.float64) else column.float()


class BanditLearner(ABC):
    """A learner for contexts of `context_size` numbers and `actions` actions. A paper gives
    `explore`. Raises `ConfigError` for sizes that allow no choice."""

    members = 1  # of the oracle
    config: Any

    def __init__(self, context_size: int, actions: int, config: Any, seed: int = 0) -> None:
        if context_size < 1 or actions < 2:
            raise ConfigError(
                f"context_size is {context_size} and actions is {actions}; there must be at least "
                "1 number in a context (a constant, if nothing is known) and 2 actions"
            )
        self.context_size, self.actions, self.config = context_size, actions, config
        self.generator = torch.Generator().manual_seed(seed)
        oracle: OracleConfig = config.oracle
        self.oracle = make_oracle(context_size, actions, self.members, oracle, self.generator)
        self.learned = 0  # rows

    @abstractmethod
    def explore(self, reward: Tensor) -> Tensor:
        """Probabilities [B, K] from the members' expected rewards [E, B, K]."""

    def row_weights(self, count: int) -> Tensor:
        """The weight of each of `count` new rows for each member of the oracle, [E, B]."""
        return torch.ones(self.members, count)

    def probabilities(self, context: Tensor) -> Tensor:
        """Probability of each action [B, K] at `context` [B, D]."""
        return self.explore(self.oracle.predict(self._known(context)))

    def act(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """A drawn action [B] for each context, and the probability [B] that it had; both belong in
        the log."""
        action, p, _ = self.decide(context)
        return action, p

    def decide(self, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What `act` returns, and the reward [B] that the oracle expects of it."""
        reward = self.oracle.predict(self._known(context))
        p = self.explore(reward)
        action = torch.multinomial(p, 1, generator=self.generator)
        expected = reward.mean(0).gather(1, action)[:, 0]
        return action[:, 0], p.gather(1, action)[:, 0], expected

    def update(self, rows: Rows) -> None:
        """Learn from rows, whoever decided. Raises `DataError` for rows that cannot be."""
        rows = self.checked(rows)
        count = len(rows.context)
        weight = self.row_weights(count)
        self.oracle.update(rows.context, rows.action, rows.reward, weight)
        self.learned += count

    def checked(self, rows: Rows) -> Rows:
        """The rows as tensors. Raises `DataError` for rows that this learner cannot learn from."""
        rows = as_rows(rows)
        rows = rows._replace(context=self._known(rows.context))
        if not ((rows.reward >= 0) & (rows.reward <= 1)).all():
            raise DataError(
                f"rewards lie in [{rows.reward.min():g}, {rows.reward.max():g}], they must lie in "
                "[0, 1]; scale them by their range"
            )
        if not ((rows.action >= 0) & (rows.action < self.actions)).all():
            raise DataError(
                f"actions lie in {int(rows.action.min())}..{int(rows.action.max())}, they must lie "
                f"in 0..{self.actions - 1}"
            )
        return rows

    def _known(self, context: Tensor) -> Tensor:
        """The contexts [B, D] in single precision. Raises `DataError` for others."""
        context = as_context(context)
        if context.ndim != 2 or context.shape[1] != self.context_size:
            raise DataError(
                f"context has shape {tuple(context.shape)}; it must be [B, {self.context_size}]"
            )
        if not context.isfinite().all():
            row = int((~context.isfinite()).nonzero()[0, 0])
            raise DataError(f"the context of row {row} is not finite; fill in what is missing")
        return context

    def state_dict(self) -> dict[str, Any]:
        """All that decides what comes next; it stays as it is while the learner goes on."""
        return {
            "config": dataclasses.asdict(self.config),
            "sizes": (self.context_size, self.actions),
            "oracle": copy.deepcopy(self.oracle.state_dict()),
            "learned": self.learned,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`. Raises `ConfigError` for one of other settings or sizes."""
        require_same(self.config, state.get("config", dataclasses.asdict(self.config)))
        own = (self.context_size, self.actions)
        sizes = tuple(state.get("sizes", own))  # states of earlier versions have neither
        if sizes != own:
            raise ConfigError(
                f"the state is of {sizes[0]} numbers in a context and {sizes[1]} actions, this "
                f"learner of {own[0]} and {own[1]}; give the sizes that it was made with"
            )
        self.oracle.load_state_dict(copy.deepcopy(state["oracle"]))
        self.learned = state["learned"]
        self.generator.set_state(state["generator"])
