"""An entry of the tables: what does the scheduling, and the paper that it is from."""

from dataclasses import dataclass
from typing import Any

from mbrl.errors import ConfigError
from mbrl.policy_gradient.recipe import Mark


@dataclass(frozen=True)
class Entry:
    """`make` with its default `config` (None: it has none), and the paper it is from. `mark` is as
    in recipes: "verified" against the authors' code or page, "secondary" from another source, or
    "reconstructed" from the abstract with every assumption listed."""

    make: Any  # a scheduler's class, or another component that makes one
    config: Any
    title: str
    arxiv: str | None = None
    mark: Mark = "verified"
    assumptions: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    version: int = 1  # raised with its rule: recorded cells of another one are made again

    def __post_init__(self) -> None:
        if self.mark == "reconstructed" and not self.assumptions:
            raise ConfigError(f"{self.title}: a reconstructed entry lists its assumptions")
