"""The critic of policy gradients in control, and the running moments that it is measured in."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mbrl.networks import MLP, Normaliser
from mbrl.types import Spec


class Critic(nn.Module):
    """V(s) [...] of raw observations [..., S].

    The network's output is in deviations of the targets so far from their mean, so that values in
    the hundreds are learned no later than those around 1; when these numbers change, the last layer
    changes with them, so that values stay ("Learning values across many orders of magnitude", arXiv
    1602.07714, section 2). With `outputs` 2 the network gives a second number beside the value.
    """

    centre: Tensor
    scale: Tensor

    def __init__(
        self,
        spec: Spec,
        hidden: Sequence[int],
        activation: str,
        generator: torch.Generator,
        outputs: int = 1,
    ) -> None:
        super().__init__()
        self.normaliser = Normaliser(spec.obs_dim)
        self.net = MLP(spec.obs_dim, hidden, outputs, activation=activation)
        self.net.orthogonal(1.0, generator)
        self.register_buffer("centre", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, obs: Tensor) -> Tensor:
        return self.outputs(obs)[0]

    def outputs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The value [...] and the network's last number [...]."""
        out: Tensor = self.net(self.normaliser(obs))
        return self.centre + self.scale * out[..., 0], out[..., -1]

    @torch.no_grad()
    def rescale(self, moments: "Moments") -> None:
        """Measure in deviations from the mean of `moments` (of one number), with values as they
        are."""
        mean, std = moments.mean[0].float(), moments.std()[0].float()
        last = self.net.layers[-1]
        assert isinstance(last, nn.Linear)
        last.weight[0].mul_(self.scale / std)
        last.bias[0] = (self.centre + self.scale * last.bias[0] - mean) / std
        self.centre.copy_(mean)
        self.scale.copy_(std)


class Moments:
    """Mean and variance of all observations so far, by the parallel update of Chan et al."""

    def __init__(self, dim: int, device: torch.device) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(dim, dtype=torch.float64, device=device)
        self.squares = torch.zeros(dim, dtype=torch.float64, device=device)

    def add(self, values: Tensor) -> None:
        """Take in `values` [N, D]."""
        new, count = values.double(), len(values)
        mean = new.mean(0)
        apart, total = mean - self.mean, self.count + count
        self.squares = self.squares + (new - mean).square().sum(0)
        self.squares = self.squares + apart.square() * self.count * count / total
        self.mean, self.count = self.mean + apart * count / total, total

    def std(self) -> Tensor:
        """[D], 1 where nothing varies."""
        std = (self.squares / self.count.clamp_min(1)).sqrt()
        return torch.where(std < 1e-12, torch.ones_like(std), std)

    def apply(self, normaliser: Normaliser) -> None:
        normaliser.mean.copy_(self.mean)
        normaliser.std.copy_(self.std())

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("count", "mean", "squares")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.count, self.mean, self.squares = state["count"], state["mean"], state["squares"]
