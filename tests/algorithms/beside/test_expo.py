"""EXPO's clone and edits against a re-implementation: ColinQiyangLi/qam at f93efd2,
`FEditAgent.actor_loss` (agents/fedit.py), in float64. Its targets are others and were not run.

Networks 8-8 with ReLU in both codes, critics without LayerNorm; edits of seed 1, critics 2, 3 and
4, flow 6 of three steps; scale 0.3, temperature 0.3. Of normal(7, 3, ...) the first draw is the
flow's x_0, then those of the sample that is edited and of its edit; times are uniform draws of seed
8. Its temperature's gradient is by itself times the temperature.
"""

import numpy as np
import pytest
import torch

from algorithms.learners.generative import Drawn
from tests.algorithms.beside.inputs import (
    ACTIONS,
    ROWS,
    batch,
    gradients_of,
    layers,
    learner_of,
    normal,
    put,
)


def test_clone_and_edits() -> None:
    made = learner_of(
        "expo", hidden=[8, 8], gamma=0.9, critics=3, layer_norm=False, flow={"steps": 3},
        edit_from="samples", edit_scale=0.3, alpha=0.3, target_entropy=-1.0,
    )  # fmt: skip
    made.base.net.activation = "relu"
    put(made.edit.net, layers(1, 6, 8, 8, 4))
    put(made.critic, *(layers(seed, 6, 8, 8, 1) for seed in (2, 3, 4)))
    put(made.base.net, layers(6, 7, 8, 8, 2))
    noise = torch.as_tensor(normal(7, 3, ROWS, ACTIONS))
    level = torch.as_tensor(np.random.default_rng(8).uniform(size=ROWS))
    rows = Drawn(batch(noise=noise[1:]), noise[0], level)
    clone = made.base.loss(rows)
    metrics = made.update_edit(rows.batch)
    assert clone.item() == pytest.approx(1.147868887, rel=1e-7)
    entropy, loss = metrics["actor/entropy"].item(), metrics["actor/loss"].item()
    assert entropy == pytest.approx(1.279095486, rel=1e-6)
    assert loss == pytest.approx(-0.3188923601 - 0.3837286458, rel=1e-6)
    moment = made.optimisers["temperature"].state[made.log_alpha]["exp_avg"]
    got = [
        gradients_of(made.edit.net, made.optimisers["edit"]),
        0.3 * 10 * float(moment),
    ]
    assert got == pytest.approx([0.1510868505, 0.6837286458], rel=1e-6)
