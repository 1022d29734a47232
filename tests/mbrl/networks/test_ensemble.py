"""The member-major forms against plain autograd in float64: values, action gradients, and the
gradients of both, for the sizes the algorithms use."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from mbrl.networks import EnsembleMLP, ensemble_values, minimum_value
from mbrl.networks.ensemble import ACTIVATIONS, batched_values
from world_models.ensemble_network import EnsembleConfig, EnsembleNetwork

ACTIONS = 3
SIZES = [
    (1, (8,), 1),
    (1, (16, 8), 5),
    (2, (16, 16), 256),
    (3, (7, 9, 11), 256),
    (5, (8, 8, 8, 8), 17),
    (10, (32, 32, 32), 256),
    (10, (5,), 256),
]


def build(members: int, hidden: tuple[int, ...], batch: int, **kind: object) -> tuple:
    generator = torch.Generator().manual_seed(members + 7 * batch)
    mlp = EnsembleMLP(members, 4 + ACTIONS, hidden, 1, generator=generator, **kind).double()
    x = torch.randn(batch, 4 + ACTIONS, generator=generator, dtype=torch.float64)
    return mlp, x, generator


def plain(mlp: EnsembleMLP, x: Tensor) -> tuple[Tensor, Tensor]:
    """q and dq/da by autograd alone, differentiable again."""
    x = x if x.requires_grad else x.clone().requires_grad_(True)
    q = mlp.batched(x)[:, :, 0]
    rows = [torch.autograd.grad(row.sum(), x, create_graph=True)[0] for row in q]
    return q, torch.stack(rows)[:, :, -ACTIONS:]


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("members", "hidden", "batch"), SIZES)
@pytest.mark.parametrize("form", ["member-major", "batched"])
def test_values_and_action_gradients_and_their_gradients(members, hidden, batch, form):
    mlp, x, generator = build(members, hidden, batch)
    if form == "batched":
        q, gradient = batched_values(x, ACTIONS, list(mlp.weights), list(mlp.biases))
    else:
        q, gradient = ensemble_values(mlp, x, ACTIONS)
    true_q, true_gradient = plain(mlp, x)
    close(q, true_q)
    close(gradient, true_gradient)
    left = torch.randn(q.shape, generator=generator, dtype=q.dtype)
    right = torch.randn(gradient.shape, generator=generator, dtype=q.dtype)
    parameters = list(mlp.parameters())

    def pull(values: Tensor, slopes: Tensor, a: float, b: float) -> list[Tensor]:
        # The norm makes the cotangent of the slopes a function of the slopes, as EDAC's is.
        loss = a * (left * values).square().sum() + b * (right * slopes.square()).sum()
        return list(
            torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
        )

    for a, b in ((1.0, 0.0), (0.0, 1.0), (0.7, -1.3)):
        for found, wanted in zip(
            pull(q, gradient, a, b), pull(true_q, true_gradient, a, b), strict=True
        ):
            close(found, wanted)


@pytest.mark.parametrize(("members", "hidden", "batch"), SIZES)
@pytest.mark.parametrize("frozen", [False, True])
def test_values_alone_and_their_gradients(members, hidden, batch, frozen):
    mlp, x, generator = build(members, hidden, batch)
    x.requires_grad_(True)
    q, nothing = ensemble_values(mlp, x, frozen=frozen)
    assert nothing.numel() == 0
    wanted_q = mlp.batched(x)[:, :, 0]
    close(q, wanted_q)
    weight = torch.randn(q.shape, generator=generator, dtype=q.dtype)
    targets = [x] if frozen else [x, *mlp.parameters()]
    found = torch.autograd.grad((q * weight).square().sum(), targets)
    wanted = torch.autograd.grad((wanted_q * weight).square().sum(), targets)
    for a, b in zip(found, wanted, strict=True):
        close(a, b)


@pytest.mark.parametrize(("members", "hidden", "batch"), SIZES)
def test_both_outputs_differentiate_q_in_the_inputs(members, hidden, batch):
    mlp, x, _ = build(members, hidden, batch)
    x.requires_grad_(True)
    q, _ = ensemble_values(mlp, x, ACTIONS)
    (found,) = torch.autograd.grad(q.square().sum(), x)
    (wanted,) = torch.autograd.grad(mlp.batched(x).square().sum(), x)
    close(found, wanted)


@pytest.mark.parametrize(("members", "hidden", "batch"), SIZES)
def test_the_minimum_and_its_action_gradient(members, hidden, batch):
    mlp, x, generator = build(members, hidden, batch)
    x.requires_grad_(True)
    lowest, wanted = minimum_value(mlp, x, ACTIONS), mlp.batched(x)[:, :, 0].min(0).values
    close(lowest, wanted)
    weight = torch.randn(batch, generator=generator, dtype=x.dtype)
    (found,) = torch.autograd.grad((lowest * weight).sum(), x)
    (true,) = torch.autograd.grad((wanted * weight).sum(), x)
    close(found[:, -ACTIONS:], true[:, -ACTIONS:])
    assert bool((found[:, :-ACTIONS] == 0).all())
    with torch.no_grad():
        close(minimum_value(mlp, x, ACTIONS), wanted)


def test_gradcheck_by_finite_differences():
    mlp, x, _ = build(3, (6, 5), 4)
    params = [p.detach().requires_grad_(True) for p in mlp.parameters()]
    names = [n for n, _ in mlp.named_parameters()]

    def outputs(*values: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = torch.func.functional_call(
            Caller(mlp), {f"mlp.{n}": v for n, v in zip(names, values, strict=True)}, (x,)
        )
        return found

    class Caller(torch.nn.Module):
        def __init__(self, mlp: EnsembleMLP) -> None:
            super().__init__()
            self.mlp = mlp

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return ensemble_values(self.mlp, x, ACTIONS)

    assert torch.autograd.gradcheck(outputs, params)
    assert torch.autograd.gradcheck(lambda *p: outputs(*p)[0], params)
    y = x.clone().requires_grad_(True)
    assert torch.autograd.gradcheck(lambda v: ensemble_values(mlp, v)[0], (y,))


@pytest.mark.parametrize(
    ("activation", "hidden", "layer_norm"),
    list(itertools.product(ACTIVATIONS, [(), (9,), (8, 12, 8)], [False, True])),
)
@pytest.mark.parametrize("stacked", [False, True])
def test_inference_is_the_batched_form(activation, hidden, layer_norm, stacked):
    mlp, x, _ = build(4, hidden, 33, activation=activation, layer_norm=layer_norm)
    x = torch.stack([x * k for k in range(4)]) if stacked else x
    wanted = mlp.batched(x)
    kept = x.clone()
    with torch.no_grad():
        close(mlp(x), wanted)
        for e in range(4):
            close(mlp.member(x[e] if stacked else x, e), wanted[e])
    for e in range(4):
        close(mlp.member(x[e] if stacked else x, e), wanted[e])
    assert torch.equal(x, kept)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_every_member_is_a_network_of_torchs_own_layers(layer_norm):
    mlp, x, generator = build(3, (8, 12), 17, activation="leaky_relu", layer_norm=layer_norm)
    with torch.no_grad():
        for values in (*mlp.scales, *mlp.shifts):  # as after training: no more ones and zeros
            values.copy_(torch.randn(values.shape, generator=generator))
    wanted = []
    for e in range(3):
        h = x
        for layer, width in enumerate((8, 12, 1)):
            linear = nn.Linear(h.shape[1], width).double()
            linear.load_state_dict(
                {"weight": mlp.weights[layer][e].T, "bias": mlp.biases[layer][e, 0]}
            )
            h = linear(h)
            if layer < 2 and layer_norm:
                norm = nn.LayerNorm(width).double()
                scale, shift = mlp.scales[layer][e, 0], mlp.shifts[layer][e, 0]
                norm.load_state_dict({"weight": scale, "bias": shift})
                h = norm(h)
            h = nn.functional.leaky_relu(h) if layer < 2 else h
        wanted.append(h)
    close(mlp(x), torch.stack(wanted))
    close(mlp.member(x, 1), wanted[1])
    close(mlp.chosen(x, torch.tensor([2, 0])), torch.stack([wanted[2], wanted[0]]))


def test_the_frozen_ensemble_keeps_no_graph_and_no_grad_saves_nothing():
    mlp, x, _ = build(3, (8, 8), 6)
    assert not ensemble_values(mlp, x, frozen=True)[0].requires_grad
    with torch.no_grad():
        assert not ensemble_values(mlp, x)[0].requires_grad
        close(ensemble_values(mlp, x)[0], plain_values(mlp, x))


def plain_values(mlp: EnsembleMLP, x: Tensor) -> Tensor:
    return mlp.batched(x)[:, :, 0].detach()


def test_two_graphs_at_once_do_not_share_activations():
    mlp, x, _ = build(2, (8, 8), 6)
    first, _ = ensemble_values(mlp, x, ACTIONS)
    second, _ = ensemble_values(mlp, -2 * x, ACTIONS)
    found = torch.autograd.grad((first.square() + second.square()).sum(), mlp.weights[0])
    both = mlp.batched(x).square().sum() + mlp.batched(-2 * x).square().sum()
    close(found[0], torch.autograd.grad(both, mlp.weights[0])[0])


def test_what_is_not_supported_says_so():
    with pytest.raises(ValueError, match="scalar-output ReLU"):
        ensemble_values(EnsembleMLP(2, 3, (4,), 2), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="hidden layer"):
        ensemble_values(EnsembleMLP(2, 3, (), 1), torch.zeros(1, 3))


def test_variance_of_a_prediction_is_the_exponential_of_the_bounded_log_variance():
    network = EnsembleNetwork(4, 3, 2, EnsembleConfig(log_variance_max=0.5)).double()
    out = torch.linspace(-60, 60, 606, dtype=torch.float64).reshape(1, 101, 6)
    mean, variance = network.moments(out, torch.zeros(1, 101, 4))
    wanted_mean, log_variance = network.split(out)
    close(mean, wanted_mean)
    torch.testing.assert_close(variance, log_variance.exp(), rtol=1e-7, atol=0)
