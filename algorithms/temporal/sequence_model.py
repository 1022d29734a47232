"""A small autoregressive model of behaviour, whose residual stream can be changed half-way."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from mbrl.config import Count, Positive, Settings
from mbrl.native.adam import Adam

Control = Callable[[Tensor], Tensor]  # of the residual stream [B, T, D]


@dataclass(frozen=True)
class SequenceConfig(Settings):
    """Settings of the model and of its fit to walks."""

    width: Count = 64  # of the residual stream
    lower: Count = 1  # blocks before the stream is changed
    upper: Count = 1  # blocks after it
    updates: Count = 1500  # of the fit
    batch_size: Count = 64  # walks an update
    learning_rate: Positive = 1e-3  # Adam


class Block(nn.Module):
    """x + GRU(LayerNorm(x)), then x + two layers of LayerNorm(x): causal, and a step at a time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.memory = nn.GRU(width, width, batch_first=True)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """[B, T, D] and the state [1, B, D] after it."""
        out, state = self.memory(self.norms[0](x), state)
        x = x + out
        result: Tensor = x + self.narrow(F.gelu(self.wide(self.norms[1](x))))
        return result, state


States = list[Tensor | None]  # of the blocks


class SequenceModel(nn.Module):
    """log p(a_t | o_1..t, a_1..t-1) of observations [B, T, O] and actions [B, T] int64, -1 where
    there is none: the action before the first one. Lower blocks give the residual stream e [B, T,
    D]; upper blocks go on from it, or from what it was changed to."""

    def __init__(
        self, observations: int, actions: int, config: SequenceConfig, generator: Generator
    ) -> None:
        super().__init__()
        self.actions = actions
        self.seen = nn.Linear(observations, config.width)
        self.before = nn.Linear(actions, config.width, bias=False)
        self.lower = nn.ModuleList(Block(config.width) for _ in range(config.lower))
        self.upper = nn.ModuleList(Block(config.width) for _ in range(config.upper))
        self.norm, self.head = nn.LayerNorm(config.width), nn.Linear(config.width, actions)
        drawn(self, generator)

    def stream(
        self, obs: Tensor, previous: Tensor, states: States | None = None
    ) -> tuple[Tensor, States]:
        """e [B, T, D] of observations and the actions before them, and the lower states."""
        one_hot = F.one_hot(previous + 1, self.actions + 1)[..., 1:].to(obs.dtype)
        return self._through(self.lower, self.seen(obs) + self.before(one_hot), states)

    def logits(self, stream: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        """[B, T, actions] from the stream, and the upper states."""
        x, after = self._through(self.upper, stream, states)
        return self.head(self.norm(x)), after

    def _through(
        self, blocks: nn.ModuleList, x: Tensor, states: States | None
    ) -> tuple[Tensor, States]:
        after: States = []
        for i, block in enumerate(blocks):
            x, state = block(x, None if states is None else states[i])
            after.append(state)
        return x, after


@torch.no_grad()
def drawn(module: nn.Module, generator: Generator) -> None:
    """All weights of linear maps and memories anew, uniform within 1 / sqrt(inputs)."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.GRU | nn.GRUCell):
            size = part.in_features if isinstance(part, nn.Linear) else part.hidden_size
            for p in part.parameters():
                nn.init.uniform_(p, -(size**-0.5), size**-0.5, generator=generator)


def previous_actions(action: Tensor) -> Tensor:
    """The action [B, T] before each of `action` [B, T]; -1 before the first."""
    return torch.cat([torch.full_like(action[:, :1], -1), action[:, :-1]], 1)


def imitation_loss(logits: Tensor, action: Tensor, mask: Tensor) -> Tensor:
    """Mean of -log p(a) over the steps that `mask` [B, T] marks."""
    loss = F.cross_entropy(logits.flatten(0, 1), action.flatten(), reduction="none")
    weight = mask.flatten().to(loss)
    return (loss * weight).sum() / weight.sum()


def pretrain(
    model: SequenceModel,
    obs: Tensor,
    action: Tensor,
    mask: Tensor,
    config: SequenceConfig,
    generator: Generator,
) -> float:
    """Fit `model` to walks: observations [N, T, O], actions and mask [N, T]. The last loss."""
    optimiser = Adam(model.parameters(), lr=config.learning_rate)
    loss = torch.zeros(())
    for _ in range(config.updates):
        rows = torch.randint(len(obs), (config.batch_size,), generator=generator)
        stream, _ = model.stream(obs[rows], previous_actions(action[rows]))
        loss = imitation_loss(model.logits(stream)[0], action[rows], mask[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return float(loss.detach())
