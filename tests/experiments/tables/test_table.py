"""Tables from their file to their pages: cells are run once and can be repeated exactly."""

import csv
import io
import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

import algorithms
from experiments import studies
from experiments.cli.evaluate import main as evaluate_main
from experiments.runs import jobs, launchers, pool, selection
from experiments.runs import model_fits as fits
from experiments.runs import training as runs
from experiments.settings import RunSettings, build_config
from experiments.tables import cost, plan, records, render, summary, table, table_figures
from mbrl import checkpoint
from mbrl.errors import CheckpointError, ConfigError
from tests.behaviour.test_resume import assert_same
from tests.small import CONFIGS

SMALL = """
title = "Small"
algorithms = ["bc"]
columns = [{ label = "bc wide", algorithm = "bc", config = { hidden = [16] } }]
datasets = ["pendulum/expert"]
seeds = [0, 1]
steps = 20
fqe_steps = 10

[[blocks]]
title = "Twice"
datasets = ["pendulum/expert"]
algorithms = ["bc"]
steps = 40
"""


@pytest.fixture
def small(tmp_path: Path) -> plan.Plan:
    (tmp_path / "small.toml").write_text(SMALL)
    return plan.load(str(tmp_path / "small.toml"))


class Here:
    """Jobs one after the other in this process."""

    workers = 1

    def start(self, folder: Path) -> None:
        jobs.resume(folder, quiet=True)

    def poll(self, handle: None) -> launchers.Exit:
        return launchers.Exit(0, False)

    def stop(self, handles: object) -> None: ...
    def close(self) -> None: ...


def finish(what: plan.Plan, tmp_path: Path, **options: bool) -> None:
    home, folder = tmp_path / "records", tmp_path / "runs"
    table.finish(what, home, folder, Here(), table.all_cells(what), **options)


def test_cells_are_done_once_and_a_deleted_one_alone_again(small, tmp_path: Path) -> None:
    finish(small, tmp_path)
    records_at, cells = tmp_path / "records", table.all_cells(small)
    files = sorted((tmp_path / "records").rglob("*.json"))
    assert len(files) == 6 and all(f.stat().st_size < 8_000 for f in files)
    for record in (json.loads(f.read_text()) for f in files):
        assert np.mean(record["last_returns"]) == pytest.approx(record["means"][-1], rel=1e-5)
        assert len(set(record["means"])) > 1  # so that it could not be another's
    before = {f: f.stat().st_mtime_ns for f in files}
    began = time.perf_counter()
    finish(small, tmp_path)
    assert time.perf_counter() - began < 2
    lost, known = files[0], json.loads(files[0].read_text())
    lost.unlink()
    shutil.rmtree(tmp_path / "runs")
    finish(small, tmp_path)
    assert records.agree(known, json.loads(lost.read_text()))
    assert {f for f in files if f.stat().st_mtime_ns != before[f]} == {lost}
    assert table.check(small, records_at, cells, 1, Here(), Console(quiet=True)) == 0
    # Older than a setting, and rounded: still the same numbers.
    record = json.loads(lost.read_text())
    del record["key"]["config"]["batch_size"]
    record["last_returns"] = [float(f"{r:.4g}") for r in record["last_returns"]]
    lost.write_text(json.dumps(record))
    assert table.check(small, records_at, cells, 1, Here(), Console(quiet=True)) == 0
    record["means"][-1] += 1.0
    record["processor"] = "Another One"
    lost.write_text(json.dumps(record))
    for other in files[1:]:
        other.unlink()
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    assert table.check(small, records_at, cells, 1, Here(), console) == 1
    assert "DIFFERENT (recorded on Another One, repeated on" in printed.getvalue()


def test_records_of_fewer_digits_are_the_same() -> None:
    key = {"study": "horizons", "settings": {}}
    long, short = ({"key": key, "last_returns": [r]} for r in (1.234567, 1.235))
    assert records.agree(long, short) and not records.agree(long, short | {"last_returns": [1.236]})


def test_a_record_of_another_key_is_not_reused(small, tmp_path: Path) -> None:
    cell = next(small.cells(small.blocks[0]))
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"key": cell.key}))
    assert records.read(file, cell.key) is not None
    assert records.read(file, cell.key | {"steps": 21}) is None
    assert cell.folder("a") != cell.folder("b")


def test_data_that_changed_are_marked_and_done_again_when_strict(small, tmp_path: Path) -> None:
    finish(small, tmp_path)
    file = sorted((tmp_path / "records").rglob("*.json"))[0]
    record = json.loads(file.read_text())
    right = record["fingerprint"]
    file.write_text(json.dumps(record | {"fingerprint": "other"}))
    fingerprints, _ = table.fingerprints(table.all_cells(small))
    result = summary.collect(small, tmp_path / "records", fingerprints, {})
    assert "another checksum" in render.markdown(result)
    finish(small, tmp_path)
    assert json.loads(file.read_text())["fingerprint"] == "other"
    finish(small, tmp_path, strict=True)
    assert json.loads(file.read_text())["fingerprint"] == right


def written_records(small: plan.Plan, home: Path) -> None:
    """Records with known returns: reference returns 0 and 50, so scores are twice the returns."""
    for block in small.blocks:
        for cell in small.cells(block):
            record = {
                "key": cell.key,
                "fingerprint": "x",
                "reference_returns": [0.0, 50.0],
                "seconds": 3.0,
                "steps": [10, 15, 20],
                "means": [30.0 + cell.seed, 25.0 + cell.seed, 10.0 + cell.seed],
                "selection": {"chosen": 15, "values": [1.0, 0.5], "steps": [15, 20]},
            }
            file = home / cell.path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(record))


def test_numbers_of_the_page_are_those_of_the_records(small, tmp_path: Path) -> None:
    written_records(small, tmp_path)
    result = summary.collect(small, tmp_path, {"pendulum/expert": "x"}, {})
    entry = result.blocks[0].entries["pendulum/expert", "bc"]
    assert entry.last == [20.0, 22.0] and entry.best == [60.0, 62.0]
    assert entry.selected == [50.0, 52.0]
    # Student's t with one degree of freedom: 21 +- 12.706 * 1.
    assert entry.interval.low == pytest.approx(21 - 12.706, abs=0.2)
    page = render.markdown(result)
    assert "| pendulum/expert | 21.0 ± 1.4 | 21.0 ± 1.4 |" in page
    assert "**Twice**" in page and "| pendulum/expert@40 | 21.0 ± 1.4 |" in page
    assert "| mean, best | 61.0 |" in page and "| mean, chosen offline | 51.0 |" in page
    rows = list(csv.DictReader(io.StringIO(render.comma_separated(result))))
    assert len(rows) == 3 and rows[0]["mean"] == "21" and rows[0]["seeds"] == "0 1"
    assert rows[2]["steps"] == "40" and float(rows[0]["sd"]) == pytest.approx(np.sqrt(2), 1e-5)
    assert "\\toprule" in render.latex(result) and "21.0 $\\pm$ 1.4" in render.latex(result)


def test_columns_are_compared_with_the_reference(tmp_path: Path) -> None:
    """Against scipy's Welch test, for one dataset."""
    text = SMALL.split("[[blocks]]")[0].replace("seeds = [0, 1]", "seeds = [0, 1, 2]")
    (tmp_path / "two.toml").write_text(text + 'reference = "bc"\n')
    two = plan.load(str(tmp_path / "two.toml"))
    written_records(two, tmp_path)
    for file in (tmp_path / "bc-wide").rglob("*.json"):
        record = json.loads(file.read_text())
        record["means"][-1] += 1.0 + record["key"]["seed"] ** 2
        file.write_text(json.dumps(record))
    result = summary.collect(two, tmp_path, {}, {})
    block = result.blocks[0]
    a, b = (block.entries["pendulum/expert", n].last for n in ("bc wide", "bc"))
    output = render.comparisons(block, result)["bc wide"]
    wanted = stats.ttest_ind(a, b, equal_var=False)
    assert output["p (Holm)"] == f"{wanted.pvalue:.3f}"
    low, high = wanted.confidence_interval(0.95)
    mean = np.mean(a) - np.mean(b)
    assert output["mean less that of bc [95 %]"] == f"{mean:.1f} [{low:.1f}, {high:.1f}]"
    assert "| p (Holm) |  | " in render.markdown(result)


def test_unfinished_and_absent_cells_say_so(tmp_path: Path) -> None:
    text = SMALL.replace(
        'datasets = ["pendulum/expert"]', 'datasets = ["d4rl/hopper-medium-v2"]', 1
    )
    (tmp_path / "far.toml").write_text(text)
    far = plan.load(str(tmp_path / "far.toml"))
    fingerprints, missing = table.fingerprints(table.all_cells(far))
    assert set(fingerprints) == {"pendulum/expert"}
    page = render.markdown(summary.collect(far, tmp_path, fingerprints, missing))
    assert "| d4rl/hopper-medium-v2 | no data | no data |" in page
    assert "data fetch" in page and "| pendulum/expert@40 | not run |" in page


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Small"', 'titel = "Small"', "'titel'.*title"),
        ('["bc"]', '["bd"]', "'bd'"),
        ('["bc"]', '["policy_gradient"]', "learns by acting"),
        ("seeds = [0, 1]", "seeds = []", "seeds is missing"),
        ("pendulum/expert", "pendulum/exprt", "exprt"),
        ('"bc wide"', '"bc"', "same label"),
        ("hidden = [16]", "hiden = [16]", "hiden"),
    ],
)
def test_mistakes_in_a_file_are_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(SMALL.replace(old, new, 1))
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        table.all_cells(plan.load(str(file)))


def test_all_committed_tables_can_be_read() -> None:
    for name in plan.names():
        result = plan.load(name)
        assert result.blocks and table.all_cells(result)


def test_part_of_a_table_can_be_chosen(small) -> None:
    chosen = table.choose(small, 1, ["bc wide"])
    assert [(c.column.label, c.seed, c.row.label) for c in chosen] == [
        ("bc wide", 0, "pendulum/expert")
    ]
    assert len(table.choose(small, None, [])) == 6
    with pytest.raises(ConfigError, match="did you mean 'bc wide'"):
        table.choose(small, None, ["bc wid"])


def test_a_sweep_over_one_knob_has_a_column_a_value(tmp_path: Path) -> None:
    file = tmp_path / "knob.toml"
    file.write_text(
        'datasets = ["pendulum/expert"]\nseeds = [0]\n'
        '[sweep]\nalgorithm = "edac"\nknob = "learner.eta"\nvalues = [0.5, 2.0]\n'
    )
    cells = table.all_cells(plan.load(str(file)))
    assert [c.key["config"]["learner"]["eta"] for c in cells] == [0.5, 2.0]
    assert [c.column.label for c in cells] == ["edac eta=0.5", "edac eta=2.0"]


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
    wrong = RunSettings("ravl", "pendulum/expert", model=str(fit), **values | {"seed": 1})
    with pytest.raises(CheckpointError, match="of other data, seed"):
        runs.create(wrong, config, tmp_path / "wrong")


def test_offline_choice_is_among_the_kept_policies(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "run"
    chosen = RunSettings("bc", "pendulum/expert", steps=20, tensorboard=False, fqe_steps=5)
    runs.start(chosen, build_config("bc", CONFIGS["bc"]), folder, quiet=True)
    result = json.loads((folder / "selection.json").read_text())
    assert result["steps"] == [4, 8, 12, 16, 20] and result["chosen"] in result["steps"]
    assert result["chosen"] == result["steps"][int(np.argmax(result["values"]))]
    from algorithms import load

    agent = load(folder / "checkpoint.pt")
    assert evaluate_main([str(folder), "--fqe-steps", "5"]) == 0
    assert f"{result['chosen']} (chosen)" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="no run folder with kept policies"):
        evaluate_main([str(tmp_path), "--fqe-steps", "5"])
    _, policies = selection.kept_policies(folder, agent)
    for mine, kept in zip(agent.policy.parameters(), policies[-1].parameters(), strict=True):
        assert bool((mine == kept).all())


def test_settings_of_a_study_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="setting of fqe_ranking"):
        studies.settings_of("fqe_ranking", {"update": 3})
    text = (plan.TABLES / "fqe-ranking.toml").read_text()
    (tmp_path / "wrong.toml").write_text(
        text.replace('label = "reacher/medium"', "label = 'x'\nup=1")
    )
    with pytest.raises(ConfigError, match="'up'"):
        plan.load(str(tmp_path / "wrong.toml"))


def test_a_table_of_a_study(tmp_path: Path, monkeypatch) -> None:
    """Two tiny trainings through the whole study: ranks, regret, records and the figure."""
    text = (
        'study = "fqe_ranking"\nmetrics = ["rank_correlation", "regret"]\nseeds = [0]\n'
        '[[rows]]\nlabel = "expert"\ndata = "pendulum/expert"\nalgorithms = ["bc", "td3_bc"]\n'
        "steps = 20\nepisodes = 2\nupdates = 20\n"
    )
    (tmp_path / "ranks.toml").write_text(text)
    ranks = plan.load(str(tmp_path / "ranks.toml"))
    finish(ranks, tmp_path)
    (file,) = (tmp_path / "records").rglob("*.json")
    record = json.loads(file.read_text())
    curves = record["curves"]
    assert len(curves["score"]) == len(curves["fqe_value"]) == 10
    wanted = stats.spearmanr(curves["fqe_value"], curves["score"]).statistic
    assert record["values"]["rank_correlation"] == pytest.approx(wanted, abs=1e-3)
    chosen = int(np.argmax(curves["fqe_value"]))
    regret = max(curves["score"]) - curves["score"][chosen]
    assert record["values"]["regret"] == pytest.approx(regret, abs=0.01)
    result = summary.collect(ranks, tmp_path / "records", {}, {})
    assert "| expert | " in render.markdown(result)
    (figure,) = table_figures.draw(result, tmp_path)
    assert len(list(csv.reader(figure.with_suffix(".csv").open()))) == 11


def test_a_record_from_before_a_setting_has_its_default(tmp_path: Path) -> None:
    """A key without a setting that came later is the key with the setting's default, for runs and
    for studies; with another value of it, or of anything else, it is not."""
    (cell, *_) = plan.load("classic").cells(
        plan.Block(
            "", (plan.Row("p", "pendulum/medium", 10),), (plan.Column("ravl", "ravl"),), (0,)
        )
    )
    old = json.loads(json.dumps(cell.key))
    del old["config"]["imagination"]["truth"], old["config"]["learner"]["huber"]
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"key": old}))
    assert records.read(file, cell.key) is not None
    changed = json.loads(json.dumps(cell.key))
    changed["config"]["imagination"]["truth"] = 1.0
    assert records.read(file, changed) is None
    study = {"study": "edge_of_reach", "settings": {"critics": 3}, "seed": 0}
    full = study | {"settings": studies.settings_of("edge_of_reach", {"critics": 3})}
    file.write_text(json.dumps({"key": study}))
    assert records.read(file, full) is not None
    assert records.read(file, full | {"seed": 1}) is None


def test_a_cell_of_another_table_is_borrowed(tmp_path: Path) -> None:
    """The same cell under the same path in a table beside it; not one with another key."""
    key = {
        "study": "edge_of_reach",
        "settings": studies.settings_of("edge_of_reach", {}),
        "seed": 0,
    }
    other = tmp_path / "other" / "a" / "0.json"
    other.parent.mkdir(parents=True)
    other.write_text(json.dumps({"key": key}))
    mine = tmp_path / "mine"
    assert records.copy_from_other_table(mine, Path("a/0.json"), key | {"seed": 1}) is None
    assert not (mine / "a/0.json").exists()
    assert records.copy_from_other_table(mine, Path("a/0.json"), key) is not None
    assert records.read(mine / "a/0.json", key) is not None


def test_the_cost_is_told_from_recorded_cells(tmp_path: Path) -> None:
    """Two recorded cells of BC took 2 and 4 s for 1,000 updates: 5,000 take 15 s."""
    for seed, seconds in ((0, 2.0), (1, 4.0)):
        key = {"algorithm": "bc", "steps": 1000, "seed": seed}
        (tmp_path / f"{seed}.json").write_text(json.dumps({"key": key, "seconds": seconds}))
    cells = [
        plan.Cell(
            plan.Row("r"), plan.Column(name), 0, {"algorithm": name, "steps": 5000}, Path("x")
        )
        for name in ("bc", "bc", "iql")
    ]
    text = cost.sentence(cells, tmp_path, 2)
    assert "3 cells to do" in text and "about 15 s each" in text and "1 are of a kind" in text
    # those of an unknown kind are taken to cost as much as the others: 3 x 15 s / 2, 1,000 times
    assert "about 15 s each and 6.2 h in all" in cost.sentence(1000 * cells, tmp_path, 2)
    assert cost.sentence(cells[2:], tmp_path, 2).startswith("1 cells to do; 1 are")


@pytest.mark.parametrize("name", ["neubay", "pets"])
def test_a_choice_among_policies_that_carry_something(name: str, tmp_path: Path) -> None:
    """Policies with memory are chosen from as others are. A planner learns none: asked for, the
    choice is left out of its run, and refused where it is all that is asked."""
    folder = tmp_path / "run"
    settings = RunSettings(name, "pendulum/expert", steps=4, tensorboard=False, fqe_steps=5,
                           eval_every=2, final_episodes=2)  # fmt: skip
    runs.start(settings, build_config(name, CONFIGS[name]), folder, quiet=True)
    assert jobs.finished(folder)
    if name == "neubay":
        assert json.loads((folder / "selection.json").read_text())["chosen"] in (2, 4)
        return
    assert not (folder / "selection.json").exists()
    with pytest.raises(ConfigError, match="learns no policy"):
        selection.select(folder, algorithms.load(folder / "checkpoint.pt"), None, 5)


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
