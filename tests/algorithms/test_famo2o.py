"""FamO2O: its balances, who learns from which loss, and greed where data are bad."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from algorithms import FamO2O
from algorithms.famo2o import balance_code
from algorithms.learners.critics import q_values
from experiments.settings import build_config
from mbrl.errors import ConfigError
from mbrl.types import Dataset, Provenance, Spec, Transitions
from tests.algorithms.batches import double_batch

D = torch.float64
SPEC = Spec("small", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)


def learner(**values: Any) -> Any:
    config = build_config("famo2o", {"hidden": [8], "gamma": 0.9} | values)
    made = FamO2O(SPEC, config, seed=0).learner
    for module in made.modules.values():
        module.double()
    return made


def weights(module: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def test_code_of_a_balance() -> None:
    """Sines and cosines of ever slower angles, in turn; two balances never share a code."""
    code = balance_code(torch.tensor([[0.0], [3.0]], dtype=D), 6, 10_000.0)
    assert code[0].tolist() == [0, 1, 0, 1, 0, 1]
    angles = [3.0, 3.0 / 10_000 ** (1 / 3), 3.0 / 10_000 ** (2 / 3)]
    expected = [f(a) for a in angles for f in (np.sin, np.cos)]
    assert np.allclose(code[1], expected)
    many = balance_code(torch.linspace(8, 14, 500, dtype=D)[:, None], 6, 10_000.0)
    apart = torch.cdist(many, many) + torch.eye(500)
    assert float(apart.min()) > 1e-3


def test_balances_of_the_policy_step() -> None:
    """Uniform on logged data; in the task the balance policy's."""
    made = learner(lowest=2.0, highest=6.0)
    batch = double_batch(made, 4000)
    assert batch.noise is not None
    seen: list[torch.Tensor] = []
    original = made.policy.with_balance
    made.policy.with_balance = lambda obs, balance: seen.append(balance) or original(obs, balance)
    made.update_policy(batch, torch.zeros(4000, dtype=D))
    uniform = seen.pop()[:, 0].numpy()
    assert stats.kstest(uniform, stats.uniform(2.0, 4.0).cdf).pvalue > 0.01
    made.offline = False
    made.update_policy(batch, torch.zeros(4000, dtype=D))
    balance, _ = made.policy.sampled(batch.obs, batch.noise[2, :, :1])
    assert torch.equal(seen.pop(), balance.detach())
    assert float(balance.min()) >= 2.0 and float(balance.max()) <= 6.0


def test_losses_against_their_formulas() -> None:
    """One balance alone: the policy's is IQL's with that temperature."""
    made = learner(lowest=2.5, highest=2.5, max_weight=4.0)
    batch, advantage = double_batch(made, 6), torch.randn(6, dtype=D)
    obs = made.policy.normaliser(batch.obs)
    code = balance_code(torch.full((6, 1), 2.5, dtype=D), 6, 10_000.0)
    mean = torch.tanh(made.policy.universal.net(torch.cat([obs, code], -1)))
    log_prob = stats.norm(mean.detach().numpy(), 1.0).logpdf(batch.action.numpy()).sum(-1)
    weight = np.minimum(np.exp(2.5 * advantage.numpy()), 4.0)
    metrics = made.update_policy(batch, advantage)
    assert float(metrics["actor/loss"]) == pytest.approx(float(-(weight * log_prob).mean()))


def test_balance_loss_reaches_the_balance_policy_alone() -> None:
    made = learner(alpha=0.3)
    batch = double_batch(made, 6)
    assert batch.noise is not None
    others = [made.policy.universal, made.critic, made.critic_target, made.value]
    before = [weights(m) for m in (*others, made.policy.balance)]
    balance, log_prob = made.policy.sampled(batch.obs, batch.noise[1, :, :1])
    inputs = made.policy.with_balance(batch.obs, balance)
    action, _ = made.policy.universal.sample(inputs, batch.noise[0])
    value = q_values(made.critic_target, batch.obs, action).min(0).values
    expected = (0.3 * log_prob - value).mean()
    metrics = made.update_balance(batch)
    assert float(metrics["balance/loss"]) == pytest.approx(float(expected))
    after = [weights(m) for m in (*others, made.policy.balance)]
    same = [
        all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        for one, other in zip(before, after, strict=True)
    ]
    assert same == [True] * 4 + [False]


def test_temperature_follows_the_entropy_of_the_balances() -> None:
    """It rises while their entropy is below the target, and falls above it."""
    for target, sign in ((50.0, 1), (-50.0, -1)):
        made = learner(target_entropy=target)
        made.update_balance(double_batch(made, 6))
        assert np.sign(float(made.log_alpha.detach())) == sign  # it began at 0


@pytest.mark.long
def test_the_balance_is_greedier_where_data_are_worse() -> None:
    """A bandit with two states. In the first every logged action is the best one; in the second
    one in ten is, and cloning would miss it."""
    spec = Spec("bandit", 1, 1, None, (-1.0,), (1.0,), 2)
    generator = torch.Generator().manual_seed(0)
    state = (torch.rand(2000, 1, generator=generator) < 0.5).float()
    good = (torch.rand(2000, 1, generator=generator) < 0.1) | (state == 0)
    action = torch.where(good, 0.5, -0.5) + 0.05 * torch.randn(2000, 1, generator=generator)
    reward = -(action - 0.5).abs()[:, 0]
    ends = torch.ones(2000, dtype=torch.bool)
    data = Transitions(state, action, reward, state, ends, ends & False)
    settings = {"hidden": [32, 32], "learning_rate": 2e-3, "lowest": 0.1, "highest": 12.0}
    agent = FamO2O(spec, build_config("famo2o", settings | {"alpha": 0.02}))
    agent.fit(Dataset(data, spec, Provenance(card="test/bandit")), 1500, callbacks=[])
    both = torch.tensor([[0.0], [1.0]])
    chosen = agent.policy.chosen(both)[:, 0]
    assert float(chosen[1]) > float(chosen[0])
    cloned, greedy = (agent.policy.at(both[1:], beta).item() for beta in (0.1, 12.0))
    assert cloned < -0.2 and greedy > 0.2
    assert agent.act(both)[0][:, 0].tolist() == pytest.approx([0.5, 0.5], abs=0.25)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="must not lie above highest"):
        build_config("famo2o", {"lowest": 6.0})
    with pytest.raises(ConfigError, match="must be even"):
        build_config("famo2o", {"code": 5})
