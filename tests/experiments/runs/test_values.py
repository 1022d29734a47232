"""Values that run away are noticed in every offline run, in the file, the report and the last
line."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from algorithms import ALGORITHMS, EDAC, IQL
from algorithms.evaluation.critic_values import critic_values
from algorithms.learners.critics import q_values
from experiments.cli.run import main as run_main
from experiments.reports.run_report import write
from experiments.runs.values import Values, ValueWatch, history, last
from experiments.settings import build_config
from mbrl.data import save_npz
from mbrl.types import Dataset
from tests.small import CONFIGS


def test_levels():
    possible = Values(mean=-200, logged=-400, low=-1600, high=0)
    assert possible.level == "possible" and possible.sentence == ""
    claims = dataclasses.replace(possible, mean=-5)
    assert claims.level == "doubtful" and "nearly all that rewards allow" in claims.sentence
    for mean in (60, 1e6, -1700, float("nan")):
        values = dataclasses.replace(possible, mean=mean)
        assert values.level == "impossible" and "values ran away" in values.sentence
    at_the_most = Values(mean=99.9, logged=99.9, low=1, high=100)  # an expert's log
    assert at_the_most.level == "possible"


@pytest.mark.parametrize("cls", [IQL, EDAC])
def test_critics_of_a_known_value_are_read_in_the_units_of_the_task(pendulum, cls):
    agent = cls(pendulum.spec, seed=0)
    agent.prepare(pendulum, lambda metrics: None)
    critic = agent.learner.critic
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.zero_()
        list(critic.parameters())[-1].fill_(-7.0)
    obs = pendulum.transitions.obs[:5]
    agent.source.reward_scale = 2.0
    assert torch.allclose(critic_values(agent, obs), torch.full((5,), -3.5))


def test_a_run_whose_critics_explode_says_so_and_a_resumed_one_measures_once(
    pendulum, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "300")
    data, folder = tmp_path / "mine.npz", tmp_path / "run"
    save_npz(pendulum, data)
    measured = ValueWatch.measure

    def exploded(self, agent):
        return dataclasses.replace(measured(self, agent), mean=1e9)

    monkeypatch.setattr(ValueWatch, "measure", exploded)
    options = ["--steps", "20", "--hidden", "8", "--no-tensorboard", "--eval-every", "0"]
    run_main(["iql", str(data), *options, "--out", str(folder)])
    assert "values ran away: 1e+09" in capsys.readouterr().out
    steps = [step for step, _ in history(folder)]
    assert steps == list(range(2, 21, 2)) and last(folder).mean == 1e9
    assert "values ran away" in write(folder).read_text()


def test_critics_of_two_numbers_and_of_no_reward(pendulum: Dataset) -> None:
    """STAC's mu - beta sigma at the greedy action, in a task whose bounds are +-2; ReCOIL's values
    are about no reward."""
    obs = pendulum.transitions.obs[:6]
    agent = ALGORITHMS["stac"][0](pendulum.spec, build_config("stac", CONFIGS["stac"]), seed=0)
    got = critic_values(agent, obs)
    assert got is not None and got.shape == (6,)
    for i in range(6):
        x = torch.cat([obs[i], agent.policy(obs[i : i + 1])[0] / 2])[None]
        mean, log_std = agent.learner.critic.member(x, 0)[0].tolist()
        assert float(got[i]) == pytest.approx(mean - 0.25 * np.exp(log_std), abs=1e-5)
    config = build_config("recoil", CONFIGS["recoil"])
    assert critic_values(ALGORITHMS["recoil"][0](pendulum.spec, config, seed=0), obs) is None


def test_critics_are_asked_about_actions_that_are_allowed(cartpole: Dataset) -> None:
    agent = ALGORITHMS["discrete_sac_n"][0](
        cartpole.spec, build_config("discrete_sac_n", CONFIGS["discrete_sac_n"]), seed=0
    )
    obs = cartpole.transitions.obs[:6]
    for action in (0, 1):
        mask = torch.nn.functional.one_hot(torch.full((6,), action), 2).bool()
        seen = agent.policy.normaliser(obs) if agent.learner.critic.normaliser is None else obs
        wanted = q_values(agent.learner.critic, seen, torch.full((6,), action)).min(0).values
        got = critic_values(agent, obs, mask)
        assert got is not None and torch.allclose(got, wanted)


def test_a_runs_critics_are_asked_about_actions_that_are_allowed(
    cartpole: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = torch.ones(len(cartpole), 2, dtype=torch.bool)
    mask[::3, 0] = False
    rows = dataclasses.replace(cartpole.transitions, action_mask=mask, next_action_mask=mask)
    asked = []

    def values(agent: Any, obs: torch.Tensor, mask: torch.Tensor) -> None:
        asked.append(mask)

    monkeypatch.setattr("experiments.runs.values.critic_values", values)
    watch = ValueWatch(tmp_path, cartpole.with_transitions(rows), 1)
    assert watch.measure(None) is None and torch.equal(asked[0], mask[watch.rows])
