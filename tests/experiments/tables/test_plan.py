"""Definitions of tables: what is read from their files, and mistakes in these."""

from pathlib import Path

import pytest

from algorithms import ALGORITHMS
from experiments import studies
from experiments.tables import plan, table
from mbrl.errors import ConfigError
from tests.experiments.tables.small_table import SMALL


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Small"', 'titel = "Small"', "'titel'.*title"),
        ('["bc"]', '["bd"]', "'bd'"),
        ('["bc"]', '["policy_gradient"]', "learns by acting"),
        ("seeds = [0, 1]", "seeds = []", "seeds is empty"),
        ("pendulum/expert", "pendulum/exprt", "exprt"),
        ('"bc wide"', '"bc"', "same label"),
        ("hidden = [16]", "hiden = [16]", "hiden"),
        (
            'title = "Twice"\ndatasets',
            'title = "Twice"\ndataset',
            "key of a block 'dataset': did you mean 'datasets'",
        ),
        ("steps = 20", 'steps = "20"', "steps of a table is '20', a text; give a whole"),
        ("steps = 20", "steps = 20\ncell_seconds = -5", "cell_seconds is -5"),
        ("steps = 20", 'steps = 20\npublished = ["corll"]', "did you mean 'corl'"),
        (
            "steps = 20",
            'steps = 20\npublished = "corl"',
            "published of a table is 'corl', a text; give a list",
        ),
        ("seeds = [0, 1]", "seeds = 2", "seeds of a table is 2, a whole number; give a list"),
        ("seeds = [0, 1]", "seeds = [0, 0]", "seeds has 0 twice"),
        ("seeds = [0, 1]", "seeds = [-1]", "seeds is .*each must be at least 0"),
        ("seeds = [0, 1]", "seeds = [0.5]", "seeds is .*whole number"),
        ('algorithm = "bc"', 'algorithmus = "bc"', "key of a column 'algorithmus'"),
        ("config = {", "configs = {", "key of a column 'configs': did you mean 'config'"),
        ('algorithm = "bc",', 'algorithm = "bc", steps = 40,', "key of a column 'steps'"),
        ("steps = 40", "step = 40", "key of a block 'step'"),
        ("steps = 20", 'steps = 20\nmetrics = ["last"]', "key of a table 'metrics'"),
        ('"bc wide"', "3", "label of a column is 3, a whole number; give a text"),
        ("config = { hidden = [16] }", 'config = "x"', "config of a column is 'x'"),
        ('title = "Small"', "title = 3", "title of a table is 3"),
        ("fqe_steps = 10", 'sweep = "eta"', "sweep of a table is 'eta', a text; give a table"),
        ("columns = [", 'columns = ["bc", ', "a column is 'bc', a text; give a table of keys"),
        ('"bc wide"', '"b/c", algorithm = "bc" }, { label = "b c"', "one place, 'b-c'"),
    ],
)
def test_mistakes_in_a_file_are_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    require_refused(SMALL.replace(old, new, 1), message, tmp_path)


def require_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        table.all_cells(plan.load(str(file)))


def test_all_committed_tables_can_be_read() -> None:
    for name in plan.names():
        result = plan.load(name)
        assert result.blocks and table.all_cells(result)


def test_an_unusual_number_of_last_episodes_is_in_the_key(
    tmp_path: Path,
) -> None:
    """So that records of tables that do not name it stay theirs."""
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    assert all("final_episodes" not in c.key for c in table.all_cells(plan.load(str(file))))
    file.write_text(SMALL.replace("steps = 20", "steps = 20\nfinal_episodes = 500", 1))
    cells = table.all_cells(plan.load(str(file)))
    assert {c.key["final_episodes"] for c in cells} == {500}  # blocks inherit it
    assert {c.row.final_episodes for c in cells} == {500}


def test_sampled_scores_are_in_the_key_of_their_column_alone(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    column = 'label = "bc wide"'
    file.write_text(SMALL.replace(column, column + ", eval_stochastic = true"))
    cells = table.all_cells(plan.load(str(file)))
    sampled = [c for c in cells if c.key.get("eval_stochastic")]
    assert sampled and {c.column.label for c in sampled} == {"bc wide"}
    assert all("eval_stochastic" not in c.key for c in cells if c not in sampled)
    file.write_text(SMALL.replace(column, column + ", eval_stochastic = 1"))
    with pytest.raises(ConfigError, match="give true or false"):
        plan.load(str(file))


def test_a_precision_is_in_the_key_and_the_name_unless_it_is_the_highest(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    block = '\n[[blocks]]\ntitle = "medium"\ndatasets = ["pendulum/expert"]\n'
    file.write_text(SMALL + block + 'matmul_precision = "medium"\n')
    cells = table.all_cells(plan.load(str(file)))
    medium = [c for c in cells if c.key.get("matmul_precision") == "medium"]
    assert {c.row.label for c in medium} == {"pendulum/expert@medium"} and len(medium) == 4
    assert all("matmul_precision" not in c.key for c in cells if c not in medium)
    column = 'label = "bc wide"'
    assert SMALL.count(column) == 1
    file.write_text(SMALL.replace(column, column + ', matmul_precision = "medium"'))
    cells = table.all_cells(plan.load(str(file)))
    medium = [c for c in cells if c.key.get("matmul_precision") == "medium"]
    assert {c.column.label for c in medium} == {"bc wide"}
    assert {c.matmul_precision for c in cells if c not in medium} == {"highest"}
    file.write_text(SMALL + block + 'matmul_precision = "low"\n')
    with pytest.raises(ConfigError, match="'low'"):
        plan.load(str(file))


@pytest.mark.parametrize("change", ["holdout = 0.5", "final_episodes = 7", "columns"])
def test_two_blocks_do_not_share_a_place_for_other_settings(change: str, tmp_path: Path) -> None:
    columns = 'columns = [{ label = "bc", algorithm = "bc", config = { hidden = [8] } }]'
    block = '\n[[blocks]]\ntitle = "other"\ndatasets = ["pendulum/expert"]\n'
    file = tmp_path / "small.toml"
    file.write_text(SMALL + block)
    plan.load(str(file))  # the same cells twice
    file.write_text(SMALL + block + (columns if change == "columns" else change) + "\n")
    with pytest.raises(ConfigError, match="one place, 'bc', for their records on"):
        plan.load(str(file))


def test_the_rows_of_a_study_have_the_precision_of_their_table(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    text = 'study = "edge_of_reach"\nmetrics = ["q"]\nseeds = [0]\n'
    blocks = '[[blocks]]\ntitle = "a"\nrows = [{ label = "a" }]\nmatmul_precision = "highest"\n'
    blocks += '[[blocks]]\ntitle = "b"\nrows = [{ label = "b" }]\n'
    file.write_text(text + 'matmul_precision = "medium"\n' + blocks)
    first, second = table.all_cells(plan.load(str(file)))
    assert first.matmul_precision == "highest" and "matmul_precision" not in first.key
    assert second.matmul_precision == second.key["matmul_precision"] == "medium"
    for old, new, what in (
        ('matmul_precision = "medium"', 'matmul_precision = "low"', "'low'"),
        ("edge_of_reach", "online", "'online' runs in the highest"),
    ):
        medium = text + 'matmul_precision = "medium"\n' + blocks
        file.write_text(medium.replace(old, new).replace('["q"]', '["end"]'))
        with pytest.raises(ConfigError, match=what):
            plan.load(str(file))


def test_a_sweep_over_one_knob_has_a_column_a_value(tmp_path: Path) -> None:
    file = tmp_path / "knob.toml"
    file.write_text(
        'datasets = ["pendulum/expert"]\nseeds = [0]\n'
        '[sweep]\nalgorithm = "edac"\nknob = "learner.eta"\nvalues = [0.5, 2.0]\n'
    )
    cells = table.all_cells(plan.load(str(file)))
    assert [c.key["config"]["learner"]["eta"] for c in cells] == [0.5, 2.0]
    assert [c.column.label for c in cells] == ["edac eta=0.5", "edac eta=2.0"]


def test_settings_of_a_study_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="setting of fqe_ranking"):
        studies.settings_of("fqe_ranking", {"update": 3})
    text = (plan.TABLES / "fqe-ranking.toml").read_text()
    (tmp_path / "wrong.toml").write_text(
        text.replace('label = "reacher/medium"', "label = 'x'\nup=1")
    )
    with pytest.raises(ConfigError, match="'up'"):
        plan.load(str(tmp_path / "wrong.toml"))


def test_values_of_a_hyperparameter() -> None:
    assert plan.parse_values("learner.eta=0.5,1") == ("learner.eta", [0.5, 1])
    assert plan.parse_values("hidden=[8],[64,64]") == ("hidden", [[8], [64, 64]])
    assert plan.parse_values("model.target=raw,standardised")[1] == ["raw", "standardised"]
    with pytest.raises(ConfigError, match="'eta' is not NAME=VALUE"):
        plan.parse_values("eta")


def test_a_study_is_made_again_for_a_newer_version_of_its_algorithm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records from before their keys held versions stay those of the versions of that time."""
    table = plan.load("finetuning")
    monkeypatch.setattr(ALGORITHMS["lift"][0], "version", 2)
    before = {c.path: c.key for c in table.cells(table.blocks[0])}
    assert not any("algorithms" in key for key in before.values())
    monkeypatch.setattr(ALGORITHMS["lift"][0], "version", 3)
    for cell in table.cells(table.blocks[0]):
        newer = cell.row.settings["algorithm"] == "lift"
        assert cell.key == before[cell.path] | ({"algorithms": {"lift": 3}} if newer else {})
    several = {"algorithms": ["lift", "bc", "squarecb"]}
    assert plan.algorithm_versions(several) == {"algorithms": {"lift": 3}}


STUDY = """
study = "solver_orders"
metrics = ["order"]
seeds = [0]
rows = [{ label = "one" }]
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["order"]', '"order"', "metrics of a table of a study is 'order'"),
        ("rows = [", "rows = [1, ", "a row is 1; give a label and settings"),
        ("seeds = [0]", 'seeds = [0]\ndatasets = ["pendulum/expert"]', "'datasets'"),
        ("rows = ", '[[blocks]]\ntitle = "a"\nsetting = {}\nrows = ', "block 'setting': did you"),
    ],
)
def test_mistakes_in_a_table_of_a_study(old: str, new: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(STUDY)
    assert len(table.all_cells(plan.load(str(file)))) == 1
    require_refused(STUDY.replace(old, new, 1), message, tmp_path)
