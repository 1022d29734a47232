"""Actors that others publish as arrays, against the same network in torch."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.recording.actor_arrays import LAYERS, actor_of
from experiments.recording.environment import collect, named_policy, policy_returns
from mbrl.errors import ConfigError
from mbrl.tasks import make


def write(path: Path, sizes: tuple[int, ...]) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True)]
    arrays = {
        f"{name}.{part}": getattr(layer, part).detach().numpy()
        for name, layer in zip(LAYERS, layers, strict=True)
        for part in ("weight", "bias")
    }
    np.savez(path, **arrays, unused=np.zeros(3))
    relu = torch.nn.ReLU()
    return torch.nn.Sequential(layers[0], relu, layers[1], relu, layers[2])


def test_it_is_the_clipped_network(tmp_path: Path) -> None:
    network = write(tmp_path / "actor.npz", (6, 32, 32, 2))
    obs = 5 * torch.randn(100, 6)
    expected = network(obs).detach()
    assert expected.abs().max() > 1
    torch.testing.assert_close(actor_of(tmp_path / "actor.npz")(obs), expected.clamp(-1, 1))


def test_it_records_and_is_valued(tmp_path: Path) -> None:
    write(tmp_path / "actor.npz", (6, 32, 32, 2))
    policy = named_policy(str(tmp_path / "actor.npz"))
    data = collect("DMSD-v0", policy, 250)
    assert len(data) == 300 and not data.transitions.terminated.any()
    returns = policy_returns(make("DMSD-v0"), policy, 500, seed=1)
    assert returns.shape == (500,) and returns.dtype == torch.float64
    recorded = collect("DMSD-v0", policy, 20_000, seed=2).transitions.returns()
    assert abs(float(returns.mean() - recorded.mean())) < 4 * float(returns.std()) / 150**0.5


def test_returns_stop_where_episodes_end() -> None:
    task = make("CartPole-v1")
    returns = policy_returns(task, "random", 200)
    assert float(returns.max()) < 200 and float(returns.mean()) == pytest.approx(22, abs=3)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        named_policy(str(tmp_path / "none.npz"))
    np.savez(tmp_path / "other.npz", w0=np.zeros(3))
    with pytest.raises(ConfigError, match=r"has no preprocess\.model\.model\.0\.weight"):
        named_policy(str(tmp_path / "other.npz"))
