"""Callbacks: metrics from several devices, how often a large run is saved, and an early end."""

from pathlib import Path
from typing import Any

import pytest
import torch

import mbrl.callbacks
from algorithms import BC, BCConfig
from mbrl.callbacks import Checkpointer, Recorder, read
from mbrl.errors import ConfigError


def test_metrics_are_read_from_host_and_device() -> None:
    """Without a device to try, one that holds no numbers: they get there, and cannot come back."""
    assert read({}) == {}
    assert read({"a": torch.tensor(1), "b": torch.tensor([2.5])}) == {"a": 1.0, "b": 2.5}
    mixed = {"a": torch.tensor(1.0), "b": torch.zeros((), device="meta")}
    with pytest.raises(NotImplementedError, match="no data"):
        read(mixed)
    if torch.cuda.is_available():
        assert read({"a": torch.tensor(1.0), "b": torch.ones((), device="cuda")})["b"] == 1.0


class Clocked:
    """An agent whose saves take `cost` seconds of a clock that steps tick by one."""

    def __init__(self, cost: float) -> None:
        self.now, self.cost, self.step = 0.0, cost, 0
        self.saved: list[int] = []


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (0.5, [10, 20, 30, 40, 50, 55]),
        (1.4, [10, 40, 55]),  # 28 s must pass, to the next tenth step; the end is always saved
    ],
)
def test_a_save_that_is_slow_is_made_less_often(
    cost: float, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent: Any = Clocked(cost)

    def content(of: Clocked) -> dict[str, Any]:
        of.now += of.cost
        of.saved.append(of.step)
        return {"state": {}}

    monkeypatch.setattr(mbrl.callbacks.time, "monotonic", lambda: agent.now)
    monkeypatch.setattr(mbrl.callbacks.agent_files, "content", content)
    saver = Checkpointer(tmp_path / "checkpoint.pt", every=10, seconds=1e9)
    for agent.step in range(1, 56):
        agent.now += 1.0
        saver("step", agent, {})
    saver("end", agent, {})
    assert sorted(set(agent.saved)) == expected


def test_a_callback_that_returns_true_ends_the_training(pendulum) -> None:
    agent = BC(pendulum.spec, BCConfig(hidden=(8,)), seed=0)
    seen: list[tuple[str, int]] = []

    def note(event: str, agent: Any, metrics: Any) -> None:
        seen.append((event, agent.step))

    def ends(event: str, agent: Any, metrics: Any) -> bool:
        return event == "step" and agent.step == 3

    agent.fit(pendulum, 10, callbacks=[ends, note])
    assert agent.step == 3 and seen == [("start", 0), *(("step", k) for k in (1, 2, 3)), ("end", 3)]


def test_a_folder_has_the_metrics_of_one_agent(pendulum, tmp_path: Path) -> None:
    first, second = (BC(pendulum.spec, BCConfig(hidden=(8,))) for _ in range(2))
    first.fit(pendulum, 4, callbacks=[Recorder(tmp_path, every=2)])
    first.fit(pendulum, 4, callbacks=[Recorder(tmp_path, every=2)])  # which goes on
    with pytest.raises(ConfigError, match=r"goes to step 8 and the agent is at 0"):
        second.fit(pendulum, 4, callbacks=[Recorder(tmp_path, every=2)])
    with pytest.raises(ConfigError, match="every is 0"):
        Recorder(tmp_path, every=0)
