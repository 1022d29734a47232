"""WSRL against the authors' code: zhouzypaul/wsrl at 891ee35, `critic_loss_fn` and `policy_loss_fn`
of `CalQLAgent` and of `SACAgent` (wsrl/agents/), in float64 with an epsilon of 1e-5 in its
LayerNorm, without `max_target_backup` and, in Cal-QL, without `critic_subsample_size`.

Networks 8-8 with LayerNorm; policy of seed 1; hidden layers of the critics 2, 3 and 4 and of their
targets 5, 6 and 7, one last layer 9 for all (theirs share it), of whose targets the second and the
first are drawn in SAC; temperature 0.3, weight 5, three actions a kind, noise and returns as in
test_cql.py. Theirs takes the critics' mean in the place of their sum.
"""

from typing import Any

import pytest
import torch

from algorithms.learners.soft_actor_critic import plain_target
from tests.algorithms.beside.inputs import (
    ROWS,
    Layers,
    batch,
    digest,
    gradients_of,
    layers,
    learner_of,
    member,
    normal,
    put,
)

SAMPLES, MEMBERS = 3, 3


def critic(seed: int) -> Layers:
    return layers(seed, 6, 8, 8) + layers(9, 8, 1)


def learner() -> Any:
    shared = {
        "hidden": [8, 8], "critics": MEMBERS, "gamma": 0.9, "alpha": 0.3, "actor_lr": 1e-3,
        "critic_lr": 1e-3, "alpha_lr": 1e-3, "target_min_of": 2, "layer_norm": "all",
    }  # fmt: skip
    made = learner_of("wsrl", learner=shared, samples=SAMPLES, weight=5.0)
    put(made.actor.net, layers(1, 4, 8, 8, 4))
    put(made.critic, *(critic(seed) for seed in (2, 3, 4)))
    put(made.target, *(critic(seed) for seed in (5, 6, 7)))
    return made


def hidden_and_last(made: Any) -> list[float]:
    """Digests of the gradients of the hidden layers, and of those of the last layer's sum."""
    state = made.optimisers["critic"].state
    each = [member(made.critic, n, lambda p: 10 * state[p]["exp_avg"]) for n in range(MEMBERS)]
    last = [sum(m[-2] for m in each), sum(m[-1] for m in each)]
    return [digest([a for m in each for a in m[:-2]]), digest(last)]


@pytest.mark.parametrize(
    ("offline", "loss", "expected"),
    [
        (True, 6.24036317, [5.582570334, 4.707561961]),
        (False, 6.41319179, [1.844626739, 0.742502972]),
    ],
)
def test_critics(offline: bool, loss: float, expected: list[float]) -> None:
    made = learner()
    made.offline = offline
    noise = torch.as_tensor(normal(7, 2 + 3 * SAMPLES, ROWS, 2))
    subset = None if offline else torch.tensor([1, 0])
    rows = batch(noise=noise, to_go=1 + normal(8, ROWS))._replace(subset=subset)
    metrics = made.update_critic(rows, plain_target(made, rows, {}))
    assert metrics["critic/loss"].item() == pytest.approx(loss, rel=1e-7)
    assert hidden_and_last(made) == pytest.approx(expected, rel=1e-7)
    if offline:
        assert metrics["critic/gap"].item() == pytest.approx(3.708510279, rel=1e-7)


def test_policy() -> None:
    made = learner()
    made.optimisers["alpha"].param_groups[0]["lr"] = 0.0
    metrics = made.update_policy(batch(noise=normal(7, 2 + 3 * SAMPLES, ROWS, 2)))
    got = [metrics["actor/loss"].item(), metrics["actor/entropy"].item()]
    assert got == pytest.approx([0.02448178749, 1.158785183], rel=1e-6)
    gradient = gradients_of(made.actor.net, made.optimisers["actor"])
    assert gradient == pytest.approx(-1.87845381, rel=1e-6)
