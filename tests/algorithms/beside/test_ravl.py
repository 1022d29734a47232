"""RAVL against the authors' code: anyasims/edge-of-reach at 18b5085, a whole `Agent.update`
(agent_training/agent.py) with the exact logarithm of the squash's slope in the place of theirs,
which has 1e-6 inside, and `Ensemble.get_means_logvars`, `Net.loss`, `prepare_data`
(dynamics_training/), in float64.

Agent: networks 8-8-8, policy of seed 1, critics 2, 3 and 4, their targets 5, 6 and 7; temperature
0.3, eta 0.8, tau 0.1, rates 1e-3; noise normal(7, 2, ...), its first draw both the temperature's
and the policy's. Model: three members 8-8-8-8 of seeds 30 to 32 with the bounds of
`tests/world_models/beside/members.py` and observations in tenths of their deviation, so that nine
inputs are cut at 10.
"""

import pytest
import torch

from tests.algorithms.beside.inputs import (
    ACTIONS,
    ROWS,
    SPEC,
    array,
    batch,
    digest,
    gradients_of,
    layers,
    learner_of,
    normal,
    put,
    weights_of,
)
from tests.world_models.beside.members import MEMBERS, WIDTH
from world_models import EnsembleConfig, EnsembleDynamics
from world_models.ensemble_network import gaussian_nll


def test_update() -> None:
    shared = {
        "hidden": [8, 8, 8], "critics": 3, "gamma": 0.9, "tau": 0.1, "alpha": 0.3, "eta": 0.8,
        "actor_lr": 1e-3, "critic_lr": 1e-3, "alpha_lr": 1e-3,
    }  # fmt: skip
    made = learner_of("ravl", learner=shared, imagination={"termination": "never"})
    made.log_alpha.data = torch.tensor(0.3, dtype=torch.float64).log()
    put(made.actor.net, layers(1, 4, 8, 8, 8, 4))
    put(made.critic, *(layers(seed, 6, 8, 8, 8, 1) for seed in (2, 3, 4)))
    put(made.target, *(layers(seed, 6, 8, 8, 8, 1) for seed in (5, 6, 7)))
    metrics = made.update(batch(noise=normal(7, 2, ROWS, ACTIONS)))
    got = [
        *(metrics[name].item() for name in ("actor/alpha", "actor/loss", "actor/entropy")),
        metrics["critic/loss"].item() + 0.8 * metrics["critic/diversity"].item(),
        gradients_of(made.actor.net, made.optimisers["actor"]),
        gradients_of(made.critic, made.optimisers["critic"], 3),
        weights_of(made.target, 3),
    ]
    expected = [0.29970015, 0.5274113303, 1.224931906, 7.657727159]
    assert got == pytest.approx([*expected, 0.1410040371, 0.4107960545, -2.037764757], rel=1e-7)


def test_model() -> None:
    config = EnsembleConfig(members=MEMBERS, elites=MEMBERS, hidden=(8, 8, 8, 8))
    made, rows = EnsembleDynamics(SPEC, config), batch()
    network = made.network.double()
    put(network.mlp, *(layers(30 + e, 6, 8, 8, 8, 8, 2 * WIDTH) for e in range(MEMBERS)))
    network.high.data = torch.as_tensor(0.5 + 0.1 * normal(40, WIDTH))
    network.low.data = torch.as_tensor(-1 + 0.1 * normal(41, WIDTH))
    made.obs_normaliser.double().fit(rows.obs)
    made.obs_normaliser.std.mul_(0.1)
    made.action_normaliser.double().fit(rows.action)
    x, y = made.encode(rows.obs, rows.action), made.targets(rows)
    mean, log_variance = network(x)
    reached = torch.cat([mean[..., :-1] + rows.obs, mean[..., -1:]], -1)
    loss = gaussian_nll(mean, log_variance, y, network) - network.bound_loss()
    error = (mean - y).square().mean((1, 2))
    got = [digest([array(reached)]), digest([array(log_variance)]), loss.item(), *error.tolist()]
    expected = [9.841472873, -0.549413153, 7.895393977, 2.371226683, 3.243090428, 2.173308286]
    assert got == pytest.approx(expected, rel=1e-8)
