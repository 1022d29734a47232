"""A job: a folder whose config.json says what to do. Jobs of every kind are described, begun,
continued and timed in the same way; the class of a kind does its work."""

import contextlib
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from experiments.runs import folders
from experiments.runs.manifest import environment
from mbrl.callbacks import Interrupted
from mbrl.errors import CheckpointError, ConfigError, DataError, DivergenceError

Clock = Callable[[], float]  # seconds of all sessions so far
BAR_UNITS = 500  # of a job without updates, in a progress bar that counts updates


class Job(ABC):
    """The job in a folder; a subclass is a kind of job."""

    kind: ClassVar[str]  # the key in config.json of the settings
    title: ClassVar[str]  # of the kind, in messages
    again: ClassVar[str] = "--out OTHER"  # options of a new run with settings of this one

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def work(self, quiet: bool, clock: Clock) -> dict[str, Any]:
        """Do the remaining work, and return the content of result.json, to which the `seconds` of
        all sessions are added if they are not in it."""

    def needs(self) -> list[Path]:
        """Folders of the jobs that must be finished before this one."""
        return []

    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.described and (self.folder / "result.json").exists()

    def size(self) -> int:
        """The job's share of a progress bar: the updates of a training run."""
        return BAR_UNITS

    def progress(self) -> int:
        """How much of `size` is done."""
        return 0

    @property
    def described(self) -> bool:
        return (self.folder / "config.json").is_file()

    def read(self) -> dict[str, Any]:
        """The description in config.json. Raises `CheckpointError` if it is not of this kind."""
        values = folders.description(self.folder)
        if self.kind not in values:
            why = "its config.json is of another kind" if values else "it has no config.json"
            raise CheckpointError(f"{self.folder} holds no {self.title}: {why}")
        return values

    def describe(self, values: dict[str, Any]) -> None:
        """Write config.json into a new folder. Raises `ConfigError` if it holds a job already."""
        self._require_new()
        with folders.locked(self.folder):
            self._describe(values)

    def _require_new(self) -> None:
        if self.described:
            raise ConfigError(
                f"{self.folder} already holds a run; continue it with `python -m experiments "
                f"resume {shlex.quote(str(self.folder))}`, or give another folder with --out"
            )

    def _describe(self, values: dict[str, Any]) -> None:
        self._require_new()  # again, since another process can have been first
        folders.write_json(self.folder / "config.json", values)

    def start(self, values: dict[str, Any], *, quiet: bool = False) -> dict[str, Any]:
        """Describe the job and begin it; leaves nothing in the folder if it cannot be begun."""
        self._require_new()
        absent = [p for p in (self.folder, *self.folder.parents) if not p.exists()]
        try:
            with folders.locked(self.folder):  # from the description on, so that both are of one
                self._describe(values)
                try:
                    return self._continue(quiet)
                except (ConfigError, DataError, CheckpointError):
                    if not (self.folder / "checkpoint.pt").exists():
                        for name in ("config.json", "manifest.json", "sessions.json"):
                            (self.folder / name).unlink(missing_ok=True)
                    raise
        finally:
            if not self.described:
                with contextlib.suppress(OSError):  # other files are in it
                    (self.folder / "lock").unlink(missing_ok=True)
                    for made in absent:
                        made.rmdir()

    def manifest(self, facts: dict[str, Any], device: str = "cpu") -> dict[str, Any]:
        """The content of manifest.json: `facts`, versions, commit and machine of the first session,
        which writes it, and in `sessions` those of later ones under another commit or version."""
        file, now = self.folder / "manifest.json", environment(device)
        if not file.exists():
            folders.write_json(file, facts | now)
        known = folders.read_json(file)
        latest = known.get("sessions", [known])[-1]
        if any(latest.get(name) != now[name] for name in ("commit", "longreach")):
            known["sessions"] = [*known.get("sessions", []), now]
            folders.write_json(file, known)
        return known

    def require_own(self, content: dict[str, Any]) -> None:
        """Raise `CheckpointError` where config.json says other settings of the algorithm than the
        checkpoint's `content`: its numbers would not be those of the folder's settings."""
        other = differences(self.read()["config"], content["config"])
        if other:
            changed = ", ".join(f"{k} from {used} to {now}" for k, (now, used) in other.items())
            raise CheckpointError(
                f"config.json of {self.folder} was changed since its checkpoint: {changed}. Put it "
                f"back, or begin a new run (`{self.again}`)"
            )

    def require_same(self, facts: dict[str, Any]) -> None:
        """Raise `CheckpointError` where manifest.json has other data, another seed or another
        precision than `facts`, those of this session."""
        began = folders.read_json(self.folder / "manifest.json")
        for name, what in {"data": "data", "seed": "seed", "matmul_precision": "precision"}.items():
            known = began.get(name, facts[name])  # runs of earlier versions lack the precision
            if known != facts[name]:
                raise CheckpointError(
                    f"the {what} of {self.folder} has changed: it was {known}, now it is "
                    f"{facts[name]}"
                )

    def resume(self, *, quiet: bool = False) -> dict[str, Any]:
        """Begin the job, or continue it from its checkpoint; the content of result.json."""
        self.read()
        with folders.locked(self.folder):
            return self._continue(quiet)

    def _continue(self, quiet: bool) -> dict[str, Any]:
        folders.clean(self.folder)
        before, began = folders.spent(self.folder), time.perf_counter()

        def clock() -> float:
            return round(before + time.perf_counter() - began, 2)

        diverged = self.folder / folders.DIVERGED
        diverged.unlink(missing_ok=True)
        try:
            result = self.work(quiet, clock)
        except Interrupted:
            raise Interrupted(
                "stopped and saved; continue with: python -m experiments resume "
                + shlex.quote(str(self.folder))
            ) from None
        except DivergenceError as problem:
            folders.write_json(diverged, {"seconds": clock(), "reason": str(problem)})
            raise
        result = {"seconds": clock()} | result
        folders.write_json(self.folder / "result.json", result)
        return result

    def finish(self, *, quiet: bool = True) -> None:
        """`resume`, unless nothing is left to do."""
        if not self.finished():
            self.resume(quiet=quiet)


def differences(now: Mapping[str, Any], used: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What settings that both have are `now` and what was `used`, by name ("model.width"), where
    these differ. Settings of one alone are those of another release, and do not count."""
    changed: dict[str, tuple[Any, Any]] = {}
    for name in used.keys() & now.keys():
        pair = now[name], used[name]
        if all(isinstance(value, Mapping) for value in pair):
            changed |= {f"{name}.{k}": values for k, values in differences(*pair).items()}
        elif pair[0] != pair[1]:
            changed[name] = pair
    return dict(sorted(changed.items()))
