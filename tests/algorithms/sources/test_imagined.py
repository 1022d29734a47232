"""What a world model is fitted to once an agent with logged rows acts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import algorithms
from algorithms import ALGORITHMS
from experiments.settings import build_config, merge
from mbrl.buffer import transitions
from mbrl.types import Dataset, Transitions
from tests.small import CONFIGS


def of_model(agent: Any) -> Transitions:
    source = agent.source
    if hasattr(source, "recorded_rows"):
        return source.recorded_rows()
    return transitions(getattr(source, "real", source).rows)


@pytest.mark.parametrize("name", ["mbpo", "neubay", "pets"])
def test_ends_that_nobody_recorded_teach_no_dynamics(
    name: str, pendulum: Dataset, tmp_path: Path
) -> None:
    """Rows that end the task and lead to where nobody looked stay out of refits as they stay out of
    the first fit, also after a stop; those of the task itself are all known."""
    rows = pendulum.transitions
    last = torch.arange(len(rows)) % 50 == 49
    data = pendulum.with_transitions(
        replace(
            rows,
            terminated=last,
            truncated=torch.zeros_like(last),
            next_obs=torch.where(last[:, None], rows.obs, rows.next_obs),
            next_known=~last,
        )
    )
    config = build_config(name, merge(CONFIGS[name], {"gamma": 0.9} if name == "pets" else {}))
    agent = ALGORITHMS[name][0](data.spec, config, seed=0)
    agent.fit(data, 1, callbacks=[])
    changes = {"warmup": 20, "capacity": 3000, "refit_every": 1000}
    collection = replace(agent.source.collection, **changes)
    agent.learn("Pendulum-v1", 3, collection=collection, callbacks=[])
    agent.save(tmp_path / "agent.pt")
    for one in (agent, algorithms.load(tmp_path / "agent.pt")):
        known = of_model(one)
        assert known.next_known is not None and len(known) >= len(rows)
        assert int((~known.next_known).sum()) == int(last.sum())
        assert bool((known.obs == known.next_obs).all(1)[~known.next_known].all())
        assert bool(known.terminated[~known.next_known].all())
