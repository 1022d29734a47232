"""Ensembles of Gaussian members against OfflineRL-Kit's and mbrl-lib's, run in float64.

yihaosun1124/OfflineRL-Kit at e3ce697, `EnsembleDynamics` (offlinerlkit/dynamics/
ensemble_dynamics.py): a step with its penalties, the holdout error, and one step of its fit with
the gradients of likelihood, weight decay and bounds. facebookresearch/mbrl-lib at 3f93ccc,
`GaussianMLP.loss` (mbrl/models/gaussian_mlp.py).

The model is that of `members`; decay 0.1, 0.2, 0.3 of the layers. A step draws members
2, 0, 1, 1, 0, 2 and noise normal(42, 3, 6, 5). Members are fitted to rows in the orders of
`ORDERS`. Their penalty `ensemble_std` is our `epistemic_mean` of the observation alone.
"""

import sys

import pytest
import torch

from tests.algorithms.beside.inputs import (
    ROWS,
    batch,
    digest,
    gradients_of,
    normal,
)
from tests.world_models.beside.members import MEMBERS, WIDTH, model
from world_models import RolloutConfig, rollout
from world_models.disagreement import epistemic_mean, max_aleatoric
from world_models.ensemble_network import nll_gradients
from world_models.fitting import Fit

DRAWN = torch.tensor([2, 0, 1, 1, 0, 2])
ORDERS = [[0, 1, 2, 3, 4, 5], [3, 1, 1, 5, 0, 2], [5, 4, 3, 2, 2, 0]]


def test_step_with_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    made, rows = model(), batch()
    noise = torch.as_tensor(normal(42, MEMBERS, ROWS, WIDTH))[DRAWN, torch.arange(ROWS)]
    engine = sys.modules[rollout.__module__]  # the package's name of it is the function's
    monkeypatch.setattr(engine, "balanced", lambda *args, **kinds: DRAWN)
    monkeypatch.setattr(torch, "randn", lambda *shape, **kinds: noise)
    config = RolloutConfig(horizon=1, penalty="max_aleatoric", penalty_weight=0.7)
    made_rows = rollout(
        made, lambda obs, generator: rows.action, rows.obs, config, torch.Generator()
    )
    mean, variance = made.members_predict(rows.obs, rows.action)
    got = [
        digest([made_rows.next_obs]),
        digest([made_rows.reward]),
        float(made_rows.terminated.sum()),
        digest([max_aleatoric(mean, variance)]),
        digest([epistemic_mean(mean[..., :-1], variance[..., :-1])]),
    ]
    expected = [1.766312448, 1.352436032, 2.0, -0.4477225849, -0.2910741959]
    assert got == pytest.approx(expected, rel=1e-8)


def test_holdout_error_and_one_step_of_the_fit() -> None:
    made, rows = model(), batch()
    fit = Fit(made.network, made.config, ROWS, 0, torch.device("cpu"))
    x, y = made.encode(rows.obs, rows.action), made.targets(rows)
    fit.holdout = torch.arange(ROWS)
    error = fit.holdout_error(x, y)
    # Summed up in float32.
    assert error.tolist() == pytest.approx([1.924078322, 2.054191605, 1.343340459], rel=1e-7)
    fit.train = torch.tensor(ORDERS)
    metrics = fit.epoch(x, y, nll_gradients)
    decay = sum(
        0.5 * share * w.detach().square().sum().item()
        for share, w in zip(made.config.weight_decay, model().network.mlp.weights, strict=True)
    )
    moment = [
        digest([10 * fit.optimiser.state[bound]["exp_avg"].numpy()])
        for bound in (made.network.low, made.network.high)
    ]
    gradients = gradients_of(made.network.mlp, fit.optimiser, MEMBERS)
    got = [float(metrics["model/train_loss"]) + decay, gradients, *moment]
    expected = [13.57404282, -1.345112687, -0.4750749651, -0.2762689334]
    assert got == pytest.approx(expected, rel=1e-8)


def test_likelihood_without_decay() -> None:
    """mbrl-lib's, with SiLU and learned bounds, all members on the same rows."""
    made, rows = model(), batch()
    x, y = made.encode(rows.obs, rows.action), made.targets(rows)
    mlp, network = made.network.mlp, made.network
    depth = len(mlp.weights)
    parameters = [*mlp.weights, *mlp.biases, network.low, network.high]
    loss, gradients = nll_gradients(
        network, x.expand(MEMBERS, -1, -1), y.expand(MEMBERS, -1, -1), parameters
    )
    weights, biases = gradients[:depth], gradients[depth : 2 * depth]
    layers = list(zip(weights, biases, strict=True))
    members = [part.numpy() for e in range(MEMBERS) for w, b in layers for part in (w[e], b[e, 0])]
    bounds = [digest([part.numpy()]) for part in gradients[-2:]]
    got = [loss.item(), digest(members), *bounds]
    expected = [5.685322406, -0.7204311771, -0.3610189373, -0.2147925622]
    assert got == pytest.approx(expected, rel=1e-8)
