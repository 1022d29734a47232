"""Cells of the table of rewards, its driving score, and the rate of every size."""

import tomllib
from pathlib import Path

import pytest
import torch

from experiments import studies
from experiments.studies import simple_reward
from experiments.tables import plan
from mbrl.errors import ConfigError
from mbrl.tasks.experts import expert


class Acts(torch.nn.Module):
    """The same action in every state."""

    def __init__(self, faster: float, steer: float) -> None:
        super().__init__()
        self.action = torch.tensor([[faster, steer]], dtype=torch.float32)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.action.expand(len(obs), 2)


@pytest.mark.long
def test_the_driving_score_of_known_drivers() -> None:
    values = simple_reward.drive(expert("WindingRoad-v0"), 50)  # type: ignore[arg-type]
    assert values["score"] == pytest.approx(values["completion"]) and values["score"] > 99
    assert values["hit"] == values["left"] == 0
    still = simple_reward.drive(Acts(-1, 0), 20)
    assert still["score"] == still["completion"] == pytest.approx(1.1, abs=0.2)
    away = simple_reward.drive(Acts(0, 1), 20)  # full lock, at 4 m/s
    assert away["left"] + away["hit"] in (0, 100)
    straight = simple_reward.drive(Acts(0, 0), 50)
    assert straight["left"] + straight["hit"] == 100 and straight["speed"] == pytest.approx(4)
    assert straight["score"] < 0.64 * straight["completion"]  # some steps are outside the lanes
    # From 4 m/s the limit of 8 is passed with the sixth step; 15 m/s come after 14.
    fast = simple_reward.drive(Acts(1, 0), 50)
    assert fast["score"] < straight["score"]


def test_rates_and_minibatches() -> None:
    for size, rate, parts in ((256, 5e-4, 64), (1024, 1e-3, 16), (16384, 4e-3, 1)):
        config = simple_reward.config(simple_reward.DEFAULTS | {"minibatch": size})
        assert config.learning_rate == config.critic_rate == pytest.approx(rate)
        assert config.minibatches == parts
    for size in (300, 256 * 3, 128):
        with pytest.raises(ConfigError, match=f"minibatch is {size}"):
            simple_reward.config(simple_reward.DEFAULTS | {"minibatch": size})


def test_a_cell_trains_and_draws(tmp_path: Path) -> None:
    small = {"minibatch": 16384, "steps": 40, "episodes": 5, "epochs": 1}
    for reward in ("simple", "shaped"):
        settings = studies.settings_of("simple_reward", small | {"reward": reward})
        result = simple_reward.measure(settings, 0, tmp_path)
        assert result.curves["step"] == [640, 1280, 1920, 2560]
        assert result.curves["score"][-1] == result.values["score"]
    table = tomllib.loads((plan.TABLES / "simple-reward.toml").read_text())
    rows = simple_reward.ROWS[table["blocks"][0]["rows"]]()
    records = {row["label"]: [{"values": {"score": 10.0}}] * 2 for row in rows}
    (file,) = simple_reward.draw(records, tmp_path, "")
    assert file.stat().st_size > 1000
    assert "shaped,14,10" in (tmp_path / "minibatches.csv").read_text()
