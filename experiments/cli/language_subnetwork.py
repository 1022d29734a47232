"""The command `language subnetwork`: which weights runs moved."""

import itertools
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from algorithms.language import subnetwork
from experiments.cli import _positional as positional
from experiments.reports.grid import grid
from experiments.runs import language as language_run
from mbrl.config import NonNegative, Settings
from mbrl.errors import ConfigError
from mbrl.terminal import terminal


@dataclass(frozen=True)
class Subnetwork(Settings):
    """Which weights runs moved from where they began: the share that stayed within a tolerance, and
    in bfloat16, the rank of the change, and how much the sets of two runs overlap."""

    folders: positional.Folders  # runs of one model
    tolerance: NonNegative = 1e-5  # differences up to it count as none
    matrices: bool = False  # a row for every matrix of the first run
    write: Path | None = None  # file for the weights that the first run moved in bfloat16

    def main(self) -> int:
        if not self.folders:
            raise ConfigError("no run: give the folder of one, or of several")
        table = grid("run", "moved", f"by more than {self.tolerance:g}", "in bfloat16", "rank")
        sets = []
        for folder in self.folders:
            before, after = ends(folder)
            close = subnetwork.moved(before, after, self.tolerance)
            sets.append(subnetwork.moved(before, after, bfloat16=True))
            rank = subnetwork.ranks(before, after)
            shares = [subnetwork.share(s) for s in (subnetwork.moved(before, after), close)]
            table.add_row(
                str(folder),
                *(f"{100 * x:.1f} %" for x in (*shares, subnetwork.share(sets[-1]))),
                f"{sum(rank.values()) / max(1, len(rank)):.2f} of full",
            )
        terminal().print(table)
        if len(sets) > 1:
            terminal().print(overlaps(self.folders, sets))
        if self.matrices:
            terminal().print(by_matrix(*ends(self.folders[0]), sets[0]))
        if self.write is not None:
            subnetwork.write(sets[0], self.write)
        return 0


def ends(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The trained weights of a run before its first update, and as they are."""
    now, first = language_run.load(folder), language_run.first_learner(folder)
    after, before = (
        {k: p.detach().cpu() for k, p in agent.model.named_parameters() if p.requires_grad}
        for agent in (now, first)
    )
    return before, after


def overlaps(folders: tuple[Path, ...], sets: list[dict[str, Tensor]]) -> object:
    """Of every two runs how much of the smaller set is in the other."""
    table = grid("runs", "overlap", "by chance", "by chance in each matrix", title="in bfloat16")
    for (a, first), (b, second) in itertools.combinations(zip(folders, sets, strict=True), 2):
        values = subnetwork.overlap(first, second)
        table.add_row(f"{a}, {b}", *(f"{x:.3f}" for x in values))
    return table


def by_matrix(
    before: dict[str, Tensor], after: dict[str, Tensor], sets: dict[str, Tensor]
) -> object:
    table, rank = grid("weights", "size", "in bfloat16", "rank"), subnetwork.ranks(before, after)
    for name, value in sets.items():
        known = f"{rank[name]:.2f}" if name in rank else ""
        size = " x ".join(map(str, value.shape))
        table.add_row(name, size, f"{100 * float(value.double().mean()):.1f} %", known)
    return table
