"""The picture of the README, drawn from the records of the table `verdicts`: from a log to a
verdict, and how often verdicts were right. `python -m experiments.reports.front_picture` writes it
anew."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "front.svg"
RECORDS = ROOT / "experiments" / "records" / "verdicts" / "verdicts"
SAID = {"said better": 1, "said worse": -1, "cannot tell": 0}
TRUTHS = {"better": "#0067a3", "too close to say": "#767676", "worse": "#b84a00"}
WIDTH, HEIGHT, LEFT, BAR = 800, 452, 190, 580


@dataclass(frozen=True)
class Counts:
    """How many policies got each verdict, by what is true of them in the task."""

    policies: int
    datasets: int
    table: dict[str, dict[str, int]]  # verdict -> truth -> policies


def counts() -> Counts:
    """From the records; a truth within two of its standard errors is too close to say."""
    table = {said: dict.fromkeys(TRUTHS, 0) for said in SAID}
    files = sorted(RECORDS.glob("*/*.json"))
    total = 0
    for file in files:
        curves = json.loads(file.read_text())["curves"]
        rows = zip(curves["said"], curves["truth"], curves["truth_error"], strict=True)
        for said, truth, error in rows:
            verdict = next(name for name, sign in SAID.items() if sign == said)
            table[verdict][_truth(truth, error)] += 1
            total += 1
    return Counts(total, len({file.parent.name for file in files}), table)


def _truth(value: float, error: float) -> str:
    if abs(value) <= 2 * error:
        return "too close to say"
    return "better" if value > 0 else "worse"


def description(seen: Counts) -> str:
    """What the picture says, for those who do not see it."""
    rows = []
    for said, row in seen.table.items():
        parts = ", ".join(f"{n} {truth}" for truth, n in row.items() if n)
        rows.append(f"{said} {sum(row.values())} ({parts})")
    return (
        f"From your log by solve to a verdict. {seen.policies} policies judged from logs, then "
        f"checked in the task: {'; '.join(rows)}"
    )


def picture() -> str:
    """The picture, SVG, on a ground of its own."""
    seen = counts()
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH * 0.55:.0f}" height="{HEIGHT * 0.55:.0f}" role="img" '
        'font-family="system-ui, Helvetica, Arial, sans-serif" fill="#1a1a1a">',
        f"<title>{description(seen)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="14" fill="#ffffff" stroke="#d0d7de"/>',
        *_path(),
        _text(24, 190, f"{seen.policies} policies judged from {seen.datasets} logs alone,", 27),
        _text(24, 224, "then checked in the task itself:", 27),
        *_bars(seen),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _text(x: float, y: float, text: str, size: int, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" {more}>{text}</text>'.replace(" >", ">")


def _path() -> Iterator[str]:
    boxes = (
        ("your log", "no simulator"),
        ("solve", "train, choose"),
        ("verdict", "may it act?"),
    )
    for i, (head, below) in enumerate(boxes):
        x = 24 + 264 * i
        yield (
            f'<rect x="{x}" y="24" width="224" height="108" rx="12" fill="#eef4fa" '
            'stroke="#0067a3" stroke-width="2"/>'
        )
        yield _text(x + 112, 72, head, 34, 'font-weight="700" text-anchor="middle"')
        yield _text(x + 112, 110, below, 26, 'text-anchor="middle"')
        if i:
            yield f'<path d="M{x - 36} 78h24m-10 -10l10 10l-10 10" fill="none" stroke="#1a1a1a" '
            yield 'stroke-width="3"/>'


def _bars(seen: Counts) -> Iterator[str]:
    scale = BAR / max(sum(row.values()) for row in seen.table.values())
    for i, (said, row) in enumerate(seen.table.items()):
        x, y = float(LEFT), 250 + 52 * i
        yield _text(24, y + 29, said, 27)
        for truth, count in row.items():
            if not count:
                continue
            width = count * scale
            yield (
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="40" fill="{TRUTHS[truth]}" '
                'stroke="#ffffff" stroke-width="2"/>'
            )
            if width > 40:
                yield _text(
                    round(x + width / 2, 1), y + 29, str(count), 25,
                    'fill="#ffffff" font-weight="700" text-anchor="middle"',
                )  # fmt: skip
            elif width > 12:
                yield _text(
                    round(x + width / 2, 1), y + 28, str(count), 18,
                    'fill="#ffffff" font-weight="700" text-anchor="middle"',
                )  # fmt: skip
            x += width


def _legend() -> Iterator[str]:
    x = 24
    yield _text(x, 432, "in truth:", 26)
    x += 122
    for truth, colour in TRUTHS.items():
        yield f'<rect x="{x}" y="411" width="24" height="24" fill="{colour}"/>'
        yield _text(x + 34, 432, truth, 26)
        x += 62 + 14 * len(truth)


if __name__ == "__main__":
    FILE.write_text(picture())
    print(FILE)
