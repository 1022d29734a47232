"""The fit of an ensemble, one epoch at a time, with its whole state in tensors: holdout, bootstrap,
per-member early stopping with the best weights kept."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mbrl.generators import set_state
from mbrl.native.adam import Adam, AdamW
from mbrl.networks import step

# A loss at inputs and targets of every member, and its gradients in these parameters.
Loss = Callable[[Any, Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, Sequence[Tensor]]]


class Fit:
    """An ensemble fit in progress.

    A member improves when its holdout error falls by more than `min_gain` of its best; its weights
    are kept then. The fit stops when no member has improved for `patience` epochs; the first such
    stall before `min_epochs` multiplies the learning rate by `rate_drop` instead, and later ones
    before `min_epochs` are passed over.
    """

    def __init__(
        self, network: Any, config: Any, rows: int, seed: int, device: torch.device
    ) -> None:
        self.network, self.config, self.rows, self.device = network, config, rows, device
        self.generator = torch.Generator(device=device).manual_seed(seed + 29)
        order = torch.randperm(rows, generator=self.generator, device=device)
        held = max(1, int(rows * config.holdout_fraction))
        held = held if config.holdout_max is None else min(held, config.holdout_max)
        self.holdout, train = order[:held], order[held:]
        members = network.mlp.members
        if config.bootstrap == "none":
            self.train = train.expand(members, -1)
        else:
            shape = (members, len(train))
            draw = torch.randint(len(train), shape, generator=self.generator, device=device)
            self.train = train[draw]
        self.optimiser = _optimiser(network, config)
        self.epochs, self.stalled, self.dropped, self.finished = 0, 0, False, False
        self.best_error = torch.full((members,), float("inf"), device=device)
        self.best = [p.detach().clone() for p in network.mlp.parameters()]

    def epoch(self, x: Tensor, y: Tensor, loss: Loss) -> dict[str, Tensor]:
        """Every member sees its own rows once, in its own order; then the holdout decides."""
        if self.config.bootstrap == "reassigned":
            members = self.network.mlp.members
            order = torch.randperm(members, generator=self.generator, device=self.device)
            self.train = self.train[order]
        keys = torch.rand(self.train.shape, generator=self.generator, device=self.device)
        index = self.train.gather(1, keys.argsort(1))
        size = min(self.config.batch_size, index.shape[1])
        batches = index.shape[1] // size  # the rows left over differ in every epoch
        total = x.new_zeros(())
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        for b in range(batches):
            rows = index[:, b * size : (b + 1) * size]
            flat = rows.reshape(-1)
            inputs = x.index_select(0, flat).view(*rows.shape, -1)
            goals = y.index_select(0, flat).view(*rows.shape, -1)
            value, gradients = loss(self.network, inputs, goals, parameters)
            step(self.optimiser, gradients)
            total += value
        self.epochs += 1
        error = self.holdout_error(x, y)
        improved = self._judge(error)
        return {
            "model/epoch": torch.tensor(float(self.epochs)),
            "model/train_loss": total / batches,
            "model/holdout_mse": error.mean(),
            "model/improved": improved.float().mean(),
        }

    @torch.no_grad()
    def holdout_error(self, x: Tensor, y: Tensor, chunk: int = 2000) -> Tensor:
        """Mean squared error [E] of each member's mean on the holdout rows, in target units."""
        total = torch.zeros(self.network.mlp.members, device=self.device)
        for rows in torch.split(self.holdout, chunk):
            mean, _ = self.network(x[rows])
            total += (mean - y[rows]).square().mean(-1).sum(1)
        return total / len(self.holdout)

    def _judge(self, error: Tensor) -> Tensor:
        config = self.config
        gain = (self.best_error - error) / self.best_error
        improved: Tensor = torch.isinf(self.best_error) | (gain > config.min_gain)
        self.best_error = torch.where(improved, error, self.best_error)
        for kept, now in zip(self.best, self.network.mlp.parameters(), strict=True):
            kept[improved] = now.detach()[improved]
        self.stalled = 0 if bool(improved.any()) else self.stalled + 1
        if self.stalled >= config.patience:
            if self.epochs >= config.min_epochs:
                self.finished = True
            elif not self.dropped:
                self.dropped, self.stalled = True, 0
                for group in self.optimiser.param_groups:
                    group["lr"] *= config.rate_drop
        if self.epochs >= config.max_epochs:
            self.finished = True
        return improved

    def restore_best(self) -> Tensor:
        """Put every member's best weights back; returns their holdout errors [E]."""
        with torch.no_grad():
            for kept, now in zip(self.best, self.network.mlp.parameters(), strict=True):
                now.copy_(kept)
        return self.best_error

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "holdout": self.holdout,
            "train": self.train[:1] if self.config.bootstrap == "none" else self.train.contiguous(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "epochs": self.epochs,
            "stalled": self.stalled,
            "dropped": self.dropped,
            "finished": self.finished,
            "best_error": self.best_error,
            "best": list(self.best),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("holdout", "train", "best_error"):
            setattr(self, name, state[name].to(self.device))
        self.train = self.train.expand(self.network.mlp.members, -1)  # one row serves all
        for name in ("epochs", "stalled", "dropped", "finished"):
            setattr(self, name, state[name])
        self.best = [b.to(self.device) for b in state["best"]]
        self.optimiser.load_state_dict(state["optimiser"])
        set_state(self.generator, state["generator"], self.epochs)


def _optimiser(network: Any, config: Any) -> torch.optim.Optimizer:
    """Adam with the L2 weight of each layer (weights only), or AdamW."""
    depth = len(network.mlp.weights)
    decay = config.weight_decay
    if len(decay) != depth:
        decay = decay * depth
    groups = [
        {"params": [weight], "weight_decay": decay[layer]}
        for layer, weight in enumerate(network.mlp.weights)
    ]
    rest: list[nn.Parameter] = [*network.mlp.biases, *network.mlp.scales, *network.mlp.shifts]
    rest += [p for p in (network.low, network.high) if p.requires_grad]
    groups.append({"params": rest, "weight_decay": 0.0})
    kind = AdamW if config.decoupled_decay else Adam
    return kind(groups, lr=config.learning_rate, fused=True)
