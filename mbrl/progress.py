"""A progress bar with speed and time left; silent where the output is not a terminal."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from mbrl.training import Metrics, Trainable


class Progress:
    """Callback: one bar for what is fitted first, one for the updates."""

    def __init__(self, total: int, console: Console | None = None, every: int = 20) -> None:
        self.total, self.every = total, every
        self.bar = Bar(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not (console or Console()).is_terminal,
        )
        self.rows: dict[str, TaskID] = {}

    def __call__(self, event: str, agent: Trainable, metrics: Metrics) -> None:
        if event == "prepare":
            self.epoch(metrics)
        elif event == "start":
            self._show("updates", agent.step, self.total, "")
        elif event == "step" and agent.step % self.every == 0:
            self._show("updates", agent.step, self.total, None)
        elif event == "end":
            if "updates" in self.rows:
                self._show("updates", agent.step, self.total, None)
            self.close()

    def epoch(self, metrics: Metrics) -> None:
        """Show one epoch of a world model's fit."""
        note = ""
        for name in ("holdout_mse", "holdout_loss", "train_loss"):
            if f"model/{name}" in metrics:
                title = "holdout error" if name == "holdout_mse" else name.replace("_", " ")
                note = f"{title} {float(metrics[f'model/{name}']):.4g}"
                break
        self._show("world model", int(metrics["model/epoch"]), None, note)

    def count(self, name: str, done: int, total: int) -> None:
        """Show `done` of `total` on a row of its own."""
        self._show(name, done, total, None)

    def note(self, text: str) -> None:
        if "updates" in self.rows:
            self.bar.update(self.rows["updates"], note=text)

    def close(self) -> None:
        self.bar.stop()

    def _show(self, name: str, done: int, total: int | None, note: str | None) -> None:
        if self.bar.disable:
            return
        if name not in self.rows:
            self.bar.start()
            self.rows[name] = self.bar.add_task(name, total=total, speed="", note="")
        task = self.bar.tasks[self.rows[name]]
        speed = f"{task.speed:.1f}/s" if task.speed else ""
        self.bar.update(self.rows[name], completed=done, speed=speed)
        if note is not None:
            self.bar.update(self.rows[name], note=note)
