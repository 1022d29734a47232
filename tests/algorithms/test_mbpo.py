"""MBPO online: when the model is refitted, what is imagined and how far."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from algorithms import ALGORITHMS, MBPO, load
from algorithms.mbpo import DynaConfig
from experiments.settings import build_config, merge
from mbrl.buffer import Buffer, resized
from mbrl.errors import ConfigError
from mbrl.evaluation import evaluate
from mbrl.tasks import make
from mbrl.types import Dataset, Spec, Transitions
from tests.algorithms.test_algorithms import Identity, build
from tests.small import CONFIGS
from world_models import EnsembleDynamics


def test_horizon_grows_in_whole_steps() -> None:
    config = DynaConfig(horizons=(1, 15), growth=(20_000, 150_000))
    for step in (0, 19_999, 20_000, 29_285, 29_286, 100_000, 149_999, 150_000, 10**7):
        share = np.clip((step - 20_000) / 130_000, 0, 1)
        assert config.horizon(step) == int(np.floor(1 + share * 14 + 1e-12))
    assert [config.horizon(s) for s in (0, 29_285, 29_286, 150_000)] == [1, 1, 2, 15]
    falling = DynaConfig(horizons=(5, 1), growth=(0, 4))
    assert [falling.horizon(s) for s in range(6)] == [5, 4, 3, 2, 1, 1]
    with pytest.raises(ConfigError, match=r"horizons is \(0, 3\)"):
        DynaConfig(horizons=(0, 3))
    with pytest.raises(ConfigError, match="growth is"):
        DynaConfig(growth=(5, 5))
    with pytest.raises(ConfigError, match="below the warmup"):
        DynaConfig(capacity=10, warmup=11)


@pytest.mark.parametrize("rows", [0, 3, 5, 7, 13])
@pytest.mark.parametrize("capacity", [2, 5, 9])
def test_resized_buffer_keeps_the_newest_rows(rows: int, capacity: int) -> None:
    """Against a list; what is appended afterwards overwrites the oldest."""
    spec = Spec("line", 1, 1, None, (-1.0,), (1.0,), 10)

    def row(values: list[float]) -> Transitions:
        obs = torch.tensor(values)[:, None]
        flags = torch.zeros(len(values), dtype=torch.bool)
        return Transitions(obs, obs * 0, obs[:, 0], obs, flags, flags)

    buffer, kept = Buffer(spec, 5, 0.9), []
    for value in range(rows):
        buffer.append(row([float(value)]))
        kept = [*kept, float(value)][-5:]
    new = resized(buffer, capacity)
    kept = kept[-capacity:]
    assert new.capacity == capacity
    assert sorted(new.rows[: new.size, 0].tolist()) == kept
    for value in (100.0, 101.0, 102.0):
        new.append(row([value]))
        kept = [*kept, value][-capacity:]
    assert sorted(new.rows[: new.size, 0].tolist()) == kept


@pytest.mark.parametrize("name", ["mbpo", "coplanner"])
def test_online_loop_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits at the end of the warm-up and at every tenth step, rollouts at the same steps from
    states of the experience, two updates a step, horizons that grow."""
    task = make("Pendulum-v1")
    agent = build(name, task.spec)
    fits: list[tuple[int, int]] = []
    imagined: list[tuple[int, int]] = []
    updates: list[int] = []
    fit, imagine, update = EnsembleDynamics.fit, agent.source.imagine, agent.update

    def counted_fit(model: Any, data: Any, on_progress: Any = None) -> None:
        fits.append((agent.step, len(data)))
        fit(model, data, on_progress)

    def counted_imagine(step: int, generator: torch.Generator) -> Any:
        metrics = imagine(step, generator)
        imagined.append((agent.step, agent.source.imagined.capacity))
        return metrics

    def counted_update(batch: Any) -> Any:
        updates.append(agent.step)
        return update(batch)

    monkeypatch.setattr(EnsembleDynamics, "fit", counted_fit)
    agent.source.imagine, agent.update = counted_imagine, counted_update
    seen: dict[str, float] = {}
    agent.learn(task, 42, callbacks=[lambda e, a, m: seen.update(m)])
    # loop step s leaves s + 1 rows of experience; updates begin after the warm-up of 20 rows
    assert fits == [(19, 20), (20, 21), (30, 31), (40, 41)]
    assert imagined == [(20, 32 * 1 * 2), (30, 32 * 2 * 2), (40, 32 * 3 * 2)]
    assert updates == [s for s in range(20, 42) for _ in range(2)]
    experience = agent.source.real.rows
    assert agent.source.real.online and len(experience) == 42
    assert seen["model/horizon"] == 3.0
    kept = agent.source.imagined
    starts = kept.rows[kept.size - 96 :: 3, :3]
    known = experience.rows[: experience.size, :3]
    assert ((starts[:, None] - known).abs().amax(-1).min(1).values < 1e-6).all()


def test_refits_see_all_experience_and_keep_the_members(pendulum: Dataset) -> None:
    """A refit begins at the present weights: with no step to take it changes nothing but scales."""
    agent = build("mbpo", pendulum.spec)
    agent.prepare(pendulum, lambda metrics: None)
    model, data = agent.model, pendulum.transitions
    before = float(model.holdout_mse.mean())
    members = model.num_members
    rows: list[int] = []
    model.refit(data, 30, lambda m: rows.append(int(m["model/epoch"])))
    assert model.num_members == members and model.fitted and 1 <= len(rows) <= 30
    assert float(model.holdout_mse.mean()) < before
    assert not any(p.requires_grad for p in model.network.parameters())
    first = float(model.holdout_mse.mean())
    model.refit(data, 1)
    assert float(model.holdout_mse.mean()) < 1.5 * first  # it did not begin anew


def test_logged_data_are_the_first_experience(pendulum: Dataset) -> None:
    config = build_config("mbpo", merge(CONFIGS["mbpo"], {"online": {"capacity": 1000}}))
    agent = MBPO(pendulum.spec, config)
    agent.fit(pendulum, 3, callbacks=[])
    assert not agent.source.real.online and agent.source.imagined.capacity == 32 * 3 * 2
    agent.learn(make("Pendulum-v1"), 5, callbacks=[])
    experience = agent.source.real.rows
    assert len(experience) == len(pendulum) + 5
    kept = experience.batch(experience.rows[: len(pendulum)])
    assert torch.allclose(kept.action * 2.0, pendulum.transitions.action, atol=1e-5)
    assert torch.equal(kept.obs, pendulum.transitions.obs)


@pytest.mark.parametrize("name", ["mbpo", "coplanner", "lift"])
def test_horizons_grow_with_steps_in_the_task(name: str, pendulum: Dataset, tmp_path: Path) -> None:
    """Updates on logged data before them do not count; neither does a stop in between."""
    config = build_config(name, merge(CONFIGS[name], {"online": {"growth": [0, 8]}}))
    agent = ALGORITHMS[name][0](pendulum.spec, config).fit(pendulum, 10, callbacks=[])
    assert agent.source.horizon == config.imagination.rollout.horizon
    seen: list[float] = []

    def watch(event: str, agent: Any, metrics: Any) -> None:
        if event == "step":
            seen.append(float(metrics["model/horizon"]))

    agent.learn(make("Pendulum-v1"), 3, callbacks=[watch]).save(tmp_path / "agent.pt")
    again = load(tmp_path / "agent.pt")
    again.prepare(pendulum, lambda metrics: None)
    again.fit(pendulum, 2, callbacks=[]).learn(make("Pendulum-v1"), 3, callbacks=[watch])
    assert seen == [config.online.horizon(step) for step in range(6)] and len(set(seen)) > 1


def test_mbpo_learns_the_identity_task_online() -> None:
    task: Any = Identity()
    learner = {"hidden": [32, 32], "batch_size": 64, "gamma": 0.5}
    learner |= {"actor_lr": 3e-3, "critic_lr": 3e-3, "alpha_lr": 3e-3}
    values = {
        "learner": learner,
        "model": {"members": 2, "elites": 2, "hidden": [32, 32], "weight_decay": [1e-5]}
        | {"min_epochs": 20, "max_epochs": 40, "batch_size": 32},
        "imagination": {"starts": 400, "retain": 2, "termination": "never"},
        "online": {"warmup": 200, "refit_every": 50, "updates_per_step": 4, "horizons": [1, 1]},
    }
    agent = build("mbpo", task.spec)
    agent = type(agent)(task.spec, build_config("mbpo", values), seed=0)
    before = evaluate(agent, task, 20).mean()
    agent.learn(task, 350, callbacks=[])
    assert before < -5 and evaluate(agent, task, 20).mean() > -1.0
