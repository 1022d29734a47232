"""How the soft actor-critic learner begins, and the average of its policy."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms import EDAC, RAVL
from algorithms.edac import EDACConfig
from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic
from experiments.settings import build_config, merge
from mbrl import agent as agents
from mbrl.errors import ConfigError
from mbrl.networks import ensemble_values
from mbrl.types import Dataset, Spec
from tests.small import CONFIGS

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


def averaging(name: str, rate: float) -> Any:
    return build_config(name, merge(CONFIGS[name], {"learner": {"policy_average": rate}}))


def test_the_average_is_the_weighted_sum_of_all_policies(pendulum: Dataset) -> None:
    """After n updates: (1 - r)^(n-1) theta_1 + sum over k > 1 of r (1 - r)^(n-k) theta_k, in
    double precision; the policies themselves are those of a run without an average."""
    n, rate, seen = 12, 0.3, []
    agent = EDAC(pendulum.spec, averaging("edac", rate), seed=3)

    def note(event: str, agent: EDAC, metrics: dict[str, torch.Tensor]) -> None:
        if event == "step":
            seen.append([p.detach().double() for p in agent.learner.actor.parameters()])

    agent.fit(pendulum, n, callbacks=[note])
    weights = [(1 - rate) ** (n - 1), *(rate * (1 - rate) ** (n - k) for k in range(2, n + 1))]
    assert sum(weights) == pytest.approx(1.0)
    for i, got in enumerate(agent.policy.parameters()):
        assert not got.requires_grad
        wanted = sum(w * policy[i] for w, policy in zip(weights, seen, strict=True))
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-7)
    plain = EDAC(pendulum.spec, averaging("edac", 0.0), seed=3).fit(pendulum, n, callbacks=[])
    assert "average" not in plain.modules and plain.policy is plain.learner.actor
    for got, wanted in zip(plain.policy.parameters(), seen[-1], strict=True):
        assert torch.equal(got.double(), wanted)


def test_the_average_acts_and_the_present_policy_imagines(pendulum: Dataset) -> None:
    agent = RAVL(pendulum.spec, averaging("ravl", 0.05), seed=0).fit(pendulum, 9, callbacks=[])
    obs, learner = pendulum.transitions.obs[:5], agent.learner
    present, acting = learner.actor(obs), agent.act(obs)[0]
    assert torch.equal(acting, learner.modules["average"](obs)) and not present.equal(acting)
    assert agent.source.policy == learner.actor.explore


def test_training_goes_on_from_a_file_as_it_would_have(pendulum: Dataset, tmp_path: Path) -> None:
    """The average is in the file, so that what acts is the same to the last bit."""
    config = averaging("ravl", 0.05)
    whole = RAVL(pendulum.spec, config, seed=0).fit(pendulum, 14, callbacks=[])
    RAVL(pendulum.spec, config, seed=0).fit(pendulum, 6, callbacks=[]).save(tmp_path / "a.pt")
    again = RAVL.load(tmp_path / "a.pt").fit(pendulum, 8, callbacks=[])
    for a, b in zip(whole.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_files_from_before_the_average_load(pendulum: Dataset) -> None:
    agent = EDAC(pendulum.spec, averaging("edac", 0.0), seed=0).fit(pendulum, 2, callbacks=[])
    values = agents.content(agent)
    del values["config"]["learner"]["policy_average"]
    again = agents.restore(EDAC, values)
    assert again.config == agent.config and again.policy is again.learner.actor


def test_standardised_critics_learn_the_same_in_any_units(pendulum: Dataset) -> None:
    """An update on observations in other units is the update on standardised ones."""
    data = pendulum.transitions
    scale, shift = torch.tensor([50.0, 0.01, 7.0]), torch.tensor([300.0, -4.0, 1.0])
    obs, next_obs = (x * scale + shift for x in (data.obs, data.next_obs))
    raw = dataclasses.replace(data, obs=obs, next_obs=next_obs)
    agents = []
    for rows in (data, raw):
        config = EDACConfig(
            learner=LearnerConfig(critics=3, eta=1.0, hidden=(16, 16), normalise_obs=True)
        )
        agent = EDAC(pendulum.spec, config, seed=0)
        agent.fit(pendulum.with_transitions(rows), 5, callbacks=[])
        agents.append(agent)
    critics = [agent.learner.critic for agent in agents]
    for one, other in zip(critics[0].parameters(), critics[1].parameters(), strict=True):
        assert torch.allclose(one, other, atol=2e-3)
    x = torch.randn(9, 1).tanh()
    values = [
        ensemble_values(critic, torch.cat([rows.obs[:9], x], -1), 1)
        for critic, rows in zip(critics, (data, raw), strict=True)
    ]
    for one, other in zip(values[0], values[1], strict=True):
        assert torch.allclose(one, other, atol=2e-2)
    assert torch.equal(critics[0].normaliser.mean, agents[0].learner.target.normaliser.mean)
    assert float(critics[1].normaliser.std[0]) > 10
