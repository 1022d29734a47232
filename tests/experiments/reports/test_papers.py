"""The page of papers is what the table of recipes says, and every name stands for one thing."""

from pathlib import Path

from algorithms import ALGORITHMS
from experiments.__main__ import main
from experiments.cli.list import main as list_main
from experiments.reports import papers
from mbrl.policy_gradient import RECIPES
from mbrl.policy_gradient.recipes import TABLES
from world_models.samplers import SAMPLERS

ROOT = Path(__file__).parents[3]


def test_the_page_is_the_output_of_its_command(capsys) -> None:
    assert main(["list", "papers"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "papers.md").read_text(), (
        "make it anew: python -m experiments list papers > docs/papers.md"
    )


def test_names_are_unique_over_everything_that_has_one() -> None:
    names = [*ALGORITHMS, *SAMPLERS, *papers.all_schedulers()]
    names += [recipe.name for table in TABLES.values() for recipe in table]
    assert len(set(names)) == len(names)


def test_every_recipe_is_on_the_page_with_its_mark_and_what_it_assumes() -> None:
    page = papers.page()
    for recipe in RECIPES.values():
        line = next(row for row in page.splitlines() if row.startswith(f"| `{recipe.name}` |"))
        assert recipe.title in line and f"| {recipe.mark} |" in line
        for text in (*recipe.assumptions, *recipe.differences):
            assert text in page


def test_recipes_are_listed_with_what_they_need(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    assert list_main(["recipes"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in RECIPES)
    assert papers.counts_text() in printed
