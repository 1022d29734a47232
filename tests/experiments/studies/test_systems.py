"""The study of training systems, without Ray: its simulation, its figure, and its definition."""

from pathlib import Path

import numpy as np
import pytest

from experiments.studies import systems as study
from experiments.studies import systems_parts as parts
from experiments.tables import plan
from mbrl.distributed.simulation import simulate
from mbrl.errors import ConfigError


def settings(**values: object) -> dict:
    return study.DEFAULTS | values


def test_the_simulated_part_says_what_the_simulation_does(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(study, "SIZES", (4, 8))
    told = settings(part="scale", updates=3, staleness=1, system={"median": 1.0})
    records = []
    for seed in (0, 1):
        outcome = study.measure(told, seed, tmp_path)
        system = study.system_of(told, workers=8, batch=2)
        one = simulate(system, 3, np.random.default_rng(seed))
        assert outcome.values["rate"] == one.rate / 8
        assert outcome.curves["idle"][-1] == 100 * one.idle == outcome.values["idle"]
        assert outcome.curves["workers"] == [4.0, 8.0]
        records.append({"values": outcome.values, "curves": outcome.curves})
    files = study.draw({"simulated, streaming": records}, tmp_path, "-6")
    assert [file.name for file in files] == ["systems-6.png"] and files[0].stat().st_size > 1000
    assert study.draw({"queue": [{"values": {}, "curves": {}}]}, tmp_path, "") == []


def test_one_process_steps_in_turn(tmp_path: Path) -> None:
    outcome = study.measure(settings(part="streams", inference="inline", seconds=0.2), 0, tmp_path)
    assert outcome.values["rate"] > 1 and 30 < outcome.values["idle"] < 100


def test_gradients_of_one_worker(tmp_path: Path) -> None:
    told = settings(part="gradients", backend="inline", workers=1, updates=1)
    outcome = study.measure(told, 0, tmp_path)
    assert outcome.values["rate"] > 0 and 0 <= outcome.values["idle"] < 100


def test_decoders_take_as_long_as_their_longest_conversation(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(parts, "warm", lambda task, levels, seed, steps: started[0])
    started = [parts.LanguagePolicyGradient(None, parts.LanguageConfig(model=parts.MODEL))]
    started = [started[0].model.state_dict()]
    told = settings(part="rollouts", staleness=1, redundancy=1, updates=1)
    outcome = study.measure(told, 0, tmp_path)
    assert outcome.values["wall"] > 8 * parts.PER_TOKEN
    assert outcome.values["tokens"] > 0 and outcome.values["staleness"] == 0


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown part of systems 'clok'"):
        study.measure(settings(part="clok"), 0, tmp_path)


def test_the_table_has_settings_that_the_parts_take() -> None:
    for block in plan.load("systems").blocks:
        for row in block.rows:
            assert row.settings["part"] in study.PARTS
            study.system_of(study.DEFAULTS | row.settings)
