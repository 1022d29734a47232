"""Rewards as a function of state, action and the state reached.

A task's reward is often a function of where a step leads, sharp there (a distance to a target, a
limit that must not be passed). Networks that see the state reached learn such a function several
times more exactly than a further output of the dynamics does, and squared errors keep them from
treating its peaks as noise.
"""

from typing import Any

import torch
from torch import Tensor

from mbrl.native.adam import AdamW
from mbrl.networks import EnsembleMLP, step

NETWORKS = 3
HIDDEN = (128, 128, 128)
BATCH = 256
MOST_PASSES = 100  # over the rows, where they are few
RATE = 1e-3  # of AdamW, falling to 0 in a straight line
DECAY = 1e-2


class ReachedRewards:
    """The mean of three networks with LayerNorm, fitted to standardised rewards by squared
    errors."""

    def __init__(self, width: int, updates: int, device: torch.device, seed: int) -> None:
        self.updates, self.seed, self.device = updates, seed, device
        generator = torch.Generator().manual_seed(seed + 43)
        network = EnsembleMLP(NETWORKS, width, HIDDEN, 1, layer_norm=True, generator=generator)
        self.network = network.to(device).requires_grad_(False)
        self.mean = torch.zeros((), device=device)
        self.std = torch.ones((), device=device)
        self.fitted = False

    def fit(self, x: Tensor, reward: Tensor) -> None:
        """Fit to `x` [N, D] and `reward` [N] in `updates` steps, fewer where that is 100 passes;
        again from the present weights, in a tenth of them."""
        updates = min(self.updates, MOST_PASSES * len(x) // BATCH + 1)
        if self.fitted:
            updates = max(1, updates // 10)
        self.mean, self.std = reward.mean(), reward.std(correction=0).clamp_min(1e-6)
        goals = (reward - self.mean) / self.std
        generator = torch.Generator(device=self.device).manual_seed(self.seed + 47)
        self.network.requires_grad_(True)
        parameters = list(self.network.parameters())
        optimiser = AdamW(parameters, RATE, weight_decay=DECAY, fused=True)
        shape = (NETWORKS, min(BATCH, len(x)))
        for update in range(updates):
            for group in optimiser.param_groups:
                group["lr"] = RATE * (1.0 - update / updates)
            rows = torch.randint(len(x), shape, generator=generator, device=self.device)
            guess = self.network(x[rows])[..., 0]
            loss = (guess - goals[rows]).square().mean(1).sum()
            step(optimiser, torch.autograd.grad(loss, parameters))
        self.network.requires_grad_(False)
        self.fitted = True

    def __call__(self, x: Tensor) -> Tensor:
        """Rewards [...] for inputs [..., D]; differentiable."""
        flat = x.reshape(-1, x.shape[-1])
        value = self.network(flat)[..., 0].mean(0) * self.std + self.mean
        return value.reshape(x.shape[:-1])

    def state_dict(self) -> dict[str, Any]:
        network = self.network.state_dict()
        return {"network": network, "mean": self.mean, "std": self.std, "fitted": self.fitted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.mean, self.std = state["mean"].to(self.device), state["std"].to(self.device)
        self.fitted = state["fitted"]
