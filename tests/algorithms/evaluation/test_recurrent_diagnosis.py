"""The detector for agents with memory: against closed forms and histories walked step by step."""

from typing import Any

import numpy as np
import pytest
import torch

from algorithms import NEUBAY
from algorithms.evaluation import diagnosis, recurrent_diagnosis
from experiments.settings import build_config, merge
from mbrl import data
from mbrl.sequences import SequenceBuffer
from tests.small import CONFIGS
from world_models import Prediction


@torch.no_grad()
def agent(**rollouts: Any) -> NEUBAY:
    dataset = data.load("pendulum/medium-replay")
    values = merge(CONFIGS["neubay"], {"rollouts": rollouts})
    made = NEUBAY(dataset.spec, build_config("neubay", values), seed=1)
    with torch.enable_grad():
        made.prepare(dataset, lambda metrics: None)
    made.source.collect(made.generator)
    return made


class Steady:
    """Stands still, pays 3, and ends where the first coordinate is below 0."""

    num_members = 1

    def predict(self, obs, action, generator, *, member=None, state=None, measure=None):
        return Prediction(obs, torch.full((len(obs),), 3.0), obs[:, 0] < 0)


@torch.no_grad()
def test_soft_return_has_its_closed_form() -> None:
    made, generator = agent(), torch.Generator().manual_seed(0)
    tape = made.source.recorded.sample(40, generator)
    rows = torch.nonzero(tape.mask).flatten()
    found = recurrent_diagnosis.imagine(made.learner, Steady(), tape, rows, generator)
    bounds, gamma = (torch.tensor(-1.0), torch.tensor(2.0)), made.config.gamma
    earned = recurrent_diagnosis.soft_return(found, bounds, torch.tensor(0.5), gamma)
    ends = tape.x[rows, 0] < 0
    assert ends.any() and not ends.all()
    np.testing.assert_allclose(earned[ends].numpy(), 2.0, rtol=1e-6)
    endless = 2.0 / (1 - gamma) + 0.5 * gamma / (1 - gamma)
    np.testing.assert_allclose(earned[~ends].numpy(), endless, rtol=1e-5)


@torch.no_grad()
def test_rollouts_remember_their_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they carry at first is what acting along the recorded episode leaves."""
    made, generator = agent(), torch.Generator().manual_seed(3)
    tape = made.source.recorded.sample(30, generator)
    rows = torch.nonzero(tape.mask).flatten()
    seen: dict[str, Any] = {}
    monkeypatch.setattr(
        recurrent_diagnosis, "rollout", lambda *a, memory, **k: seen.update(obs=a[2], memory=memory)
    )
    recurrent_diagnosis.imagine(made.learner, made.model, tape, rows, generator)
    s, state = made.spec.obs_dim, torch.zeros(1, made.policy.carried_size)
    expected = {}
    for t in range(30):
        state = torch.zeros_like(state) if tape.first[t] else state
        expected[t] = state
        _, after = made.policy.step(tape.x[t : t + 1, :s], state, None)
        memory = after[:, : made.policy.encoder.state_size]
        state = made.policy.carried(memory, tape.action[t : t + 1], tape.reward[t : t + 1])
    for row, t in enumerate(rows.tolist()):
        torch.testing.assert_close(seen["memory"][row : row + 1], expected[t], rtol=1e-3, atol=1e-4)
        assert torch.equal(seen["obs"][row], tape.x[t, :s])


@torch.no_grad()
def test_ends_are_what_is_bootstrapped_and_never_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    made = agent()
    tape = made.source.sequences.sample(200, torch.Generator().manual_seed(4))
    seen: dict[str, Any] = {}

    def spread(mask: torch.Tensor, trained: torch.Tensor, ends: torch.Tensor) -> dict[str, Any]:
        return seen.update(mask=mask, trained=trained, ends=ends) or {}

    monkeypatch.setattr(diagnosis, "spread_metrics", spread)
    recurrent_diagnosis.reach(made.learner, tape, torch.Generator().manual_seed(5))
    trained = ends = 0
    for t in range(200):
        if t < 199 and not tape.first[t + 1]:
            trained += 1
        elif t < 199 and tape.discount[t - 1] > 0 and not tape.first[t]:
            ends += 1
    assert ends > 0
    assert seen["trained"].shape[1] == trained
    assert seen["ends"].shape[1] == ends == len(seen["mask"])


def test_a_diagnosed_run_is_the_run_that_it_would_be_without(tmp_path) -> None:
    dataset, weights = data.load("pendulum/medium-replay"), []
    for every in (0, 2):
        values = merge(CONFIGS["neubay"], {"rollouts": {"diagnose": every}})
        made = NEUBAY(dataset.spec, build_config("neubay", values), seed=1)
        rows: list[dict[str, float]] = []
        made.fit(dataset, 5, callbacks=[lambda event, a, m, rows=rows: rows.append(dict(m))])
        weights.append(torch.cat([p.flatten() for p in made.policy.parameters()]))
        at = [float(row["value/at"]) for row in rows if "value/at" in row]
        assert at == ([] if every == 0 else [0.0, 2.0, 4.0])
        if every:
            names = ("reach/outside", "value/excess", "value/q", "value/monte_carlo")
            found = next(row for row in rows if "value/at" in row)
            assert all(np.isfinite(float(found[name])) for name in names)
    assert torch.equal(*weights)
    made.save(tmp_path / "agent.pt")
    again = NEUBAY.load(tmp_path / "agent.pt")
    assert torch.equal(again.learner.remembered, made.learner.remembered)
    assert (made.learner.remembered[0] > 0).all()


def episodes(made: NEUBAY) -> SequenceBuffer:
    """Six episodes of 8 steps with rewards -2 to -5; every other one ends by the task's rule."""
    buffer = SequenceBuffer(made.spec, 54, made.config.gamma)
    generator = torch.Generator().manual_seed(6)
    for number in range(6):
        ended = (torch.arange(8) == 7) & (number % 2 == 0)
        reward = torch.linspace(-2.0, -5.0, 8)
        obs = torch.rand(9, made.spec.obs_dim, generator=generator)
        buffer.append(obs, torch.zeros(8, 1), reward, ended, torch.ones(8, dtype=torch.bool))
    return buffer


def test_an_episode_that_ended_is_not_bootstrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    made, seen = agent(), {}
    buffer = episodes(made)
    index = torch.arange(55).clamp_max(53)
    tape = buffer.tape(index, index % 9 == 0)
    monkeypatch.setattr(
        diagnosis, "spread_metrics", lambda mask, trained, ends: seen.update(ends=ends) or {}
    )
    recurrent_diagnosis.reach(made.learner, tape, torch.Generator().manual_seed(5))
    assert seen["ends"].shape[1] == 3


def test_rewards_are_cut_to_those_of_recorded_steps() -> None:
    """A model that pays 3 is paid the data's -2: what follows an episode is no reward of 0."""
    made, generator = agent(), torch.Generator().manual_seed(7)
    buffer, nothing = episodes(made), torch.zeros(2)
    found = recurrent_diagnosis.diagnose(made.learner, Steady(), buffer, buffer, nothing, generator)
    endless = -2 / (1 - made.config.gamma)
    assert float(found["value/monte_carlo"]) == pytest.approx(endless, rel=1e-4)
