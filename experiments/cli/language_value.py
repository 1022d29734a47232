"""The verb `language fit-value`: a value model of prompts for any policy."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import tyro

from algorithms.language.value_model import ValueConfig, pretrained
from experiments.reports.grid import grid
from mbrl.config import Count, Settings
from mbrl.errors import ConfigError
from mbrl.terminal import terminal

SAID = {
    "brier": "squared error on new policies and prompts",
    "brier_less": "the same after a quarter of the context",
    "constant": "of the mean of the context",
    "brier_seen": "on new policies, prompts that were learned from",
    "by_prompt": "there, of each prompt's mean over the policies learned from",
    "calibration": "mean distance of predictions from outcomes, by bins",
    "ranks": "rank correlation over new prompts",
}


@dataclass(frozen=True)
class FitValue(Settings):
    """Pretrain a value model on the results of many policies, which are snapshots of warm starts
    that are made here, and write it to a file for `run RECIPE --scheduler v0 --value FILE`."""

    config: Annotated[ValueConfig, tyro.conf.arg(name="")] = field(default_factory=ValueConfig)
    out: Path | None = None  # the file; None: runs/language/TASK/value.pt
    threads: Count = 1  # CPU threads

    def main(self) -> int:
        path = self.out or Path("runs") / "language" / self.config.task / "value.pt"
        if path.exists():
            raise ConfigError(f"{path} is there already; give another --out, or remove it")
        torch.set_num_threads(self.threads)
        value = pretrained(self.config)
        value.save(path)
        count = self.config.runs * self.config.snapshots
        table = grid("measure", "value", title=f"{count} policies on {self.config.prompts} prompts")
        for name, number in value.measures.items():
            shown = "unknown: all were learned from" if math.isnan(number) else f"{number:.4f}"
            table.add_row(f"{name}: {SAID[name]}", shown)
        terminal().print(table)
        print(f"wrote {path}")
        return 0
