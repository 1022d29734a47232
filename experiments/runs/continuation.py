"""Runs in a task that go on with what an earlier run learned (`--after`), or that have logged rows
from the start (`--logged`)."""

import shlex
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from algorithms import ALGORITHMS
from algorithms.learners.soft_actor_critic import LearnerConfig
from experiments.runs import folders, imagined
from experiments.runs.job import Job
from experiments.runs.sources import Source, open_source
from experiments.settings import RunSettings
from mbrl import agent_files, checkpoint, data, tasks
from mbrl import config as configs
from mbrl.continuation import take_over
from mbrl.errors import CheckpointError, ConfigError
from mbrl.types import Spec

# What the networks of a soft actor-critic, and the meaning of their values, depend on.
NETWORKS = ("hidden", "critics", "layer_norm", "normalise_obs", "gamma")


def description(settings: RunSettings, config: Any, before: Job) -> dict[str, Any]:
    """The content of config.json of a run that goes on in a task after the finished run `before`:
    the same agent where that was a run of the same algorithm on logged data, else a new one with
    its networks. Raises `ConfigError` where it cannot."""
    earlier = earlier_settings(before)
    if not before.finished():
        raise ConfigError(
            f"{before.folder} is not finished; continue it first with `python -m experiments "
            f"resume {shlex.quote(str(before.folder))}`"
        )
    spec = Spec.from_dict(folders.read_json(before.folder / "manifest.json")["spec"])
    task = tasks.make(settings.data).spec
    sizes = [(s.obs_dim, s.action_dim, s.num_actions) for s in (spec, task)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"{earlier.data} and {settings.data} differ in (obs_dim, action_dim, num_actions): "
            f"{sizes[0]} against {sizes[1]}; give the task that the earlier run is of ({spec.task})"
        )
    values = before.read()["config"]
    if not same_agent(settings, before):
        require_networks(settings, config, before)
        return {"run": asdict(settings), "config": configs.to_dict(config)}
    if (earlier.seed, values) != (settings.seed, configs.to_dict(config)):
        raise ConfigError(
            f"the agent of {before.folder} keeps its algorithm ({earlier.algorithm}), seed "
            f"({earlier.seed}) and config; leave these options out"
        )
    first = folders.read_json(before.folder / "result.json")["step"]
    return {"run": asdict(settings), "config": values, "first_step": first}


def earlier_settings(before: Job) -> RunSettings:
    """The settings of the run `before`."""
    return configs.from_dict(RunSettings, before.read()["run"])


def same_agent(settings: RunSettings, before: Job) -> bool:
    """Whether the agent of the run `before` itself goes on, and not its networks alone."""
    earlier = earlier_settings(before)
    return earlier.algorithm == settings.algorithm and not earlier.online


def config_after(settings: RunSettings, config: Any, before: Job) -> Any:
    """The config that a run after `before` has where no option says otherwise: that of `before`
    where the algorithm is the same, else `config` with the networks of `before`."""
    earlier = earlier_settings(before)
    _, kind = ALGORITHMS[earlier.algorithm]
    known = configs.from_dict(kind, before.read()["config"])
    if earlier.algorithm == settings.algorithm:
        return known
    require_shared_learner(settings, config, earlier, known)
    if hasattr(config, "normalise_rewards"):
        config = replace(config, normalise_rewards=scaled_rewards(known))
    return replace(config, learner=replace(config.learner, **networks(known)))


def scaled_rewards(config: Any) -> bool:
    """Whether values are in units of the data's returns."""
    return bool(getattr(config, "normalise_rewards", False))


def require_units(config: Any, known: Any, earlier: RunSettings) -> None:
    """Raise `ConfigError` unless the values that are taken over are in the units of rewards to
    come."""
    if scaled_rewards(known) and earlier.online:
        raise ConfigError(
            f"{earlier.algorithm} has values in units of the returns of its logged data "
            "(normalise_rewards), which a run after one in a task does not know; give --after a "
            "run on logged data"
        )
    if scaled_rewards(known) != scaled_rewards(config):
        raise ConfigError(
            f"normalise_rewards is {scaled_rewards(known)} in the earlier run of "
            f"{earlier.algorithm} and {scaled_rewards(config)} here, and its values go on; train "
            "it with the same, or take an algorithm that has the setting (cql, wsrl)"
        )


def networks(config: Any) -> dict[str, Any]:
    """The settings `NETWORKS` of a config with a soft actor-critic learner."""
    return {name: getattr(config.learner, name) for name in NETWORKS}


def require_shared_learner(
    settings: RunSettings, config: Any, earlier: RunSettings, known: Any
) -> None:
    """Raise `ConfigError` unless both algorithms learn by the soft actor-critic learner."""
    if all(isinstance(getattr(c, "learner", None), LearnerConfig) for c in (config, known)):
        return
    able = [
        name
        for name, (_, kind) in ALGORITHMS.items()
        if any(f.name == "learner" for f in fields(kind))
        and isinstance(kind().learner, LearnerConfig)
    ]
    raise ConfigError(
        f"{settings.algorithm} cannot go on with the networks of {earlier.algorithm}; give --after "
        f"a run of {settings.algorithm}, or take both from {', '.join(able)}"
    )


def require_networks(settings: RunSettings, config: Any, before: Job) -> None:
    """Raise `ConfigError` unless the agent of `config` can have the networks of `before`."""
    earlier = earlier_settings(before)
    _, kind = ALGORITHMS[earlier.algorithm]
    known = configs.from_dict(kind, before.read()["config"])
    if earlier.algorithm != settings.algorithm:
        require_shared_learner(settings, config, earlier, known)
    require_units(config, known, earlier)
    if not isinstance(getattr(config, "learner", None), LearnerConfig):
        return  # the same algorithm; sizes are compared when the networks are taken over
    mine, theirs = networks(config), networks(known)
    for name in NETWORKS:
        if name != "gamma" and mine[name] != theirs[name]:
            raise ConfigError(
                f"learner.{name} is {mine[name]}, and {theirs[name]} in {before.folder}, whose "
                "networks go on; leave it out"
            )


def trained(settings: RunSettings, config: Any, before: Job, source: Source) -> Any:
    """The agent that begins the run of `settings`, `config` and `source`: that of the run
    `before`, or a new one with its networks and, if it learned from logged data, these. Raises
    `CheckpointError` where the data are not those that it was trained on."""
    earlier = earlier_settings(before)
    logged = logged_data(before.folder)
    content = checkpoint.load(before.folder / "checkpoint.pt")
    cls, kind = ALGORITHMS[earlier.algorithm]
    known: Any = agent_files.restore(cls, content, settings.device, kind)
    if same_agent(settings, before):
        agent = known
    else:
        cls, _ = ALGORITHMS[settings.algorithm]
        spec = source.spec if logged is None else known.spec
        agent = cls(spec, config, device=settings.device, seed=settings.seed)
        take_over(agent, known)
    if logged is not None:
        agent.prepare(logged, lambda metrics: None)
    else:
        agent.source.collection = replace(agent.source.collection, warmup_by="policy")
    return agent


def give_logged(agent: Any, settings: RunSettings, source: Source) -> None:
    """Give an agent from the checkpoint of a run in a task its logged rows, where it had not acted
    yet: until then a checkpoint does not hold them."""
    if not settings.online or agent.source.logged:
        return
    logged = source.logged
    if settings.after is not None:
        logged = logged_data(Path(settings.after))
    if logged is not None:
        agent.prepare(logged, lambda metrics: None)


def logged_data(folder: Path) -> Any:
    """The logged data of the run in `folder`, checked; None where it learned in a task."""
    earlier = configs.from_dict(RunSettings, folders.description(folder)["run"])
    if earlier.online:
        return None
    source = open_source(earlier)
    known = folders.read_json(folder / "manifest.json")["data"]
    data_now = source.describe() | imagined.describe(earlier, source.spec)
    if known != data_now or source.dataset is None:
        raise CheckpointError(
            f"the data of {folder} has changed: it was {known}, now it is {data_now}"
        )
    return imagined.with_imagined(earlier, source.dataset, folder)


def check_logged(settings: RunSettings) -> None:
    """Raise `ConfigError` where a run in a task cannot have the logged rows."""
    if settings.after is not None:
        raise ConfigError(
            f"--logged {settings.logged} does not go with --after, whose run brings its logged rows"
        )
    cls, _ = ALGORITHMS[settings.algorithm]
    if not cls.learns_offline:
        raise ConfigError(
            f"{settings.algorithm} learns by acting alone and cannot take logged rows; leave "
            "--logged out, or take rlpd"
        )
    name = str(settings.logged)
    if not data.is_dataset_name(name) and not Path(name).is_file():
        raise ConfigError(
            f"--logged is {name!r}, which is neither a dataset (`python -m experiments data list`) "
            "nor a file"
        )
