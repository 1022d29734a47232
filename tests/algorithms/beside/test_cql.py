"""CQL and Cal-QL against the authors' code: nakamotoo/Cal-QL at ac6eafe, the loss and gradients of
`ConservativeSAC.train` (JaxCQL/conservative_sac.py), run in float64 with its random draws replaced
by those of `draws`, `cql_max_target_backup` False and the learned offset of its log-deviations 0.

Networks 8-8; policy of seed 1, critics 2 and 3, their targets 4 and 5, temperature 0.3, log alpha'
0.4, weight 5, gap 0.7, three actions a kind, all rates 1e-3, tau 0.1. Its uniform actions are
erf(noise / sqrt 2).
"""

from typing import Any

import pytest
import torch

from algorithms.learners.soft_actor_critic import plain_target
from mbrl.networks import polyak_update
from tests.algorithms.beside.inputs import (
    ROWS,
    batch,
    gradients_of,
    layers,
    learner_of,
    normal,
    put,
    weights_of,
)

SAMPLES = 3
# Of each case: sum of the critics' squared errors, mean gap, digests of gradients and new targets.
CASES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "cql": ({}, [2.948079483, 3.595514885, -3.451237624, -2.106297787]),
    "calibrated": (
        {"calibrated": True},
        [2.948079483, 3.724561419, -4.196495833, -2.106102322],
    ),
    # Their threshold is of the gap, ours of the weighted gap: 0.7 times 5.
    "lagrange": (
        {"calibrated": True, "threshold": 3.5},
        [2.948079483, 3.724561419, -4.665929763, -2.106038416],
    ),
    "temperature": (
        {"temperature": 0.5},
        [2.948079483, 2.544366678, -3.606291774, -2.106804376],
    ),
}


def learner(**settings: Any) -> Any:
    shared = {
        "hidden": [8, 8], "gamma": 0.9, "tau": 0.1, "alpha": 0.3,
        "actor_lr": 1e-3, "critic_lr": 1e-3, "alpha_lr": 1e-3,
    }  # fmt: skip
    made = learner_of("cql", learner=shared, samples=SAMPLES, weight=5.0, **settings)
    put(made.actor.net, layers(1, 4, 8, 8, 4))
    put(made.critic, layers(2, 6, 8, 8, 1), layers(3, 6, 8, 8, 1))
    put(made.target, layers(4, 6, 8, 8, 1), layers(5, 6, 8, 8, 1))
    return made


def draws() -> Any:
    noise = torch.as_tensor(normal(7, 2 + 3 * SAMPLES, ROWS, 2))
    return batch(noise=noise, to_go=1 + normal(8, ROWS))


@pytest.mark.parametrize("case", list(CASES))
def test_critics(case: str) -> None:
    settings, expected = CASES[case]
    made, rows = learner(**settings), draws()
    if "multiplier" in made.modules:
        made.modules["multiplier"]["log"].data.fill_(0.4)
    metrics = made.update_critic(rows, plain_target(made, rows, {}))
    polyak_update(made.target, made.critic, 0.1)
    got = [
        float(metrics["critic/loss"]),
        float(metrics["critic/gap"]),
        gradients_of(made.critic, made.optimisers["critic"], 2),
        weights_of(made.target, 2),
    ]
    assert got == pytest.approx(expected, rel=1e-7)
    if "multiplier" in made.modules:
        log = made.modules["multiplier"]["log"]
        gradient = made.optimisers["multiplier"].state[log]["exp_avg"] * 10
        assert float(gradient) == pytest.approx(-22.56057712, rel=1e-7)


def test_policy_and_temperature() -> None:
    made, rows = learner(), draws()
    for group in made.optimisers["alpha"].param_groups:
        group["lr"] = 0.0  # theirs takes the policy's gradient at the temperature before its step
    metrics = made.update_policy(rows)
    moment = made.optimisers["alpha"].state[made.log_alpha]["exp_avg"]
    got = [
        float(metrics["actor/loss"]),
        gradients_of(made.actor.net, made.optimisers["actor"]),
        10 * float(moment),
    ]
    assert got == pytest.approx([-0.3115874022, -0.4896054022, 3.287019089], rel=1e-7)
