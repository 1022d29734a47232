"""Problems of contextual bandits whose expected rewards are known, so that regret is exact: labels
as bandits, a linear one, and a payment router."""

from typing import NamedTuple, Protocol

import torch
from torch import Generator, Tensor

from mbrl.errors import DataError


class BanditRounds(NamedTuple):
    """B rounds: `context` [B, D]; for each action the probability of `success`, and the reward with
    success (`gain`) and without (`loss`), [B, K] each, rewards in [0, 1]."""

    context: Tensor
    success: Tensor
    gain: Tensor
    loss: Tensor

    @property
    def expected(self) -> Tensor:
        """Expected rewards [B, K]."""
        return self.success * self.gain + (1 - self.success) * self.loss

    def reward(self, action: Tensor, draw: Tensor) -> Tensor:
        """Rewards [B] of actions [B]: success where `draw` [B], uniform in [0, 1), lies below its
        probability."""
        at = action[:, None]
        success, gain, loss = (part.gather(1, at)[:, 0] for part in self[1:])
        return torch.where(draw < success, gain, loss)

    def at(self, first: int, end: int) -> "BanditRounds":
        """The rounds from `first` up to before `end`."""
        return BanditRounds(*(part[first:end] for part in self))


class Problem(Protocol):
    """Where contexts come from."""

    context_size: int
    actions: int

    def draw(self, count: int, generator: Generator) -> BanditRounds:
        """`count` rounds in the order in which they come."""


class Labels:
    """Rows with labels: naming the label pays 1, another one 0. `features` [N, D], `label` [N] of
    0..K-1. Each pass over the rows has an order of its own. Raises `DataError` for fewer than two
    labels."""

    def __init__(self, features: Tensor, label: Tensor) -> None:
        self.features, self.label = features.float(), label.long()
        self.context_size, self.actions = features.shape[1], int(label.max()) + 1
        if self.actions < 2 or int(label.min()) < 0:
            raise DataError(
                f"labels lie in {int(label.min())}..{int(label.max())}; they must be 0..K-1 with K "
                "at least 2"
            )

    def draw(self, count: int, generator: Generator) -> BanditRounds:
        passes = -(-count // len(self.label))
        order = torch.cat(
            [torch.randperm(len(self.label), generator=generator) for _ in range(passes)]
        )[:count]
        right = torch.nn.functional.one_hot(self.label[order], self.actions).float()
        return BanditRounds(
            self.features[order], right, torch.ones_like(right), torch.zeros_like(right)
        )


class Linear:
    """Success of action a has probability (1 + 0.8 x'theta_a) / 2, with x uniform on the unit
    sphere of `size` numbers and the theta_a drawn from it once, by `seed`."""

    def __init__(self, size: int = 2, actions: int = 3, seed: int = 0) -> None:
        self.context_size, self.actions = size, actions
        self.theta = _on_sphere(actions, size, torch.Generator().manual_seed(seed))

    def draw(self, count: int, generator: Generator) -> BanditRounds:
        x = _on_sphere(count, self.context_size, generator)
        success = (1 + 0.8 * x @ self.theta.T) / 2
        return BanditRounds(x, success, torch.ones_like(success), torch.zeros_like(success))


def _on_sphere(count: int, size: int, generator: Generator) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(count, size, generator=generator), dim=1)


class PaymentRouter:
    """Payments of three kinds of card from three regions go to one of five providers, which decline
    some of them. An approved payment of amount m earns MARGIN m less the provider's share and fee,
    every attempt costs; rewards are scaled from [LOWEST, HIGHEST] to [0, 1].

        P(approved) = sigmoid(BASE_k + CARD_k,c + REGION_k,r - 0.8 (m - 60) / 40 STEEP_k)
        reward      = (approved ((MARGIN - SHARE_k) m - FEE_k) - ATTEMPT_k - LOWEST) / range

    The context is both kinds as indicators, all nine pairs of them, and (m - 60) / 40 in [-1, 1].
    The situation of "Contextual Bandits in Payment Processing" (arXiv 2412.00569), whose data are
    not public; every number here is made up."""

    MARGIN, LOWEST, HIGHEST = 0.08, -0.15, 8.0
    BASE = torch.tensor([2.2, 1.6, 2.6, 1.9, 2.0])
    CARD = torch.tensor(  # debit, credit, premium
        [[0.6, 0.0, -0.9], [0.0, 0.4, 0.0], [-0.5, 0.3, 0.9], [0.5, -0.2, -0.4], [-0.6, 0.2, 1.0]]
    )
    REGION = torch.tensor(  # home, near, far
        [[0.9, -0.4, -1.6], [0.2, 0.9, -0.8], [0.0, 0.0, 0.3], [1.0, -0.8, -1.2], [-0.9, 0.1, 1.2]]
    )
    STEEP = torch.tensor([0.9, 0.4, 0.1, 1.1, 0.3])
    SHARE = torch.tensor([0.009, 0.013, 0.016, 0.006, 0.017])
    FEE = torch.tensor([0.10, 0.10, 0.15, 0.05, 0.12])
    ATTEMPT = torch.tensor([0.02, 0.03, 0.08, 0.02, 0.05])

    context_size, actions = 16, 5

    def draw(self, count: int, generator: Generator) -> BanditRounds:
        shares = torch.tensor([0.5, 0.3, 0.2])
        card = torch.multinomial(shares, count, replacement=True, generator=generator)
        region = torch.multinomial(shares, count, replacement=True, generator=generator)
        amount = 20 + 80 * torch.rand(count, generator=generator)
        return self.rounds(card, region, amount)

    def rounds(self, card: Tensor, region: Tensor, amount: Tensor) -> BanditRounds:
        """The rounds of these payments: `card`, `region` [B] of 0..2, `amount` [B] in [20, 100]."""
        scaled = (amount - 60) / 40
        logit = self.BASE + self.CARD.T[card] + self.REGION.T[region]
        success = torch.sigmoid(logit - 0.8 * scaled[:, None] * self.STEEP)
        span = self.HIGHEST - self.LOWEST
        earned = (self.MARGIN - self.SHARE) * amount[:, None] - self.FEE
        loss = ((-self.ATTEMPT - self.LOWEST) / span).expand_as(success)
        pair = torch.nn.functional.one_hot(3 * card + region, 9)
        kinds = [torch.nn.functional.one_hot(kind, 3) for kind in (card, region)]
        context = torch.cat([*kinds, pair, scaled[:, None]], 1).float()
        return BanditRounds(context, success, loss + earned / span, loss)
