"""Bayesian agents for the bandit, with the fitted members as the prior and their Gaussian rewards
as the likelihood. A recurrent agent that is trained in the members approximates them."""

import torch
from torch import Tensor

from experiments.studies.bandit_world import Members

KINDS = ("thompson", "lookahead")
PLANS = (1, 2, 5, 10, 20, 50)  # pulls of arm 1 that the lookahead weighs before it commits


class Oracle:
    """The posterior over which member one plays is exact: its weights are the product of the
    members' likelihoods of every pull so far, of either arm, from equal weights.

    `thompson` draws a member from the posterior at every pull and takes its better arm. `lookahead`
    takes arm 1 where some plan that begins with it is worth more than arm 0 for the rest of the
    episode; see `plans`. The optimal, Bayes-adaptive agent is worth at least as much as either.
    """

    def __init__(self, members: Members, kind: str, pulls: int, samples: int) -> None:
        self.members = Members(*(t.double() for t in vars(members).values()))
        self.kind, self.pulls, self.samples = kind, pulls, samples

    def act(
        self, inputs: Tensor, memory: Tensor | None, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Arms [B], and the memory [B, N + 1]: log weights of the members and the number of
        pulls."""
        memory = self.see(inputs, memory)
        weights = torch.softmax(memory[:, :-1], -1)
        if self.kind == "thompson":
            member = torch.multinomial(weights, 1, generator=generator)[:, 0]
            return self.members.worth.argmax(-1)[member], memory
        left = self.pulls - int(memory[0, -1])
        stay = left * (weights @ self.members.worth[:, 0])
        return (self.plans(weights, left, generator).amax(0) > stay).long(), memory

    def see(self, inputs: Tensor, memory: Tensor | None) -> Tensor:
        """The memory updated with the pull in `inputs`; the first inputs hold none."""
        if memory is None:
            return torch.zeros(len(inputs), len(self.members.mean) + 1, dtype=torch.double)
        arm, reward = inputs[:, 1:-1].argmax(-1), inputs[:, -1].double()
        log_weights = memory[:, :-1] + self.members.log_likelihood(arm, reward)
        return torch.cat([log_weights.log_softmax(-1), memory[:, -1:] + 1], 1)

    def plans(self, weights: Tensor, left: int, generator: torch.Generator) -> Tensor:
        """[K, B]: what plans are worth over `left` more pulls: k pulls of arm 1, then for the rest
        the arm that is better by the posterior they lead to; the last plan never leaves arm 1.

        The posteriors are simulated: draw a member by its weight, k rewards from it, and weigh all
        members anew by the rewards' number, sum and sum of squares. Such a plan commits once, so
        that its worth, exact up to the simulation, is a lower bound on the optimal agent's. No plan
        begins with arm 0: the data settled it.
        """
        worth, mean, std = self.members.worth, self.members.mean[:, 1], self.members.std[:, 1]
        now = weights @ worth[:, 1]
        lengths = [k for k in PLANS if k < left]
        values = []
        if lengths:
            member = torch.multinomial(weights, self.samples, True, generator=generator)
            shape = (*member.shape, lengths[-1])
            noise = torch.randn(shape, dtype=torch.double, generator=generator)
            rewards = mean[member][..., None] + std[member][..., None] * noise
            total, squares = rewards.cumsum(-1), rewards.square().cumsum(-1)
        for k in lengths:
            s1, s2 = total[..., k - 1, None], squares[..., k - 1, None]
            misfit = (s2 - 2 * s1 * mean + k * mean.square()) / (2 * std.square())
            after = torch.softmax(weights.log()[:, None] - misfit - k * std.log(), -1)
            values.append(k * now + (left - k) * (after @ worth).amax(-1).mean(-1))
        return torch.stack([*values, left * now])
