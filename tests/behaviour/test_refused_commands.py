"""Commands with impossible input end in one line; labels and names do no harm where they go."""

import dataclasses
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import algorithms
from algorithms import ALGORITHMS, BC
from algorithms.bc import BCConfig
from algorithms.language.sampling import workers
from experiments.__main__ import main
from experiments.cli.plot import lines_of
from experiments.reports import figures
from experiments.reports.page_parts import inlined
from experiments.runs import jobs, launchers
from experiments.runs import training as runs
from experiments.settings import RunSettings, build_config
from experiments.tables import render, table
from experiments.tables.plan import Row, file_name
from mbrl.config import Count
from tests.behaviour.test_faults import described


def ends(arguments: list[str], capsys) -> str:
    """The one line of a command that fails."""
    assert main(arguments) in (1, 2)
    error: str = capsys.readouterr().err
    assert "Traceback" not in error and error.startswith("error: ")
    return error


@pytest.mark.parametrize("recipe", ["ppo", "grpo", "reinforce"])
def test_a_recipe_in_the_place_of_an_algorithm_gets_its_command(recipe: str, capsys) -> None:
    text = ends(["run", recipe, "CartPole-v1"], capsys)
    assert f"run policy_gradient CartPole-v1 --recipe {recipe}" in text


def test_places_that_cannot_be_written_are_named(tmp_path: Path, capsys) -> None:
    file = tmp_path / "file"
    file.write_text("")
    run = ["run", "bc", "pendulum/expert", "--steps", "10", "--eval-every", "0"]
    assert "file" in ends([*run, "--out", str(file)], capsys)
    assert "file" in ends([*run, "--out", str(file / "below")], capsys)
    assert "proc" in ends([*run, "--out", "/proc/nowhere"], capsys)
    assert "nosuch" in ends(["run", "mopo", "pendulum/expert", "--model", "nosuch"], capsys)
    assert "nosuch" in ends(["run", "bc", "Pendulum-v1", "--after", "nosuch"], capsys)
    assert "nosuch" in ends(["report", "nosuch"], capsys)
    assert "nosuch" in ends(["plot", "nosuch"], capsys)
    assert file.read_text() == ""


def test_a_planner_is_not_evaluated_before_it_has_a_model(tmp_path: Path) -> None:
    small = {
        "planner": {"horizon": 2, "population": 4, "iterations": 1, "particles": 2},
        "model": {"hidden": [4], "members": 2, "elites": 2, "min_epochs": 1, "max_epochs": 1},
        "online": {"warmup": 20, "refit_every": 20, "refit_epochs": 1},
    }
    settings = RunSettings(
        "pets", "Pendulum-v1", steps=24, eval_every=4, eval_episodes=1, final_episodes=1,
        checkpoint_every=10, tensorboard=False,
    )  # fmt: skip
    folder = tmp_path / "run"
    runs.create(settings, build_config("pets", small), folder)
    assert jobs.resume(folder, quiet=True)["step"] == 24
    with np.load(folder / "evaluations.npz") as found:
        assert found["steps"].tolist() == [20, 24]


def test_plots_and_pools_tell_settings_apart(tmp_path: Path) -> None:
    folders = []
    for name, recipe, seed in (("a", "ppo", 0), ("b", "ppo", 1), ("c", "grpo", 0)):
        folders.append(tmp_path / name)
        settings = RunSettings("policy_gradient", "CartPole-v1", steps=10, seed=seed)
        config = build_config("policy_gradient", {"recipe": recipe})
        runs.create(settings, config, folders[-1])
    folders.append(described(tmp_path / "d"))
    names = lines_of(folders)
    assert [names[f] for f in folders] == [
        "policy_gradient recipe=ppo",
        "policy_gradient recipe=ppo",
        "policy_gradient recipe=grpo",
        "bc",
    ]


@dataclasses.dataclass(frozen=True)
class MineConfig(BCConfig):
    extra: Count = 3


class Mine(BC):
    pass


def test_a_subclass_from_outside_is_loaded_with_its_own_settings(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "mine", (Mine, MineConfig))
    settings = RunSettings(
        "mine", "pendulum/expert", steps=10, eval_every=0, final_episodes=1, tensorboard=False
    )
    runs.start(settings, build_config("mine", {"extra": 5, "hidden": [4]}), tmp_path, quiet=True)
    assert algorithms.load(tmp_path / "checkpoint.pt").config.extra == 5
    assert jobs.resume(tmp_path, quiet=True)["step"] == 10


def test_ray_listens_to_this_machine_alone(monkeypatch) -> None:
    asked: list[dict] = []
    fake = types.SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **options: asked.append(options),
        remote=lambda **options: lambda work: types.SimpleNamespace(remote=lambda *a: object()),
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    launchers.Ray(2)
    launchers.Ray(2, "10.0.0.1:6379")
    workers_of_ray = next(
        kind for kind in vars(workers).values() if isinstance(kind, type) and "Ray" in kind.__name__
    )
    workers_of_ray(None, 1)
    assert [options.get("_node_ip_address") for options in asked] == [
        "127.0.0.1",
        None,
        "127.0.0.1",
    ]
    assert asked[1]["address"] == "10.0.0.1:6379"


def test_labels_do_no_harm() -> None:
    assert render._escape("a{b}$~^\\") == (
        "a\\{b\\}\\$\\textasciitilde{}\\textasciicircum{}\\textbackslash{}"
    )
    assert render._escape("\x1b[31mx") == " [31mx"
    assert render.plain("=HYPERLINK(1)") == "'=HYPERLINK(1)" and render.plain("bc x=1") == "bc x=1"
    assert render.cell("a|b<script>\nc") == "a\\|b&lt;script> c"
    assert Row("..").folder == "-" and file_name("../x".replace("/", "-")) == "..-x"
    assert file_name(".") == file_name("") == "-" and file_name("bc-0.5") == "bc-0.5"


def test_a_picture_changes_only_with_its_data(tmp_path: Path) -> None:
    line = figures.curve(np.arange(3.0), np.ones((2, 3)))

    def draw(value: float) -> list[Path]:
        curve = dataclasses.replace(line, mean=line.mean * value)
        figures.curves({"": {"a": curve}}, "updates", "score", tmp_path / "f.png")
        return [tmp_path / "f.png"]

    draw(1.0)
    (tmp_path / "f.png").write_bytes(b"as another release drew it")
    table.unchanged(tmp_path, lambda: draw(1.0))
    assert (tmp_path / "f.png").read_bytes() == b"as another release drew it"
    table.unchanged(tmp_path, lambda: draw(2.0))
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "report-x.png").write_bytes(b"picture")
    (tmp_path / "report-x.csv").write_text("a,b\n")
    page = '<img src="report-x.png"><a href="report-x.csv">data</a><img src="other.png">'
    assert inlined(page, tmp_path) == (
        '<img src="data:image/png;base64,cGljdHVyZQ=="><a href="data:text/csv;base64,YSxiCg=="'
        ' download="report-x.csv">data</a><img src="other.png">'
    )


def test_recipes_are_readable_at_80_columns(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list", "recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and any(line.startswith("ppo: ") for line in lines)
    words = [word for line in lines for word in line.split()]
    assert sum(len(word) <= 2 for word in words) < 0.3 * len(words)  # no columns of letters
