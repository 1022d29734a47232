"""Differences between two rows of a study, or two numbers of a row, paired by seed, as sentences
under its table."""

from collections.abc import Iterator

import numpy as np

from experiments.tables.language_conclusions import span
from experiments.tables.summary import Summary, records_of
from mbrl import statistics

# By table: the numbers that are compared, and pairs of rows, the first less the second.
RECOVERY = (
    ("rac", "full demonstrations"),
    ("correct (HG-DAgger)", "full demonstrations"),
    ("rac", "correct (HG-DAgger)"),
    ("rac", "rac without ends"),
    ("rac without ends", "correct (HG-DAgger)"),
)
# A row alone is compared with its own number before, `NAME_before`.
Pair = tuple[str, str] | tuple[str]
Pairs = tuple[tuple[str, str], ...]
BONUSES = (
    ("global, counts of positions", "none, counts of positions"),
    ("episodic, counts of positions", "none, counts of positions"),
    ("episodic, counts of positions", "global, counts of positions"),
    ("product, counts of positions", "none, counts of positions"),
    ("product, counts of positions", "global, counts of positions"),
)
OF_OBSERVATIONS = (
    ("product, counts of observations", "none, counts of positions"),
    ("product, counts of observations", "global, counts of positions"),
)
NETWORK = ("RND", "RND times first visits", "RND times E3B", "NovelD")


def _bonuses() -> Iterator[tuple[str, str]]:
    for share in ("1.0", "0.67", "0.33", "0.0"):
        pairs: Pairs = BONUSES + OF_OBSERVATIONS
        if share in ("0.67", "0.0"):
            pairs += tuple((name, "none, counts of positions") for name in NETWORK)
        yield from ((f"{share}, {a}", f"{share}, {b}") for a, b in pairs)
    for share in ("0.67", "0.0"):
        pairs = BONUSES + tuple((name, "none, counts of positions") for name in NETWORK)
        yield from ((f"{share}, {a}, new mazes", f"{share}, {b}, new mazes") for a, b in pairs)


EOSER = "early ends rejected"
MASKED = (
    (f"decoding, ascending, {EOSER}", "decoding, four even steps"),
    (f"decoding, ascending, {EOSER}", "decoding, a place a step"),
    ("decoding, ascending", "decoding, four even steps"),
    (f"decoding, four even steps, {EOSER}", "decoding, four even steps"),
    (f"decoding, a place a step, {EOSER}", "decoding, a place a step"),
    ("decoding, a place a step", "decoding, left to right"),
    ("decoding, a place a step", "decoding, at random"),
    ("rewards, trajectory, ascending", "rewards, one step, ascending"),
    ("rewards, trajectory, 16 steps", "rewards, one step, 16 steps"),
    ("rewards, trajectory, ascending",),
    ("rewards, one step, ascending",),
    ("rewards, trajectory, 16 steps",),
    ("rewards, one step, 16 steps",),
)
GOALS = (
    *(
        ("large-navigate, saw", f"large-navigate, saw {kind}")
        for kind in ("unweighted", "no waypoints")
    ),
    *(
        ("blocks-play, hecrl", f"blocks-play, {other}")
        for other in (
            "hecrl best by value",
            "hecrl any sample",
            "hecrl no subgoals",
            "hecrl one entity",
            "saw unweighted",
        )
    ),
    ("blocks-play, saw", "blocks-play, saw unweighted"),
    ("blocks-play, saw", "blocks-play, saw no waypoints"),
)
FINETUNING = (
    ("lift without physics", "sac, stochastic"),
    ("lift without physics", "sac, stochastic, slow"),
    ("lift", "sac, stochastic, slow"),
    ("lift", "lift without physics"),
    ("lift", "lift, stochastic"),
    ("sac, greedy", "sac, stochastic"),
    ("sac, stochastic, slow", "sac, stochastic"),
)
COMPARED: dict[str, tuple[tuple[str, ...], tuple[Pair, ...]]] = {
    "bonuses": (("success",), tuple(_bonuses())),
    "finetuning": (
        ("mean", "lowest", "end", "outside"),
        tuple((f"{t}, {a}", f"{t}, {b}") for t in ("heavy pole", "gravity") for a, b in FINETUNING),
    ),
    "goals": (("success",), GOALS),
    "masked-diffusion": (("solved",), MASKED),
    "recovery": (
        ("success 1", "success 2", "success 4"),
        (*RECOVERY, *((f"slide: {a}", f"slide: {b}") for a, b in RECOVERY)),
    ),
    "simple-reward": (
        ("score",),
        (
            *(
                (f"simple, minibatch {n}", f"shaped, minibatch {n}")
                for n in (256, 1024, 4096, 16384)
            ),
            *((f"{r}, minibatch 16384", f"{r}, minibatch 256") for r in ("simple", "shaped")),
            *(
                (f"simple, ten times, minibatch {n}", f"shaped, ten times, minibatch {n}")
                for n in (1024, 16384)
            ),
            *(
                (f"{r}, ten times, minibatch 16384", f"{r}, ten times, minibatch 1024")
                for r in ("simple", "shaped")
            ),
        ),
    ),
}


def differences(summary: Summary) -> list[str]:
    """Of every pair of rows that this table compares the mean difference over the seeds that both
    have, with its interval; of a row alone what it gained. Pairs with one such seed are left
    out."""
    numbers, pairs = COMPARED[summary.plan.name]
    by_row = {
        label: {r["key"]["seed"]: r["values"] for r in records}
        for block in summary.blocks
        for label, records in records_of(block).items()
    }
    lines = []
    for first, *others in pairs:
        second = others[0] if others else first
        suffix = "" if others else "_before"
        ours, theirs = by_row.get(first, {}), by_row.get(second, {})
        both = sorted(ours.keys() & theirs.keys())
        if len(both) < 2:
            continue
        parts = []
        for name in numbers:
            each = np.array([ours[s][name] - theirs[s][name + suffix] for s in both])
            parts.append(f"{name} {span(statistics.confidence_interval(each, statistics.mean))}")
        title = f"{first} less {second}" if others else f"{first}, gained by training"
        lines.append(f"{title}, {len(both)} seeds: {', '.join(parts)}.")
    return lines


# By table: pairs of numbers of the same record, the first less the second.
WITHIN = {
    "curricula": (
        ("alp-gmm", "random"),
        ("pool", "alp-gmm"),
        ("time", "alp-gmm"),
        ("reward", "alp-gmm"),
        ("random expert", "random"),
        ("random expert", "reward"),
    )
}


def within(summary: Summary) -> list[str]:
    """Of every row with two seeds or more the mean differences between its own numbers, paired by
    seed, with their intervals."""
    lines = []
    for block in summary.blocks:
        for label, records in records_of(block).items():
            if len(records) < 2:
                continue
            parts = []
            for first, second in WITHIN[summary.plan.name]:
                each = np.array([r["values"][first] - r["values"][second] for r in records])
                at = statistics.confidence_interval(each, statistics.mean)
                parts.append(f"{first} less {second} {span(at)}")
            lines.append(f"{label}, {len(records)} seeds: {', '.join(parts)}.")
    return lines
