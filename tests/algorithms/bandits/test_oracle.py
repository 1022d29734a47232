"""Regression oracles against direct solutions and loops in float64."""

import numpy as np
import pytest
import torch

from algorithms.bandits import BANDITS, NetworkOracle, OracleConfig, RidgeOracle, Rows
from algorithms.bandits import oracle as oracles
from algorithms.evaluation.bandit import logistic_regression
from mbrl import checkpoint
from mbrl import config as configs
from mbrl.errors import ConfigError, DataError


def rows(count: int, size: int, actions: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    return (
        torch.from_numpy(rng.normal(size=(count, size))).float(),
        torch.from_numpy(rng.integers(actions, size=count)),
        torch.from_numpy(rng.random(count)).float(),
        torch.from_numpy(rng.poisson(1.0, size=(2, count))).float(),
    )


def test_ridge_is_weighted_least_squares_for_each_action() -> None:
    context, action, reward, weight = rows(60, 4, 3)
    oracle = RidgeOracle(4, 3, 2, OracleConfig(kind="ridge", ridge=0.7))
    for part in zip(*(x.split(7) for x in (context, action, reward, weight.T)), strict=True):
        oracle.update(*part[:3], part[3].T)
    x = np.column_stack([context.numpy(), np.ones(60)]).astype(np.float64)
    probe = np.array([0.3, -1.0, 2.0, 0.1, 1.0])
    predicted = oracle.predict(torch.from_numpy(probe[None, :4]))
    for e in range(2):
        for a in range(3):
            mine = (action == a).numpy()
            w = weight[e].numpy()[mine].astype(np.float64)
            left = 0.7 * np.eye(5) + x[mine].T @ (w[:, None] * x[mine])
            theta = np.linalg.solve(left, x[mine].T @ (w * reward.numpy()[mine].astype(np.float64)))
            assert float(predicted[e, 0, a]) == pytest.approx(float(theta @ probe), abs=1e-10)


@pytest.mark.parametrize("ridge", [1.0, 1e-6])
def test_contexts_beyond_the_digits_of_least_squares_are_refused(ridge: float) -> None:
    context, action, reward, weight = rows(60, 4, 3)
    size = ridge**0.5 * context / context.norm(dim=1, keepdim=True)
    oracle = RidgeOracle(4, 3, 2, OracleConfig(kind="ridge", ridge=ridge))
    oracle.update(0.9e7 * size, action, reward, weight)
    before = oracle.inverse.clone()
    with pytest.raises(DataError, match="divide contexts by their deviation"):
        oracle.update(1e8 * size, action, reward, weight)
    assert torch.equal(oracle.inverse, before)


@pytest.mark.parametrize("loss", ["squared", "log"])
def test_the_loss_is_that_of_the_taken_action_alone(loss: str) -> None:
    oracle = NetworkOracle(
        4, 3, 2, OracleConfig(loss=loss, hidden=(5,)), torch.Generator().manual_seed(0)
    )
    oracle.network.double()
    context, action, reward, weight = rows(6, 4, 3)
    x = context.double()
    value = oracle.network.batched(x).detach()
    expected = 0.0
    for e in range(2):
        for i in range(6):
            out, r = float(value[e, i, action[i]]), float(reward[i])
            if loss == "squared":
                each = (out - r) ** 2
            else:
                p = 1 / (1 + np.exp(-out))
                each = -r * np.log(p) - (1 - r) * np.log(1 - p)
            expected += float(weight[e, i]) * each / 6
    got = oracle.loss(x, action, reward.double(), weight.T.double())
    assert float(got.detach()) == pytest.approx(expected, rel=1e-6)
    oracle.network.float()
    predicted = oracle.predict(context)
    if loss == "log":
        value = torch.sigmoid(value)
    assert torch.allclose(predicted.double(), value, atol=1e-6)


@pytest.mark.long
def test_a_linear_network_comes_to_the_solution() -> None:
    """Squared loss: least squares. Log-loss: logistic regression, without a penalty to speak of."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 2))
    p = 1 / (1 + np.exp(-(x @ [1.0, -0.5] + 0.3)))
    click = (rng.random(400) < p).astype(np.float64)
    context, reward = torch.from_numpy(x).float(), torch.from_numpy(click).float()
    zero, one = torch.zeros(400, dtype=torch.long), torch.ones(1, 400)
    design = np.column_stack([x, np.ones(400)])
    least = design @ np.linalg.lstsq(design, click, rcond=None)[0]
    logistic = logistic_regression(x, click, 1e6)(x)
    for loss, expected in (("squared", least), ("log", logistic)):
        config = OracleConfig(loss=loss, learning_rate=3e-3, updates=5.0, batch_size=400)
        oracle = NetworkOracle(2, 2, 1, config, torch.Generator().manual_seed(0))
        oracle.update(context, zero, reward, one)
        for group in oracle.optimiser.param_groups:
            group["lr"] = 1e-4
        oracle.update(context, zero, reward, one)
        assert np.abs(oracle.predict(context)[0, :, 0].numpy() - expected).max() < 0.02, loss


@pytest.mark.parametrize("kind", ["ridge", "network"])
def test_memory_of_the_last_rows_forgets(kind: str) -> None:
    """The prediction depends on the last update alone, but for the random numbers."""
    config = OracleConfig(kind=kind, memory="last", updates=20.0)
    cls, base = BANDITS["epsilon_greedy"]
    learner = cls(4, 3, base(oracle=config))
    first, last = rows(40, 4, 3, 1), rows(40, 4, 3, 2)
    learner.update(Rows(*first[:3], torch.ones(40)))
    learner.update(Rows(*last[:3], torch.ones(40)))
    if kind == "ridge":
        alone = RidgeOracle(4, 3, 1, config)
        alone.update(*last[:3], torch.ones(1, 40))
        assert torch.equal(learner.oracle.predict(last[0]), alone.predict(last[0]))
    else:
        assert learner.oracle.count == 40 and torch.equal(learner.oracle.rows[0][:40], last[0])


@pytest.mark.parametrize("name", BANDITS)
@pytest.mark.parametrize("kind", ["ridge", "network"])
def test_a_saved_learner_goes_on_as_the_other(name: str, kind: str, tmp_path) -> None:
    if name == "fastcb" and kind == "ridge":
        pytest.skip("its oracle has the log-loss")
    cls, base = BANDITS[name]
    config = configs.from_dict(base, {"oracle": {"kind": kind}} if kind == "ridge" else {})
    one = cls(4, 3, config, seed=0)

    def go_on(learner, seed: int) -> torch.Tensor:
        context, _, reward, _ = rows(20, 4, 3, seed)
        for i in range(20):
            action, p = learner.act(context[i : i + 1])
            learner.update(Rows(context[i : i + 1], action, reward[i : i + 1], p))
        return learner.probabilities(context)

    go_on(one, 1)
    checkpoint.save(tmp_path / "learner.pt", one.state_dict())
    other = cls(4, 3, config, seed=9)
    other.load_state_dict(checkpoint.load(tmp_path / "learner.pt"))
    assert torch.equal(go_on(one, 2), go_on(other, 2))


@pytest.mark.parametrize("kind", ["ridge", "network"])
def test_a_learner_goes_back_to_a_state_that_it_gave_twice(kind: str) -> None:
    cls, base = BANDITS["squarecb"]
    learner = cls(4, 3, configs.from_dict(base, {"oracle": {"kind": kind}}), seed=0)

    def go_on(seed: int) -> torch.Tensor:
        context, action, reward, _ = rows(20, 4, 3, seed)
        learner.update(Rows(context, action, reward, torch.full((20,), 1 / 3)))
        return learner.probabilities(context)

    go_on(1)
    state = learner.state_dict()
    first = go_on(2)
    for _ in range(2):
        learner.load_state_dict(state)
        assert torch.equal(go_on(2), first)


def test_a_state_of_another_learner_is_refused() -> None:
    cls, base = BANDITS["squarecb"]
    ridge = OracleConfig(kind="ridge")
    learner = cls(4, 3, base(oracle=ridge))
    state = learner.state_dict()
    with pytest.raises(ConfigError, match="other settings: gamma_scale"):
        cls(4, 3, base(oracle=ridge, gamma_scale=1.0)).load_state_dict(state)
    with pytest.raises(ConfigError, match="state is of 4 numbers in a context and 3 actions"):
        cls(5, 3, base(oracle=ridge)).load_state_dict(state)
    earlier = {name: state[name] for name in ("oracle", "learned", "generator")}
    learner.load_state_dict(earlier)


def test_an_impossible_oracle_is_refused() -> None:
    with pytest.raises(ConfigError, match="kind is 'ridge' with loss 'log'"):
        OracleConfig(kind="ridge", loss="log")


@pytest.mark.parametrize("memory", ["all", "last"])
@pytest.mark.parametrize("updates", [0.05, 0.5, 1.4, 2.0])
def test_gradient_steps_are_as_many_as_were_asked_for(
    updates: float, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row by row, and a saved oracle goes on counting where the other stood."""
    count: list[int] = []
    monkeypatch.setattr(oracles, "descend", lambda *_: count.append(1))
    config = OracleConfig(updates=updates, memory=memory)
    draw = torch.Generator().manual_seed(0)
    one = NetworkOracle(4, 3, 1, config, draw)
    context, action, reward, _ = rows(60, 4, 3)
    for i in range(60):
        if i == 33:
            state, one = one.state_dict(), NetworkOracle(4, 3, 1, config, draw)
            one.load_state_dict(state)
        at = slice(i, i + 1)
        one.update(context[at], action[at], reward[at], torch.ones(1, 1))
    assert abs(len(count) - 60 * updates) < 1
