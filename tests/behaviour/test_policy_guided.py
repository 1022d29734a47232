"""The table of learners on generated data: shared fits, stated budgets, and what is concluded."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from experiments.runs import jobs
from experiments.settings import preset
from experiments.tables import conclusions, cost, plan, summary, table
from mbrl import statistics


@pytest.fixture(scope="module")
def guided() -> plan.Plan:
    return plan.load("policy-guided")


def test_one_generator_for_a_dataset_and_seed(guided: plan.Plan, tmp_path: Path) -> None:
    """Both learners, guided or not, use the same fit; a run on real rows needs none."""
    cells = [c for c in table.all_cells(guided) if c.seed < 2 and c.row.data.startswith("pendulum")]
    fingerprints, _ = table.fingerprints(cells)
    described = table.describe_all(guided, cells, fingerprints, tmp_path)
    needed: dict[tuple[int, int], set[Path]] = {}
    for folder, cell in described.items():
        fit = jobs.job_in(folder).needs()
        assert len(fit) == (cell.column.algorithm == "pgd")
        needed.setdefault((cell.seed, cell.key["steps"]), set()).update(fit)
    assert sorted(needed) == [(0, 5000), (0, 50000), (1, 5000)]
    assert all(len(folders) == 1 for folders in needed.values())
    assert len({fit for folders in needed.values() for fit in folders}) == 3
    assert len(jobs.in_order(described)) == len(described) + 3


def test_rows_differ_in_the_data_alone(guided: plan.Plan) -> None:
    """Learners are those of the real rows; four generations of 2,048 windows, in ten times the
    budget as many; weights 0 and 1."""
    for block in guided.blocks[:2]:
        columns = {c.label: c for c in block.columns}
        for row in block.rows:
            steps = row.steps or 0
            for name in ("td3_bc", "iql"):
                real = plan.config_of(columns[name], row.data, steps)
                for kind, weight in (("unguided", 0.0), ("guided", 1.0)):
                    config = plan.config_of(columns[f"{name} {kind}"], row.data, steps)
                    assert config.learner == name and getattr(config, name) == real
                    assert config.generation.weight == weight
                    assert config.generation.windows == 2048
                    assert steps / config.generation.every == 4
                    assert config.model.updates == steps
                    assert config.iql.decay_steps == steps


def test_other_guidance_differs_in_the_guidance_alone(guided: plan.Plan) -> None:
    first, _, other = guided.blocks
    guided = next(c for c in first.columns if c.label == "iql guided")
    wanted = {"iql guided 0.1": (0.1, "paper", False), "iql guided 0.3": (0.3, "paper", False)}
    wanted["iql guided by score"] = (1.0, "score", True)
    assert {row.data for row in other.rows} < {row.data for row in first.rows}
    for column in other.columns:
        config = plan.config_of(column, "pendulum/medium-replay", 5000)
        known = plan.config_of(guided, "pendulum/medium-replay", 5000)
        weight, mode, denoised = wanted.pop(column.label)
        changed = replace(known.generation, weight=weight, mode=mode, denoised=denoised)
        assert config == replace(known, generation=changed)
    assert not wanted and other.seeds == first.seeds


def test_the_presets_learners_are_those_of_their_own() -> None:
    values = preset("pgd", "pendulum/medium")["config"]
    for name in ("td3_bc", "iql"):
        assert values[name] == preset(name, "pendulum/medium")["config"]


def test_the_budget_is_told_before_it_is_spent(guided: plan.Plan, tmp_path: Path) -> None:
    first, second, _ = guided.blocks
    cells = [*guided.cells(first), *guided.cells(second)]
    text = cost.sentence(cells, tmp_path, 2)
    hours = (len(list(guided.cells(first))) * 240 + 6 * 2400) / 3600 / 2
    assert text.endswith(f"budget of {len(cells)}: at most 2400 s each and {hours:.1f} h in all")
    assert "budget" not in cost.sentence([], tmp_path, 2)


def test_the_conclusion_is_the_differences_of_means(guided: plan.Plan) -> None:
    generator = np.random.default_rng(0)
    block = guided.blocks[0]
    entries = {
        (row.label, column.label): summary.Entry(
            last=(generator.normal(size=5) + 10.0 * column.label.endswith(" guided")).tolist()
        )
        for row in block.rows
        for column in block.columns
    }
    known = summary.BlockSummary(block, entries)
    lines = conclusions.guided(summary.Summary(guided, (known,)))
    assert [line.split(",")[0] for line in lines] == ["td3_bc", "iql"]
    for name, line in zip(("td3_bc", "iql"), lines, strict=True):
        means = [
            np.mean([entries[row.label, f"{name}{kind}"].last for row in block.rows])
            for kind in ("", " unguided", " guided")
        ]
        assert f"unguided less real {means[1] - means[0]:.1f} [" in line
        assert f"guided less real {means[2] - means[0]:.1f} [" in line
        assert f"guided less unguided {means[2] - means[1]:.1f} [" in line
    pair = {
        label: [np.array(entries[row.label, label].last) for row in block.rows]
        for label in ("iql", "iql guided")
    }
    d = statistics.paired_comparison(pair, "iql")["iql guided"].difference
    assert f"[{d.low:.1f}, {d.high:.1f}]" in lines[1]
    # Of one dataset it is Welch's interval.
    first = block.rows[0].label
    said = conclusions.guided_by_dataset(summary.Summary(guided, (known,)))
    assert len(said) == 2 * len(block.rows) and said[0].startswith(f"td3_bc, {first}: ")
    a, b = (np.array(entries[first, f"td3_bc{kind}"].last) for kind in (" guided", ""))
    exact = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    numbers = re.search(r"unguided [^,]*, [^,]*, guided less real (\S+) \[(\S+), (\S+)\]", said[0])
    assert numbers is not None
    got = [float(x) for x in numbers.groups()]
    assert got == pytest.approx([np.mean(a - b), *exact], abs=0.051)
