"""PGD: what its batches hold, when it generates, and its learners."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import algorithms
from algorithms import PGD, TD3BC, TD3BCConfig, load
from algorithms.evaluation.critic_values import critic_values
from algorithms.learners.critics import q_values
from algorithms.pgd import LEARNERS
from experiments.runs import jobs
from experiments.runs import model_fits as fits
from experiments.runs import training as run
from experiments.settings import RunSettings, build_config, merge
from mbrl.errors import ConfigError
from mbrl.progress import Progress
from mbrl.types import Dataset, Transitions
from tests.small import CONFIGS
from world_models import PolicyGuidance, TrajectoryDiffusion

SMALL = {"batch_size": 32, "hidden": [16]}


def agent(data: Dataset, **changes: Any) -> PGD:
    values = merge(CONFIGS["pgd"], {"td3_bc": SMALL} | changes)
    return PGD(data.spec, build_config("pgd", values), seed=3)


def test_batches_hold_real_and_generated_rows_in_the_ratio(pendulum: Dataset) -> None:
    made = agent(pendulum, generation={"real_ratio": 0.25})
    made.prepare(pendulum, lambda metrics: None)
    rows = {tuple(row) for row in pendulum.transitions.obs.tolist()}
    for _ in range(3):
        made.advance()
        batch = made.next_batch()
        known = [tuple(row) in rows for row in batch.obs.tolist()]
        assert known == [True] * 8 + [False] * 24
        made.step += 1
    assert made.source.steps is not None and len(made.source.steps) >= 16 * 3


def test_a_generator_that_is_given_is_saved_with_its_settings(
    pendulum: Dataset, tmp_path: Path
) -> None:
    config = build_config("pgd", merge(CONFIGS["pgd"], {"td3_bc": SMALL}))
    other = dataclasses.replace(config.model, length=config.model.length + 2)
    model = TrajectoryDiffusion(pendulum.spec, other, seed=5)
    model.fit(pendulum.transitions)
    made = PGD(pendulum.spec, config, model=model, seed=3).fit(pendulum, steps=2)
    assert made.config.model == other
    made.save(tmp_path / "agent.pt")
    again = load(tmp_path / "agent.pt")
    obs = pendulum.transitions.obs[0]
    assert torch.equal(made.act(obs)[0], again.act(obs)[0])
    assert again.model.config == other


def test_the_first_generation_is_not_guided_and_later_ones_are(pendulum: Dataset) -> None:
    made = agent(pendulum, generation={"every": 4, "weight": 0.7, "mode": "score"})
    seen: list[tuple[int, PolicyGuidance | None]] = []
    kept = made.model.sample

    def sample(count: int, generator: torch.Generator, **rest: Any) -> Any:
        assert count == 16
        seen.append((made.step, rest["guidance"]))
        return kept(count, generator, **rest)

    made.model.sample = sample  # type: ignore[method-assign]
    logged: list[set[str]] = []
    made.fit(pendulum, 9, callbacks=[lambda event, agent, metrics: logged.append(set(metrics))])
    assert [step for step, _ in seen] == [0, 4, 8]
    assert seen[0][1] is None
    for _, guidance in seen[1:]:
        assert guidance is not None and guidance.policy is made.policy
        assert guidance.weight == 0.7 and guidance.mode == "score"
    assert "generated/log_prob" in logged[-2]  # of the ninth update; the last event is the end


@pytest.mark.parametrize("level", [0.4, pytest.param(0.8, marks=pytest.mark.long)])
def test_generated_actions_have_the_level(level: float, pendulum: Dataset) -> None:
    """Distances of generated actions to the policy's against those of logged ones: for a policy
    without a density of its own the level is what squared distances have lost."""
    generation = {"every": 300, "level": level, "windows": 64}
    model = {"updates": 300, "steps": 24, "length": 8}
    made = agent(pendulum, generation=generation, model=model)
    made.fit(pendulum, 200, callbacks=[])
    metrics = made.source.generate(guided=True)

    def distance(rows: Transitions) -> float:
        # actions of the pendulum are in [-2, 2]
        return float(((rows.action - made.policy(rows.obs)) / 2).detach().square().mean())

    assert made.source.steps is not None
    lost = 1 - distance(made.source.steps) / distance(pendulum.transitions)
    assert lost == pytest.approx(float(metrics["generated/level"]), abs=1e-4)
    assert lost == pytest.approx(level, abs=0.03)
    assert float(metrics["generated/weight"]) == pytest.approx(made.source.weight)


def test_a_level_needs_a_weight_to_begin_at(pendulum: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"level is 0.5 with weight 0"):
        agent(pendulum, generation={"level": 0.5, "weight": 0.0})


def test_two_steps_of_the_critics_an_update(pendulum: Dataset) -> None:
    """An update is two of the critics', each with noise of its own, and one of the policy's."""
    config = TD3BCConfig(hidden=(16,), batch_size=32, policy_every=1, critic_steps=2)
    twice, single = (TD3BC(pendulum.spec, config, seed=3) for _ in range(2))
    for made in (twice, single):
        made.prepare(pendulum, lambda metrics: None)
    batch = twice.next_batch()
    assert batch.noise is not None and batch.noise.shape == (2, 32, 1)
    twice.update(batch)
    for noise in batch.noise:
        single.learner.update_critic(batch, noise)
    single.learner.update_policy(batch)
    for name in ("critic", "policy"):
        pair = (twice.learner.modules[name], single.learner.modules[name])
        for a, b in zip(*(module.parameters() for module in pair), strict=True):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("held", [0.0, 0.4])
def test_progress_is_shown_while_the_generator_is_fitted(
    held: float, pendulum: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """With held-out windows or without any."""
    made = agent(pendulum, model={"holdout_fraction": held})
    bar = Progress(2, console=Console(force_terminal=True, width=200))
    made.fit(pendulum, 2, callbacks=[bar])
    printed = capsys.readouterr().out
    assert ("holdout loss" in printed) == (held > 0) and "loss" in printed


def test_on_real_rows_alone_it_is_its_learner(pendulum: Dataset) -> None:
    made = agent(pendulum, generation={"real_ratio": 1.0})
    made.fit(pendulum, 6, callbacks=[])
    plain = TD3BC(pendulum.spec, TD3BCConfig(hidden=(16,), batch_size=32), seed=3)
    plain.fit(pendulum, 6, callbacks=[])
    for a, b in zip(made.policy.parameters(), plain.policy.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_goes_on_from_a_checkpoint(
    name: str, pendulum: Dataset, tmp_path: Path
) -> None:
    config = {"learner": name, name: CONFIGS[name]}
    made = PGD(pendulum.spec, build_config("pgd", merge(CONFIGS["pgd"], config)), seed=1)
    made.fit(pendulum, 13, callbacks=[])
    assert made.config.gamma == made.learner.config.gamma
    made.save(tmp_path / "agent.pt")
    again = algorithms.load(tmp_path / "agent.pt")
    for copy in (made, again):
        copy.fit(pendulum, 9, callbacks=[])
    for a, b in zip(made.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(made.source.steps.obs, again.source.steps.obs)  # type: ignore[union-attr]


def test_a_normaliser_is_fitted_once(pendulum: Dataset, tmp_path: Path) -> None:
    made = agent(pendulum)
    made.fit(pendulum, 2, callbacks=[])
    made.save(tmp_path / "agent.pt")
    again = algorithms.load(tmp_path / "agent.pt")
    mean = again.policy.normaliser.mean.clone()
    assert mean.abs().sum() > 0
    moved = Transitions(**{**vars(pendulum.transitions), "obs": pendulum.transitions.obs + 5.0})
    again.rows_mark = None  # as a file of before has it: any rows are taken
    again.prepare(pendulum.with_transitions(moved), lambda metrics: None)
    assert torch.equal(again.policy.normaliser.mean, mean)


def test_runs_share_a_generator(tmp_path: Path) -> None:
    """A run on a generator that was fitted in a folder of its own ends where one with its own fit
    does, and the folder is made once."""
    config = build_config("pgd", CONFIGS["pgd"])
    settings = fits.FitSettings("pendulum/medium", 2)
    folder = fits.shared(settings, config.model, "mark", tmp_path / "fits")
    assert folder == fits.shared(settings, config.model, "mark", tmp_path / "fits")
    jobs.resume(folder)
    policies = []
    for name, model in (("own", None), ("shared", str(folder))):
        values = RunSettings(
            "pgd", "pendulum/medium", steps=12, seed=2, final_episodes=2, eval_every=0, model=model
        )
        run.start(values, config, tmp_path / name, quiet=True)
        found = algorithms.load(tmp_path / name / "checkpoint.pt")
        policies.append(list(found.policy.parameters()))
    for a, b in zip(*policies, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "generation", [{"windows": 0}, {"real_ratio": 1.5}, {"weight": -1.0}, {"mode": "other"}]
)
def test_impossible_settings(generation: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        build_config("pgd", {"generation": generation})


def test_values_are_in_the_tasks_units(pendulum: Dataset) -> None:
    """Where the learner's rewards are scaled, as those of the learner without generated rows."""
    settings = {"learner": "iql", "iql": {"hidden": [16], "normalise_rewards": True}}
    agent = PGD(pendulum.spec, build_config("pgd", merge(CONFIGS["pgd"], settings)), seed=0)
    agent.fit(pendulum, 3, callbacks=[])
    obs = pendulum.transitions.obs[:9]
    scale = agent.source.real.reward_scale
    assert scale != 1.0
    values = critic_values(agent, obs)
    with torch.no_grad():
        unit = agent.policy.scale.to_unit(agent.policy(obs))
        scaled = q_values(agent.learner.critic, agent.policy.normaliser(obs), unit).min(0).values
    torch.testing.assert_close(values * scale, scaled)
