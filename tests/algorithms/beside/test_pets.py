"""PETS' planner against the authors' code: kchua/handful-of-trials at 77fd880,
`CEMOptimizer.obtain_solution` (dmbrl/misc/optimizers/cem.py), without its stop at small variances.

Plans of three steps of two actions, 20 an iteration, five elites, a tenth of the moments kept;
noise normal(50, 4, 20, 6) cut at two deviations in the place of its truncated draws; first mean
0.9 tanh(normal(52, 6)), first variance 0.25; the cost of a plan x is sum (x - 0.6 normal(51, 6))^2
+ sum sin 3x. The means after one to four iterations.
"""

import pytest
import torch

from algorithms.pets import PlannerConfig, bounded_deviation, refitted
from tests.algorithms.beside.inputs import array, digest, normal

HORIZON, DIMS, PLANS = 3, 2, 20


def test_cross_entropy_iterations() -> None:
    config = PlannerConfig(horizon=HORIZON, population=PLANS, elite_share=0.25)
    shape = (1, HORIZON, DIMS)
    mean = torch.as_tensor(normal(52, HORIZON * DIMS)).tanh().view(shape)
    mean = 0.9 * mean
    variance = torch.full_like(mean, 0.25)
    goal = torch.as_tensor(0.6 * normal(51, HORIZON * DIMS)).view(shape)
    got = []
    for noise in normal(50, 4, 1, PLANS, HORIZON, DIMS).clip(-2, 2):
        draws = torch.as_tensor(noise)
        plans = mean[:, None] + bounded_deviation(mean, variance)[:, None] * draws
        cost = (plans - goal[:, None]).square() + torch.sin(3 * plans)
        mean, variance = refitted(plans, -cost.sum((2, 3)), mean, variance, config)
        got.append(digest([array(mean)]))
    expected = [-0.4779081394, -0.6337462411, -0.5189865852, -0.5027187791]
    assert got == pytest.approx(expected, rel=1e-8)
