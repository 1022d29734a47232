"""Ends that a world model learns from a log, against probabilities that are known."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from algorithms import ALGORITHMS, MOPO, RAMBO
from algorithms.sources.imagined import fit_to_logged
from experiments.settings import build_config
from mbrl.buffer import Batch
from mbrl.config import from_dict
from mbrl.errors import ConfigError
from mbrl.types import Dataset, Spec, Transitions
from tests.small import CONFIGS, MODEL
from world_models import EnsembleConfig, EnsembleDynamics, RolloutConfig, learned_ends, rollout
from world_models.diagnostics import end_errors
from world_models.learned_ends import LearnedEnds

SPEC = Spec("file", 2, 1, None, (-1.0,), (1.0,))
SMALL = from_dict(EnsembleConfig, MODEL)


def chance(obs: Tensor, action: Tensor) -> Tensor:
    return torch.sigmoid(-3.0 + 1.5 * obs[:, 0] + 2.0 * action[:, 0])


def log(rows: int, ends: Callable[[Tensor, Tensor], Tensor], seed: int = 0) -> Dataset:
    """Steps of a walk from drawn states, each its own episode."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(rows, 2, generator=generator)
    action = 2 * torch.rand(rows, 1, generator=generator) - 1
    ended = torch.rand(rows, generator=generator) < ends(obs, action)
    after = obs + 0.01 * torch.randn(rows, 2, generator=generator)
    return Dataset(Transitions(obs, action, torch.ones(rows), after, ended, ~ended), SPEC)


def learned(rows: Transitions) -> EnsembleDynamics:
    model = EnsembleDynamics(SPEC, SMALL, termination="learned")
    model.fit(rows)
    return model


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_ends, "UPDATES", 300)


@pytest.fixture(scope="module")
def model() -> EnsembleDynamics:
    return learned(log(6000, chance).transitions)


def test_chances_are_the_true_ones(model: EnsembleDynamics) -> None:
    rows = log(2000, chance, seed=1).transitions
    assert model.ends is not None
    found, true = model.ends(model.encode(rows.obs, rows.action)), chance(rows.obs, rows.action)
    assert float((found - true).abs().mean()) < 0.025
    errors = end_errors(model, rows)
    assert errors is not None and errors.actual == int(rows.terminated.sum())
    assert errors.expected == pytest.approx(float(true.sum()), rel=0.08)
    entropy = -(true * true.log() + (1 - true) * (1 - true).log()).mean()  # none can do better
    assert float(entropy) - 0.02 < errors.surprise < float(entropy) + 0.02 < errors.constant
    assert end_errors(EnsembleDynamics(SPEC, SMALL), rows) is None


def test_imagined_ends_are_drawn_by_their_chance(model: EnsembleDynamics) -> None:
    obs, action = torch.tensor([[1.0, 0.0]]).repeat(20000, 1), torch.full((20000, 1), 0.5)
    assert model.ends is not None
    p = float(model.ends(model.encode(obs[:1], action[:1])))
    step = model.predict(obs, action, torch.Generator().manual_seed(0))
    assert float(step.terminated.float().mean()) == pytest.approx(p, abs=0.015)
    again = model.predict(obs, action, torch.Generator().manual_seed(0))
    assert torch.equal(step.terminated, again.terminated)
    likely = model.terminates(obs[:1], action[:1], obs[:1])
    assert bool(likely) == (p > 0.5)
    assert float(model.survival(obs[:1], action[:1], obs[:1])) == pytest.approx(1 - p)


def test_a_rollout_is_as_long_as_a_constant_probability_leaves_it() -> None:
    """sum_t (1 - p)^t steps on average, where one step in ten ends."""
    rows = log(4000, lambda obs, action: torch.full((len(obs),), 0.1)).transitions
    model, generator = learned(rows), torch.Generator().manual_seed(0)
    starts = torch.randn(4000, 2, generator=generator)
    act = lambda obs, generator: torch.zeros(len(obs), 1)  # noqa: E731
    found = rollout(model, act, starts, RolloutConfig(horizon=30), generator)
    lengths = found.mask.sum(1).double()
    share = float(rows.terminated.float().mean())
    assert share == pytest.approx(0.1, abs=0.015)
    assert float(lengths.mean()) == pytest.approx((1 - (1 - share) ** 30) / share, rel=0.06)


def test_without_ends_nothing_ends_and_few_give_their_share() -> None:
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    for count in (0, 3, 400):
        ends = LearnedEnds(3, torch.device("cpu"), 0)
        ends.fit(x, torch.arange(400) < count)
        assert torch.allclose(ends(x), torch.full((400,), count / 400))
        assert not ends.fitted
    more = torch.arange(400) < 200
    ends.fit(x + 3.0 * more[:, None], more)  # as many updates as a first fit has
    assert float(((ends(x + 3.0 * more[:, None]) > 0.5) == more).float().mean()) > 0.95
    assert ends.fitted
    before = ends(x)
    for count in (0, 3):  # rows of a policy that avoids ends
        ends.fit(x, torch.arange(400) < count)
        assert torch.equal(ends(x), before)
    seldom = more & (torch.arange(400) % 10 == 0)  # one end in ten is left, elsewhere as before
    rows = seldom | ~more
    ends.fit((x + 3.0 * more[:, None])[rows], more[rows])
    assert float((ends(x + 3.0 * more[:, None])[more] > 0.5).float().mean()) > 0.8


def test_last_rows_without_a_next_observation_teach_ends() -> None:
    data = log(1000, lambda obs, action: (obs[:, 0] > 1).float())
    rows = replace(data.transitions, next_known=~data.transitions.terminated)
    model = learned(rows)
    assert model.ends is not None
    found = model.ends(model.encode(rows.obs, rows.action)) > 0.5
    assert float((found == rows.terminated).float().mean()) > 0.97
    # What such ends pay is not in the dynamics: with all of them missing it is their mean.
    assert torch.equal(model.ending_reward(torch.ones(2), torch.ones(2)), torch.ones(2))
    fined = torch.where(rows.terminated, -10.0 + 0.1 * rows.obs[:, 1], 1.0)
    model = learned(replace(rows, reward=fined))
    step = model.predict(rows.obs, rows.action, torch.Generator().manual_seed(0))
    mean = fined[rows.terminated].mean()
    assert torch.allclose(step.reward[step.terminated], mean, atol=1e-5)
    plain = EnsembleDynamics(SPEC, SMALL)
    plain.load_state_dict(model.state_dict())
    same = plain.predict(rows.obs, rows.action, torch.Generator().manual_seed(0))
    assert torch.equal(step.reward[~step.terminated], same.reward[~step.terminated])
    half = torch.full((2,), 0.5)  # the chance of it
    assert torch.allclose(model.ending_reward(torch.ones(2), half), 0.5 + 0.5 * mean.expand(2))
    again = EnsembleDynamics(SPEC, SMALL, termination="learned")
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.ending_reward(torch.ones(2), half), 0.5 + 0.5 * mean.expand(2))
    assert again.ends is not None
    again.ends.fit_unseen(torch.zeros(5), torch.zeros(5, dtype=torch.bool), None)
    assert torch.equal(again.ending_reward(torch.ones(2), half), 0.5 + 0.5 * mean.expand(2))
    model.refit(rows, 1)
    assert model.ends is not None
    assert float(model.ends.share) == pytest.approx(float(rows.terminated.float().mean()))


def test_the_chance_has_derivatives(model: EnsembleDynamics) -> None:
    """Against differences, so that a policy by derivatives can avoid an end."""
    obs = torch.tensor([[0.4, -0.2]])
    action = torch.tensor([[0.1]], requires_grad=True)
    (slope,) = torch.autograd.grad(model.survival(obs, action, obs).sum(), action)
    with torch.no_grad():
        high, low = (model.survival(obs, torch.tensor([[a]]), obs) for a in (0.12, 0.08))
    assert float(slope) < 0 and float(slope) == pytest.approx(float(high - low) / 0.04, rel=0.1)


def test_its_state_is_kept_and_a_model_without_ends_can_learn_them(model: EnsembleDynamics) -> None:
    again = EnsembleDynamics(SPEC, SMALL, termination="learned", seed=5)
    again.load_state_dict(model.state_dict())
    rows = log(50, chance).transitions
    assert again.ends is not None and model.ends is not None
    x = model.encode(rows.obs, rows.action)
    assert torch.equal(again.ends(x), model.ends(x))
    plain = EnsembleDynamics(SPEC, SMALL)
    plain.fit(log(6000, chance).transitions)
    of_a_fit = EnsembleDynamics(SPEC, SMALL, termination="learned")
    of_a_fit.load_state_dict(plain.state_dict())
    with pytest.raises(ConfigError, match="not learned yet"):
        of_a_fit.predict(rows.obs, rows.action, torch.Generator())
    of_a_fit.fit_ends(log(6000, chance).transitions)
    assert torch.allclose(of_a_fit.ends(x), model.ends(x), atol=0.02)  # type: ignore[misc]


def test_true_dynamics_have_a_rule_of_their_own() -> None:
    values = CONFIGS["mopo"] | {"imagination": {"termination": "learned", "truth": 0.5}}
    spec = replace(SPEC, task="Pendulum-v1", obs_dim=3, action_low=(-2.0,), action_high=(2.0,))
    with pytest.raises(ConfigError, match="end by the task's rule"):
        MOPO(spec, build_config("mopo", values), seed=0)


def test_a_model_that_is_given_is_read_again_and_what_it_lacks_is_fitted(tmp_path: Path) -> None:
    data = log(200, chance)
    data = replace(data, spec=replace(SPEC, max_episode_steps=1))
    imagination = CONFIGS["mopo"]["imagination"] | {"termination": "never"}
    values = CONFIGS["mopo"] | {"imagination": imagination}
    model = EnsembleDynamics(data.spec, SMALL, termination="learned")
    agent = MOPO(data.spec, build_config("mopo", values), model=model).fit(data, 2, callbacks=[])
    agent.save(tmp_path / "agent.pt")
    again = MOPO.load(tmp_path / "agent.pt").model
    assert isinstance(again, EnsembleDynamics) and again.ends is not None and model.ends is not None
    assert torch.equal(again.ends.share, model.ends.share)  # type: ignore[arg-type]
    plain = EnsembleDynamics(data.spec, SMALL)
    plain.fit(data.transitions)
    of_a_fit = EnsembleDynamics(data.spec, SMALL, termination="learned")
    of_a_fit.load_state_dict(plain.state_dict())
    fit_to_logged(of_a_fit, data, lambda metrics: None)
    assert of_a_fit.ends is not None and of_a_fit.ends.share is not None


def test_rambos_adversary_draws_ends_and_what_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    data = log(300, lambda obs, action: torch.full((len(obs),), 0.5))
    data = replace(data, spec=replace(SPEC, max_episode_steps=1))
    values = dict(CONFIGS["rambo"])
    values["imagination"] = values["imagination"] | {"termination": "learned"}
    agent = RAMBO(data.spec, build_config("rambo", values), seed=0).fit(data, 2, callbacks=[])
    source = agent.source
    source.model.ends.share.fill_(0.3)
    source.model.ends.fitted = False
    with torch.no_grad():
        for parameter in source.model.ends.network.parameters():
            parameter.zero_()
    source.model.ends.unseen.fill_(1.0)
    source.model.ends.reward.fill_(-5.0)
    given: list[tuple[Tensor, ...]] = []
    advantage = source.advantage
    monkeypatch.setattr(source, "advantage", lambda *a: given.append(a) or advantage(*a))
    rows = data.transitions.select(slice(0, 200))
    real = Batch(rows.obs, rows.action, rows.reward, rows.next_obs, torch.ones(200))
    source.attack_step(rows.obs, real)
    _, _, reward, _, terminated = given[0]
    assert 0.2 < float(terminated.float().mean()) < 0.4
    assert torch.equal(reward == -5.0, terminated)


@pytest.mark.parametrize(
    "name",
    [
        "mopo",
        "pets",
        "neubay",
        *(pytest.param(n, marks=pytest.mark.long) for n in ("rambo", "shac")),
    ],
)
def test_algorithms_take_them(name: str, tmp_path: Path) -> None:
    """On a log of no task, whose rule nobody knows; the file of the agent makes the model again."""
    steps = np.arange(300) % 10
    rows = log(300, lambda obs, action: torch.from_numpy(steps == 9).float() / 2).transitions
    rows = replace(rows, truncated=torch.from_numpy(steps == 9) & ~rows.terminated)
    data = Dataset(rows, replace(SPEC, max_episode_steps=10))
    values = dict(CONFIGS[name])
    part = {"mopo": "imagination", "rambo": "imagination", "neubay": "rollouts"}.get(name)
    if part is None:
        values["termination"] = "learned"
    else:
        values[part] = values[part] | {"termination": "learned"}
    cls = ALGORITHMS[name][0]
    agent = cls(data.spec, build_config(name, values), seed=0).fit(data, 12, callbacks=[])
    assert agent.model.ends.share > 0
    file = tmp_path / "agent.pt"
    agent.save(file)
    assert torch.equal(cls.load(file).model.ends.share, agent.model.ends.share)
