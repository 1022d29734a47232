"""GGD-SAC's weights by inverse variances and its "released" form against the authors' code:
ait-lab/ggtde at ea36916, `biev_loss` and `biv_loss` (losses/weighted.py) of type "mae" with an
effective batch of 1 and `ggd_nll_loss` (losses/mle.py), in float64.

Values normal(20, 6, 5, 1) of five critics, second outputs normal(22, 6, 5, 1), targets
normal(21, 6) for all of them, discount 0.9. Its weights add up to 1 where ours have the mean 1.
"""

import pytest
import torch

from algorithms import GGDSAC
from algorithms.learners import generalised_gaussian
from experiments.settings import build_config
from tests.algorithms.beside.inputs import GAMMA, ROWS, SPEC, digest, normal


@pytest.mark.parametrize(("of", "expected"), [("errors", 1.224477942), ("targets", 1.143247731)])
def test_weights(of: str, expected: float) -> None:
    values = torch.as_tensor(normal(20, ROWS, 5, 1))[..., 0].T
    error = values - torch.as_tensor(normal(21, ROWS))
    if of == "errors":
        variance = generalised_gaussian.error_variance(error)
    else:
        variance = values.var(0, correction=1) * GAMMA**2
    weight = generalised_gaussian.inverse_variance_weights(variance, 0.0) / ROWS
    assert float((weight * error.abs()).sum(0).mean()) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("weighted", [True, False])
def test_the_released_form(weighted: bool) -> None:
    """(`ggd_nll_loss` + 0.1 `biev_loss`) / 2, and its gradient by both outputs of every critic."""
    values = {"hidden": [4], "critics": 5, "form": "released", "variance_of": "errors"}
    values |= {"effective_share": 1e-6, "inverse_variance": weighted}
    agent = GGDSAC(SPEC, build_config("ggd_sac", {"learner": values}))
    both = torch.as_tensor(normal(20, ROWS, 5, 1)), torch.as_tensor(normal(22, ROWS, 5, 1))
    outputs = torch.cat(both, -1).transpose(0, 1).requires_grad_()
    loss, _ = agent.critic_loss(outputs, torch.as_tensor(normal(21, ROWS)), outputs[..., 0])
    expected = 0.9809500052 if weighted else 1.8394522162 / 2
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-9)
    if weighted:
        (gradient,) = torch.autograd.grad(loss, outputs)
        assert digest([gradient.numpy()]) == pytest.approx(-0.4117277493, rel=1e-8)
