"""A policy card as a page of Markdown."""

import json
from typing import Any


def page(card: dict[str, Any]) -> str:
    """The card that `experiments.export.card.content` made, for people."""
    policy, parity = card["policy"], card["parity"]
    lines = [
        f"# Policy card: {policy['algorithm']} for {policy['task']}",
        "",
        f"{policy['algorithm']} version {policy['version']}, after {policy['updates']:,} updates, "
        f"seed {policy['seed']}; computes in {policy['precision']}.",
        *([f"Run: {policy['run']}."] if policy["run"] else []),
        *_section("Limits", [f"- {text}" for text in card["limits"]]),
        *_section("Value", _value(card["value"])),
        *_section("Data", _facts(card["data"])),
        *_section("Inputs", table(card["inputs"])),
        *_section("Outputs", table(card["outputs"])),
        *_section("Observations", table(card["observations"])),
        *_section("Actions", table(card["actions"])),
        *_section("Out-of-data score", _score(card["out_of_data"], card["fallback"])),
        *_section("Checks before and while it acts", [f"- {text}" for text in card["checks"]]),
        *_section(
            "Parity",
            [
                f"Through {' and '.join(parity['compared'])}, {parity['rows']:,} observations: "
                + _difference(card)
                + f" (at most {parity['limit']:g} is allowed)."
            ],
        ),
        *_section("Trained with", _facts(_flat(card["trained_with"]))),
        *_section("Exported with", _facts(_flat(card["exported_with"]))),
        *_section("Settings", ["```json", json.dumps(policy["config"], indent=2), "```"]),
    ]
    return "\n".join(lines) + "\n"


def _difference(card: dict[str, Any]) -> str:
    action = card["parity"]["action"]
    if card["outputs"][0]["type"] == "int64":
        return f"{action:.0f} actions differ from those of the policy"
    return f"actions differ from those of the policy by at most {action:.2g} of their range"


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"## {title}", "", *lines] if lines else []


def _facts(values: dict[str, Any] | None) -> list[str]:
    shown = {k: v for k, v in (values or {}).items() if v not in (None, [], "")}
    return [f"- {key.replace('_', ' ')}: {text(value)}" for key, value in shown.items()]


def _flat(values: dict[str, Any] | None) -> dict[str, Any]:
    """One level, packages and their versions in a line."""
    flat = {}
    for key, value in (values or {}).items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
        flat[key] = value
    return flat


def text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "; ".join(map(text, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows of a table whose columns are the keys that any row has a value for."""
    keys = list(dict.fromkeys(k for row in rows for k, v in row.items() if v is not None))
    cells = [[text(row.get(key)).replace("|", "\\|") for key in keys] for row in rows]
    heads = [key.replace("_", " ") for key in keys]
    return [_line(heads), _line(["---"] * len(keys)), *map(_line, cells)]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _value(value: dict[str, Any] | None) -> list[str]:
    if value is None:
        return []
    if "verdict" not in value:
        return [value["note"]]
    logged = value["logged"]
    rows = [
        {
            "estimate": e["method"],
            "value": e["value"],
            "low": e["low"],
            "high": e["high"],
            "believed": e["believed"],
        }
        for e in value["estimates"]
    ]
    return [
        f"**{value['verdict']['sentence']}**",
        "",
        f"From {value['episodes']} episodes ({value['where']}); intervals of "
        f"{value['confidence']:.0%}. Logged: {text(logged[0])} [{text(logged[1])}, "
        f"{text(logged[2])}].",
        "",
        *table(rows),
    ]


def _score(score: dict[str, Any] | None, fallback: str | None) -> list[str]:
    if score is None:
        return []
    share = score["logged_share_above_1"]
    lines = [
        f"Distance to the nearest of {score['prototypes']} prototypes of the logged observations, "
        f"standardised, over {score['edge']:.4g}, which {score['edge_quantile']:.0%} of held-out "
        f"logged rows keep within; {share:.2%} of all logged rows are above 1."
    ]
    if fallback is not None:
        lines += ["", f"Where the score is above 1, the file gives {fallback} instead."]
    return lines
