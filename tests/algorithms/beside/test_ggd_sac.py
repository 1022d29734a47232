"""GGD-SAC's weights by inverse variances against the authors' code: ait-lab/ggtde at ea36916,
`biev_loss` and `biv_loss` (losses/weighted.py) of type "mae" with an effective batch of 1, in
float64. Its likelihood is another one, as algorithms/ggd_sac.py says, and was not run.

Values normal(20, 6, 5, 1) of five critics, targets normal(21, 6) for all of them, discount 0.9. Its
weights add up to 1 where ours have the mean 1.
"""

import pytest
import torch

from algorithms.learners import generalised_gaussian
from tests.algorithms.beside.inputs import GAMMA, ROWS, normal


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
