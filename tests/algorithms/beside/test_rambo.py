"""RAMBO's adversary against OfflineRL-Kit's: yihaosun1124/OfflineRL-Kit at e3ce697,
`RAMBOPolicy.dynamics_step_and_forward` (offlinerlkit/policy/model_based/rambo.py), in float64 but
for its log-density, which it makes float32.

Arrays stand in the place of the model, and gradients are taken for them: means and log-variances
of three members [3, 6, 5], at imagined rows normal(20, ...) and 0.3 normal(21, ...), at the batch's
own normal(23, ...) and 0.3 normal(24, ...), bounds and weight decay 0. Noise normal(22, ...) of the
members that are drawn, 2, 0, 1, 1, 0 and 2. Policy 8-8 of seed 1, critics 2 and 3; weight 0.4; the
third imagined row ends.
"""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from algorithms.rambo import AdversarialRows, adversarial_loss, mixture_log_prob
from tests.algorithms.beside.inputs import (
    ROWS,
    batch,
    digest,
    layers,
    learner_of,
    normal,
    put,
)
from world_models.ensemble_network import gaussian_nll

MEMBERS, WIDTH = 3, 5


def leaf(seed: int, scale: float) -> torch.Tensor:
    values = torch.as_tensor(scale * normal(seed, MEMBERS, ROWS, WIDTH))
    return values.requires_grad_(True)


def test_adversary() -> None:
    made, rows = learner_of("sac", learner={"hidden": [8, 8], "gamma": 0.9}), batch()
    put(made.actor.net, layers(1, 4, 8, 8, 4))
    put(made.critic, layers(2, 6, 8, 8, 1), layers(3, 6, 8, 8, 1))
    mean, log_variance, real_mean, real_spread = (
        leaf(seed, scale) for seed, scale in ((20, 1.0), (21, 0.3), (23, 1.0), (24, 0.3))
    )
    drawn, row = torch.tensor([2, 0, 1, 1, 0, 2]), torch.arange(ROWS)
    noise = torch.as_tensor(normal(22, MEMBERS, ROWS, WIDTH))
    y = (mean + (0.5 * log_variance).exp() * noise)[drawn, row].detach()
    owner = SimpleNamespace(learner=made, config=SimpleNamespace(gamma=0.9))
    ended = torch.as_tensor(np.arange(ROWS) == 2)
    advantage = AdversarialRows.advantage(
        cast(Any, owner), rows.obs, rows.action, y[:, -1], rows.obs + y[:, :-1], ended
    )
    network = SimpleNamespace(config=SimpleNamespace(log_variance_bounds="fixed"))
    target = torch.cat([rows.next_obs - rows.obs, rows.reward[:, None]], 1)
    fit = gaussian_nll(real_mean, real_spread, target, cast(Any, network))
    log_prob = mixture_log_prob(mean, log_variance, y)
    loss, metrics = adversarial_loss(fit, log_prob, advantage, 0.4)
    loss.backward()
    got = [loss.item(), metrics["adversary/fit"].item(), metrics["adversary/attack"].item()]
    got.append(log_prob.mean().item())
    assert got == pytest.approx([7.994857516, 8.163645936, -0.4219710497, -8.32722187], rel=1e-7)
    gradients = [digest([x.grad]) for x in (mean, log_variance, real_mean, real_spread)]
    expected = [-0.09248501838, 0.09222439894, 0.4468144601, 0.4891136189]
    assert gradients == pytest.approx(expected, rel=1e-6)
