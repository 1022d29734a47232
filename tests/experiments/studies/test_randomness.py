"""The study of randomness: its rows, and a small cell with its figure."""

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.studies import randomness

SMALL: dict[str, Any] = {
    **randomness.DEFAULTS,
    "rows": 800,
    "updates": 3,
    "episodes": 2,
    "algorithm": "td3_bc",
    "config": {"hidden": [8]},
}


def test_rows_are_of_the_task_with_randomness_and_follow_from_the_seed() -> None:
    options = {"sticky_actions": 1.0}  # whatever is chosen, the first action acts for ever
    data = randomness.recorded(SMALL | {"options": options}, 0)
    again = randomness.recorded(SMALL | {"options": options}, 0)
    other = randomness.recorded(SMALL | {"options": options}, 1)
    rows = data.transitions
    assert len(data) == 800 and data.spec.task_options == options
    assert torch.equal(rows.obs, again.transitions.obs)
    assert not torch.equal(rows.obs, other.transitions.obs)
    sine, speed = rows.obs[:, 1], rows.obs[:, 2]
    torque = ((rows.next_obs[:, 2] - speed) / 0.05 - 15 * sine) / 3
    inside = rows.next_obs[:, 2].abs() < 7.99
    first = (torch.arange(800) // 200) * 200
    expected = rows.action[first, 0].clamp(-2, 2)
    torch.testing.assert_close(torque[inside], expected[inside], rtol=0, atol=2e-3)
    uniform = rows.action[400:, 0]  # of random actions, after those of the medium policy
    assert uniform.abs().mean() == pytest.approx(1.0, abs=0.12)


def test_a_cell_and_its_figure(tmp_path: Path) -> None:
    settings = SMALL | {"options": {"blackout": 0.5}}
    outcome = randomness.measure(settings, 0, tmp_path / "cell")
    assert set(outcome.values) == {"score", "data"}
    resumed = randomness.measure(settings, 0, tmp_path / "cell")
    assert resumed.values == outcome.values
    record = {"values": outcome.values}
    rows = {f"{kind}, iql": [record, record] for kind in randomness.KINDS}
    (file,) = randomness.draw(rows, tmp_path, "")
    assert file.exists()
    assert randomness.draw({"plain, iql": [record]}, tmp_path, "") == []
