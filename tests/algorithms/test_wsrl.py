"""WSRL and RLPD: what they learn from, how often, and their targets against numpy."""

from typing import Any

import numpy as np
import pytest
import torch

from algorithms import CQL, RLPD, WSRL
from experiments.settings import build_config, merge
from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.types import Dataset
from tests.small import CONFIGS


def built(name: str, data: Dataset, **values: Any) -> Any:
    cls = {"wsrl": WSRL, "rlpd": RLPD}[name]
    return cls(data.spec, build_config(name, merge(CONFIGS[name], values)), seed=3)


def weights(agent: Any) -> list[torch.Tensor]:
    return [t.clone() for m in agent.modules.values() for t in m.state_dict().values()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def steps_of(optimiser: torch.optim.Optimizer) -> int:
    return int(next(iter(optimiser.state.values()))["step"])


def network(module: Any, x: np.ndarray, n: int) -> np.ndarray:
    """Member `n` at `x` [B, in] in double precision: Linear, LayerNorm, ReLU."""
    tensors = [[t.detach().double().numpy() for t in list(p)] for p in parts(module)]
    weights, biases, scales, shifts = tensors
    for layer, (w, b) in enumerate(zip(weights, biases, strict=True)):
        x = x @ w[n] + b[n]
        if layer < len(weights) - 1:
            x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
            x = np.maximum(x * scales[layer][n] + shifts[layer][n], 0.0)
    return x[:, 0]


def parts(module: Any) -> list[Any]:
    return [module.weights, module.biases, module.scales, module.shifts]


def test_wsrl_on_logged_data_is_calibrated_cql(pendulum: Dataset) -> None:
    """With its networks and rates, bit for bit; `policy_every` is for the task."""
    agent = built("wsrl", pendulum, learner={"policy_every": 3})
    values = {
        "learner": {
            name: getattr(agent.config.learner, name)
            for name in ("hidden", "critics", "batch_size", "actor_lr", "alpha_lr", "critic_lr")
        }
        | {"target_min_of": 2, "layer_norm": "all"},
        "samples": 3,
        "calibrated": True,
    }
    other = CQL(pendulum.spec, build_config("cql", values), seed=3)
    agent.fit(pendulum, 7, callbacks=[])
    other.fit(pendulum, 7, callbacks=[])
    assert same(weights(agent), weights(other))


def test_wsrl_waits_and_leaves_logged_rows_behind(pendulum: Dataset) -> None:
    """Nothing changes before `frozen` rows are there; batches never hold a logged row; then four
    steps of the critics come on one of the actor."""
    agent = built("wsrl", pendulum, frozen=20, updates_per_step=4, learner={"policy_every": 4}).fit(
        pendulum, 3, callbacks=[]
    )
    before, counts = weights(agent), [steps_of(o) for o in agent.optimisers.values()]
    assert counts == [3, 3, 3]
    task = make("Pendulum-v1")
    agent.learn(task, 20, callbacks=[])
    assert same(before, weights(agent)) and len(agent.source.rows) == 20
    collector = agent.collector(task)
    for _ in range(24):  # 20 rows more without an update, then 4 with
        for _ in range(collector.collect(agent)):
            batch = agent.next_batch()
            known = agent.source.rows.whole().obs
            assert bool((batch.obs[:, None] == known).all(-1).any(1).all())
            agent.update(batch)
    batch = agent.source.rows.whole()
    assert batch.to_go is not None and not bool(batch.to_go.any())  # nothing reads it in the task
    counts = {name: steps_of(o) - 3 for name, o in agent.optimisers.items()}
    assert counts == {"critic": 16, "actor": 4, "alpha": 4}
    logged = pendulum.transitions.obs
    assert not bool((agent.source.rows.whole().obs[:, None] == logged).all(-1).any())


@pytest.mark.parametrize("name", ["wsrl", "rlpd"])
def test_losses_in_the_task_against_numpy(name: str, pendulum: Dataset) -> None:
    """Critics with LayerNorm; WSRL's targets without entropy and its actor by the least critic,
    RLPD's with entropy and by the mean; both take the least of two random critics."""
    agent = built(name, pendulum, learner={"critics": 4})
    agent.prepare(pendulum, lambda metrics: None)
    learner = agent.learner
    learner.offline = False
    with torch.no_grad():
        for p in learner.target.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
        for part in (*learner.critic.scales, *learner.critic.shifts):
            part.add_(0.1 * torch.randn(part.shape, generator=torch.Generator().manual_seed(2)))
    batch = agent.next_batch()
    assert batch.subset is not None and len(batch.subset) == 2
    action, log_prob = (
        t.detach().double() for t in learner.actor.sample(batch.next_obs, batch.noise[1])
    )
    x = np.concatenate([batch.next_obs.double(), action], -1)
    least = np.min([network(learner.target, x, int(n)) for n in batch.subset], 0)
    alpha = float(learner.log_alpha.detach().exp())
    if name == "rlpd":
        least = least - alpha * log_prob.numpy()
    target = batch.reward.double().numpy() + batch.discount.double().numpy() * least
    got = learner.target_of(learner, batch, {})
    assert got.numpy() == pytest.approx(target, abs=1e-4)
    x = np.concatenate([batch.obs.double(), batch.action.double()], -1)
    errors = [np.mean((network(learner.critic, x, n) - target) ** 2) for n in range(4)]
    loss, _ = learner.critic_loss(learner, batch, got)
    assert float(loss.detach()) == pytest.approx(sum(errors), rel=1e-4)

    action, log_prob = (
        t.detach().double() for t in learner.actor.sample(batch.obs, batch.noise[0])
    )
    x = np.concatenate([batch.obs.double(), action], -1)
    values = np.stack([network(learner.critic, x, n) for n in range(4)])
    value = values.mean(0) if name == "rlpd" else values.min(0)
    entropy = learner.target_entropy + float(log_prob.mean())
    before = float(learner.log_alpha.detach())
    metrics = learner.update_policy(batch)
    alpha = float(learner.log_alpha.detach().exp())  # moved first
    assert np.sign(float(learner.log_alpha.detach()) - before) == np.sign(entropy)
    expected = np.mean(alpha * log_prob.numpy() - value)
    assert float(metrics["actor/loss"]) == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert learner.target_entropy == (-0.5 if name == "rlpd" else -1.0)


def test_rlpd_draws_half_of_every_batch_from_logged_rows(pendulum: Dataset) -> None:
    agent = built("rlpd", pendulum, learner={"batch_size": 16, "policy_every": 2})
    agent.prepare(pendulum, lambda metrics: None)
    agent.learn(make("Pendulum-v1"), 14, callbacks=[])  # 8 rows first, half of a batch
    assert steps_of(agent.optimisers["critic"]) == 12
    assert steps_of(agent.optimisers["actor"]) == 6
    batch = agent.next_batch()
    logged = (batch.obs[:, None] == pendulum.transitions.obs).all(-1).any(1)
    assert logged.tolist() == [True] * 8 + [False] * 8


def test_rlpd_without_logged_rows_is_refused(pendulum: Dataset) -> None:
    with pytest.raises(ConfigError, match="has no logged rows"):
        built("rlpd", pendulum).learn(make("Pendulum-v1"), 1, callbacks=[])


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="critics without LayerNorm"):
        build_config("edac", {"learner": {"eta": 1.0, "layer_norm": "critics"}})
    with pytest.raises(ConfigError, match="Cal-QL with a fixed weight"):
        build_config("wsrl", {"threshold": 1.0})
