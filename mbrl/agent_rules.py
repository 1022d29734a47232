"""What an agent asks of the arguments that it is built and trained with."""

from numbers import Integral
from typing import Any

from mbrl.errors import ConfigError
from mbrl.types import Dataset, Spec

LARGEST_SEED = 2**62  # torch takes 2^63, and seeds of parts lie somewhat above


def require_arguments(name: str, spec: Any, config: Any, kind: type, seed: Any) -> None:
    """Raise `ConfigError` unless `spec` is a spec, `config` None or of the `kind` that the
    algorithm of that `name` has, and `seed` a whole number that is not negative."""
    if not isinstance(spec, Spec):
        raise ConfigError(
            f"{name} is built from a Spec and got {_shown(spec)}; give dataset.spec, or "
            "make(task).spec"
        )
    if config is not None and not isinstance(config, kind):
        raise ConfigError(
            f"the settings of {name} are a {kind.__name__} and it got {_shown(config)}; give "
            f"{kind.__name__}(...), or None for the defaults"
        )
    if not isinstance(seed, Integral) or not 0 <= int(seed) < LARGEST_SEED:
        raise ConfigError(f"seed is {seed!r}, it must be a whole number from 0 to 2^62")


def require_dataset(dataset: Any) -> None:
    """Raise `ConfigError` for what is no dataset."""
    if not isinstance(dataset, Dataset):
        raise ConfigError(
            f"an agent is fitted to a Dataset and got {_shown(dataset)}; load one with "
            "mbrl.data.load(name or file)"
        )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__}"


def require_steps(steps: int) -> None:
    """Raise `ConfigError` for what is no number of steps."""
    if not isinstance(steps, Integral):
        raise ConfigError(f"steps is {steps!r}, it must be a whole number")
    if steps < 0:
        raise ConfigError(f"steps is {steps}, it must be 0 or more")


def require_share(agent: Any) -> None:
    """Raise `ConfigError` unless batches of the agent can hold a share of logged rows."""
    name, share = type(agent).__name__, agent.source.collection.logged_share
    if not getattr(agent.source, "mixes", False):
        raise ConfigError(
            f"logged_share is {share:g}, and {name} does not draw its batches from logged rows and "
            "experience alone; leave logged_share out"
        )
    if share > 0 and not agent.source.logged:
        raise ConfigError(
            f"logged_share is {share:g}, and {name} has no logged rows; fit or prepare it with a "
            "dataset first (`run --logged DATA`), or leave logged_share out"
        )
