"""What a part is: something that a recipe needs beside log-probs."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from algorithms.language.rollouts import Rollouts
from mbrl.training import Metrics


class Part:
    """Gives `provides`, fields of the trajectories in the words of `Recipe.needs`."""

    provides: ClassVar[tuple[str, ...]]

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.modules: dict[str, nn.Module] = {}
        self.optimisers: dict[str, torch.optim.Optimizer] = {}

    def begin(self) -> None:
        """The model has got its first weights."""

    def measure(self, found: Rollouts) -> Rollouts:
        """With what this part provides; before the updates of a round."""
        return found

    def targets(self, found: Rollouts) -> dict[str, Tensor]:
        """[B, T] each, for `learn`."""
        return {}

    def learn(self, found: Rollouts, targets: dict[str, Tensor]) -> Metrics:
        """One step on a minibatch."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What is neither in modules nor in optimisers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
