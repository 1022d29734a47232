"""Learners of goals against OGBench's reference code: seohongpark/ogbench at 1d41409, `update` of
impls/agents/{gcbc,gcivl,gciql,hiql,crl}.py, and SAW against johnlyzhou/saw at 1ce8ac7, `update` of
impls/agents/saw.py, which is built on it; in float64.

Networks 8-8 without LayerNorm; in theirs GELU is the exact one and a tanh is put behind the mean of
actions, in ours GELU into the policies. Goals: of values normal(20, 6, 4), of the policy 21, k
steps ahead 22; subgoals 23. Rates 1e-3, tau 0.1, expectile 0.7. First weights in the tests are the
policy's; their targets follow the networks before the step, and are not compared.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch

from mbrl.goals import goal_fields
from mbrl.types import Spec
from tests.algorithms.beside.inputs import (
    ACTIONS,
    ROWS,
    batch,
    gradients_of,
    layers,
    learner_of,
    normal,
    put,
    rows,
)

SPEC = Spec(
    "beside", action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0),
    **goal_fields(4, (0, 1, 2, 3)),
)  # fmt: skip
SHARED = {"hidden": [8, 8], "gamma": 0.9, "learning_rate": 1e-3}
VALUES = SHARED | {"layer_norm": False, "tau": 0.1, "expectile": 0.7}


def goal_batch() -> Any:
    values, goal = rows(), normal(20, ROWS, 4)
    for name in ("obs", "next_obs"):
        values[name] = np.concatenate([values[name], goal], 1)
    waypoint = np.concatenate([normal(23, ROWS, 4), goal], 1)
    policy_goal, low_goal = normal(21, ROWS, 4), normal(22, ROWS, 4)
    return batch(values, policy_goal=policy_goal, low_goal=low_goal, waypoint=waypoint)


def learner(name: str, **settings: Any) -> Any:
    made = learner_of(name, SPEC, **settings)
    if name not in ("hiql", "saw"):
        net = made.modules["policy"].net
        net.activation = "gelu"
        put(net, layers(1, 8, 8, 8, 2))
    return made


def gradients(made: Any, *parts: tuple[torch.nn.Module, str, int]) -> list[float]:
    return [gradients_of(net, made.optimisers[name], members) for net, name, members in parts]


def test_gcbc() -> None:
    made = learner("gcbc", **SHARED)
    metrics = made.update(goal_batch())
    assert metrics["actor/loss"].item() == pytest.approx(2.080800425, rel=1e-8)
    assert gradients(made, (made.policy.net, "policy", 1)) == pytest.approx([0.2462779591])


def test_gcivl() -> None:
    made = learner("gcivl", **VALUES, temperature=1.5)
    put(made.value.values, layers(2, 8, 8, 8, 1), layers(3, 8, 8, 8, 1))
    put(made.value.targets, layers(19, 8, 8, 8, 1), layers(20, 8, 8, 8, 1))
    metrics = made.update(goal_batch())
    losses = [metrics["actor/loss"].item(), metrics["value/loss"].item()]
    assert losses == pytest.approx([1.771479954, 1.717249544], rel=1e-7)
    got = gradients(made, (made.value.values, "value", 2), (made.policy.net, "policy", 1))
    assert got == pytest.approx([2.281324485, 0.2155732096], rel=1e-7)


@pytest.mark.parametrize(
    ("policy_loss", "loss", "gradient"),
    [("climb", None, 0.9319460347), ("weigh", 1.196517583, 0.1251631269)],
)
def test_gciql(policy_loss: str, loss: float | None, gradient: float) -> None:
    made = learner("gciql", **VALUES, alpha=0.8, policy_loss=policy_loss)
    put(made.value, layers(6, 8, 8, 8, 1))
    put(made.critic, layers(2, 10, 8, 8, 1), layers(3, 10, 8, 8, 1))
    put(made.critic_target, layers(4, 10, 8, 8, 1), layers(5, 10, 8, 8, 1))
    metrics = made.update(goal_batch())
    if loss is None:
        climb = metrics["actor/loss"] - metrics["actor/bc"]
        assert climb.item() == pytest.approx(0.2736461129, rel=1e-7)
    else:
        assert metrics["actor/loss"].item() == pytest.approx(loss, rel=1e-7)
    losses = [metrics["critic/loss"].item(), metrics["value/loss"].item()]
    assert losses == pytest.approx([4.174226883, 0.3233583607], rel=1e-7)
    got = gradients(
        made, (made.critic, "critic", 2), (made.flat.net, "policy", 1), (made.value, "value", 1)
    )
    assert got == pytest.approx([4.810542753, gradient, -0.0875484633], rel=1e-7)


def test_hiql() -> None:
    """Representations of three entries; the policies' losses lack the constant of log pi."""
    made = learner("hiql", **VALUES, representation=3, low_temperature=1.5, high_temperature=0.8)
    value, policy = made.value, made.policy
    put(value.represent.net, layers(7, 8, 8, 8, 3))
    put(value.values, layers(2, 7, 8, 8, 1), layers(3, 7, 8, 8, 1))
    put(value.targets, layers(4, 7, 8, 8, 1), layers(5, 7, 8, 8, 1))
    policy.low.activation = policy.high.activation = "gelu"
    put(policy.low, layers(1, 7, 8, 8, 2))
    put(policy.high, layers(11, 8, 8, 8, 3))
    metrics = made.update(goal_batch())
    constant = 0.5 * math.log(2 * math.pi)
    losses = [
        metrics[f"{name}_actor/loss"] + size * constant * metrics[f"{name}_actor/weight"]
        for name, size in (("high", 3), ("low", ACTIONS))
    ]
    losses.append(metrics["value/loss"])
    assert [x.item() for x in losses] == pytest.approx([3.775184646, 2.378320875, 2.448726608])
    got = gradients(
        made,
        (value.represent.net, "value", 1),
        (value.values, "value", 2),
        (policy.low, "policy", 1),
        (policy.high, "policy", 1),
    )
    expected = [1.203069586, -2.817318526, 0.1223638632, 1.536251877]
    assert got == pytest.approx(expected, rel=1e-7)


def test_contrastive_rl() -> None:
    """Representations of five entries."""
    made = learner("contrastive_rl", **SHARED, layer_norm=False, latent=5, alpha=0.8)
    critic = made.critic
    put(critic.phi, layers(2, 6, 8, 8, 5), layers(3, 6, 8, 8, 5))
    put(critic.psi, layers(4, 4, 8, 8, 5), layers(5, 4, 8, 8, 5))
    metrics = made.update(goal_batch())
    names = ("actor/loss", "actor/bc", "critic/loss", "critic/right")
    got = [metrics[name].item() for name in names]
    expected = [2.297795051, 1.66464034, 0.73377398, 0.09457005548]
    assert got == pytest.approx(expected, rel=1e-7)
    got = gradients(
        made, (critic.phi, "critic", 2), (critic.psi, "critic", 2), (made.policy.net, "policy", 1)
    )
    assert got == pytest.approx([-0.1759746758, -0.02244252673, -0.1935772099], rel=1e-7)


def test_saw() -> None:
    """Representations of three entries. The clone's loss lacks the constant of log pi."""
    made = learner(
        "saw", **VALUES, representation=3, low_temperature=1.5, temperature=0.8,
        waypoint_temperature=1.2,
    )  # fmt: skip
    value, policy, near = made.value, made.policy, made.near
    put(value.represent.net, layers(7, 8, 8, 8, 3))
    put(value.values, layers(2, 7, 8, 8, 1), layers(3, 7, 8, 8, 1))
    put(value.targets, layers(19, 7, 8, 8, 1), layers(20, 7, 8, 8, 1))
    policy.net.activation = near.net.activation = "gelu"
    put(near.net, layers(11, 8, 8, 8, 2))
    put(policy.represent.net, layers(8, 8, 8, 8, 3))
    put(policy.net, layers(1, 7, 8, 8, 2))
    metrics = made.update(goal_batch())
    constant = ACTIONS * 0.5 * math.log(2 * math.pi) * metrics["actor/weight"]
    losses = [metrics[name].item() for name in ("near/loss", "value/loss", "waypoint/loss")]
    losses.append((metrics["actor/loss"] + constant).item())
    expected = [2.340657871, 1.592846454, 0.3114545316, 2.026877511]
    assert losses == pytest.approx(expected, rel=1e-7)
    got = gradients(
        made,
        (value.represent.net, "value", 1),
        (value.values, "value", 2),
        (near.net, "near", 1),
        (policy.net, "policy", 1),
        (policy.represent.net, "policy", 1),
    )
    expected = [3.236415648, -2.342290643, 0.02329671167, -0.3825534658, -0.1239963153]
    assert got == pytest.approx(expected, rel=1e-7)
