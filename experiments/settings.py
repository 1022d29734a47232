"""Settings of runs, and presets: for each algorithm and dataset, the values that differ from the
algorithm's defaults."""

import json
import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import tyro

from algorithms import ALGORITHMS
from mbrl import config as configs
from mbrl import tasks
from mbrl.config import (
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    Probability,
    Rate,
    Settings,
    Share,
)
from mbrl.data.cards import all_cards
from mbrl.data.readers.files import SUFFIXES
from mbrl.errors import ConfigError, unknown_name
from mbrl.precision import MatmulPrecision

PRESETS = Path(__file__).parent / "presets"


@dataclass(frozen=True)
class CollectionSettings(Settings):
    """How experience is gathered in a task; None: as the algorithm has it."""

    envs: Count | None = None  # parallel copies of the task
    warmup: CountOrZero | None = None  # uniform random rows at first; none after logged data
    capacity: Count | None = None  # rows of experience kept, logged data among them
    updates_per_step: Count | None = None  # updates after each step
    frozen: CountOrZero | None = None  # rows of the policy as it is before the first update
    warmup_by: Literal["uniform", "policy"] | None = None  # who makes the rows of the warm-up
    deterministic: bool | None = None  # act greedily
    logged_share: Probability | None = None  # of a batch, exactly; 0: logged rows are left behind
    noise: NonNegative | None = None  # on actions of a policy without randomness, in half ranges
    refit_every: Count | None = None  # steps between refits of a world model
    refit_epochs: Count | None = None  # passes over the experience a refit makes at most

    def given(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def apply(self, collection: Any) -> Any:
        """`collection` with the settings that are given. Raises `ConfigError` for one that the
        algorithm does not have."""
        given, known = self.given(), {f.name for f in fields(collection)}
        for name in given.keys() - known:
            raise unknown_name("setting of the collection", name, known)
        return replace(collection, **given)


@dataclass(frozen=True)
class UntilFlatSettings(Settings):
    """When a run on logged data ends before its last update: the value of its policy in a model
    that ends where the data end, on the episodes held out, no longer rises."""

    every: CountOrZero = 0  # updates between two values; 0: all updates are done
    patience: Count = 5  # values in a row without a rise beyond its standard error
    minutes: NonNegative = 0.0  # of processor time at most; 0: no limit


@dataclass(frozen=True)
class ImaginedSettings(Settings):
    """Rows beside the logged ones that may be wrong: imagined by a model, of any kind."""

    data: str | None = None  # a dataset or a file of the same task; None: the logged rows alone
    share: Probability | None = 0.5  # of the rows drawn; None: all rows alike
    # rows left out that a world model of the logged ones contradicts, or does not know
    filter: Literal["none", "consistency", "disagreement"] = "none"
    quantile: Rate = 0.99  # share of held-out logged rows that the filter would keep


@dataclass(frozen=True)
class RunSettings(Settings):
    """All settings of a run except the algorithm's config."""

    algorithm: tyro.conf.Suppress[str]  # name in `python -m experiments list`
    data: tyro.conf.Suppress[str]  # a dataset, a file, or (to learn online) a task id
    task: str | None = None  # the task that a file belongs to, for its bounds and evaluations
    steps: Count | None = None  # updates, in a task steps of each copy; None: the preset's
    # share of the episodes that nothing is learned from, to value the policy on (`value`)
    holdout: Share = 0.0
    seed: CountOrZero = 0  # seed of weights, batches and model
    threads: Count = 1  # CPU threads; part of what a result depends on
    # as torch.set_float32_matmul_precision; medium: products of bfloat16 where they are faster
    matmul_precision: MatmulPrecision = "highest"
    device: str = "cpu"  # cpu or cuda
    # updates between evaluations; None: a tenth of the run; 0: none
    eval_every: CountOrZero | None = None
    eval_episodes: Count = 20  # fixed starts of each
    final_episodes: Count = 100  # fixed starts of the last
    eval_stochastic: bool = False  # evaluate sampled actions, not the greedy ones
    log_every: Count = 100  # updates between rows of metrics.csv
    checkpoint_every: CountOrZero = 1000  # updates between checkpoints
    checkpoint_seconds: Positive = 60.0  # and at most this long apart
    tensorboard: bool = True  # write event files, where tensorboard is installed
    # where metrics go beside metrics.csv
    sinks: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ()
    callback: tuple[str, ...] = ()  # callbacks of your own, as module:object
    # updates of the fitted Q evaluation that chooses among checkpoints; 0: none
    fqe_steps: CountOrZero = 0
    model: str | None = None  # folder of a world model fitted with the same data, config and seed
    after: str | None = None  # folder of a finished run whose agent, or its networks, go on here
    logged: str | None = None  # a dataset whose rows a run in a task has from the start
    collection: CollectionSettings = field(default_factory=CollectionSettings)
    imagined: ImaginedSettings = field(default_factory=ImaginedSettings)
    until_flat: UntilFlatSettings = field(default_factory=UntilFlatSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm not in ALGORITHMS:
            raise unknown_name("algorithm", self.algorithm, ALGORITHMS)

    @property
    def online(self) -> bool:
        return tasks.is_task(self.data)


def preset(algorithm: str, data: str, purpose: str = "") -> dict[str, Any]:
    """`{"steps": ..., "config": {...}}` for an algorithm and a dataset: the family's values, then
    those of the dataset itself, then those of a `purpose` (`quickstart`). Where a card says that a
    dataset resembles a published one, the values of that one come first. Online tasks have the
    family `online`; local tiers `local`. A file has the values of `local` with observations
    standardised, since their units are anything."""
    if algorithm not in ALGORITHMS:
        raise unknown_name("algorithm", algorithm, ALGORITHMS)
    path = PRESETS / f"{algorithm}.toml"
    content = tomllib.loads(path.read_text()) if path.exists() else {}
    merged: dict[str, Any] = {"config": {}}
    like = resembled(data)
    first = (family_of(like or data), *([like] if like else []))
    for name in (*first, data.split("/")[0], data, purpose):
        merged = merge(merged, content.get(name, {}))
    return merge(merged, {"config": standardising(algorithm)}) if is_file(data) else merged


def is_file(data: str) -> bool:
    """Whether a dataset is a file rather than one with a card."""
    return data.lower().endswith(SUFFIXES)


def standardising(algorithm: str) -> dict[str, Any]:
    """Config values that make an algorithm standardise its observations."""
    config = ALGORITHMS[algorithm][1]()
    if hasattr(config, "normalise_obs"):
        return {"normalise_obs": True}
    if hasattr(getattr(config, "learner", None), "normalise_obs"):
        return {"learner": {"normalise_obs": True}}
    return {}


def resembled(data: str) -> str | None:
    """The published dataset that `data` resembles, where its card names one."""
    family, _, name = data.partition("/")
    card = all_cards().get(family)
    tier = card.tiers.get(name) if card else None
    return tier.resembles if tier else None


def family_of(data: str) -> str:
    """The preset family: `d4rl`, `neorl`, ..., `online` for a task, else `local`."""
    if tasks.is_task(data):
        return "online"
    first = data.split("/")[0]
    return first if first in ("d4rl", "neorl", "neorl2", "minari") else "local"


def merge(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    merged = dict(low)
    for key, value in high.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def preset_config(algorithm: str, data: str, purpose: str = "") -> Any:
    """The algorithm's config with the preset's values."""
    return build_config(algorithm, preset(algorithm, data, purpose)["config"])


def build_config(algorithm: str, values: dict[str, Any]) -> Any:
    """A config from nested values over the algorithm's own defaults.

    Defaults of nested parts are those of this algorithm (RAVL's ten critics), not of the part's
    class, so values are merged into the default config first.
    """
    _, config_class = ALGORITHMS[algorithm]
    return configs.from_dict(config_class, merge(configs.to_dict(config_class()), values))


def from_file(path: Path, algorithm: str, data: str) -> tuple[RunSettings, Any]:
    """Settings and config of a run of `algorithm` on `data` with the values of a file over those of
    the preset: TOML with tables `run` and `config`, or the config.json of a run. Raises
    `ConfigError` for a file that cannot be read, of another algorithm, or with unknown names."""
    content = _content(path)
    for key in content:
        if key not in ("run", "config", "first_step"):
            raise unknown_name(f"table in {path}", key, ("run", "config"))
    run = dict(content.get("run", {}))
    theirs = run.pop("algorithm", algorithm)
    if theirs != algorithm:
        raise ConfigError(
            f"{path} is of a run of {theirs}; run that, or give a file of {algorithm}"
        )
    run |= {"algorithm": algorithm, "data": data}
    settings = configs.from_dict(RunSettings, run)
    values = merge(preset(algorithm, data)["config"], content.get("config", {}))
    return settings, build_config(algorithm, values)


def _content(path: Path) -> dict[str, Any]:
    """The tables of a TOML or JSON file."""
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as problem:
        raise ConfigError(f"--config {path} cannot be read: {problem}") from problem
    tables = content.values() if isinstance(content, dict) else [None]
    if not all(isinstance(v, dict | int) for v in tables):
        raise ConfigError(f"--config {path} must hold the tables run and config")
    result: dict[str, Any] = content
    return result


DECAYS = ("decay_steps", "actor_decay")  # settings that are lengths of a decay, in updates


def for_budget(algorithm: str, data: str, config: Any, steps: int) -> Any:
    """`config` for a run of `steps` updates: a decay of the learning rate that is as long as the
    preset's budget becomes as long as this one."""
    known, values = default_steps(algorithm, data), configs.to_dict(config)
    if steps == known:
        return config
    for part in (values, *(v for v in values.values() if isinstance(v, dict))):
        for name in DECAYS:
            if part.get(name) == known:
                part[name] = steps
    return build_config(algorithm, values)


def default_steps(algorithm: str, data: str) -> int:
    return int(preset(algorithm, data).get("steps", 1_000_000))
