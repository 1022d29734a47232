"""The files of a run folder that grow while it trains: metrics (CSV and TensorBoard) and every
episode's return. All can be cut back to a checkpoint's step."""

import csv
import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from mbrl.files import replacing

TIME_COLUMNS = ("seconds", "updates_per_second")  # what a resumed run may differ in


class MetricsFile:
    """A CSV with one row a logged step; a new column rewrites the file with a wider header."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.columns: list[str] = []
        if self.path.exists():
            self.columns = list(self.rows()[0].keys()) if self.rows() else []

    def rows(self) -> list[dict[str, str]]:
        """All complete rows; a row cut off by a crash is left out."""
        if not self.path.exists():
            return []
        text = self.path.read_text()
        complete = text[: text.rfind("\n") + 1]
        return list(csv.DictReader(io.StringIO(complete)))

    def append(self, row: dict[str, float | int | str]) -> None:
        new = [name for name in row if name not in self.columns]
        if new:
            kept = self.rows()
            self.columns += new
            self._rewrite(kept)
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self.columns, restval="", lineterminator="\n")
            writer.writerow({k: _text(v) for k, v in row.items()})

    def sync(self) -> None:
        """Bring the rows to the disk, which a power cut then leaves as they are."""
        if self.path.exists():
            with self.path.open("rb+") as file:
                os.fsync(file.fileno())

    def truncate(self, column: str, last: int) -> None:
        """Drop the rows whose `column` is above `last`."""
        if not self.path.exists():
            return
        kept = [row for row in self.rows() if float(row[column]) <= last]
        self.columns = list(kept[0].keys()) if kept else []
        if kept:
            self._rewrite(kept)
        else:
            self.path.unlink()

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        with replacing(self.path) as file:
            file.write(text.getvalue().encode())


def _text(value: float | int | str) -> str:
    return repr(value) if isinstance(value, float) else str(value)


class Evaluations:
    """Every evaluation of a run: its step and the return of each episode."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.returns: list[np.ndarray] = []

    def add(self, step: int, returns: np.ndarray) -> None:
        self.steps.append(step)
        self.returns.append(returns)

    def save(self, path: str | Path) -> None:
        """`steps` [K], `counts` [K] and `returns` [sum of counts], evaluation after evaluation."""
        flat = np.concatenate(self.returns) if self.returns else np.zeros(0)
        counts = np.array([len(r) for r in self.returns], dtype=np.int64)
        with replacing(Path(path)) as file:
            np.savez(file, steps=np.array(self.steps, np.int64), counts=counts, returns=flat)

    @staticmethod
    def load(path: str | Path) -> "Evaluations":
        result = Evaluations()
        with np.load(path, allow_pickle=False) as file:
            parts = np.split(file["returns"], np.cumsum(file["counts"])[:-1])
            steps = file["steps"].tolist()
            for step, returns in zip(steps, parts if steps else [], strict=True):
                result.add(step, returns)
        return result

    def state_dict(self) -> dict[str, list[Any]]:
        return {"steps": list(self.steps), "returns": [r.tolist() for r in self.returns]}

    def load_state_dict(self, state: dict[str, list[Any]]) -> None:
        self.steps = list(state["steps"])
        self.returns = [np.array(r, dtype=np.float64) for r in state["returns"]]
