"""A metacontroller of "Emergent temporal abstractions in autoregressive models enable hierarchical
reinforcement learning" (arXiv 2512.20605): it finds, without rewards, codes that steer a frozen
sequence model, and when to change them. Written from notes of the paper's equations: there was no
official code to compare with, and re-implementations differ from one another.

Differences: the base is recurrent, of two blocks; the code has 8 entries and the steering matrix
the rank 8; one weight of the prior, which the authors sweep.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from algorithms.temporal.sequence_model import (
    SequenceModel,
    drawn,
    imitation_loss,
    previous_actions,
)
from mbrl.config import Count, NonNegative, Positive, Settings
from mbrl.native.adam import Adam


@dataclass(frozen=True)
class MetacontrollerConfig(Settings):
    """Settings of the metacontroller and of its fit."""

    code: Count = 8  # entries of a code
    memory: Count = 32  # of the gate
    rank: Count = 8  # of the steering matrix
    gate: Literal["learned", "always"] = "learned"  # when codes change
    prior: NonNegative = 0.1  # weight of the divergence from N(0, 1)
    updates: Count = 1500  # of the fit
    batch_size: Count = 64  # walks an update
    learning_rate: Positive = 1e-3  # Adam


class Codes(NamedTuple):
    """Codes in force [B, T, Z], gates [B, T], and the proposals' means and log deviations
    [B, T, Z]."""

    code: Tensor
    gate: Tensor
    mean: Tensor
    log_std: Tensor


class Gate(nn.Module):
    """beta_t in (0, 1) of e_t, its own memory and the code before; 1 at the first step."""

    def __init__(self, width: int, config: MetacontrollerConfig) -> None:
        super().__init__()
        self.always = config.gate == "always"
        self.out = nn.Sequential(
            nn.Linear(width + config.memory + config.code, 32), nn.GELU(), nn.Linear(32, 1)
        )
        self.memory = nn.GRUCell(width + config.code, config.memory)

    def start(self, e: Tensor, code: int) -> tuple[Tensor, Tensor]:
        """Memory [B, M] and code [B, Z] before the first step of `e` [B, D]."""
        return e.new_zeros(len(e), self.memory.hidden_size), e.new_zeros(len(e), code)

    def forward(self, e: Tensor, memory: Tensor, code: Tensor, first: bool) -> Tensor:
        """[B] for e_t [B, D]."""
        if first or self.always:
            return torch.ones_like(e[:, 0])
        logit: Tensor = self.out(torch.cat([e, memory, code], -1))[:, 0]
        return logit.sigmoid()

    def remember(self, e: Tensor, code: Tensor, memory: Tensor) -> Tensor:
        after: Tensor = self.memory(torch.cat([e, code], -1), memory)
        return after


class Metacontroller(nn.Module):
    """Proposals of codes from all of a sequence, a gate, and the matrix U(z) = A(z) B(z)^T that
    changes the residual stream, e + U e."""

    def __init__(self, width: int, config: MetacontrollerConfig, generator: Generator) -> None:
        super().__init__()
        self.config, self.width = config, width
        self.both_ways = nn.GRU(width, 32, batch_first=True, bidirectional=True)
        self.propose = nn.Linear(width + 64, 2 * config.code)
        self.gate = Gate(width, config)
        self.hidden = nn.Linear(config.code, 64)
        self.matrices = nn.Linear(64, 2 * width * config.rank)
        drawn(self, generator)
        with torch.no_grad():  # A is 0 at first: the base as it is
            self.matrices.weight[: width * config.rank] = 0
            self.matrices.bias[: width * config.rank] = 0

    def codes(self, e: Tensor, noise: Tensor, lengths: Tensor) -> Codes:
        """For a whole stream e [B, T, D] and standard normal noise [B, T, Z]. What stands behind
        the first `lengths` [B] int64 steps has no part in the codes of those steps."""
        packed = pack_padded_sequence(e, lengths.cpu(), batch_first=True, enforce_sorted=False)
        summary, _ = pad_packed_sequence(
            self.both_ways(packed)[0], batch_first=True, total_length=e.shape[1]
        )
        mean, log_std = self.propose(torch.cat([e, summary], -1)).chunk(2, -1)
        log_std = log_std.clamp(-5, 2)
        proposed = mean + log_std.exp() * noise
        memory, code = self.gate.start(e[:, 0], self.config.code)
        codes, gates = [], []
        for t in range(e.shape[1]):
            beta = self.gate(e[:, t], memory, code, t == 0)
            code = torch.lerp(code, proposed[:, t], beta[:, None])
            memory = self.gate.remember(e[:, t], code, memory)
            codes.append(code)
            gates.append(beta)
        return Codes(torch.stack(codes, 1), torch.stack(gates, 1), mean, log_std)

    def steer(self, e: Tensor, code: Tensor) -> Tensor:
        """e + A(z) B(z)^T e for e [..., D] and codes [..., Z]."""
        both = self.matrices(F.gelu(self.hidden(code)))
        a, b = both.unflatten(-1, (2, self.width, self.config.rank)).unbind(-3)
        changed: Tensor = (a @ (b.mT @ e[..., None]))[..., 0]
        return e + changed


def divergence(mean: Tensor, log_std: Tensor) -> Tensor:
    """KL(N(mean, std^2) || N(0, 1)), summed over the last dimension."""
    return 0.5 * (mean.square() + (2 * log_std).exp() - 1 - 2 * log_std).sum(-1)


def metacontroller_loss(
    base: SequenceModel,
    controller: Metacontroller,
    obs: Tensor,
    action: Tensor,
    mask: Tensor,
    noise: Tensor,
) -> tuple[Tensor, Codes]:
    """-log p of the actions under the steered base, plus the weighted divergence of every step's
    proposal from its prior, means over the steps of `mask` [B, T]; the base takes no gradient if
    its parameters want none."""
    with torch.no_grad():
        e, _ = base.stream(obs, previous_actions(action))
    codes = controller.codes(e, noise, mask.sum(1))
    logits, _ = base.logits(controller.steer(e, codes.code))
    weight = mask.to(e)
    prior = (divergence(codes.mean, codes.log_std) * weight).sum() / weight.sum()
    return imitation_loss(logits, action, mask) + controller.config.prior * prior, codes


def fit_metacontroller(
    base: SequenceModel,
    obs: Tensor,
    action: Tensor,
    mask: Tensor,
    config: MetacontrollerConfig,
    generator: Generator,
) -> Metacontroller:
    """A metacontroller of the frozen `base`, fitted to walks [N, T]."""
    base.requires_grad_(False)
    controller = Metacontroller(base.head.in_features, config, generator)
    optimiser = Adam(controller.parameters(), lr=config.learning_rate)
    for _ in range(config.updates):
        rows = torch.randint(len(obs), (config.batch_size,), generator=generator)
        noise = torch.randn(*action[rows].shape, config.code, generator=generator)
        loss, _ = metacontroller_loss(base, controller, obs[rows], action[rows], mask[rows], noise)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(controller.parameters(), 1.0)
        optimiser.step()
    return controller.requires_grad_(False)
