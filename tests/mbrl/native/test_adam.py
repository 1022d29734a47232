"""Steps of the compiled Adam against PyTorch's."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from mbrl.native.adam import KINDS, Adam, AdamW, adam_step
from mbrl.native.build import library

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_adam_is_that_of_pytorch(kind: type[torch.optim.Optimizer], decay: float) -> None:
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(n, generator=draw).requires_grad_() for n in (1, 15, 16, 1000)]
    copies = copy.deepcopy(weights)

    def made(kind: Any, parameters: list[Tensor]) -> torch.optim.Optimizer:
        groups = [{"params": parameters[:3], "weight_decay": decay}, {"params": parameters[3:]}]
        optimiser: torch.optim.Optimizer = kind(groups, lr=3e-3, betas=(0.8, 0.99), eps=1e-6)
        return optimiser

    decoupled = issubclass(kind, torch.optim.AdamW)
    ours, theirs = (
        made(kind, weights),
        made(torch.optim.AdamW if decoupled else torch.optim.Adam, copies),
    )
    for step in range(20):
        gradients = [torch.randn(len(w), generator=draw) * 10.0 ** (step % 5 - 3) for w in weights]
        for c, g in zip(copies, gradients, strict=True):
            c.grad = g.clone()
        assert adam_step(ours, gradients)
        theirs.step()
    torch.testing.assert_close(weights, copies, rtol=1e-5, atol=1e-6)
    assert ours.state[weights[0]]["step"] == 20


def test_other_optimisers_are_left_to_pytorch() -> None:
    weights = [torch.ones(3).requires_grad_()]
    for optimiser in (torch.optim.Adam(weights, amsgrad=True), torch.optim.SGD(weights, 0.1)):
        weights[0].grad = torch.ones(3)
        optimiser.step()
        assert not adam_step(optimiser, [torch.ones(3)])


@pytest.mark.parametrize(("own", "theirs"), [(Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)])
def test_states_are_exchanged_with_pytorchs(own: Any, theirs: Any) -> None:
    """Groups, moments and steps, in both directions; the next step is then the same."""
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(5, generator=draw)
    first, second = (start.clone().requires_grad_() for _ in range(2))
    mine, other = own([first], lr=1e-2), theirs([second], lr=3e-3)
    gradient = torch.randn(5, generator=draw)
    assert adam_step(mine, [gradient])
    with torch.no_grad():
        second.copy_(first)
    other.load_state_dict(copy.deepcopy(mine.state_dict()))
    for p, optimiser in ((first, mine), (second, other)):
        p.grad = gradient.clone()
        optimiser.step()
    torch.testing.assert_close(first, second)
    mine.load_state_dict(other.state_dict())
    assert mine.param_groups[0]["lr"] == 1e-2 and mine.state[first]["step"] == 2


@pytest.mark.parametrize(("own", "theirs"), [(Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)])
def test_a_step_takes_any_order_in_memory_and_leaves_out_what_has_no_gradient(
    own: Any, theirs: Any
) -> None:
    """Weights and gradients as products and permuted convolutions leave them, against PyTorch's
    steps; a step counts as a change of the weights, and of those alone that had a gradient."""
    draw = torch.Generator().manual_seed(0)
    plain = torch.randn(4, 3, 5, generator=draw)
    orders = [plain, plain.permute(0, 2, 1).contiguous().permute(0, 2, 1), plain.transpose(0, 2)]
    weights = [order.clone().requires_grad_() for order in orders] + [
        torch.ones(2).requires_grad_()
    ]
    assert [w.is_contiguous() for w in weights] == [True, False, False, True]
    copies = copy.deepcopy(weights)
    mine, other = own(weights, lr=1e-2), theirs(copies, lr=1e-2)
    for step in range(4):
        values = torch.randn(4, 3, 5, generator=draw)
        gradients = [
            values,
            values,
            values.transpose(0, 2),
            None if step < 3 else torch.ones(1).expand(2),
        ]
        for w, c, g in zip(weights, copies, gradients, strict=True):
            w.grad = c.grad = g
        before = [w._version for w in weights]
        mine.step()
        other.step()
        changed = [w._version > b for w, b in zip(weights, before, strict=True)]
        assert changed == [True, True, True, step == 3]
        if step == 1:  # moments of a file may lie in another order
            state = mine.state[weights[1]]
            state["exp_avg"] = state["exp_avg"].contiguous()
    torch.testing.assert_close(weights, copies, rtol=1e-5, atol=1e-6)


def test_weights_with_gaps_are_left_to_pytorch() -> None:
    weight = torch.randn(6, 4)[:, ::2].requires_grad_()
    optimiser = Adam([weight])
    assert not adam_step(optimiser, [torch.ones(6, 2)])
    before, weight.grad = weight.detach().clone(), torch.ones(6, 2)
    optimiser.step()
    torch.testing.assert_close(before - weight.detach(), torch.full((6, 2), 1e-3))


def test_decay_that_is_decoupled_by_a_flag_is() -> None:
    weights = [torch.ones(2).requires_grad_() for _ in range(2)]
    for weight, kind in zip(weights, (Adam, torch.optim.Adam), strict=True):
        weight.grad = torch.zeros(2)
        kind([weight], lr=0.1, weight_decay=0.1, decoupled_weight_decay=True).step()
    torch.testing.assert_close(weights[0], weights[1])
    assert weights[0].tolist() == pytest.approx([0.99, 0.99])
