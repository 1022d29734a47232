"""The score of logged next states, and the way back from a next state to the action: what CDSA adds
to the score of actions."""

import torch
from torch import Generator, Tensor, nn

from mbrl.networks import MLP, Normaliser
from mbrl.types import Spec


class StateScore(nn.Module):
    """psi_s(s', sigma), the gradient by s' of the log-density of logged next states with noise
    sigma, and f(s, a), the next state that is expected: together the gradient by a of the
    log-density at f(s, a). States are those that a normaliser, if it was fitted, makes of
    observations."""

    def __init__(self, spec: Spec, hidden: tuple[int, ...], generator: Generator) -> None:
        super().__init__()
        self.size = spec.obs_dim
        self.normaliser = Normaliser(self.size)
        self.net = MLP(self.size + 1, hidden, self.size, generator=generator)
        self.model = MLP(self.size + spec.action_dim, hidden, self.size, generator=generator)

    def output(self, state: Tensor, sigma: Tensor) -> Tensor:
        """sigma psi_s [B, S] at next states [B, S] and `sigma` [B]."""
        out: Tensor = self.net(torch.cat([state, sigma.log()[:, None]], -1))
        return out

    def predicted(self, obs: Tensor, action: Tensor) -> Tensor:
        """f(s, a) [B, S] at raw `obs` [B, S] and `action` [B, A] in [-1, 1]."""
        state: Tensor = self.normaliser(obs)
        return state + self.model(torch.cat([state, action], -1))

    def forward(self, obs: Tensor, action: Tensor, sigma: Tensor) -> Tensor:
        """J' psi_s(f(s, a), sigma) [B, A] for one `sigma` [], J = df / da."""
        state = self.normaliser(obs)
        change, slopes = output_and_slopes(self.model, torch.cat([state, action], -1))
        psi = self.output(state + change, sigma.expand(state.shape[0])) / sigma
        return pulled_back(self.model, slopes, psi)[:, self.size :]


def output_and_slopes(net: MLP, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """What a ReLU network gives [B, out] at `x` [B, in], and the slope of each of its hidden units
    [B, W], 0 or 1. In plain operations, since an exported policy has no automatic derivatives."""
    slopes = []
    *hidden, last = net.layers
    for layer in hidden:
        x = layer(x)
        slopes.append((x > 0).to(x.dtype))
        x = x.relu()
    out: Tensor = last(x)
    return out, slopes


def pulled_back(net: MLP, slopes: list[Tensor], cotangent: Tensor) -> Tensor:
    """J' v [B, in] of `cotangent` v [B, out], where J is the network's Jacobian at those
    `slopes`."""
    *hidden, last = [layer.weight for layer in net.layers if isinstance(layer, nn.Linear)]
    pulled = cotangent @ last
    for weight, slope in zip(reversed(hidden), reversed(slopes), strict=True):
        pulled = (pulled * slope) @ weight
    return pulled
