"""Several agents trained side by side in one process: seeds of one algorithm, or settings of it."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from numbers import Integral
from typing import Any, TypeVar

from mbrl.agent import Agent
from mbrl.agent_rules import require_steps
from mbrl.callbacks import Interrupted
from mbrl.errors import ConfigError
from mbrl.logged_rules import require_match
from mbrl.training import Callback, Metrics, Trainable
from mbrl.types import Dataset

A = TypeVar("A", bound=Agent[Any])


def fit_many(
    agents: Sequence[A],
    dataset: Dataset,
    steps: int,
    *,
    workers: int | None = None,
    callbacks: Callable[[A], Sequence[Callback]] | None = None,
) -> list[A]:
    """Train every agent offline for `steps` further updates on one `dataset`, which is held in
    memory once, and return them. Each ends with the very weights that its own `fit` gives it.

    Agents take turns of `workers` threads (None: as many as processors). Compiled updates let other
    threads go on, so that two processors do nearly twice the work; without them threads gain
    little, and `python -m experiments sweep` with processes is the faster way. `callbacks` makes
    those of an agent. Where one fails the others finish, and its error is raised then and names its
    place; Ctrl-C stops all after their present update. Raises `ConfigError` for one agent given
    twice, a world model that several would fit at once, a negative `steps`, no number of `workers`,
    or a dataset of another task.
    """
    require_steps(steps)
    if not isinstance(agents, Sequence):
        kind = type(agents).__name__
        raise ConfigError(f"agents is one {kind}; give a list of agents: [IQL(spec, seed=0), ...]")
    if workers is not None and (not isinstance(workers, Integral) or workers < 1):
        raise ConfigError(f"workers is {workers!r}, it must be a whole number of at least 1")
    if len({id(agent) for agent in agents}) < len(agents):
        raise ConfigError("an agent is given twice; each needs to be an object of its own")
    for agent in agents:
        require_match(agent.spec, dataset)
    require_models_apart(agents)
    stopped = threading.Event()

    def stop(event: str, agent: Trainable, metrics: Metrics) -> None:
        if stopped.is_set():
            raise Interrupted("stopped")

    def fit(agent: A) -> None:
        own = () if callbacks is None else callbacks(agent)
        agent.fit(dataset, steps, callbacks=[*own, stop])

    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        futures = [pool.submit(fit, agent) for agent in agents]
        try:
            errors = [future.exception() for future in futures]
        except KeyboardInterrupt:
            stopped.set()
            raise
    for place, error in enumerate(errors):
        if error is not None:
            error.add_note(f"of agent {place} of {len(agents)} (seed {agents[place].seed})")
            raise error
    return list(agents)


def require_models_apart(agents: Sequence[Agent[Any]]) -> None:
    """Raise `ConfigError` where agents share a world model that is not fitted yet."""
    places: dict[int, list[int]] = {}
    for place, agent in enumerate(agents):
        if agent.learned is not None:
            places.setdefault(id(agent.learned), []).append(place)
    for shared in places.values():
        if len(shared) > 1 and not agents[shared[0]].learned.fitted:
            raise ConfigError(
                f"agents {shared} share a world model that is not fitted, and each would fit it; "
                "fit it before, model.fit(dataset.transitions), or give each one of its own"
            )
