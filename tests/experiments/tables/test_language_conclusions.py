"""Conclusions about language models, from records with known numbers."""

from typing import Any

import numpy as np
from scipy import stats

from experiments.tables import conclusions, plan, summary
from mbrl.statistics import detectable_difference


def records(key: dict[str, Any], values: list[dict[str, float]]) -> list[dict[str, Any]]:
    return [
        {"key": key | {"seed": seed}, "values": v, "curves": {}, "seconds": 60.0 + seed}
        for seed, v in enumerate(values)
    ]


def summary_of(study: str, rows: dict[str, list[dict[str, Any]]]) -> summary.Summary:
    """A summary of these records."""
    columns = (plan.Column("score"),)
    block = plan.Block("Block", tuple(plan.Row(n) for n in rows), columns, (0, 1, 2), study)
    entries = {(n, "score"): summary.Entry(records=r) for n, r in rows.items()}
    return summary.Summary(plan.Plan("t", "T", (block,)), (summary.BlockSummary(block, entries),))


def test_power_is_of_differences_within_a_seed() -> None:
    """Seeds lie far apart, differences within a seed by 2 or -2 points: a deviation of 8 / 3 over
    four seeds, so that twice its root is what the paired test sees."""
    start = [10.0, 30.0, 60.0, 90.0]
    rows = {
        "brackets, grpo": records({}, [{"score": x} for x in start]),
        "brackets, up": records({}, [{"score": x + d} for x, d in zip(start, (4, 0, 4, 0))]),  # noqa: B905
        "brackets, few": records({}, [{"score": 0.0}, {"score": 50.0}]),
    }
    (line,) = conclusions.CONCLUSIONS["power"](summary_of("recipes", rows))
    assert "a deviation of 2.3 points (1 rows)" in line  # sqrt(16 / 3)
    size = (16 / 3) ** 0.5
    for pairs in (4, 10, 30):
        # By simulation of the t statistic at the difference that is named.

        named = detectable_difference(size, pairs)
        assert f"{named:.1f}" in line
        draw = np.random.default_rng(pairs).normal(named, size, (20_000, pairs))
        p = stats.ttest_1samp(draw, 0.0, axis=1).pvalue
        assert abs((p < 0.05).mean() - 0.8) < 0.01


def test_differences_within_a_seed_are_those_of_scipys_paired_test() -> None:
    base, up = [10.0, 30.0, 60.0], [14.0, 35.0, 64.5]
    rows = {
        "brackets, grpo": records({}, [{"score": x} for x in base]),
        "brackets, up": records({}, [{"score": x} for x in up]),
        "brackets, near": records({}, [{"score": x + d} for x, d in zip(base, (4, -4, 0.5))]),  # noqa: B905
    }
    (line,) = conclusions.CONCLUSIONS["within_seeds"](summary_of("recipes", rows))
    low, high = stats.ttest_rel(up, base).confidence_interval()
    assert "1 of 2 without 0" in line and f" up 4.5 [{low:.1f}, {high:.1f}]," in line
    assert 2 * stats.ttest_rel(up, base).pvalue < 0.05 and "Holm's correction: up." in line
    rows |= {f"brackets, {n}": rows["brackets, near"] for n in "abcdefghijklm"}
    (line,) = conclusions.CONCLUSIONS["within_seeds"](summary_of("recipes", rows))
    assert 15 * stats.ttest_rel(up, base).pvalue > 0.05 and "Holm's correction: none." in line


def test_rows_from_other_warm_starts_are_in_no_pair() -> None:
    """One row whose second seed begins elsewhere."""
    rows = {
        f"brackets, {name}": records(
            {}, [{"score": 30.0 + i + s * by, "before": starts[s]} for s in range(3)]
        )
        for i, (name, by, starts) in enumerate(
            (("grpo", 5, (20, 30, 25)), ("up", 7, (20, 30, 25)), ("other", 6, (20, 31, 25)))
        )
    }
    pairs, left = conclusions.CONCLUSIONS["within_seeds"](summary_of("recipes", rows))
    assert " of 1 without 0" in pairs and "other" not in pairs
    assert left == "brackets, not compared, from other warm starts: other."
    assert "(1 rows)" in conclusions.CONCLUSIONS["power"](summary_of("recipes", rows))[0]


def test_recipes_above_and_below_grpo_are_named() -> None:
    draw = np.random.default_rng(0)
    around = {"grpo": 50, "good": 80, "same": 50, "bad": 10}
    rows = {
        f"{task}, {name}": records(
            {"settings": {"task": task}},
            [{"score": at + x, "before": 30.0} for x in draw.normal(0, 1, 3)],
        )
        for task in ("addition", "guessing")
        for name, at in around.items()
    }
    rows["guessing, only here"] = records(
        {"settings": {"task": "guessing"}}, [{"score": 80.0 + i, "before": 55.0} for i in range(3)]
    )
    output = summary_of("language_recipes", rows)
    lines = conclusions.CONCLUSIONS["against_grpo"](output)
    assert len(lines) == 6
    said = "grpo by an interval without 0, 1 of 3 (0.1 by chance alone):"
    assert f"addition, above {said} good" in lines[0]
    assert f"addition, below {said} bad" in lines[1]
    assert "only here" in lines[2] and "only here" not in lines[4]
    assert lines[4].startswith("all tasks, above")
    # Welch's interval of the difference, from its formula.
    a, b = (
        np.array([r["values"]["score"] for r in rows[f"addition, {n}"]]) for n in ("grpo", "good")
    )
    va, vb = a.var(ddof=1) / 3, b.var(ddof=1) / 3
    degrees = (va + vb) ** 2 / (va**2 / 2 + vb**2 / 2)
    half = stats.t.ppf(0.975, degrees) * np.sqrt(va + vb)
    d = b.mean() - a.mean()
    assert f"good {d:.1f} [{d - half:.1f}, {d + half:.1f}]" in lines[0]
    (line,) = conclusions.CONCLUSIONS["warm_starts"](output)
    assert line.startswith("6 warm starts solve 30.0 to 55.0 %")
    assert line.endswith("guessing seed 0 55.0, guessing seed 1 55.0, guessing seed 2 55.0.")


def test_rows_without_a_signal_are_named_and_compared_with_nothing() -> None:
    rows = {
        f"brackets, {name}": records(
            {"settings": {"task": "brackets"}},
            [{"score": at + x} | extra for x in (-1.0, 0.0, 1.0)],
        )
        for name, at, extra in (
            ("grpo", 50.0, {}),
            ("good", 80.0, {}),
            ("silent", 90.0, {"no_signal": 1.0}),
        )
    }
    lines = conclusions.CONCLUSIONS["against_grpo"](summary_of("language_recipes", rows))
    assert lines[0].startswith("brackets, silent: no signal (advantages all 0")
    assert "1 of 1" in lines[1] and "good" in lines[1] and "silent" not in lines[1]


def test_schedulers_are_told_by_their_signal_and_by_their_score() -> None:
    def row(score: float, signal: float) -> list[dict[str, Any]]:
        values = [{"score": score + i, "signal": signal + i / 100} for i in range(3)]
        return records({}, values)

    rows = {
        "grid_world, uniform": row(40.0, 0.5),
        "grid_world, more": row(40.5, 0.75),
        "grid_world, better": row(60.0, 0.5),
        "grid_world, lost": row(float("nan"), float("nan")),
    }
    lost, *lines = conclusions.CONCLUSIONS["schedulers"](summary_of("language_schedulers", rows))
    assert lost == "grid_world, lost: 3 of 3 runs diverged." and len(lines) == 4
    said = "above uniform by an interval without 0, 1 of 2"
    assert lines[0].startswith(f"signal on grid_world, {said}")
    assert "more 25.0 [" in lines[0] and "better" not in lines[0]
    assert "better 20.0 [" in lines[2] and "more" not in lines[2]


def test_gains_are_told_by_kind_of_gate() -> None:
    def row(recipe: str, *values: tuple[float, float]) -> list[dict[str, Any]]:
        key = {"settings": {"task": "brackets", "recipe": recipe}}
        return records(key, [{"score": a, "gain": b} for a, b in values])

    rows = {
        "brackets, grpo": row("grpo", (40.0, 8.0), (44.0, 12.0)),
        "brackets, ppo": row("ppo", (30.0, 1.0), (50.0, 3.0)),
        "brackets, a2c": row("a2c", (4.9, -30.0), (float("nan"), float("nan"))),
        "addition, grpo": row("grpo", (40.0, 8.0)),
    }
    (line,) = conclusions.CONCLUSIONS["by_gate"](summary_of("language_recipes", rows))
    assert line.startswith("brackets, ") and line.endswith(
        ": Clip (2) 6.0, 0 of 4 runs lost; LogLikelihood (1) -30.0, 2 of 2 runs lost."
    )


def test_recipes_that_ended_alike_are_named() -> None:
    def row(*scores: float) -> list[dict[str, Any]]:
        return records({}, [{"score": x, "gain": float("nan")} for x in scores])

    rows = {
        "brackets, one": row(1.0, 2.0),
        "brackets, other": row(1.0, 2.5),
        "brackets, two": row(1.0, 2.0),
        "addition, one": row(1.0, 2.0),
        "addition, other": row(2.0, 1.0),
        "addition, single": row(1.0),
        "addition, alone": row(1.0),
        "chain, one": row(500.0, 500.0),
        "chain, other on the way": [r | {"curves": {"score": [1.0]}} for r in row(500.0, 500.0)],
    }
    (line,) = conclusions.CONCLUSIONS["alike"](summary_of("language_recipes", rows))
    assert line == "brackets, the same numbers on every seed: one and two."


def test_gains_of_rewards_and_demonstrations_are_told() -> None:
    key = {"settings": {"task": "chain"}}
    rows = {
        f"chain, {name}": records(
            key,
            [
                {"gain": at + i, "gain_other": at / 2 + i, "samples": 1000.0, "before": 30.0}
                for i in range(3)
            ],
        )
        for name, at in (
            ("GRPO", 40.0),
            ("demonstrations", 20.0),
            ("as many demonstrations", 10.0),
        )
    }
    lines = conclusions.CONCLUSIONS["rewards"](summary_of("language_tasks", rows))
    assert lines[0].startswith("chain, trained levels: GRPO gains 41.0 [38.5, 43.5] points")
    assert "the difference is 20.0 [" in lines[0]
    assert lines[2] == (
        "chain: a cell of GRPO took 61 s for 1,000 conversations, one of demonstrations 61 s for "
        "1,000."
    )
    assert "as many demonstrations 11.0 [8.5, 13.5], the difference is 30.0 [" in lines[3]
    assert len(lines) == 6


def test_pretrained_models_are_described_seed_by_seed() -> None:
    ends = {"": 0.0, "_low": -2.0, "_high": 3.0}
    values = [
        {
            f"{name}{end}": at + seed + by
            for name, at in (("before", 20.0), ("after", 70.0), ("gain", 50.0))
            for end, by in ends.items()
        }
        for seed in range(2)
    ]
    rows = {"small, GRPO": records({"settings": {}}, values), "small, GSPO": []}
    lines = conclusions.CONCLUSIONS["pretrained"](summary_of("language_real", rows))
    assert lines[0] == (
        "small, GRPO: "
        "seed 0 from 20.0 [18.0, 23.0] to 70.0 [68.0, 73.0] %, gain 50.0 [48.0, 53.0]; "
        "seed 1 from 21.0 [19.0, 24.0] to 71.0 [69.0, 74.0] %, gain 51.0 [49.0, 54.0]."
    )
    assert len(lines) == 2 and "Wilson" in lines[1]
    none = {"small, GSPO": records({}, [])}
    assert conclusions.CONCLUSIONS["pretrained"](summary_of("language_real", none)) == []


def test_what_differences_could_have_been_seen() -> None:
    """Half of Welch's intervals, from the formula; a row with fewer seeds or without signal has
    none."""
    scores = {"grpo": [50.0, 52.0, 55.0], "a": [60.0, 61.0, 65.0], "b": [40.0, 40.0, 49.0]}
    rows = {
        f"chain, {name}": records({"settings": {"task": "chain"}}, [{"score": x} for x in values])
        for name, values in scores.items()
    }
    rows["chain, few"] = records({"settings": {"task": "chain"}}, [{"score": 1.0}, {"score": 9.0}])
    silent = [{"score": 1.0 + i, "no_signal": 1.0} for i in range(3)]
    rows["chain, silent"] = records({"settings": {"task": "chain"}}, silent)
    (line,) = conclusions.CONCLUSIONS["detectable"](summary_of("hints", rows))
    half = []
    for name in ("a", "b"):
        va, vb = (np.var(scores[n], ddof=1) / 3 for n in ("grpo", name))
        degrees = (va + vb) ** 2 / (va**2 / 2 + vb**2 / 2)
        half.append(stats.t.ppf(0.975, degrees) * np.sqrt(va + vb))
    assert line.startswith("chain: with 3 seeds a difference to GRPO shows from")
    assert f"from {min(half):.1f} to {max(half):.1f} points" in line
    assert f"median {np.mean(half):.1f}" in line
    alone = {n: r[:1] for n, r in rows.items()}
    assert conclusions.CONCLUSIONS["detectable"](summary_of("hints", alone)) == []


def test_what_cascades_forgot_and_gained_beside_the_blend() -> None:
    draw = np.random.default_rng(1)
    gains = {"blend": draw.normal(10, 1, 3), "brackets alone": draw.normal(4, 1, 3)}
    rows = {
        label: records(
            {"settings": {}},
            [
                {"gain_all": x, "forgotten_brackets": 1.0 + i, "forgotten_grid_world": 0.0}
                for i, x in enumerate(values)
            ],
        )
        for label, values in gains.items()
    }
    lines = conclusions.CONCLUSIONS["cascades"](summary_of("cascades", rows))
    half = stats.t.ppf(0.975, 2) * np.std([1, 2, 3], ddof=1) / np.sqrt(3)
    forgot = f"forgot 2.0 [{2 - half:.1f}, {2 + half:.1f}] of brackets and 0.0 [0.0, 0.0]"
    assert lines[0] == f"blend: {forgot} of grid_world points."
    a, b = gains["brackets alone"], gains["blend"]
    less = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert f"mean gain: {np.mean(a) - np.mean(b):.1f} [{less.low:.1f}, {less.high:.1f}]" in lines[2]
    width = (less.high - less.low) / 2
    assert f"With 3 seeds a difference of mean gains to blend shows from {width:.1f}" in lines[3]
