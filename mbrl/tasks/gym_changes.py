"""Whether an instance of an environment was changed by hand after it was made."""

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

OF_MUJOCO = (
    *("body_mass", "geom_friction", "dof_damping", "actuator_gear"),
    *("opt.gravity", "opt.timestep"),
)
SHOWN = 3  # names in the name of a task
EPISODE = 500  # steps at most of the second look
Values = dict[str, Any]


def changed_by_hand(env: Any, double: Any) -> list[str]:
    """The attributes in which an instance differs from what `gymnasium.make` gives for its id and
    options, such as "force_mag" or "model.body_mass", or, where it has no id, from its copies; none
    where the two cannot be compared. Numbers, texts, arrays and tuples, lists and dicts of these
    count, if neither resets nor steps change them and each new environment has the same. `double`,
    a copy of `env`, is reset."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _changes(env.unwrapped, double.unwrapped)
    except Exception:  # an environment may fail in any way: then it is taken as it is
        return []


def loses(env: Any, double: Any, names: list[str]) -> bool:
    """Whether a copy of `env` has not the values of `env` in these attributes: one that is made
    anew from constructor arguments (gymnasium's EzPickle, so MuJoCo's and Box2D's)."""
    mine, other = _values(env.unwrapped), _values(double.unwrapped)
    return any(mine.get(name) != other.get(name) for name in names)


def changes_text(names: list[str]) -> str:
    """What the name of a task says of them. No colon or comma, which mark entry points and
    options."""
    shown = names if len(names) <= SHOWN else [*names[: SHOWN - 1], "others"]
    return f"changed by hand ({' and '.join(shown)})"


def _changes(env: Any, double: Any) -> list[str]:
    mine = _values(env)
    if env.spec is None and mine == _values(double):
        return []  # a copy that holds what it is a copy of
    make = (lambda: copy.deepcopy(env)) if env.spec is None else (lambda: _made(env.spec))
    expected = _constant(make, steps=1)
    names = sorted(k for k, v in expected.items() if k in mine and mine[k] != v)
    if not names:
        return []
    # What differs between new environments was drawn when they were made, and what is other at an
    # episode's end is left behind there.
    again = _constant(make, EPISODE)
    names = [name for name in names if name in again and again[name] == expected[name]]
    if loses(env, double, names):
        return names
    double.reset(seed=0)
    reset = _values(double)  # what a reset puts right is no change
    return [name for name in names if reset.get(name) == mine[name]]


def _made(spec: Any) -> Any:
    options = {k: v for k, v in spec.kwargs.items() if k != "render_mode"}  # opens no window
    return gymnasium.make(spec.id, disable_env_checker=True, **copy.deepcopy(options))


def _constant(make: Callable[[], Any], steps: int) -> Values:
    """The values of a new environment that a reset and so many steps, or an episode, leave as they
    are."""
    made = make()
    try:
        env = made.unwrapped
        new = _values(env)
        env.reset(seed=0)
        begun = _values(env)
        env.action_space.seed(0)
        for _ in range(steps):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                break
        later = _values(env)
    finally:
        made.close()
    new.pop("render_mode", None)
    return {k: v for k, v in new.items() if begun.get(k) == v == later.get(k)}


def _values(env: Any) -> Values:
    """The plain values that an environment holds, as copies that compare with `==`."""
    held: Values = {}
    for name, value in _attributes(env):
        try:
            held[name] = _plain(value)
        except TypeError:
            continue
    return held


def _attributes(env: Any) -> Iterator[tuple[str, Any]]:
    own = vars(env).items()  # not EzPickle's copy of the arguments, how it is shown among them
    yield from ((name, value) for name, value in own if not name.startswith("_ezpickle_"))
    model = getattr(env, "model", None)
    for name in OF_MUJOCO if hasattr(model, "opt") else ():
        value = model
        for part in name.split("."):
            value = getattr(value, part)
        yield f"model.{name}", value


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in "fiub":
            raise TypeError
        return (value.shape, value.astype(np.float64).tobytes()) if value.ndim else value.item()
    if isinstance(value, tuple | list):
        return tuple(_plain(v) for v in value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError
