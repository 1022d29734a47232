"""f-DVL and SMORe against the authors' code, whole updates in float64: `Learner.update` of
hari-sikchi/DVL at 4b7cf11 (offline/learner.py) and of hari-sikchi/SMORe at 68e59de (learner.py),
double critics, no gradient penalty, no dropout.

Networks 8-8 without LayerNorm; policy of seed 1 with log-deviations 0.2 normal(9, 2), critics 2 and
3, their targets 4 and 5, value 6; tau 0.1, rates 1e-3. f-DVL: temperature 3, bound of the exponent
1.5, uniform actions erf(normal(7, ...) / sqrt 2). SMORe: temperature 0.7, expectile 0.8, the last
three rows enter their goals.
"""

from typing import Any

import pytest
import torch

from mbrl.goals import goal_fields
from mbrl.types import Spec
from tests.algorithms.beside.inputs import (
    ACTIONS,
    ROWS,
    batch,
    digest,
    gradients_of,
    layers,
    learner_of,
    normal,
    put,
    rows,
    weights_of,
)

GOALS = Spec(
    "beside", action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0),
    **goal_fields(2, (0, 1)),
)  # fmt: skip


def learner(name: str, spec: Spec | None = None, **settings: Any) -> Any:
    shared = {
        "hidden": [8, 8], "gamma": 0.9, "tau": 0.1, "learning_rate": 1e-3, "layer_norm": False,
    }  # fmt: skip
    extra = {} if spec is None else {"spec": spec}
    made = learner_of(name, **extra, **shared, **settings)
    put(made.policy.net, layers(1, 4, 8, 8, 2))
    made.policy.log_std.data.copy_(torch.as_tensor(0.2 * normal(9, 2)))
    put(made.critic, layers(2, 6, 8, 8, 1), layers(3, 6, 8, 8, 1))
    put(made.critic_target, layers(4, 6, 8, 8, 1), layers(5, 6, 8, 8, 1))
    put(made.value, layers(6, 4, 8, 8, 1))
    return made


def measured(made: Any, metrics: dict[str, torch.Tensor]) -> list[float]:
    """Losses of value, policy and critics, digests of their gradients, the policy's deviations
    apart, and of the new targets."""
    deviations = made.optimisers["policy"].state[made.policy.log_std]["exp_avg"]
    return [
        *(metrics[f"{part}/loss"].item() for part in ("value", "actor", "critic")),
        gradients_of(made.value, made.optimisers["value"]),
        gradients_of(made.policy.net, made.optimisers["policy"]),
        10 * digest([deviations]),
        gradients_of(made.critic, made.optimisers["critic"], 2),
        weights_of(made.critic_target, 2),
    ]


@pytest.mark.parametrize(
    ("settings", "scale", "expected"),
    [
        (
            {"divergence": "total_variation", "alpha": 0.8}, 1,
            [0.07187352407, 3.061387593, 1.489770825, -0.6199010328, -0.1695630486, 1.188154723,
             -1.760112431, -2.106243858],
        ),
        (
            {"divergence": "chi_square", "alpha": 0.6, "authors_form": True}, 1,
            [0.02654789003, 3.061387607, 1.489770854, -0.2479526736, -0.1695630498, 1.188154729,
             -1.760112435, -2.106243858],
        ),
        (
            {"divergence": "chi_square", "alpha": 0.6, "authors_form": True,
             "uniform_actions": True}, 1,
            [0.02735931184, 3.061387607, 1.489770854, -0.2497336891, -0.1695630497, 1.188154729,
             -1.760112435, -2.106243858],
        ),
        (
            {"divergence": "reverse_kl", "beta": 0.5, "max_exponent": 1.5}, 1,
            [0.02633191687, 3.061387594, 1.489770827, -0.442808092, -0.1695630481, 1.188154723,
             -1.760112431, -2.106243858],
        ),
        (  # rewards beyond the threshold of Huber's loss
            {"divergence": "total_variation", "alpha": 0.8}, 30,
            [0.07187352407, 3.061387593, 810.5246821, -0.6199010328, -0.1695630486, 1.188154723,
             -20.21565903, -2.106154793],
        ),
    ],
)  # fmt: skip
def test_f_dvl(settings: dict[str, Any], scale: float, expected: list[float]) -> None:
    made, values = learner("f_dvl", **settings), rows()
    values["reward"] *= scale
    columns = {"noise": normal(7, 1, ROWS, ACTIONS)} if "uniform_actions" in settings else {}
    got = measured(made, made.update(batch(values, **columns)))
    assert got == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(
    ("form", "critic", "gradient", "target"),
    [
        ("stable", 787.7014847, 13.29671048, -2.106821167),
        ("linear", -0.08224066046, -0.3470144231, -2.106809485),
    ],
)
def test_smore(form: str, critic: float, gradient: float, target: float) -> None:
    made = learner("smore", GOALS, form=form, temperature=0.7)
    got = measured(made, made.update(batch()))
    value = [0.009500393008, 2.263074284]
    others = [-0.09284139494, 0.4633970066, 0.8813152749]
    assert got == pytest.approx([*value, critic, *others, gradient, target], rel=1e-7)
