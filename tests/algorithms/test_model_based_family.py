"""MOReL, MOBILE, COMBO and RAMBO against slow loops and closed forms, and the traps of known
reference codes."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from algorithms import ALGORITHMS
from algorithms.combo import conservative_gap
from algorithms.learners.soft_actor_critic import soft_value_target
from algorithms.mobile import bellman_inconsistency, inconsistency
from algorithms.morel import MEASURE, halt_threshold
from algorithms.rambo import adversarial_loss, mixture_log_prob, normalised_advantage
from experiments.settings import build_config, merge
from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.types import Dataset
from tests.algorithms.reference_values import slow_soft_maximum, slow_value
from tests.small import CONFIGS
from world_models import EnsembleDynamics, RolloutConfig, TrueDynamics
from world_models.rollout import HaltingRollout

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


# MOReL.


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        ("mean_std", 2.0, lambda x: x.mean() + 2 * x.std()),
        ("quantile", 0.9, lambda x: np.quantile(x, 0.9, method="higher")),
        ("quantile", 1.0, lambda x: x.max()),
        ("maximum", 1.5, lambda x: 1.5 * x.max()),
    ],
)
def test_halt_threshold(rule: Any, value: float, expected: Any) -> None:
    level = randn(151).abs()
    got = halt_threshold(level, rule, value)
    assert float(got) == pytest.approx(float(expected(level.numpy())))


def test_morel_threshold_is_of_the_data_and_halt_is_recorded(pendulum: Dataset) -> None:
    """The threshold by a loop over rows and pairs of members at the same input; every imagined row
    above it ends with the halt reward, every other one is the model's."""
    agent = prepared("morel", pendulum, threshold=0.5, halt_offset=-7.0)
    data, model = pendulum.transitions, agent.model
    mean, _ = model.members_predict(data.obs, data.action)
    levels = []
    for row in mean.transpose(0, 1).double().numpy():
        levels.append(max(np.linalg.norm(a - b) for a in row for b in row))
    threshold, reward = agent.source.halt.tolist()
    assert threshold == pytest.approx(np.mean(levels) + 0.5 * np.std(levels), rel=1e-4)
    assert reward == pytest.approx(float(data.reward.min()) - 7.0)
    agent.source.imagine(0, agent.generator)
    imagined = agent.source.imagined
    rows = imagined.batch(imagined.rows[: len(imagined)])
    action = agent.policy.scale.to_task(rows.action)
    halted = model.disagreement(rows.obs, action, MEASURE) > threshold
    assert 0 < int(halted.sum()) < len(halted)
    assert torch.equal(rows.reward == agent.source.halt[1], halted)
    assert torch.equal(rows.halted == 1, halted)
    assert (rows.discount[halted] == 0).all() and (rows.discount[~halted] > 0).all()


def test_morel_compares_members_at_one_input_only(pendulum: Dataset) -> None:
    """Members that agree everywhere never halt, however far apart the data's predictions lie. (A
    known reference code compares across inputs too.)"""
    agent = prepared("morel", pendulum, threshold_rule="maximum")
    with torch.no_grad():
        for p in agent.model.network.mlp.parameters():
            p.copy_(p[:1].expand_as(p))
    agent.source.halt = None
    agent.prepare(pendulum, lambda metrics: None)
    assert float(agent.source.halt[0]) == pytest.approx(0.0, abs=1e-4)
    mean, _ = agent.model.members_predict(pendulum.transitions.obs, pendulum.transitions.action)
    assert float((mean[0] - mean[0, 0]).norm(dim=-1).max()) > 0.1


def test_morel_halt_for_ever_is_below_every_return(pendulum: Dataset) -> None:
    """Where all rewards are negative, a HALT that pays once would be worth more than going on."""
    once = prepared("morel", pendulum, halt_offset=0.0)
    ever = prepared("morel", pendulum, halt_offset=0.0, halt_forever=True)
    assert float(ever.source.halt[1]) == pytest.approx(float(once.source.halt[1]) / 0.01, rel=1e-5)
    worst = float(pendulum.transitions.reward.min()) / (1 - 0.99)
    assert float(ever.source.halt[1]) <= worst + 1e-3 < float(once.source.halt[1])


def test_morel_keeps_its_threshold(pendulum: Dataset, tmp_path) -> None:
    agent = agent_of("morel", pendulum).fit(pendulum, 3, callbacks=[])
    agent.save(tmp_path / "a.pt")
    again = type(agent).load(tmp_path / "a.pt")
    assert torch.equal(agent.source.halt, again.source.halt)
    with pytest.raises(ConfigError, match="it must lie in"):
        replace(agent.config, threshold_rule="quantile", threshold=2.0)
    stopping = RolloutConfig(stop=MEASURE, stop_above=1.0)
    with pytest.raises(ConfigError, match="stops rollouts by its own rule"):
        replace(agent.config, imagination=replace(agent.config.imagination, rollout=stopping))
    with pytest.raises(ConfigError, match="name the measure"):
        HaltingRollout(halt_reward=-1.0)


# MOBILE.


def test_bellman_inconsistency_against_a_loop() -> None:
    q = randn(4, 3, 5)
    for b in range(5):
        means = [float(np.mean(q[:, e, b].numpy())) for e in range(3)]
        got = bellman_inconsistency(q)[b]
        assert float(got) == pytest.approx(np.std(means, ddof=1))


def test_mobile_penalty_is_of_imagined_rows_alone(pendulum: Dataset) -> None:
    """One row, member and sample at a time with the same draws; real rows have no penalty, and the
    critic's target is lowered by the weighted penalty."""
    agent = prepared("mobile", pendulum, samples=2, imagination={"real_ratio": 0.25})
    with torch.no_grad():  # critics that differ from each other at every state
        for p in agent.learner.target.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
    agent.advance()
    batch = agent.next_batch()
    assert (batch.penalty[:4] == 0).all() and (batch.penalty[4:] > 0).all()
    before = agent.generator.get_state()
    got = inconsistency(
        agent.learner, agent.model, batch.obs[4:], batch.action[4:], 2, agent.generator
    )
    agent.generator.set_state(before)
    rows, members = 12, agent.model.num_members
    state_noise = torch.randn(2, members, rows, 4, generator=agent.generator)
    action_noise = torch.randn(2, members, rows, 1, generator=agent.generator)
    actor, critics = agent.learner.actor, agent.learner.target
    for b in range(rows):
        obs, action = batch.obs[4 + b], batch.action[4 + b]
        values = np.zeros((2, members))
        for e in range(members):
            mean, variance = agent.model.members_predict(obs[None], 2.0 * action[None])
            for k in range(2):
                y = mean[e, 0] + variance[e, 0].sqrt() * state_noise[k, e, b]
                next_obs = obs + y[:3]
                centre, log_std = actor.distribution(next_obs)
                pre = centre + log_std.exp() * action_noise[k, e, b]
                x = torch.cat([next_obs, torch.tanh(pre)])[None].detach()
                values[k, e] = min(float(critics.member(x, n).detach()) for n in range(3))
        assert float(got[b]) == pytest.approx(np.std(values.mean(0), ddof=1), rel=1e-3, abs=1e-6)
    plain = soft_value_target(agent.learner, batch)
    lowered = agent.penalised_target(agent.learner, batch, {})
    assert torch.allclose(plain - lowered, 0.5 * batch.penalty, atol=1e-5)


@pytest.mark.parametrize("clamp", [False, True])
def test_mobile_targets_may_be_negative_unless_clamped(clamp: bool, pendulum: Dataset) -> None:
    """A known reference code clamps at 0, so that on Pendulum every target is 0."""
    agent = prepared("mobile", pendulum, clamp_target_at_zero=clamp)
    with torch.no_grad():
        agent.learner.target.biases[-1].sub_(100.0)
    agent.advance()
    target = float(agent.update(agent.next_batch())["critic/target"])
    assert target == 0.0 if clamp else target < -90.0


def test_mobile_and_rambo_need_an_ensemble(pendulum: Dataset) -> None:
    for name in ("mobile", "rambo"):
        with pytest.raises(ConfigError, match="model is a TrueDynamics"):
            ALGORITHMS[name][0](pendulum.spec, model=TrueDynamics(make("Pendulum-v1")))
    with pytest.raises(ConfigError, match="at least two members"):
        build_config("mobile", {"model": {"elites": 1}})


# COMBO.


@pytest.mark.parametrize("states", ["mixture", "model"])
def test_combo_gap_against_an_independent_loop(states: str, pendulum: Dataset) -> None:
    """The soft maximum runs over all 3M actions of a state (a known reference code reduces over
    the three kinds instead); logged values are of real rows alone."""
    learner = {"hidden": [16, 16], "batch_size": 8, "critics": 2}
    values = {"learner": learner, "samples": 4, "states": states}
    agent = prepared("combo", pendulum, **values, imagination={"real_ratio": 0.5})
    agent.advance()
    batch = agent.next_batch()
    critic = agent.learner.critic

    expected = []
    for n in range(2):
        rows = range(4 if states == "model" else 0, 8)
        soft = [slow_soft_maximum(agent.learner, batch, n, b, 4) for b in rows]
        logged = [slow_value(critic, n, batch.obs[b], batch.action[b]) for b in range(4)]
        expected.append(np.mean(soft) - np.mean(logged))
    learner = agent.learner
    metrics = learner.update_critic(batch, soft_value_target(learner, batch))
    assert float(metrics["critic/gap"]) == pytest.approx(np.mean(expected), rel=1e-4)


def test_combo_pushes_sampled_values_down_and_logged_ones_up(pendulum: Dataset) -> None:
    """Both terms have their gradient: shifting all values changes nothing, and the gradient at the
    imagined rows is not zero. (A known reference code stops the gradient of the sampled term.)"""
    agent = prepared("combo", pendulum)
    agent.advance()
    batch = agent.next_batch()
    critic = agent.learner.critic
    x = torch.cat([batch.obs, batch.action], -1)
    gap = conservative_gap(agent.learner, batch, critic(x)[..., 0], agent.config)
    last_bias = torch.autograd.grad(gap.sum(), critic.biases[-1], retain_graph=True)[0]
    assert last_bias.abs().max() < 1e-5  # +1 of the sampled term, -1 of the logged one
    real = int(len(x) * 0.5)
    only_logged = -critic(x)[:, :real, 0].mean(1)
    whole = torch.autograd.grad(gap.sum(), critic.weights[0])[0]
    logged = torch.autograd.grad(only_logged.sum(), critic.weights[0])[0]
    assert not torch.allclose(whole, logged, rtol=0.1, atol=1e-4)


def test_combo_backup_and_wrong_ratios(pendulum: Dataset) -> None:
    for entropy in (False, True):
        agent = prepared("combo", pendulum, learner={"entropy_in_target": entropy})
        agent.advance()
        batch = agent.next_batch()
        action, log_prob = agent.learner.actor.sample(batch.next_obs, batch.noise[1])
        q = agent.learner.target(torch.cat([batch.next_obs, action], -1))[..., 0].min(0).values
        bonus = agent.learner.log_alpha.exp() * log_prob if entropy else 0.0
        expected = batch.reward + batch.discount * (q - bonus)
        assert torch.allclose(soft_value_target(agent.learner, batch), expected, atol=1e-5)
    for ratio, states in ((0.001, "mixture"), (1.0, "model")):
        with pytest.raises(ConfigError, match=f"real_ratio is {ratio}"):
            build_config("combo", {"imagination": {"real_ratio": ratio}, "states": states})


# RAMBO.


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
    obs = real.batch(real.rows[: real.size]).obs
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        action = agent.learner.actor.explore(obs, generator)
        mean, _ = agent.model.members_predict(obs, action)
        next_obs, reward = agent.model.decode(obs, mean.mean(0))
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
