"""Wrong shapes at the door of public maths functions: an error that names them, never a number."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from algorithms import (
    bc,
    cql,
    discrete_cql,
    discrete_sac_n,
    edac,
    iql,
    mobile,
    rambo,
    rebrac,
    td3_bc,
)
from algorithms.learners import advantage_weighted, recurrent_actor_critic, soft_actor_critic, td3
from mbrl.shapes import check_shapes
from world_models import disagreement


def z(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def test_words_are_sizes() -> None:
    check_shapes(reward=(z(4), "B"), q=(z(3, 4), "N B"), missing=(None, "B"), alpha=(z(), ""))
    check_shapes(x=(z(2, 5, 4), "... B"), y=(z(2, 5, 4, 7), "... B A"), pair=(z(2, 4), "2 B"))
    check_shapes(x=(z(4), "... B"))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            {"reward": (z(4, 1), "B"), "q": (z(3, 4), "N B")},
            r"reward \[4, 1\] for \[B\]; q \[3, 4\]",
        ),
        ({"reward": (z(3), "B"), "q": (z(3, 4), "N B")}, r"q \[3, 4\] for \[N, B\]"),
        ({"x": (z(), "... B")}, r"x \[\] for \[..., B\]"),
        ({"x": (z(2, 4), "... B"), "y": (z(3, 4, 7), "... B A")}, r"y \[3, 4, 7\]"),
        ({"pair": (z(3, 4), "2 B")}, r"pair \[3, 4\] for \[2, B\]"),
    ],
)
def test_what_does_not_fit_is_named(named: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_shapes(**named)


def test_nothing_is_checked_under_compile() -> None:
    def halve(x: torch.Tensor) -> torch.Tensor:
        check_shapes(x=(x, "B"))
        return x / 2

    compiled = torch.compile(halve, backend="eager", fullgraph=True)
    assert compiled(z(2, 2)).shape == (2, 2)


alpha = torch.tensor(1.0)
DOORS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (soft_actor_critic.soft_target, (z(4, 1), z(4), z(2, 4), z(4), alpha)),  # was [4, 4] in silence
    (soft_actor_critic.soft_target, (z(4), z(4), z(2, 4), z(4, 1), alpha)),
    (soft_actor_critic.critic_loss, (z(2, 4), z(4, 1), None)),
    (soft_actor_critic.actor_loss, (z(4, 1), z(4), alpha)),
    (edac.diversity_loss, (z(2, 4),)),
    (td3.td3_target, (z(4), z(4, 1), z(2, 4))),
    (td3_bc.actor_loss, (z(4), z(4, 2), z(4, 1), 2.5)),
    (rebrac.actor_loss, (z(4, 1), z(4, 2), z(4, 2), 1.0, True)),
    (rebrac.cloning_penalty, (z(4, 2), z(2))),
    (iql.policy_loss, (z(4, 1), z(4), 3.0, 100.0)),
    (advantage_weighted.advantages, (z(2, 4), z(2, 4, 3))),
    (advantage_weighted.weighted_cloning, (z(4), z(4, 1))),
    (cql.conservative_gap, (z(2, 3, 4), z(3, 1), z(2, 4), 1.0)),
    (cql.soft_maximum, (z(2, 3, 4), z(4), 1.0)),
    (discrete_cql.conservative_gap, (z(2, 4, 3), z(4))),
    (discrete_cql.double_q_values, (z(2, 4, 3), z(2, 4))),
    (discrete_sac_n.expectations, (z(4, 3), z(3))),
    (mobile.bellman_inconsistency, (z(4, 3),)),
    (rambo.mixture_log_prob, (z(3, 4, 2), z(3, 4, 2), z(4))),
    (rambo.normalised_advantage, (z(4, 1), z(4))),
    (rambo.adversarial_loss, (alpha, z(4), z(4, 1), 1.0)),
    (recurrent_actor_critic.step_weights, (z(4).bool(), z(4, 1).bool(), 0.5)),
    (recurrent_actor_critic.bootstrapped, (z(4), z(4), z(4, 1))),
    (recurrent_actor_critic.critic_loss, (z(2, 4), z(4, 1), z(4), 1.0)),
    (bc.squared_error, (z(4, 1), z(4))),
    (disagreement.max_aleatoric, (z(3, 4, 2), z(3, 4))),
    (disagreement.max_pairwise_difference, (z(4, 2), z(4, 2))),
]


@pytest.mark.parametrize(
    ("function", "arguments"), DOORS, ids=[f"{i}-{f.__name__}" for i, (f, _) in enumerate(DOORS)]
)
def test_public_functions_refuse_wrong_shapes(
    function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(ValueError, match="shapes do not fit together"):
        function(*arguments)
