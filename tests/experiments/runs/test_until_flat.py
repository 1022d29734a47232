"""Ending a run by an offline criterion: when it ends, what it refuses, and exact resume."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from algorithms.evaluation.halted import Halted, HaltingModel, rise
from experiments.cli.evaluate import Evaluate
from experiments.runs import halting, selection, training, until_flat
from experiments.runs.until_flat import UntilFlat
from experiments.settings import RunSettings, UntilFlatSettings, build_config
from experiments.tables import records
from mbrl import checkpoint, tasks
from mbrl.callbacks import Checkpointer
from mbrl.data import save_npz
from mbrl.errors import ConfigError
from mbrl.evaluation import evaluate
from mbrl.records import Evaluations
from mbrl.types import Dataset
from tests.conftest import random_dataset, shorten_episodes
from tests.small import CONFIGS

SPREAD = np.array([-1.0, 0.0, 1.0])  # of three episodes: a standard error of 1 / sqrt(3)


class Scripted:
    """A model in which the values are those of a list, one after the other."""

    horizon = 10

    def __init__(self, values: list[Any]) -> None:
        self.values = iter(values)

    def value(self, policy: object) -> Halted:
        return Halted(np.asarray(next(self.values), dtype=float), 1.0, 0.0, 0.0, 10)


@dataclass
class AtStep:
    step: int
    policy: object = None
    ended: list[int] = field(default_factory=list)


def ends_at(values: list[Any], last: int = 100, **settings: Any) -> tuple[int, str | None]:
    """The step at which a run of `last` steps with these values, one every 10, ends, and why."""
    agent, stopped = AtStep(0), []
    chosen = UntilFlatSettings(every=10, **settings)
    model: Any = Scripted(values)
    flat = UntilFlat(chosen, model, last, stopped.append)
    for agent.step in range(1, last + 1):
        if flat("step", agent, {}):  # type: ignore[arg-type]
            break
    assert stopped == [agent.step]
    return agent.step, flat.why


def test_the_standard_error_is_that_of_paired_differences():
    one, other = (Halted(np.array(v), 1.0, 0.0, 0.0, 10) for v in ([3.0, 5.0], [1.0, 1.0]))
    # differences 2 and 4: mean 3, deviation sqrt(2), error sqrt(2) / sqrt(2)
    assert rise(one, other) == pytest.approx((3.0, 1.0))


def test_it_ends_when_values_no_longer_rise():
    flat = [[k, k] for k in (1.0, 2.0, 3.0, 3.0, 3.0, 3.0)]
    assert ends_at(flat, patience=3) == (60, "flat")
    rising = [[k, k] for k in range(10)]
    assert ends_at(rising, patience=1) == (100, "updates")


def test_a_rise_within_the_standard_error_is_none():
    base = np.zeros(3)
    assert ends_at([base, base + 0.5 + SPREAD], patience=1) == (20, "flat")
    values = [base, base + 0.6 + SPREAD, base]
    assert ends_at(values, patience=1) == (30, "flat")


def test_the_policy_of_every_rise_is_kept():
    """Of values 1, 3, 2, 4, 0, 0: the first, the second and the fourth."""
    agent, kept, model = AtStep(0), [], Scripted([SPREAD + v for v in (1, 3, 2, 4, 0, 0)])
    settings = UntilFlatSettings(every=10, patience=2)
    flat = UntilFlat(settings, model, 100, keep=lambda a: kept.append(a.step))  # type: ignore[arg-type]
    for agent.step in range(1, 61):
        flat("step", agent, {})  # type: ignore[arg-type]
    assert kept == [10, 20, 40] and flat.best == 40 and flat.why == "flat"


def test_slow_rises_add_up():
    """Each is less than a standard error over the one before, and all together are more."""
    base = np.zeros(3)
    values = [base, *(base + k / 4 + SPREAD for k in (1, 2, 3)), *[base] * 3]
    assert ends_at(values, patience=3) == (70, "flat")


def test_processor_time_ends_it(monkeypatch):
    clock = iter(range(0, 10_000, 7))
    monkeypatch.setattr(until_flat.time, "process_time", lambda: float(next(clock)))
    step, why = ends_at([[k, k] for k in range(10)], minutes=1.0)
    assert why == "time" and step == 9  # 7 s each: more than 60 at the ninth


def settings(data: str, **changes: Any) -> RunSettings:
    values = {
        "steps": 400, "eval_every": 50, "eval_episodes": 2, "final_episodes": 3, "log_every": 10,
        "checkpoint_every": 7, "tensorboard": False, "holdout": 0.4,
        "until_flat": UntilFlatSettings(every=10, patience=2),
    }  # fmt: skip
    return RunSettings("bc", data, **(values | changes))


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("data") / "pendulum.npz"
    save_npz(random_dataset("Pendulum-v1", 1000), path)
    return str(path)


@pytest.fixture(scope="module")
def whole(log: str, tmp_path_factory) -> Path:
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        shorten_episodes(patch)
        training.start(settings(log), build_config("bc", CONFIGS["bc"]), folder, quiet=True)
    return folder


def outcome(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def test_a_run_ends_and_keeps_its_last_policy(whole: Path):
    result, run = outcome(whole), training.TrainingRun(whole)
    stopped = result["until_flat"]
    assert stopped["why"] == "flat" and 20 <= result["step"] < 400
    assert [row[0] for row in stopped["checks"]] == list(range(10, result["step"] + 1, 10))
    assert run.finished() and (whole / "policies" / f"{result['step']}.pt").exists()
    evaluations = Evaluations.load(whole / "evaluations.npz")
    assert evaluations.steps[-1] == result["step"] and len(evaluations.returns[-1]) == 3


@pytest.mark.usefixtures("short_episodes")
def test_the_policy_of_the_highest_value_is_kept_and_evaluated(whole: Path):
    """It is the one of the last row whose rise is above its standard error."""
    rows = outcome(whole)["until_flat"]["checks"]
    risen = [row[0] for row in rows if row[2] is None or row[2] > row[3]]
    choice = json.loads((whole / "selection.json").read_text())
    assert choice["chosen"] == risen[-1] < rows[-1][0]
    agent = selection.agent_at(whole, "chosen")
    assert agent.step == choice["chosen"]
    returns = evaluate(agent, tasks.make("Pendulum-v1"), 3)
    assert choice["return_mean"] == pytest.approx(float(returns.mean()), rel=1e-5)
    record = records.of_run({"algorithm": "bc"}, whole)
    assert records.selected_score(record) == pytest.approx(choice["score"], rel=1e-4)
    assert not records.estimated(record | {"steps": []})
    with pytest.raises(ConfigError, match="was chosen by --until-flat"):
        Evaluate(whole, fqe_steps=5).main()
    assert json.loads((whole / "selection.json").read_text()) == choice


@pytest.mark.usefixtures("short_episodes")
def test_the_task_has_no_part_in_it(whole: Path, log: str, tmp_path: Path):
    """Without a single evaluation in the task before the last, the run ends at the same update."""
    config = build_config("bc", CONFIGS["bc"])
    training.start(settings(log, eval_every=0), config, tmp_path / "run", quiet=True)
    assert (
        outcome(tmp_path / "run")["until_flat"]["checks"] == outcome(whole)["until_flat"]["checks"]
    )


@pytest.mark.parametrize(
    "saves",
    [pytest.param(2, marks=pytest.mark.long), 4, pytest.param(6, marks=pytest.mark.long)],
)
@pytest.mark.usefixtures("short_episodes")
def test_a_run_that_dies_ends_where_the_other_does(
    whole: Path, log: str, tmp_path: Path, saves: int, monkeypatch
):
    save, count = Checkpointer.save, [0]

    def dies(self: Checkpointer, agent: Any) -> None:
        save(self, agent)
        count[0] += 1
        if count[0] == saves:
            raise KeyboardInterrupt

    folder, config = tmp_path / "run", build_config("bc", CONFIGS["bc"])
    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "save", dies)
        with pytest.raises(KeyboardInterrupt):
            training.start(settings(log), config, folder, quiet=True)
    training.TrainingRun(folder).resume(quiet=True)
    choices = [json.loads((f / "selection.json").read_text()) for f in (folder, whole)]
    assert choices[0] == choices[1]
    results = [outcome(f) for f in (folder, whole)]
    for result in results:
        result.pop("seconds")
        result["until_flat"].pop("processor_seconds")
    assert results[0] == results[1]
    weights = [checkpoint.load(f / "checkpoint.pt")["state"]["modules"] for f in (folder, whole)]
    for name, network in weights[0].items():
        for key, tensor in network.items():
            assert tensor.equal(weights[1][name][key]), f"{name}.{key}"


@pytest.mark.parametrize("ends", [None, "learned"])
@pytest.mark.usefixtures("quick_halting_model")
def test_a_model_from_disk_gives_the_same_values(log: str, ends: Literal["learned"] | None):
    from mbrl.data import load

    dataset: Dataset = load(log)
    if ends is not None:
        terminated = dataset.transitions.obs[:, 0] > 0.9
        dataset = replace(dataset, transitions=replace(dataset.transitions, terminated=terminated))
    train, held = until_flat.hold_out(dataset, 0.4)
    fitted = HaltingModel(train, held, ends)
    again = HaltingModel(train, held, ends, state=fitted.state_dict())

    def still(obs: Any) -> Any:
        return 0.0 * obs[:, :1]

    one, other = fitted.value(still), again.value(still)
    assert np.array_equal(one.value, other.value) and one.ended == other.ended
    assert (one.ended > 0) == (ends is not None)


@pytest.mark.usefixtures("quick_halting_model")
def test_ends_of_a_log_are_learned_from_five_or_more(log: str, tmp_path: Path):
    """Of a log of no task; a task's rule needs none."""
    from mbrl.data import load

    dataset: Dataset = load(log)
    assert halting.ends_of(dataset) is not None and halting.can_imagine(dataset)
    own = replace(dataset, spec=replace(dataset.spec, task="a plant"))
    assert halting.ends_of(own) is None and halting.can_imagine(own)
    for count, able in ((4, False), (5, True)):
        terminated = torch.arange(len(own.transitions)) < count
        some = replace(own, transitions=replace(own.transitions, terminated=terminated))
        assert halting.ends_of(some) == "learned" and halting.can_imagine(some) == able
    run = RunSettings("bc", log, holdout=0.4, until_flat=UntilFlatSettings(every=10))
    assert until_flat.halting_model(run, some, some, tmp_path).model.ends is not None
    unlike = replace(own.transitions, duration=torch.ones(len(own.transitions)))
    assert not halting.can_imagine(replace(own, transitions=unlike))


@pytest.mark.parametrize(
    ("algorithm", "data", "changes", "text"),
    [
        ("bc", "pendulum/medium", {"holdout": 0.0}, "--holdout 0.2"),
        ("sac", "Pendulum-v1", {"holdout": 0.0}, "give a dataset"),
        ("neubay", "pendulum/medium", {}, "has a memory"),
        ("pets", "pendulum/medium", {}, "is a planner"),
        (
            "bc",
            "pendulum/medium",
            {"until_flat": UntilFlatSettings(minutes=3.0)},
            "--until-flat.every 1000",
        ),
    ],
)
def test_refusals(algorithm: str, data: str, changes: dict[str, Any], text: str, tmp_path: Path):
    values = {"until_flat": UntilFlatSettings(every=10), "holdout": 0.2} | changes
    run = RunSettings(algorithm, data, steps=20, **values)
    with pytest.raises(ConfigError, match=text):
        training.create(run, build_config(algorithm, {}), tmp_path / "run")


@pytest.mark.parametrize(
    ("algorithm", "data", "holdout", "text"),
    [
        ("bc", "invertedpendulum/expert", 0.2, "one of 5 episodes.*--holdout 0.4"),
        ("discrete_iql", "cartpole/expert", 0.2, "has discrete actions"),
    ],
)
def test_refusals_that_take_the_data(
    algorithm: str, data: str, holdout: float, text: str, tmp_path: Path
):
    run = RunSettings(
        algorithm, data, steps=20, holdout=holdout, until_flat=UntilFlatSettings(every=10),
        tensorboard=False,
    )  # fmt: skip
    config = build_config(algorithm, CONFIGS[algorithm])
    with pytest.raises(ConfigError, match=text):
        training.start(run, config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "config.json").exists()
