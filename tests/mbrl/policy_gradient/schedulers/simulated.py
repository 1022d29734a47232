"""Prompts whose success rates are known: what schedulers are judged on."""

import torch

from mbrl.policy_gradient.schedulers import Outcome, Pool, Request, Scheduler, gather


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Prompts:
    """Bernoulli prompts with `rate` float64 [N], drawn from their own generator."""

    def __init__(self, rate: torch.Tensor, seed: int = 0) -> None:
        self.rate = rate.double()
        self.generator = generator(seed + 1000)

    def roll(self, request: Request) -> Outcome:
        ids = request.each()
        draws = torch.rand(len(ids), generator=self.generator, dtype=torch.float64)
        rewards = (draws < self.rate[ids]).double()
        penalty = torch.rand(len(ids), generator=self.generator)
        length = 5 + 10 * torch.rand(len(ids), generator=self.generator)
        return Outcome(ids, rewards, {"penalty": penalty, "length": length})

    def round(self, scheduler: Scheduler, g: torch.Generator) -> Outcome:
        """One round, heard."""
        outcome = gather(scheduler, self.roll, g)
        scheduler.observe(outcome, g)
        return outcome


def full_pool(size: int = 48, seed: int = 0) -> Pool:
    """Features, levels 0 to 3 and as many families as that makes."""
    features = torch.randn(size, 3, generator=generator(seed))
    ids = torch.arange(size)
    return Pool(size, features, ids % 4, ids // 4)


def mixed_share(outcome: Outcome) -> float:
    """Share of prompts with a right and a wrong answer."""
    found = [outcome.rewards[outcome.prompts == i] for i in outcome.prompts.unique()]
    return sum(float(r.max()) > float(r.min()) for r in found) / len(found)
