"""Sets of entities: observations taken apart, and networks for which order means nothing."""

import pytest
import torch

from algorithms.learners.entities import Entities, EntityEnsemble, EntityNetwork, EntityTokens
from mbrl.errors import ConfigError
from mbrl.types import Spec

D = torch.float64
# two entries of the agent's, entities of two entries at 1, 2 and 4, 5, and the goal at 3, 6, 7, 8
SPEC = Spec(
    "things", 9, 2, None, (-1.0,) * 2, (1.0,) * 2, 10, goal=(6, 7, 8, 3), achieved=(1, 2, 4, 5)
)


def swapped(obs: torch.Tensor) -> torch.Tensor:
    other = obs.clone()
    other[:, [1, 2, 4, 5]] = obs[:, [4, 5, 1, 2]]
    other[:, [6, 7, 8, 3]] = obs[:, [8, 3, 6, 7]]
    return other


def test_parts_of_an_observation() -> None:
    e = Entities(SPEC, 2)
    obs = torch.arange(9.0)[None]
    assert (e.count, e.rest.tolist()) == (2, [0])
    assert e.split(e.entries.goal_of(obs)).tolist() == [[[6, 7], [8, 3]]]
    assert e.split(e.entries.achieved_of(obs)).tolist() == [[[1, 2], [4, 5]]]
    new = e.own_from(torch.tensor([[-1.0]]), torch.tensor([[-2.0, -3.0, -4.0, -5.0]]), obs)
    assert new.tolist() == [[-1, -2, -3, 3, -4, -5, 6, 7, 8]]
    assert Entities(SPEC, 0).count == 1
    with pytest.raises(ConfigError, match="entity_size is 3 and a goal of 'things' has 4"):
        Entities(SPEC, 3)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_ensemble_against_a_loop_over_entities(layer_norm: bool) -> None:
    net = EntityEnsemble(
        Entities(SPEC, 2), 2, 1, (5, 4), 3,
        activation="gelu", layer_norm=layer_norm, generator=torch.Generator().manual_seed(0),
    ).double()  # fmt: skip
    obs = torch.randn(6, 9, dtype=D, generator=torch.Generator().manual_seed(1))
    action = torch.randn(6, 1, dtype=D, generator=torch.Generator().manual_seed(2))
    got = net(torch.cat([obs, action], -1))
    assert got.shape == (2, 6, 3)
    for row in range(6):
        hidden = 0.0
        for here, goal in (((1, 2), (6, 7)), ((4, 5), (8, 3))):
            seen = torch.cat(
                [obs[row, list(here)], obs[row, list(goal)], obs[row, :1], action[row]]
            )
            hidden = hidden + torch.nn.functional.gelu(net.each(seen[None]))
        assert torch.allclose(net.all(hidden)[:, 0], got[:, row], atol=1e-12)


def test_order_means_nothing_to_values_and_actions() -> None:
    generator = torch.Generator().manual_seed(0)
    net = EntityNetwork(Entities(SPEC, 2), (8, 8), 2, generator).double()
    obs = torch.randn(20, 9, dtype=D, generator=generator)
    assert torch.allclose(net(obs), net(swapped(obs)), atol=1e-12)
    whole = EntityNetwork(Entities(SPEC, 0), (8, 8), 2, generator).double()
    assert not torch.allclose(whole(obs), whole(swapped(obs)), atol=1e-3)
    other = obs.clone()
    other[:, [1, 2, 4, 5]] = obs[:, [4, 5, 1, 2]]  # places without their goals
    assert not torch.allclose(net(obs), net(other), atol=1e-3)


def test_tokens_and_back() -> None:
    tokens = EntityTokens(Entities(SPEC, 2)).double()
    obs = 3 + 2 * torch.randn(5000, 9, dtype=D, generator=torch.Generator().manual_seed(0))
    obs[:, [2, 5]] *= 10
    tokens.fit(obs)
    values = tokens.of(obs)
    assert values.shape == (5000, 3, 2)  # the rest, with a zero behind, and two entities
    assert float(values.flatten(0, 1).mean(0).abs().max()) < 1e-9
    assert torch.allclose(values.flatten(0, 1).std(0), torch.ones(2, dtype=D), atol=1e-3)
    rest, achieved = tokens.back(values)
    assert torch.allclose(rest, obs[:, :1]) and torch.allclose(achieved, obs[:, [1, 2, 4, 5]])
    goal = tokens.back(tokens.of_goal(obs))[1]
    assert torch.allclose(goal, obs[:, [6, 7, 8, 3]])
    assert torch.allclose(values[:, [0, 2, 1]], tokens.of(swapped(obs)))
    tokens.fit(1e-8 * obs)
    assert torch.allclose(tokens.of(1e-8 * obs), values)
