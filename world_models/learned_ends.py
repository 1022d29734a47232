"""The probability that a step ends its episode, learned from the ends of a log whose task's rule
nobody knows."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.native.adam import AdamW
from mbrl.networks import EnsembleMLP, step

FOLDS = 5  # networks, each of which holds out another part of the rows
HIDDEN = (64, 64)
BATCH = 256
UPDATES = 2000
LOOK = 100  # updates between looks at the rows held out
RATE, DECAY = 1e-3, 1e-2  # of AdamW


class LearnedEnds:
    """P(terminated | observation, action): the mean of five networks that begin at the share of
    the rows that end, are fitted by cross-entropy to four fifths of the rows, and are kept as they
    were when the other fifth was most likely. So rows that tell nothing of ends give that share,
    and a log without ends gives 0."""

    def __init__(self, width: int, device: torch.device, seed: int) -> None:
        self.seed, self.device = seed, device
        generator = torch.Generator().manual_seed(seed + 53)
        network = EnsembleMLP(FOLDS, width, HIDDEN, 1, generator=generator)
        self.network = network.to(device).requires_grad_(False)
        with torch.no_grad():
            self.network.weights[-1].zero_()
            self.network.biases[-1].zero_()
        self.share: Tensor | None = None  # of the first fit's rows that end; None before it
        self.unseen = torch.zeros((), device=device)  # share of the ends that the dynamics miss
        self.reward = torch.zeros((), device=device)  # mean of the rewards of those
        self.fitted = False  # more than the share

    def fit_unseen(self, reward: Tensor, ended: Tensor, known: Tensor | None) -> None:
        """What ends pay whose next observation the log does not have (`known` [N] bool; None: it
        has all), from `reward` [N] and `ended` [N]: such rows teach the dynamics nothing. Rows
        without ends change nothing."""
        if not bool(ended.any()):
            return
        unseen = torch.zeros_like(ended) if known is None else ended & ~known
        self.unseen = unseen.sum() / ended.sum()
        self.reward = reward[unseen].mean() if bool(unseen.any()) else torch.zeros_like(self.reward)

    def paid(self, reward: Tensor, probability: Tensor) -> Tensor:
        """The `reward` [B] that the dynamics predict, where the step ends with `probability` [B];
        of an end of the kind that they have not seen it is the mean that such ends paid."""
        return reward + probability * self.unseen * (self.reward - reward)

    def fit(self, x: Tensor, ended: Tensor) -> None:
        """Fit to `x` [N, D] and `ended` [N] bool; a further fit goes on from the present networks,
        for a tenth of the updates. With fewer rows of a kind than folds nothing but the share is
        learned, and what networks have learned before stays: rows without ends may be those of a
        policy that avoids them."""
        if not self.fitted:
            self.share = ended.to(x.dtype).mean()
        if min(int(ended.sum()), int((~ended).sum())) < FOLDS:
            return
        generator = torch.Generator(device=self.device).manual_seed(self.seed + 59)
        fold = torch.empty(len(x), dtype=torch.int64, device=self.device)
        for rows in (ended.nonzero()[:, 0], (~ended).nonzero()[:, 0]):
            order = torch.randperm(len(rows), generator=generator, device=self.device)
            fold[rows] = order % FOLDS
        others = [(fold != k).nonzero()[:, 0] for k in range(FOLDS)]
        assert self.share is not None
        y, offset = ended.to(x.dtype), torch.logit(self.share)
        parameters = list(self.network.requires_grad_(True).parameters())
        optimiser = AdamW(parameters, RATE, weight_decay=DECAY, fused=True)
        kept = [p.detach().clone() for p in parameters]
        best = self._surprise(x, y, fold, offset)
        for update in range(1, (UPDATES // 10 if self.fitted else UPDATES) + 1):
            draws = [
                rows[torch.randint(len(rows), (BATCH,), generator=generator, device=self.device)]
                for rows in others
            ]
            chosen = torch.stack(draws)
            logit = self.network(x[chosen])[..., 0] + offset
            loss = F.binary_cross_entropy_with_logits(logit, y[chosen], reduction="none")
            step(optimiser, torch.autograd.grad(loss.mean(1).sum(), parameters))
            if update % LOOK == 0:
                now = self._surprise(x, y, fold, offset)
                better = now < best
                best = torch.where(better, now, best)
                for old, new in zip(kept, parameters, strict=True):
                    old[better] = new.detach()[better]
        with torch.no_grad():
            for value, old in zip(parameters, kept, strict=True):
                value.copy_(old)
        self.network.requires_grad_(False)
        self.fitted = True

    @torch.no_grad()
    def _surprise(self, x: Tensor, y: Tensor, fold: Tensor, offset: Tensor) -> Tensor:
        """Cross-entropy [FOLDS, nats a row] of the ends `y` [N] of the rows `x` [N, D] that each
        network holds out."""
        each = []
        for k in range(FOLDS):
            rows = (fold == k).nonzero()[:, 0]
            logit = self.network.member(x[rows], k)[..., 0] + offset
            each.append(F.binary_cross_entropy_with_logits(logit, y[rows]))
        return torch.stack(each)

    def __call__(self, x: Tensor) -> Tensor:
        """P(terminated) [B] for inputs [B, D]; differentiable. Raises `ConfigError` before a
        fit."""
        if self.share is None:
            raise ConfigError("the model's ends are not learned yet; call fit_ends(transitions)")
        if not 0 < float(self.share) < 1:
            return self.share.expand(len(x)).to(x.dtype)
        return torch.sigmoid(self.network(x)[..., 0] + torch.logit(self.share)).mean(0)

    def state_dict(self) -> dict[str, Any]:
        network = self.network.state_dict()
        numbers = {"share": self.share, "unseen": self.unseen, "reward": self.reward}
        return {"network": network, "fitted": self.fitted} | numbers

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        share = state["share"]
        self.share = None if share is None else share.to(self.device)
        self.unseen, self.reward = (state[n].to(self.device) for n in ("unseen", "reward"))
        self.fitted = state["fitted"]


def constant_surprise(share: float) -> float:
    """Cross-entropy [nats a row] of ends that come to a share of the rows, whatever they hold."""
    parts = (share, 1.0 - share)
    return -sum(p * math.log(p) for p in parts if p > 0)
