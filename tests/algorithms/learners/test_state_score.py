"""The gradient of a next state's log-density by the action: against a closed form where everything
is linear, and against derivatives in float64."""

import pytest
import torch

from algorithms.learners.state_score import StateScore, output_and_slopes, pulled_back
from mbrl.networks import MLP
from mbrl.types import Spec

D = torch.float64
SPEC = Spec("small", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)


def test_pulled_back_is_the_jacobian_transposed() -> None:
    net = MLP(5, (7, 6), 4, generator=torch.Generator().manual_seed(0)).double()
    generator = torch.Generator().manual_seed(1)
    x, v = (torch.randn(3, n, generator=generator, dtype=D) for n in (5, 4))
    net.requires_grad_(False)
    out, slopes = output_and_slopes(net, x)
    assert torch.allclose(out, net(x))
    got, step = pulled_back(net, slopes, v), 1e-6
    for i in range(3):
        for j in range(5):
            moved = torch.zeros(5, dtype=D)
            moved[j] = step
            slope = (net(x[i] + moved) - net(x[i] - moved)) / (2 * step)
            assert float(got[i, j]) == pytest.approx(float(slope @ v[i]), abs=1e-7)


def linear(net: MLP, weight: torch.Tensor) -> None:
    """Make a network of one hidden layer the linear map x to `weight` x [out, in], as
    relu(x) - relu(-x)."""
    first, last = net.layers
    eye = torch.eye(weight.shape[1], dtype=D)
    with torch.no_grad():
        first.weight.copy_(torch.cat([eye, -eye]))
        last.weight.copy_(torch.cat([weight, -weight], 1))
        first.bias.zero_()
        last.bias.zero_()


def test_linear_dynamics_and_normal_states() -> None:
    """f(s, a) = s + A s + B a and s' ~ N(0, t^2 I): B' psi_s = -B' f / (t^2 + sigma^2), states
    standardised by the normaliser."""
    made = StateScore(SPEC, (10,), torch.Generator().manual_seed(0)).double()
    made.net = MLP(4, (8,), 3).double()
    generator = torch.Generator().manual_seed(1)
    by_state, by_action = (torch.randn(3, n, generator=generator, dtype=D) for n in (3, 2))
    linear(made.model, torch.cat([by_state, by_action], 1))
    t, sigma = 0.7, torch.tensor(0.4, dtype=D)
    shrink = -sigma / (t**2 + sigma**2)  # the output is sigma psi
    linear(made.net, torch.cat([shrink * torch.eye(3, dtype=D), torch.zeros(3, 1, dtype=D)], 1))
    made.normaliser.mean.copy_(torch.tensor([1.0, -2.0, 0.5]))
    made.normaliser.std.copy_(torch.tensor([2.0, 0.5, 1.0]))
    obs, action = (torch.randn(5, n, generator=generator, dtype=D) for n in (3, 2))
    with torch.no_grad():
        got, predicted = made(obs, action, sigma), made.predicted(obs, action)
    for i in range(5):
        state = (obs[i] - made.normaliser.mean) / made.normaliser.std
        reached = state + by_state @ state + by_action @ action[i]
        assert torch.allclose(predicted[i], reached)
        assert torch.allclose(got[i], -by_action.T @ reached / (t**2 + sigma**2))
