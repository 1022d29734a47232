"""How the soft actor-critic learner begins."""

import math

import pytest
import torch

from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic
from mbrl.errors import ConfigError
from mbrl.types import Spec

SPEC = Spec("t", 3, 1, None, (-1.0,), (1.0,), 10)


def begun(init: str) -> SoftActorCritic:
    config = LearnerConfig(critics=4, hidden=(64, 64), init=init)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    return SoftActorCritic(SPEC, config, torch.device("cpu"), generator)


def test_the_first_critic_layer_of_corl_takes_its_range_from_the_wrong_side() -> None:
    """U(+-1/sqrt(64)) where the fan-in of 4 gives U(+-1/2): a uniform's deviation is bound/sqrt(3).
    Everything else is EDAC's."""
    ours, theirs = begun("edac"), begun("corl")
    for learner, bound in ((ours, 0.5), (theirs, 1 / 8)):
        first = learner.critic.weights[0].detach()
        assert float(first.abs().max()) <= bound
        assert float(first.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert torch.equal(first, learner.target.weights[0])
    for a, b in zip(ours.critic.weights[1:], theirs.critic.weights[1:], strict=True):
        assert torch.equal(a, b)
    for a, b in zip(ours.actor.parameters(), theirs.actor.parameters(), strict=True):
        assert torch.equal(a, b)


def test_diversity_needs_critics_that_have_it() -> None:
    config = LearnerConfig(critics=2, eta=1.0)
    with pytest.raises(ConfigError, match="these critics have no diversity term"):
        SoftActorCritic(SPEC, config, torch.device("cpu"), torch.Generator())
