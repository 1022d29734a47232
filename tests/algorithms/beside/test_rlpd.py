"""RLPD against the authors' code: ikostrikov/rlpd at c90fd4b, `SACLearner.update` with a ratio of 1
(rlpd/agents/sac/sac_learner.py), in float64 with an epsilon of 1e-5 in its LayerNorm.

Networks 8-8, LayerNorm in the critics; policy of seed 1, critics 2, 3 and 4, their targets 5, 6 and
7, of which the third and the first are drawn; temperature 0.3, tau 0.1, rates 1e-3, noise normal(7,
2, ...), its second draw the next action's. Theirs takes the critics' step first, their mean in the
place of their sum, and the temperature's gradient by itself times the temperature.
"""

import pytest
import torch

from algorithms.learners.soft_actor_critic import plain_target
from mbrl.networks import polyak_update
from tests.algorithms.beside.inputs import (
    ACTIONS,
    ROWS,
    batch,
    gradients_of,
    layers,
    learner_of,
    normal,
    put,
    weights_of,
)


def test_update() -> None:
    shared = {
        "hidden": [8, 8], "critics": 3, "gamma": 0.9, "tau": 0.1, "alpha": 0.3, "actor_lr": 1e-3,
        "critic_lr": 1e-3, "alpha_lr": 1e-3, "target_min_of": 2, "actor_value": "mean",
        "layer_norm": "critics",
    }  # fmt: skip
    made = learner_of("rlpd", learner=shared)
    put(made.actor.net, layers(1, 4, 8, 8, 4))
    put(made.critic, *(layers(seed, 6, 8, 8, 1) for seed in (2, 3, 4)))
    put(made.target, *(layers(seed, 6, 8, 8, 1) for seed in (5, 6, 7)))
    rows = batch(noise=normal(7, 2, ROWS, ACTIONS), subset=torch.tensor([2, 0]))
    metrics = made.update_critic(rows, plain_target(made, rows, {}))
    polyak_update(made.target, made.critic, 0.1)
    made.optimisers["alpha"].param_groups[0]["lr"] = 0.0  # theirs steps it last
    metrics |= made.update_policy(rows)
    losses = [metrics[name].item() for name in ("critic/loss", "actor/loss", "actor/entropy")]
    assert losses == pytest.approx([4.694599063, -0.7923842306, 1.287019089], rel=1e-6)
    moment = made.optimisers["alpha"].state[made.log_alpha]["exp_avg"]
    gradients = [
        gradients_of(made.critic, made.optimisers["critic"], 3),
        gradients_of(made.actor.net, made.optimisers["actor"]),
        0.3 * 10 * float(moment),
    ]
    assert gradients == pytest.approx([-0.2487268933, -0.4704784412, 0.6861057266], rel=1e-6)
    assert weights_of(made.target, 3) == pytest.approx(-2.703884604, rel=1e-6)
