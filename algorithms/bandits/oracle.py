"""Regression oracles: the expected reward of every action in a context, learned online."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from mbrl.config import Count, Positive, Settings
from mbrl.errors import ConfigError, DataError
from mbrl.networks import EnsembleMLP, adam, descend

# Of a context's squared length over the ridge: beyond, float64 leaves predictions less than three
# digits (1e14: errors of 1e-4 in rewards around 1; 1e16: 0.04; above: any).
DIGITS = 1e14


@dataclass(frozen=True)
class OracleConfig(Settings):
    """Settings of a regression oracle."""

    kind: Literal["network", "ridge"] = "network"  # gradient steps, or least squares in closed form
    loss: Literal["squared", "log"] = "squared"  # log: a logistic output and cross-entropy
    hidden: tuple[Count, ...] = ()  # widths of the network's layers; (): linear
    learning_rate: Positive = 1e-2  # of Adam
    updates: Positive = 1.0  # gradient steps for each row that arrives
    batch_size: Count = 32  # rows of a gradient step, drawn from those remembered
    ridge: Positive = 1.0  # weight of the squared coefficients, of kind ridge
    memory: Literal["all", "last"] = "all"  # last: learn anew from the rows of each update

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "ridge" and (self.loss != "squared" or self.hidden):
            raise ConfigError(
                f"kind is 'ridge' with loss {self.loss!r} and hidden {self.hidden}; least squares "
                "have loss 'squared' and no hidden layers: set them, or kind to 'network'"
            )


class Oracle(Protocol):
    """What a learner asks of a regression."""

    def predict(self, context: Tensor) -> Tensor:
        """Expected rewards [E, B, K] by each of E members at `context` [B, D]."""

    def update(self, context: Tensor, action: Tensor, reward: Tensor, weight: Tensor) -> None:
        """Learn rows, each of `weight` [E, B] for the members."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class RidgeOracle:
    """Online least squares for each action, in float64, by rank-one updates of the inverse:
    theta_a = (ridge I + sum w x x')^-1 sum w x r, x with a constant 1 appended. `update` raises
    `DataError` for contexts so large that the inverse would lose its digits."""

    def __init__(self, size: int, actions: int, members: int, config: OracleConfig) -> None:
        self.config = config
        shape = (members, actions, size + 1, size + 1)
        self.start = torch.eye(size + 1, dtype=torch.float64).expand(shape) / config.ridge
        self.reset()

    def reset(self) -> None:
        self.inverse = self.start.clone()
        self.moment = torch.zeros(self.start.shape[:-1], dtype=torch.float64)

    def predict(self, context: Tensor) -> Tensor:
        theta = (self.inverse @ self.moment[..., None])[..., 0]
        return torch.einsum("ekd,bd->ebk", theta, _with_one(context).double())

    def update(self, context: Tensor, action: Tensor, reward: Tensor, weight: Tensor) -> None:
        features = _with_one(context).double()
        self._require_digits(features)
        if self.config.memory == "last":
            self.reset()
        for i, a in enumerate(action.tolist()):
            x, w = features[i], weight[:, i].double()
            direction = self.inverse[:, a] @ x
            shrink = w / (1 + w * (direction @ x))
            outer = direction[:, :, None] * direction[:, None, :]
            self.inverse[:, a] -= shrink[:, None, None] * outer
            self.moment[:, a] += (w * reward[i].double())[:, None] * x

    def _require_digits(self, features: Tensor) -> None:
        size = features.square().sum(1)
        if len(size) and float(size.max()) > DIGITS * self.config.ridge:
            raise DataError(
                f"the context of row {int(size.argmax())} has length {float(size.max()) ** 0.5:.3g}"
                f"; least squares with ridge {self.config.ridge:g} take at most "
                f"{(DIGITS * self.config.ridge) ** 0.5:.3g}: divide contexts by their deviation, "
                "or give a larger ridge"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"inverse": self.inverse, "moment": self.moment}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inverse, self.moment = state["inverse"].clone(), state["moment"].clone()


class NetworkOracle:
    """Networks with an output for each action, by Adam on rows drawn from those remembered; the
    loss of a row is that of its own action's output alone. Parameters start small, so that the
    first predictions are near 0 (squared) or 1/2 (log)."""

    def __init__(
        self, size: int, actions: int, members: int, config: OracleConfig, generator: Generator
    ) -> None:
        self.config, self.generator = config, generator
        self.shape = (members, size, config.hidden, actions)
        self.rows: list[Tensor] = []  # context, action, reward, weight [N, E], with room to spare
        self.count = self.arrived = 0  # rows that are remembered, and all there were
        self.reset()

    def reset(self) -> None:
        members, size, hidden, actions = self.shape
        self.network = EnsembleMLP(members, size, hidden, actions, generator=self.generator)
        with torch.no_grad():
            self.network.weights[-1].mul_(0.01)
            self.network.biases[-1].zero_()
        self.optimiser = adam(self.network.parameters(), self.config.learning_rate)
        self.count = 0

    def predict(self, context: Tensor) -> Tensor:
        with torch.no_grad():
            value: Tensor = self.network.batched(context)
        return torch.sigmoid(value) if self.config.loss == "log" else value

    def update(self, context: Tensor, action: Tensor, reward: Tensor, weight: Tensor) -> None:
        c = self.config
        if c.memory == "last":
            self.reset()
        self._remember([context, action, reward, weight.T])
        before, self.arrived = self.arrived, self.arrived + len(action)
        steps = int(c.updates * self.arrived + 1e-9) - int(c.updates * before + 1e-9)
        for _ in range(steps):
            drawn = torch.randint(self.count, (c.batch_size,), generator=self.generator)
            descend(self.optimiser, self.loss(*(column[drawn] for column in self.rows)))

    def loss(self, context: Tensor, action: Tensor, reward: Tensor, weight: Tensor) -> Tensor:
        """Mean over rows of the weighted loss, summed over members."""
        value = self.network.batched(context)
        at = action.expand(len(value), -1)[..., None]
        value = value.gather(2, at)[..., 0]
        target = reward.expand_as(value)
        if self.config.loss == "log":
            each = F.binary_cross_entropy_with_logits(value, target, reduction="none")
        else:
            each = (value - target).square()
        return (each * weight.T).mean(1).sum()

    def _remember(self, columns: list[Tensor]) -> None:
        end = self.count + len(columns[0])
        if not self.rows or end > len(self.rows[0]):
            room = max(1024, 2 * end)
            grown = [c.new_zeros(room, *c.shape[1:]) for c in columns]
            for new, old in zip(grown, self.rows, strict=bool(self.rows)):
                new[: self.count] = old[: self.count]
            self.rows = grown
        for row, column in zip(self.rows, columns, strict=True):
            row[self.count : end] = column
        self.count = end

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "rows": [row[: self.count].clone() for row in self.rows],
            "arrived": self.arrived,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.rows, self.count = [], 0
        if state["rows"]:
            self._remember(state["rows"])
        self.arrived = state.get("arrived", self.count)


def _with_one(context: Tensor) -> Tensor:
    return torch.cat([context, torch.ones_like(context[:, :1])], 1)


def make_oracle(
    size: int, actions: int, members: int, config: OracleConfig, generator: Generator
) -> Oracle:
    """The oracle that `config` names."""
    if config.kind == "ridge":
        return RidgeOracle(size, actions, members, config)
    return NetworkOracle(size, actions, members, config, generator)
