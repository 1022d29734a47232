"""RAMBO against scipy and closed forms, and the traps of known reference codes."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from algorithms import ALGORITHMS, RAMBO
from algorithms.rambo import adversarial_loss, mixture_log_prob, normalised_advantage
from experiments.settings import build_config, merge
from mbrl import tasks
from mbrl.types import Dataset
from tests.small import CONFIGS
from world_models import EnsembleDynamics

D = torch.float64


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def agent_of(name: str, data: Dataset, **values: Any) -> Any:
    config = build_config(name, merge(CONFIGS[name], values))
    return ALGORITHMS[name][0](data.spec, config, seed=0)


def prepared(name: str, data: Dataset, **values: Any) -> Any:
    agent = agent_of(name, data, **values)
    agent.prepare(data, lambda metrics: None)
    return agent


def test_mixture_log_prob_against_scipy() -> None:
    mean, log_variance, y = randn(3, 6, 2), randn(3, 6, 2, seed=1), randn(6, 2, seed=2)
    for b in range(6):
        density = 0.0
        for e in range(3):
            std = np.exp(0.5 * log_variance[e, b].numpy())
            density += stats.norm.pdf(y[b].numpy(), mean[e, b].numpy(), std).prod() / 3
        got = mixture_log_prob(mean, log_variance, y)[b]
        assert float(got) == pytest.approx(math.log(density))


def test_advantage_is_normalised_and_without_gradient() -> None:
    value, baseline = randn(40).requires_grad_(), randn(40, seed=1).requires_grad_()
    got = normalised_advantage(3.0 * value + 5.0, baseline)
    assert not got.requires_grad
    assert float(got.mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(got.std()) == pytest.approx(1.0, rel=1e-5)


def test_adversarial_loss_by_hand() -> None:
    log_prob, advantage = torch.tensor([-1.0, 2.0, 0.5]), torch.tensor([1.0, -2.0, 4.0])
    loss, metrics = adversarial_loss(torch.tensor(7.0), log_prob, advantage, 0.3)
    assert float(loss) == pytest.approx(7.0 + 0.3 * (-1.0 - 4.0 + 2.0) / 3)
    assert float(metrics["adversary/attack"]) == pytest.approx(-1.0)


def model_value(agent: Any, seed: int) -> float:
    """Mean one-step value, r + gamma min Q, of the policy in the agent's model."""
    real = agent.source.real.rows
    obs = real.whole().obs
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        action = agent.learner.actor.explore(obs, generator)
        mean, _ = agent.model.members_predict(obs, action)
        next_obs, reward = agent.model.decode(obs, action, mean.mean(0))
        unit = agent.learner.actor.scale.to_unit(agent.learner.actor(next_obs))
        q = agent.learner.critic(torch.cat([next_obs, unit], -1))[..., 0].min(0).values
        return float((reward + 0.99 * q).mean())


def test_the_adversary_makes_the_model_worse_for_the_policy(pendulum: Dataset) -> None:
    """A turn lowers the value of the policy in the model; with weight 0 there is no turn. The
    count of steps is the setting's. (A known reference code stops at a literal 1000.)"""
    values = {"adversary": {"weight": 3.0, "steps": 60, "learning_rate": 3e-3, "batch_size": 64}}
    agent = prepared("rambo", pendulum, **values)
    before, counted = model_value(agent, 0), [0]
    step = agent.source.attack_step

    def counting(*arguments: Any) -> Any:
        counted[0] += 1
        return step(*arguments)

    agent.source.attack_step = counting
    agent.step = 10
    agent.advance()
    assert counted[0] == 60
    assert model_value(agent, 0) < before - 0.05
    calm = prepared("rambo", pendulum, adversary={"weight": 0.0})
    kept = [p.clone() for p in calm.model.network.parameters()]
    calm.step = 10
    calm.advance()
    assert all(
        torch.equal(a, b) for a, b in zip(kept, calm.model.network.parameters(), strict=True)
    )


def test_the_adversary_leaves_policy_and_critics_alone(pendulum: Dataset) -> None:
    agent = prepared("rambo", pendulum)
    kept = {k: [p.clone() for p in m.parameters()] for k, m in agent.modules.items()}
    model = [p.clone() for p in agent.model.network.mlp.parameters()]
    attacked = agent.source.attack()
    for name, module in agent.modules.items():
        assert all(torch.equal(a, b) for a, b in zip(kept[name], module.parameters(), strict=True))
    changed = zip(model, agent.model.network.mlp.parameters(), strict=True)
    assert all(not torch.equal(a, b) for a, b in changed)
    assert {"adversary/fit", "adversary/attack"} == attacked.keys()
    assert "adversary/fit" not in agent.advance()


def test_cloning_sees_every_row_once_in_a_fresh_order(pendulum: Dataset) -> None:
    """The first observations of each batch of two passes. (A known reference code shuffles an
    index that it never uses.)"""
    agent = agent_of("rambo", pendulum, cloning={"epochs": 2, "batch_size": 64})
    seen: list[torch.Tensor] = []
    original = agent.learner.actor.log_prob

    def watching(obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        seen.append(obs)
        return original(obs, action)

    agent.learner.actor.log_prob = watching
    epochs: list[dict[str, float]] = []
    agent.prepare(pendulum, lambda m: epochs.append({k: float(v) for k, v in m.items()}))
    rows = torch.cat(seen)
    data = pendulum.transitions.obs
    first, second = rows[: len(data)], rows[len(data) :]
    for part in (first, second):
        assert torch.equal(part.sort(0).values, data.sort(0).values)
        assert not torch.equal(part, data)
    assert not torch.equal(first, second)
    cloning = [e for e in epochs if "actor/cloning" in e]
    assert len(cloning) == 2 and cloning[1]["actor/cloning"] < cloning[0]["actor/cloning"]
    assert [e["model/epoch"] for e in epochs] == list(range(1, len(epochs) + 1))


def test_cloning_continues_where_it_stopped(pendulum: Dataset) -> None:
    whole = prepared("rambo", pendulum, cloning={"epochs": 4})
    broken = agent_of("rambo", pendulum, cloning={"epochs": 4})

    class Stop(Exception):
        pass

    def stop(metrics: Any) -> None:
        if broken.source.cloned == 2:
            raise Stop

    with pytest.raises(Stop):
        broken.prepare(pendulum, stop)
    again = agent_of("rambo", pendulum, cloning={"epochs": 4})
    again.load_state_dict(broken.state_dict())
    again.prepare(pendulum, lambda metrics: None)
    for a, b in zip(whole.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    assert isinstance(again.model, EnsembleDynamics) and again.source.epochs == whole.source.epochs


def test_a_model_that_is_given_is_copied_without_its_task() -> None:
    """MuJoCo's rule of ends is a method of a task that cannot be copied."""
    pytest.importorskip("mujoco")
    task, config = tasks.make("Hopper-v4"), build_config("rambo", CONFIGS["rambo"])
    model = EnsembleDynamics(task.spec, config.model, termination=task.terminates)
    agent = RAMBO(task.spec, config, model=model)
    assert agent.learned is not None and agent.learned.termination is model.termination
    for own, given in zip(
        agent.learned.network.parameters(), model.network.parameters(), strict=True
    ):
        assert own is not given and torch.equal(own, given)
