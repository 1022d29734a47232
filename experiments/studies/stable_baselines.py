"""Agents of stable-baselines3 with the interface of `evaluate`."""

from typing import Any

import torch


class StableBaselines:
    """A model of stable-baselines3, which acts greedily."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.policy = self

    def parameters(self) -> Any:
        return self.model.policy.parameters()

    def __call__(self, obs: torch.Tensor) -> torch.Tensor:
        action, _ = self.model.predict(obs.numpy(), deterministic=True)
        return torch.as_tensor(action)
