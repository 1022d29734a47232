"""ReCOIL's critics at their fixed points in closed form, and its losses against a loop."""

from typing import Any

import numpy as np
import pytest
import torch

from algorithms import ReCOIL
from algorithms.recoil import critic_loss
from experiments.settings import build_config
from mbrl.buffer import Batch
from mbrl.errors import ConfigError
from mbrl.types import Dataset, Spec, Transitions

D = torch.float64


def fixed_point(expert: bool, ended: bool, gamma: float = 0.99, steps: int = 2000) -> float:
    """Q of one state and action whose next state is itself, V = Q, by gradient steps; where it is
    not the expert's, the expert's row is another one."""
    q = torch.zeros(2, dtype=D, requires_grad=True)
    discount = torch.full((2,), 0.0 if ended else gamma, dtype=D)
    for _ in range(steps):
        values = torch.stack([q[0] if expert else q[1], q[0]])[None]
        following = q.detach()[0].expand(2)
        loss = critic_loss(values, discount, following, 200.0, -2.0, gamma)
        (gradient,) = torch.autograd.grad(loss, q)
        with torch.no_grad():
            q -= 0.5 * gradient
    return float(q.detach()[0])


def test_fixed_points() -> None:
    """(200 - 2 p) / (1 + p (1 - gamma)) with p = 1 row of all for each of the expert's."""
    assert fixed_point(True, False) == pytest.approx(198 / 1.01)
    assert fixed_point(True, False, 0.9) == pytest.approx(198 / 1.1)
    assert fixed_point(False, False, 0.9, 300) == pytest.approx(-2 / 0.1)
    assert fixed_point(False, True, 0.9, 300) == pytest.approx(-2 - 0.9 * 20)
    assert fixed_point(False, True, steps=300) == pytest.approx(-200)


@pytest.mark.parametrize("scaled_by", ["mixture", "batch"])
def test_update_against_a_loop(scaled_by: str) -> None:
    spec = Spec("small", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)
    values = {"hidden": [8], "gamma": 0.9, "beta": 2.0, "max_exponent": 3}
    config = build_config("recoil", values | {"scaled_by": scaled_by})
    learner = ReCOIL(spec, config, seed=0).learner
    for name, module in learner.modules.items():
        module.double()
        if name.startswith("critic"):
            with torch.no_grad():
                module.weights[-1].mul_(-5.0)
    generator = torch.Generator().manual_seed(2)
    obs, next_obs = torch.randn(2, 8, 3, generator=generator, dtype=D)
    action = 2 * torch.rand(8, 2, generator=generator, dtype=D) - 1
    discount = torch.tensor([0.9, 0, 0.9, 0.9, 0.9, 0, 0.9, 0.9], dtype=D)
    batch = Batch(obs, action, torch.full((8,), 99.0, dtype=D), next_obs, discount)
    x = torch.cat([obs, action], -1)
    with torch.no_grad():
        q = learner.critic(x)[..., 0]  # the targets, too: nothing was learned yet
        z = [float((q[:, i].min() - learner.value(obs[i : i + 1])[0, 0]) / 2) for i in range(8)]
    metrics = learner.update(batch)
    z, experts = z[4:], z[:4]
    largest = max(*z, -1.0)
    assert largest + 0.1 < max(experts) < 3
    if scaled_by == "batch":
        largest = max(experts)
    expected = np.mean([(np.exp(min(y, 3)) - min(y, 3) - 1) / np.exp(largest) for y in z])
    assert float(metrics["value/loss"]) == pytest.approx(expected)
    total = 0.0
    for n in range(2):
        for i in range(4):
            total += 0.5 * (float(q[n, i]) - 200) ** 2 / 4
        for i in range(4, 8):
            following = float(learner.value(next_obs[i : i + 1]).detach())
            goal = -2 + 0.9 * (following if i != 5 else -20)
            total += 0.5 * (float(q[n, i]) - goal) ** 2 / 4
    assert float(metrics["critic/loss"]) == pytest.approx(total)


def test_uniform_actions_beside_the_scale_of_the_batch() -> None:
    """The value's loss is over logged and uniform actions of all rows, its scale over the expert's
    logged ones, too."""
    spec = Spec("small", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)
    values = {"hidden": [8], "gamma": 0.9, "uniform_actions": True, "scaled_by": "batch"}
    learner = ReCOIL(spec, build_config("recoil", values), seed=0).learner
    generator = torch.Generator().manual_seed(0)
    obs, action = torch.randn(8, 3, generator=generator), torch.zeros(8, 2)
    batch = Batch(obs, action, torch.zeros(8), obs, torch.full((8,), 0.9))
    drawn = learner.draw(batch, generator)
    uniform = torch.erf(drawn.noise[0] / 2**0.5)
    with torch.no_grad():
        value = learner.value(obs)[:, 0]
        logged = learner.critic(torch.cat([obs, action], -1))[..., 0].min(0).values - value
        drawn_ones = learner.critic(torch.cat([obs[4:], uniform], -1))[..., 0].min(0).values
    z = torch.cat([logged[4:], drawn_ones - value[4:]]).tolist()
    largest = max(*z, *logged[:4].tolist(), -1.0)
    expected = np.mean([(np.exp(y) - y - 1) / np.exp(largest) for y in z])
    assert float(learner.update(drawn)["value/loss"]) == pytest.approx(expected, rel=1e-5)


def test_it_follows_the_expert_and_not_the_many() -> None:
    """One state, a tenth of the rows an expert's near +0.5, the others near -0.5; rewards say
    nothing. Cloning all rows stays left."""
    generator = torch.Generator().manual_seed(0)
    expert = torch.arange(600) % 10 == 0
    action = torch.where(expert, 0.5, -0.5) + 0.1 * torch.randn(600, generator=generator)
    obs, none = torch.zeros(600, 2), torch.zeros(600, dtype=torch.bool)
    rows = Transitions(
        obs, action.clamp(-1, 1)[:, None], torch.zeros(600), obs, none, ~none, expert=expert
    )
    spec = Spec("one state", 2, 1, None, (-1.0,), (1.0,), 1)
    values = {"hidden": [32], "learning_rate": 3e-3, "gamma": 0.9, "batch_size": 64}
    agent = ReCOIL(spec, build_config("recoil", values), seed=0)
    agent.fit(Dataset(rows, spec), 500, callbacks=[])
    assert float(agent.act(np.zeros(2))[0][0]) > 0.3


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match="experts"):
        build_config("recoil", {"scaled_by": "experts"})


@pytest.mark.parametrize(
    ("name", "value"), [("expert_value", float("inf")), ("expert_episodes", -1), ("beta", 0)]
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        build_config("recoil", {name: value})
