"""ODICE against the authors' code: maoliyuan/ODICE-Pytorch at 1692507, `orthogonal_true_g_update`,
`true_g_update` and `semi_g_update` of `ODICE` (odice.py), whole updates in float64.

Networks 8-8 without LayerNorm; policy of seed 1 with `use_tanh` and log-deviations 0.2
normal(9, 2), twin values 2 and 3, their targets 4 and 5; lambda 0.6, eta 0.7, tau 0.1, rates 1e-3,
no weight decay. Its discount is a float32.
"""

import pytest
import torch

from tests.algorithms.beside.inputs import (
    batch,
    digest,
    gradients_of,
    layers,
    learner_of,
    normal,
    put,
    weights_of,
)

# Digests of the gradients of values, policy and deviations, and of the new targets.
EXPECTED = {
    ("orthogonal", "chi_square"): [-0.3444222729, -0.2345965969, 0.9420802084, -5.013394637],
    ("orthogonal", "reverse_kl"): [-1.137689879, -0.1818534509, 1.582394896, -5.014436811],
    ("true", "chi_square"): [-0.0462136285, -0.05532203427, 0.6892638221, -5.013956086],
    ("true", "reverse_kl"): [-0.3708827197, 0.06369018673, 0.9841227552, -5.013268953],
    ("semi", "chi_square"): [-0.400080647, -0.2345965969, 0.9420802084, -5.01446278],
    ("semi", "reverse_kl"): [-1.119027302, -0.1818534509, 1.582394896, -5.013040066],
}


@pytest.mark.parametrize(("gradient", "divergence"), list(EXPECTED))
def test_update(gradient: str, divergence: str) -> None:
    made = learner_of(
        "odice", hidden=[8, 8], policy_hidden=[8, 8], layer_norm=False, gamma=0.9, tau=0.1, eta=0.7,
        learning_rate=1e-3, gradient=gradient, divergence=divergence, weight="residual",
    )  # fmt: skip
    put(made.policy.net, layers(1, 4, 8, 8, 2))
    made.policy.log_std.data.copy_(torch.as_tensor(0.2 * normal(9, 2)))
    put(made.value, layers(2, 4, 8, 8, 1), layers(3, 4, 8, 8, 1))
    put(made.value_target, layers(4, 4, 8, 8, 1), layers(5, 4, 8, 8, 1))
    made.update(batch())
    deviations = made.optimisers["policy"].state[made.policy.log_std]["exp_avg"]
    got = [
        gradients_of(made.value, made.optimisers["value"], 2),
        gradients_of(made.policy.net, made.optimisers["policy"]),
        10 * digest([deviations]),
        weights_of(made.value_target, 2),
    ]
    assert got == pytest.approx(EXPECTED[gradient, divergence], rel=1e-6)
