"""Dataset cards: one TOML file a family says what its datasets are, in which task they are
evaluated, where they come from and under which licence. Loading never builds a task: the card
carries sizes, bounds and the episode limit."""

import math
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mbrl.errors import ConfigError, unknown_name
from mbrl.types import Spec

LOCAL_TIERS = ("random", "medium", "medium-replay", "expert", "medium-expert", "narrow")


def cards_dir() -> Path:
    """The folder of the cards: packaged in an installed wheel, `datasets/` in a checkout.

    The packaged folder is looked at first, because beside an installed `mbrl` the name `datasets`
    belongs to another distribution.
    """
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "_cards", here.parent / "datasets"):
        if (folder / "d4rl.toml").is_file() and (folder / "local").is_dir():
            return folder
    raise ConfigError(
        f"no dataset cards in {here / '_cards'} or {here.parent / 'datasets'}; "
        "reinstall longreach or run from a complete checkout"
    )


@dataclass(frozen=True)
class Environment:
    """The task that a family's data was recorded in, and the one it is evaluated in.

    `task` is None where no task of this library (or its dependencies) evaluates the data;
    `task_options` are the keyword arguments that make the evaluation task match the data.
    """

    name: str
    obs_dim: int
    action_dim: int = 1
    num_actions: int | None = None
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    horizon: int | None = None
    task: str | None = None
    task_reason: str = ""
    task_options: dict[str, Any] = field(default_factory=dict)
    reference_returns: tuple[float, float] | None = None
    reference_origin: str = ""
    terminates: bool | None = None
    goal: tuple[int, ...] = ()
    achieved: tuple[int, ...] = ()

    def spec(self, reference: tuple[float, float] | None = None) -> Spec:
        return Spec(
            task=self.task or self.name,
            obs_dim=self.obs_dim,
            action_dim=self.action_dim,
            num_actions=self.num_actions,
            action_low=self.action_low,
            action_high=self.action_high,
            max_episode_steps=self.horizon,
            reference_returns=reference or self.reference_returns,
            task_options=self.task_options,
            goal=self.goal,
            achieved=self.achieved,
        )


@dataclass(frozen=True)
class PolicyRows:
    """At least `rows` rows, in whole episodes, of one behaviour policy: `agent` is "random" or a
    file (without .npz) in the folder `Card.agents`; its actions are sampled, or the greedy ones if
    `greedy`, with Gaussian noise of `noise` times the action range."""

    agent: str
    rows: int
    greedy: bool = False
    noise: float = 0.0

    def __str__(self) -> str:
        how = "greedy" if self.greedy else ""
        noise = f"noise {self.noise:g}" if self.noise else ""
        details = ", ".join(part for part in (how, noise) if part)
        return f"{self.agent}{f' ({details})' if details else ''} {self.rows:,}"


@dataclass(frozen=True)
class Tier:
    """One dataset of a family. `missing` is the reason where the tier does not exist; `parts`
    names the tiers that it is concatenated from at load; `file` is relative to the sources and may
    hold the fields {trajectories} and {split}; `trajectories` is how many its authors take.
    `policies` record it on this machine, one after the other; `resembles` is the published dataset
    whose presets it takes."""

    name: str
    environment: str
    file: str | None = None
    about: str = ""
    missing: str | None = None
    parts: tuple[str, ...] = ()
    steps: int | None = None
    trajectories: int | None = None
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    reference_returns: tuple[float, float] | None = None
    policies: tuple[PolicyRows, ...] = ()
    resembles: str | None = None


@dataclass(frozen=True)
class Checksum:
    """The published checksum of one file; the kind is `sha256` or `md5`."""

    kind: str
    value: str


@dataclass(frozen=True)
class Card:
    """One family. `sources` are base addresses, tried in order; `mirrors` maps a file name, or "*"
    for any, to one more address ("{name}" stands for the file's name), used only for files whose
    checksum is published; `checksums` maps a file name to its published checksum where a tier has
    several files; `kind` is the layout of the files (`local` and `recorded` ones are made here);
    `agents` is the folder, below the data folder, of the policies that record a tier."""

    family: str
    kind: str
    title: str
    about: str
    licence: str
    recipe_version: int
    environments: dict[str, Environment]
    tiers: dict[str, Tier]
    sources: tuple[str, ...] = ()
    mirrors: dict[str, str] = field(default_factory=dict)
    licence_note: str = ""
    checksums: dict[str, Checksum] = field(default_factory=dict)
    agents: str = ""
    path: Path = Path()

    def tier(self, name: str) -> Tier:
        if name not in self.tiers:
            raise unknown_name(f"{self.family} dataset", name, self.tiers)
        return self.tiers[name]

    def environment(self, tier: Tier) -> Environment:
        return self.environments[tier.environment]

    def spec(self, tier: Tier) -> Spec:
        return self.environment(tier).spec(tier.reference_returns)

    def made_here(self, tier: Tier) -> bool:
        """Whether `collect` makes the file of `tier`."""
        return self.kind == "local" or bool(tier.policies)

    def checksum(self, tier: Tier, file: str) -> Checksum | None:
        """The published checksum of `file` of `tier`, None where none is published."""
        for kind in ("sha256", "md5"):
            value = getattr(tier, kind)
            if value:
                return Checksum(kind, value)
        return self.checksums.get(Path(file).name)

    def addresses(self, tier: Tier, file: str) -> list[str]:
        """Where `file` of `tier` (relative to the sources) can be fetched, in order."""
        urls = [f"{base}/{file}" for base in self.sources]
        name = Path(file).name
        mirror = self.mirrors.get(name, self.mirrors.get("*"))
        if mirror is not None and self.checksum(tier, file) is not None:
            urls.append(mirror.replace("{name}", name))
        return urls

    def names(self) -> list[str]:
        """Full dataset names (`family/tier`) of the tiers that exist."""
        return [f"{self.family}/{t.name}" for t in self.tiers.values() if t.missing is None]


def read_card(path: Path) -> Card:
    """Parse one card; a `ConfigError` names the file and the wrong entry."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"card {path} cannot be read: {error}") from error
    try:
        environments = {k: _environment(k, v) for k, v in values.pop("environments").items()}
        tiers = {k: _tier(k, v, environments) for k, v in values.pop("tiers", {}).items()}
        sums = {k: Checksum(*v.split(":", 1)) for k, v in values.pop("checksums", {}).items()}
        values["sources"] = tuple(values.pop("sources", ()))
        return Card(environments=environments, tiers=tiers, checksums=sums, path=path, **values)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"card {path} has a wrong or missing entry: {error}") from error


def _environment(name: str, values: dict[str, Any]) -> Environment:
    values = dict(values)
    size = values.get("action_dim", 1)
    for key in ("action_low", "action_high"):
        bound = values.pop(key, ())
        values[key] = (float(bound),) * size if isinstance(bound, int | float) else tuple(bound)
    for key in ("goal", "achieved"):
        values[key] = tuple(values.pop(key, ()))
    if "reference_returns" in values:
        values["reference_returns"] = _pair(values["reference_returns"])
    environment = Environment(name=name, **values)
    environment.spec()  # a card with impossible sizes fails here, not at the first load
    return environment


def _tier(name: str, values: dict[str, Any], environments: dict[str, Environment]) -> Tier:
    values = dict(values)
    values.setdefault("environment", next(iter(environments)))
    if values["environment"] not in environments:
        raise ValueError(f"tier {name} names the unknown environment {values['environment']!r}")
    values["parts"] = tuple(values.pop("parts", ()))
    values["policies"] = tuple(PolicyRows(**policy) for policy in values.pop("policies", ()))
    if "reference_returns" in values:
        values["reference_returns"] = _pair(values["reference_returns"])
    return Tier(name=name, **values)


def _pair(values: list[float]) -> tuple[float, float]:
    low, high = (float(v) for v in values)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(
            f"reference returns must be [random, expert] with random < expert: {values}"
        )
    return low, high


@cache
def all_cards() -> dict[str, Card]:
    """Every card by family, local families first."""
    folder = cards_dir()
    paths = [*sorted((folder / "local").glob("*.toml")), *sorted(folder.glob("*.toml"))]
    cards = [read_card(path) for path in paths]
    return {card.family: card for card in cards}


def find_card(family: str) -> Card:
    cards = all_cards()
    if family not in cards:
        raise unknown_name("dataset family", family, cards)
    return cards[family]


def find_tier(name: str) -> tuple[Card, Tier]:
    """The card and tier of a dataset name such as `pendulum/medium` or `d4rl/hopper-medium-v2`."""
    family, _, rest = name.partition("/")
    card = find_card(family)
    if not rest:
        raise ConfigError(
            f"{name!r} is a family; name one of its datasets: {', '.join(card.names())}"
        )
    return card, card.tier(rest)


def spec_of_task(task: str) -> Spec | None:
    """The `Spec` of an evaluation task as the local cards describe it; None if none does."""
    for card in all_cards().values():
        for environment in card.environments.values():
            if card.kind == "local" and environment.task == task:
                return environment.spec()
    return None
