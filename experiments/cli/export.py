"""The verb `export`: a run's policy as files that run without this library."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro

from experiments.cli import _positional as positional
from experiments.runs.export import FOLDER, export_run
from mbrl.config import Count, Settings
from mbrl.terminal import terminal


@dataclass(frozen=True)
class Export(Settings):
    """Export a run's policy: ONNX, torch.export, weights, and a policy card. The files act as the
    policy does, or nothing is written. See docs/export.md."""

    run: positional.Folder  # run folder
    out: Path | None = None  # folder to write; None: `export` in the run's folder
    step: str = "last"  # which policy: last, chosen (offline), or the number of a kept one
    # what acts where the out-of-data score is above 1: cloned (behaviour cloning), or an action:
    # numbers with commas between them, or the name of a discrete one
    fallback: str | None = None
    precision: Literal["float32", "float64"] = "float32"  # in which the files compute
    threads: Count = 1  # CPU threads

    def main(self) -> int:
        torch.set_num_threads(self.threads)
        card = export_run(
            self.run, self.out, step=self.step, fallback=self.fallback, precision=self.precision
        )
        console, parity = terminal(), card["parity"]
        folder = self.out or self.run / FOLDER
        ports = (", ".join(port["name"] for port in card[side]) for side in ("inputs", "outputs"))
        console.print("{} to {}".format(*ports), soft_wrap=True)
        if card["outputs"][0]["type"] == "int64":
            text = f"{parity['action']:.0f} actions differ"
        else:
            text = f"largest difference {parity['action']:.2g} of the action range"
        console.print(
            f"compared with the policy at {parity['rows']:,} observations: {text} (at most "
            f"{parity['limit']:g})",
            soft_wrap=True,
        )
        console.print(
            f"written to {folder}: policy.onnx, policy.pt2, policy.safetensors, card.md, card.json",
            soft_wrap=True,
        )
        return 0


def main(arguments: list[str]) -> int:
    return tyro.cli(Export, args=arguments, prog="python -m experiments export").main()
