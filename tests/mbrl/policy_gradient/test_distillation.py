"""Distillation: divergences against loops, and one expected gradient from samples and from whole
distributions."""

import math

import pytest
import torch

from mbrl.policy_gradient import Recipe, Term, estimate, loss
from mbrl.policy_gradient.axes.aggregation import SequenceSum, TokenMean
from mbrl.policy_gradient.axes.gate import Clip, LogLikelihood
from mbrl.policy_gradient.axes.modulation import TeacherAdvantage
from mbrl.policy_gradient.axes.regulariser import Divergence
from mbrl.policy_gradient.distillation import forward_kl, reverse_kl
from mbrl.types import Trajectories

VOCABULARY, STEPS = 5, 3


def drawn(seed: int, *shape: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, VOCABULARY, generator=g, dtype=torch.float64)


def test_divergences_equal_loops() -> None:
    log_p, log_q = (drawn(i, 2, 3).log_softmax(-1) for i in (0, 1))
    for found, a, b in ((reverse_kl, log_p, log_q), (forward_kl, log_q, log_p)):
        value = found(log_p, log_q)
        for i in range(2):
            for j in range(3):
                slow = sum(
                    math.exp(a[i, j, k]) * float(a[i, j, k] - b[i, j, k]) for k in range(VOCABULARY)
                )
                assert float(value[i, j]) == pytest.approx(slow, abs=1e-12)
    assert not reverse_kl(log_p, log_p).any()
    with pytest.raises(ValueError, match="shapes do not fit"):
        reverse_kl(log_p, log_q[:, :1])


def batch(action: torch.Tensor, **fields: dict[str, torch.Tensor]) -> Trajectories:
    """Sequences of `action` [B, STEPS], each a prompt of its own, without reward."""
    zero, last = torch.zeros(action.shape, dtype=torch.float64), torch.zeros_like(action).bool()
    last[:, -1] = True
    ids = torch.arange(len(action))[:, None].expand(action.shape)
    return Trajectories(
        torch.zeros(*action.shape, 0),
        action,
        zero,
        torch.zeros(*action.shape, 0),
        last,
        ~last & last,
        torch.ones_like(action).bool(),
        groups={"prompt": ids},
        **fields,
    )


@pytest.mark.parametrize("gate", [Clip(), LogLikelihood()])
def test_sampled_and_whole_forms_have_one_expected_gradient(gate: object) -> None:
    """Over all actions of one step, each weighed by its probability, at the policy that sampled."""
    logits = drawn(3, 1).requires_grad_()
    log_q = drawn(4, 1).log_softmax(-1)
    log_p = logits.log_softmax(-1)
    sampled = Recipe(
        "sampled",
        "",
        terms=(Term(weight=0.0),),
        modulation=(TeacherAdvantage(limit=1e6),),
        gate=gate,  # type: ignore[arg-type]
    )
    total = torch.zeros(())
    for a in range(VOCABULARY):
        action = torch.tensor([[a]])
        probs = {"old": log_p[0, a].detach().view(1, 1), "teacher": log_q[0, a].view(1, 1)}
        t = batch(action, log_probs=probs)
        value, _ = loss(sampled, log_p[0, a].view(1, 1), t, estimate(sampled, t))
        total = total + float(log_p[0, a].exp()) * value
    (from_samples,) = torch.autograd.grad(total, logits, retain_graph=True)
    kl = reverse_kl(log_p, log_q)[None]
    whole = Recipe("whole", "", terms=(Term(weight=0.0),), regularisers=(Divergence(),))
    t = batch(torch.zeros(1, 1, dtype=torch.int64), log_probs={"old": log_p[0, :1][None].detach()})
    t.signals["reverse_kl"] = kl
    value, _ = loss(whole, log_p[0, :1][None].detach(), t, estimate(whole, t))
    assert float(value) == pytest.approx(float(kl))
    (from_whole,) = torch.autograd.grad(value, logits)
    torch.testing.assert_close(from_samples, from_whole, rtol=1e-9, atol=1e-12)
    assert float(from_whole.abs().max()) > 0.01


def test_weights_places_and_the_part_of_the_task() -> None:
    action = torch.zeros(2, STEPS, dtype=torch.int64)
    old, teacher = (-drawn(i, 2)[..., :STEPS].abs() for i in (5, 6))
    t = batch(action, log_probs={"old": old, "teacher": teacher})
    found = TeacherAdvantage(weight=0.5, own=2.0, limit=0.3)(torch.ones_like(old), t.mask, t)
    for i in range(2):
        for j in range(STEPS):
            d = max(-0.3, min(0.3, float(teacher[i, j] - old[i, j])))
            assert float(found[i, j]) == pytest.approx(2 + 0.5 * d)
    t.signals["forward_kl"] = old.abs()
    t.signals["near"] = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    value = Divergence(0.25, "forward", "near")(old, None, old, t)
    torch.testing.assert_close(value, 0.25 * old.abs() * t.signals["near"])
    assert TokenMean()(value, old, t) != SequenceSum()(value, old, t)
