"""`export`: a trained agent's policy as files that run without this library."""

import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from experiments.export import card, markdown
from experiments.export.fallback import Wanted, describe_fallback, fallback_of
from experiments.export.files import require_packages, write_programs
from experiments.export.graph import parts_of
from experiments.export.parity import compare
from mbrl.data.out_of_data import fit_out_of_data
from mbrl.goals import with_reached_goals
from mbrl.logged_rules import require_match
from mbrl.types import Dataset

FILES = ("policy.onnx", "policy.pt2", "policy.safetensors", "card.json", "card.md")


def export(
    agent: Any,
    folder: str | Path,
    dataset: Dataset | None = None,
    *,
    fallback: Wanted = None,
    precision: Literal["float32", "float64"] = "float32",
    run: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the greedy policy of `agent` into `folder`: policy.onnx, policy.pt2 (torch.export),
    policy.safetensors (weights) and the policy card, card.json and card.md; the card's content.

    The files take raw observations `obs` [B, S] float32 and give `action` [B, A] float32 in the
    task's units, or [B] int64; with the `dataset` that the agent learned from also `out_of_data`
    [B] (1 is the edge of the data), and with a `fallback` ("cloned", or an action) that acts where
    this is above 1, `fallback_used` [B]. Policies with a state take `state`, `previous_action` and
    `previous_reward` too. `run` is what a run's folder adds to the card.

    Raises `ConfigError` for an agent without a policy to export or where packages are missing, and
    `CheckpointError` where a file does not act as the policy does; then nothing is written.
    """
    require_packages()
    if dataset is not None:
        require_match(agent.spec, dataset)
    dtype = {"float32": torch.float32, "float64": torch.float64}[precision]
    parts_of(agent, None, None, dtype)  # what cannot be exported is said before anything is fitted
    asked = dataset
    if dataset is not None and getattr(agent, "needs_goals", False):
        asked = with_reached_goals(replace(dataset, spec=agent.spec))  # its own may name no goal
    score = None if asked is None else fit_out_of_data(asked)
    parts = parts_of(agent, score, fallback_of(fallback, agent.spec, asked), dtype)
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write_programs(parts, draft)
        parity = compare(parts, draft, asked)
        described = describe_fallback(fallback)
        content = card.content(agent, parts, dataset, asked, parity, described, run)
        (draft / "card.json").write_text(json.dumps(content, indent=2) + "\n")
        (draft / "card.md").write_text(markdown.page(content))
        folder.mkdir(exist_ok=True)
        for name in FILES:
            os.replace(draft / name, folder / name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return content
