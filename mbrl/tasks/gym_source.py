"""Where environments come from: an id of gymnasium, an entry point `module:make_env`, a factory, or
an instance, each as a function that makes another one."""

import copy
import difflib
import importlib
import json
import re
import sys
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium

from mbrl.errors import ConfigError, TaskError, unknown_name
from mbrl.tasks.gym_changes import changed_by_hand, changes_text, loses

LIMIT = "max_episode_steps"
OBJECTS = "options of its own"  # in the name of an environment with options that are objects
ENTRY_POINT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.\-/]*")


class Maker(NamedTuple):
    """`build()` gives a new environment; `most` is how many there can be (None: any number). `name`
    and `options` are what gives the same environment elsewhere; a name that is none where nothing
    does."""

    name: str
    build: Callable[[], Any]
    options: dict[str, Any]
    most: int | None = None


def is_known(name: str) -> bool:
    """Whether gymnasium has `name` registered, or it is written as an entry point."""
    return name in gymnasium.registry or ENTRY_POINT.fullmatch(name) is not None


def nearest(name: str, others: tuple[str, ...] = ()) -> list[str]:
    """The ids most like `name`, of gymnasium's and of `others`."""
    ids = {*gymnasium.registry, *others}
    near = difflib.get_close_matches(name, sorted(ids), n=3, cutoff=0.5)
    base = re.sub(r"-v\d+$", "", name)
    same = sorted(i for i in ids if re.sub(r"-v\d+$", "", i) == base)
    return list(dict.fromkeys([*same, *near]))[:4]


def maker(source: Any, options: dict[str, Any]) -> Maker:
    """How to make what `source` stands for, with `options` as keyword arguments; where no file can
    hold these, the name is none. Raises `ConfigError` for what is no environment."""
    made = _maker(source, options)
    if _can_be_held(made.options):
        return made
    return made._replace(name=f"{made.name} in {OBJECTS}", options={})


def _can_be_held(options: dict[str, Any]) -> bool:
    """Whether a file can hold them, so that what it names can be made again."""
    try:
        json.dumps(options)
    except TypeError:
        return False
    return True


def _maker(source: Any, options: dict[str, Any]) -> Maker:
    if isinstance(source, str):
        return _named(source, options)
    if isinstance(source, gymnasium.Env):
        if options:
            raise ConfigError(
                f"options {', '.join(options)} are for environments that are made here; give them "
                "to yours when you make it"
            )
        return _copies(source)
    if isinstance(source, gymnasium.vector.VectorEnv):
        raise ConfigError(
            "a vector environment resets itself between episodes and hides their last observation; "
            "give the environment that it is made of (copies= says how many run side by side)"
        )
    if callable(source):
        name = type(source).__name__  # of a partial, say: nothing gives it again
        if hasattr(source, "__qualname__"):
            name = f"{source.__module__}:{source.__qualname__}"
        return Maker(name, lambda: _checked(source(**options), name), options)
    raise ConfigError(
        f"{type(source).__name__} is no environment; give a gymnasium.Env, a function that makes "
        "one, an id of gymnasium, or an entry point such as 'mypackage.envs:make_env'"
    )


def origin(env: Any) -> tuple[str, dict[str, Any]]:
    """The id and options with which `gymnasium.make` would give an instance again, but for how it
    is shown; a name that is no task where it has none, or further wrappers."""
    wrappers, inner = [], env
    while isinstance(inner, gymnasium.Wrapper):
        if not type(inner).__module__.startswith("gymnasium.wrappers.common"):
            wrappers.append(type(inner).__name__)
        inner = inner.env
    name = type(inner).__qualname__ if inner.spec is None else _full_id(inner.spec)
    given = {} if inner.spec is None else inner.spec.kwargs
    options = {name: value for name, value in given.items() if name != "render_mode"}
    if not _can_be_held(options):
        wrappers.append(OBJECTS)
    if wrappers:
        return " in ".join([name, *wrappers]), {}
    return (f"{name} (instance)" if inner.spec is None else name), options


def _full_id(spec: Any) -> str:
    """The id with the package that registers it in front, where that is another than gymnasium."""
    point = spec.entry_point if isinstance(spec.entry_point, str) else ""
    package = point.partition(":")[0].partition(".")[0]
    if package in ("", "gymnasium", "mbrl", "__main__"):
        return str(spec.id)
    return f"{package}:{spec.id}"


def require_declared(name: str) -> None:
    """Raise `ConfigError` unless the entry point `name` is an environment class, or a function
    annotated to return one: nothing else that a file names is called."""
    module, _, attribute = name.partition(":")
    _import(module, name)
    if attribute in gymnasium.registry:
        return
    target = _attribute(name)
    kind = target
    if not isinstance(target, type):
        try:
            kind = typing.get_type_hints(target).get("return")
        except (TypeError, NameError):
            kind = None
    kind = typing.get_origin(kind) or kind
    if not (isinstance(kind, type) and issubclass(kind, gymnasium.Env)):
        raise ConfigError(
            f"the file names the entry point {name!r}, which is no environment class and not "
            "annotated to return one (def make_env() -> gymnasium.Env), so it is not called; "
            "annotate it, or name the task yourself (--task)"
        )


def _named(name: str, options: dict[str, Any]) -> Maker:
    module, colon, attribute = name.partition(":")
    registered = name
    if colon:
        _import(module, name)
        registered = attribute
    if registered in gymnasium.registry:
        return Maker(name, lambda: _make(registered, options), options)
    if not colon:
        raise ConfigError(unknown_text(name))
    target = _attribute(name)
    if isinstance(target, gymnasium.Env):
        return _copies(target)._replace(name=name)
    if not callable(target):
        raise ConfigError(f"{name} is a {type(target).__name__}, not an environment or a factory")
    factory: Callable[..., Any] = target
    return Maker(name, lambda: _checked(factory(**options), name), options)


def _attribute(name: str) -> Any:
    """What an entry point of an imported module is."""
    module, _, attribute = name.partition(":")
    target: Any = sys.modules[module]
    for part in attribute.split("."):
        if not hasattr(target, part):
            public = [n for n, v in vars(target).items() if callable(v) and not n.startswith("_")]
            raise unknown_name(f"attribute of {module}", part, public)
        target = getattr(target, part)
    return target


def unknown_text(name: str, others: tuple[str, ...] = ()) -> str:
    """What to say of a name that is no task."""
    near = nearest(name, others)
    text = f"{name!r} is not a task of this library nor registered with gymnasium; "
    text += f"nearest names: {', '.join(near)}" if near else "no name is close"
    return text + (
        ". An environment of your own is given as an entry point, such as mypackage.envs:make_env "
        "(a package that registers ids: mypackage:Name-v0)"
    )


def _import(module: str, name: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as problem:
        raise ConfigError(
            f"{name!r}: module {module!r} cannot be imported ({problem}); install it, or run from "
            "its folder"
        ) from problem


def _make(name: str, options: dict[str, Any]) -> Any:
    # The adapter looks at observations itself, and names the entry that is wrong.
    try:
        return gymnasium.make(name, disable_env_checker=True, **options)
    except gymnasium.error.Error as problem:
        raise ConfigError(f"gymnasium cannot make {name!r}: {problem}") from problem
    except (ImportError, TypeError) as problem:
        raise ConfigError(f"{name!r} cannot be made: {problem}") from problem


def _copies(env: Any) -> Maker:
    name, options = origin(env)
    limit = declared_limit(env)
    spec = env.unwrapped.spec
    own = None if spec is None else getattr(gymnasium.registry.get(spec.id), LIMIT, None)
    if limit not in (None, own):  # the id gives its own limit again
        options = options | {LIMIT: limit}
    try:
        double = copy.deepcopy(env)
    except Exception:  # an environment may fail in any way: a socket, a window, a simulator
        return Maker(name, lambda: env, options, most=1)
    # Another one is made and stepped to compare with, as only something that has copies can bear.
    changes = changed_by_hand(env, double)
    if changes and env.unwrapped.spec is not None:  # which no id gives again
        name, options = f"{name} {changes_text(changes)}", {}
    if changes and loses(env, double, changes):
        return Maker(name, lambda: env, options, most=1)
    return Maker(name, lambda: copy.deepcopy(env), options)


def _checked(env: Any, name: str) -> Any:
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise ConfigError(
            f"{name} made a {type(env).__name__}; give one environment, several copies are made of "
            "it here"
        )
    if not isinstance(env, gymnasium.Env):
        raise TaskError(
            f"{name} made a {type(env).__name__}, which is no gymnasium.Env; an environment of the "
            "old gym is converted by the package shimmy"
        )
    return env


def require_no_running_statistics(env: Any, name: str) -> None:
    """Raise `ConfigError` for wrappers whose statistics move with every step: each copy would have
    its own, and an evaluation would change what it measures."""
    running = (gymnasium.wrappers.NormalizeObservation, gymnasium.wrappers.NormalizeReward)
    inner = env
    while isinstance(inner, gymnasium.Wrapper):
        if isinstance(inner, running) and inner.update_running_mean:
            raise ConfigError(
                f"{name} is wrapped in {type(inner).__name__}, whose statistics move with every "
                "step, evaluations included, and differ from copy to copy; leave the wrapper out, "
                "or set its update_running_mean to False on an instance whose statistics are final"
            )
        inner = inner.env


def declared_limit(env: Any) -> int | None:
    """The steps after which an environment cuts an episode: those of its TimeLimit, else of an
    attribute `max_episode_steps` or `max_steps`; None where neither is there."""
    limits, inner = [], env
    while isinstance(inner, gymnasium.Wrapper):
        if isinstance(inner, gymnasium.wrappers.TimeLimit):
            limits.append(int(inner._max_episode_steps))
        inner = inner.env
    if limits:
        return min(limits)
    for name in ("max_episode_steps", "max_steps"):
        value = getattr(inner, name, None)
        if isinstance(value, int) and value > 0:
            return int(value)
    return None
