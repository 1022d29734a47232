"""Shared fits of world models: one for all runs that use it, with the same result."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.runs import folders, jobs, pool
from experiments.runs import model_fits as fits
from experiments.runs import training as runs
from experiments.settings import RunSettings, build_config
from experiments.tables import plan, table
from mbrl import checkpoint
from mbrl.errors import CheckpointError
from tests.behaviour.test_resume import assert_same
from tests.experiments.tables.small_table import SMALL, Here
from tests.small import CONFIGS

pytestmark = pytest.mark.usefixtures("short_episodes")


def test_two_tables_share_a_fit(tmp_path: Path) -> None:
    """Runs of two algorithms in two tables use the model of one folder."""
    models = []
    for name, algorithm in (("one", "ravl"), ("two", "mopo")):
        file = tmp_path / f"{name}.toml"
        file.write_text(
            f'datasets = ["pendulum/expert"]\nalgorithms = ["{algorithm}"]\n'
            "seeds = [0]\nsteps = 9\n"
        )
        cells = table.all_cells(plan.load(str(file)))
        described = table.describe_all(
            plan.load(str(file)), cells, {"pendulum/expert": "mark"}, tmp_path / "jobs" / name
        )
        models += [folder for job in described for folder in jobs.job_in(job).needs()]
    assert len(models) == 2 and models[0] == models[1]
    assert models[0].parent == (tmp_path / "jobs" / "fits").resolve()


def test_runs_and_fits_are_on_the_device_of_their_table(tmp_path: Path) -> None:
    """What a cell is known by does not change, so that its record is that of any device."""
    file = tmp_path / "one.toml"
    file.write_text(
        'datasets = ["pendulum/expert"]\nalgorithms = ["ravl"]\nseeds = [0]\nsteps = 9\n'
    )
    there = replace(plan.load(str(file)), device="cuda")
    cells = table.all_cells(there)
    assert [c.key for c in cells] == [c.key for c in table.all_cells(plan.load(str(file)))]
    (job,) = table.describe_all(there, cells, {"pendulum/expert": "mark"}, tmp_path / "jobs")
    (fit,) = jobs.job_in(job).needs()
    assert folders.description(job)["run"]["device"] == "cuda"
    assert folders.description(fit)["fit"]["device"] == "cuda"
    config = build_config("ravl", {})
    here = fits.shared(fits.FitSettings("pendulum/expert"), config.model, "m", tmp_path / "fits")
    assert "device" not in folders.description(here)["fit"]  # as fits of earlier versions


def test_a_shared_fit_gives_the_run_that_an_own_fit_gives(tmp_path: Path) -> None:
    config = build_config("ravl", CONFIGS["ravl"])
    values = {"steps": 12, "eval_every": 0, "final_episodes": 2, "tensorboard": False}
    own = RunSettings("ravl", "pendulum/expert", **values)
    runs.start(own, config, tmp_path / "own", quiet=True)
    fit = fits.shared(fits.FitSettings("pendulum/expert"), config.model, "mark", tmp_path / "fits")
    other = RunSettings("ravl", "pendulum/expert", model=str(fit), **values)
    runs.create(other, config, tmp_path / "shared")
    with pytest.raises(CheckpointError, match="is not fitted"):
        jobs.resume(tmp_path / "shared", quiet=True)
    assert pool.run_all([tmp_path / "shared", fit], Here()) == {}
    first, second = (checkpoint.load(tmp_path / n / "checkpoint.pt") for n in ("own", "shared"))
    assert_same(first["state"], second["state"])
    for other in ({"seed": 1}, {"matmul_precision": "medium"}):
        wrong = RunSettings("ravl", "pendulum/expert", model=str(fit), **values | other)
        with pytest.raises(CheckpointError, match="of other data, seed, threads, precision"):
            runs.create(wrong, config, tmp_path / "wrong")


def test_the_task_as_the_model_needs_no_fit(tmp_path: Path) -> None:
    text = SMALL.replace('algorithms = ["bc"]\n', "")
    file = tmp_path / "true.toml"
    small = "{ hidden = [8], critics = 2 }, imagination = { truth = 1.0, starts = 8 }"
    text = text[: text.index("columns")] + (
        f'columns = [{{ label = "r", algorithm = "ravl", config = {{ learner = {small} }} }}]\n'
        'datasets = ["pendulum/expert"]\nseeds = [0]\nsteps = 4\n'
    )
    file.write_text(text)
    result = plan.load(str(file))
    cells = table.all_cells(result)
    fingerprints, _ = table.fingerprints(cells)
    described = table.describe_all(result, cells, fingerprints, tmp_path / "jobs")
    (folder,) = jobs.in_order(described)
    assert jobs.job_in(folder).needs() == []
    jobs.resume(folder, quiet=True)
    assert jobs.finished(folder)
