"""Pages of algorithms: every algorithm says what it computes and when not to use it, and settings
are those of its config."""

import dataclasses
import re
from dataclasses import dataclass, field

import pytest

from algorithms import ALGORITHMS
from experiments.reports import algorithm_pages, recipe_page
from experiments.reports.setting_pages import settings
from mbrl import config as configs
from mbrl.config import Count, Positive, Settings, Widths
from mbrl.policy_gradient import RECIPES
from tests import test_links
from tests.small import CONFIGS


@dataclass(frozen=True)
class Part(Settings):
    rate: Positive = 0.5  # of something


@dataclass(frozen=True)
class Whole(Settings):
    # how many,
    # and of what
    count: Count | None = 3
    widths: Widths = (4, 5)  # of layers
    part: Part = field(default_factory=lambda: Part(rate=0.25))


def test_settings_of_a_written_config() -> None:
    rows = [dataclasses.astuple(s) for s in settings(Whole)]
    assert rows == [
        ("count", "3", "INT>=1 or None", "how many, and of what"),
        ("widths", "(4, 5)", "INT>=1, ...", "of layers"),
        ("part.rate", "0.25", "FLOAT>0", "of something"),
    ]
    assert [s.default for s in settings(Whole, nested=False)][-1] == "Part(...)"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_settings_are_the_defaults(name: str) -> None:
    config = ALGORITHMS[name][1]()
    flat = configs.flatten(dataclasses.asdict(config))
    assert {s.name: s.default for s in settings(type(config))} == {
        key: repr(value) for key, value in flat.items()
    }


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_formula_limits_and_settings_with_comments(name: str) -> None:
    cls, kind = ALGORITHMS[name]
    assert len(algorithm_pages.section(cls, algorithm_pages.FORMULA).splitlines()) > 1
    assert len(algorithm_pages.section(cls, algorithm_pages.LIMITS)) > 60
    page = algorithm_pages.page(name, ["a/b"])
    assert f"`{name}`" in page and "`a/b`" in page
    assert all(s.about for s in settings(kind) if "." not in s.name)


def test_scores_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    page = algorithm_pages.page("iql", [])
    assert "| pendulum/medium | 5,000 | 84.8 ± 3.5 |" in page  # table.md of classic
    assert re.search(r"classic\]\(.*\): .* the last evaluation, 5 seeds\.", page)
    page = algorithm_pages.page("f_dvl", [])
    assert "(column f-dvl)" in page and "| pendulum/medium | 5,000 | " in page
    assert "Scores in table [goals](" in algorithm_pages.page("gcbc", [])
    monkeypatch.setattr(algorithm_pages, "TABLES", ())
    monkeypatch.setattr(algorithm_pages, "_tables_of_algorithms", dict)
    assert "No table has it yet" in algorithm_pages.page("iql", [])


@pytest.mark.parametrize("name", ["iql", "ravl", "policy_gradient"])
def test_what_is_logged(name: str) -> None:
    own = {"iql": "value/loss", "ravl": "critic/diversity", "policy_gradient": "policy/loss"}
    assert own[name] in algorithm_pages.logged_metrics(name, CONFIGS[name])


def test_the_page_of_recipes_has_all() -> None:
    page = recipe_page.page()
    assert all(f"\n### {name}\n" in page for name in RECIPES)


def test_links_to_other_pages_lead_somewhere() -> None:
    page = test_links.ROOT / "docs" / "reference" / "algorithms" / "any.md"
    targets = [t for text in algorithm_pages.MORE.values() for t in test_links.targets(text)]
    generated = {"../recipes.md"}
    assert [p for t in targets if t not in generated and (p := test_links.problem(page, t))] == []
