"""What recipes need beside log-probs, made from episodes: against loops and closed forms."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms import PolicyGradient, PolicyGradientConfig
from mbrl.errors import ConfigError
from mbrl.evaluation import evaluate
from mbrl.policy_gradient.collectors import EpisodeCollector
from mbrl.tasks.base import Step
from mbrl.types import Trajectories
from tests.algorithms.test_policy_gradient import LEARNING, Signs, continued, heard

SMALL = {"hidden": (), "envs": 12, "group": 3, "minibatches": 2}


@pytest.mark.parametrize(
    ("name", "discrete"),
    [("remax", True), ("riskpo", True), ("vcpo", False)]
    + [
        pytest.param(*p, marks=pytest.mark.long)
        for p in (("vcpo", True), ("epo", True), ("remax", False))
    ],
)
def test_recipes_with_a_part_learn_to_answer(name: str, discrete: bool) -> None:
    """The best policy earns 4 an episode, a random one less than 2."""
    task = Signs(discrete)
    # Without a clip, and with a greedy copy that is always right, deviations run away at 0.02.
    slowly = {} if discrete else {"learning_rate": 0.005}
    config = PolicyGradientConfig(recipe=name, **(LEARNING | {"epochs": 1} | slowly))
    agent = PolicyGradient(task.spec, config, seed=0)
    assert evaluate(agent, task, 200, deterministic=False).mean() < 2.5
    agent.learn(task, 120, callbacks=[])
    assert evaluate(agent, task, 200).mean() > 3.8


def agent_of(name: str, **changes: object) -> PolicyGradient:
    config = PolicyGradientConfig(recipe=name, **(SMALL | changes))
    return PolicyGradient(Signs(discrete=True).spec, config, seed=0)


def estimated(agent: PolicyGradient) -> Trajectories:
    """The next round, as the recipe gets to see it."""
    heard(agent, Signs(discrete=True))
    assert agent.data is not None
    return agent.data.data


@pytest.mark.parametrize("discrete", [True, False])
def test_the_last_copy_of_every_start_acts_greedily_and_is_not_learned_from(discrete: bool) -> None:
    """With greedy episodes played again from the same starts, one by one."""
    task = Signs(discrete)
    config = PolicyGradientConfig(recipe="remax", reward_scale=2.0, **SMALL)
    agent = PolicyGradient(task.spec, config, seed=0)
    collector = agent.collector(task)
    starts = collector.state[::3].clone()
    with torch.no_grad():  # one action everywhere, which is right from some starts more often
        agent.policy.net.layers[-1].weight.zero_()
        agent.policy.net.layers[-1].bias[0] = 1.0
    expected = []
    for start in starts:
        state, total = start[None], 0.0
        for _ in range(4):
            action, _ = agent.act(task.observe(state), deterministic=True)
            step = task.step(state, action)
            total, state = total + float(step.reward), step.state
            if step.terminated:
                break
        expected.append(2.0 * total)
    assert len(set(expected)) > 1
    while not collector.collect(agent):
        pass
    assert agent.data is not None
    t = agent.data.data
    assert len(t.mask) == 8 and collector.rows_seen > int(t.mask.sum())
    assert t.groups["prompt"][:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    found = t.signals["greedy_return"]
    assert torch.equal(found, found[:, :1].expand_as(found))
    assert found[::2, 0].tolist() == expected == found[1::2, 0].tolist()
    advantage = torch.where(t.mask, t.reward, 0.0).sum(1) - found[:, 0]
    torch.testing.assert_close(agent.data.estimate.advantage[:, 0], advantage)


def test_rounds_without_a_greedy_copy_explore_with_all() -> None:
    task = Signs(discrete=True)
    assert not EpisodeCollector(task, envs=4, group=2).greedy
    assert not agent_of("grpo").collector(task).greedy
    assert agent_of("remax").collector(task).greedy


def test_papers_of_a_bundle_are_the_answers_of_one_number() -> None:
    """Seven starts: one bundle of them; the papers' scores are sums over starts."""
    agent = agent_of("riskpo", envs=21)
    assert agent.reward == "success"
    t = estimated(agent)
    right = torch.where(t.mask, t.reward, 0.0).sum(1).numpy()
    assert set(right.tolist()) == {0.0, 1.0}
    scores = [right[number::3].sum() for number in range(3)]
    low, high = np.quantile(scores, [0.2, 0.8])
    assert t.groups["bundle"].unique().tolist() == [0]
    assert t.groups["paper"][:, 0].tolist() == [0, 1, 2] * 7
    assert t.signals["quantile_low"].unique().item() == pytest.approx(low)
    assert t.signals["quantile_high"].unique().item() == pytest.approx(high)
    again = estimated(agent)
    right = torch.where(again.mask, again.reward, 0.0).sum(1).numpy()
    below = np.mean([right[number::3].sum() < low for number in range(3)])
    moved = low + 0.1 * (0.2 - below)
    assert again.signals["quantile_low"].unique().item() == pytest.approx(moved)


def test_bundles_of_kept_rounds_are_different_ones() -> None:
    agent = agent_of("riskpo", envs=33, keep=2)  # eleven starts: two bundles a round
    estimated(agent)
    t = estimated(agent)
    rounds = t.groups["bundle"][:33, 0], t.groups["bundle"][33:, 0]
    assert len(rounds[0].unique()) == len(rounds[1].unique()) == 2
    assert not set(rounds[0].tolist()) & set(rounds[1].tolist())
    assert len(t.groups["prompt"].unique()) == 22


def test_gradients_of_episodes_have_the_norm_of_a_linear_softmax() -> None:
    """d log pi / d W = (chosen - pi) obs^T and d log pi / d b = chosen - pi, summed over steps."""
    agent = agent_of("vcpo", normalise_obs=False)
    t = estimated(agent)
    assert len(agent.policy.net.layers) == 1
    before = PolicyGradient(agent.spec, agent.config, seed=0).policy  # as the round was gathered
    for row in range(len(t.mask)):
        weight, bias = torch.zeros(2, 1), torch.zeros(2)
        for at in range(int(t.lengths[row])):
            obs = t.obs[row, at]
            rest = torch.nn.functional.one_hot(t.action[row, at].long(), 2) - before.logits(
                obs
            ).softmax(-1)
            weight, bias = weight + rest[:, None] * before.normaliser(obs)[None], bias + rest
        expected = float((weight.square().sum() + bias.square().sum()).detach())
        assert float(t.signals["gradient_norm_squared"][row, 0]) == pytest.approx(
            expected, rel=1e-4
        )


def test_the_history_of_entropies_is_the_mean_of_the_rounds_before() -> None:
    agent, rounds = agent_of("epo"), []
    for _ in range(3):
        t = estimated(agent)
        means = [
            np.mean([float(t.entropy[row, at]) for row in range(12) if t.mask[row, at]])
            for at in range(t.mask.shape[1])
        ]
        history = t.signals["entropy_history"]
        for at, mean in enumerate(means):
            seen = [m[at] for m in rounds if at < len(m)]
            expected = np.mean(seen) if seen else mean
            for row in range(12):
                if t.mask[row, at]:
                    assert float(history[row, at]) == pytest.approx(expected, rel=1e-5)
        rounds.append(means)
        with torch.no_grad():  # another entropy in the next round
            agent.policy.net.layers[-1].bias += torch.tensor([0.5, -0.5])


def test_shares_grow_from_round_to_round() -> None:
    agent, shares = agent_of("d3s", ramp_rounds=4), []
    for _ in range(6):
        (share,) = estimated(agent).signals["schedule"].unique().tolist()
        shares.append(share)
    assert shares == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]


def test_bands_of_entropy_are_for_discrete_actions() -> None:
    spec = Signs(discrete=False).spec
    with pytest.raises(ConfigError, match="epo compares entropies of discrete actions"):
        PolicyGradient(spec, PolicyGradientConfig(recipe="epo"))


@pytest.mark.parametrize(
    "name",
    [
        "vcpo",
        "epo",
        "d3s",
        *(pytest.param(n, marks=pytest.mark.long) for n in ("remax", "riskpo", "skywork_or1")),
    ],
)
def test_parts_continue_bit_for_bit(name: str, tmp_path: Path) -> None:
    agent = agent_of(name)
    again = continued(agent, Signs(discrete=True), tmp_path / "agent.pt", 22, 61)
    for key, part in agent.measures.items():
        assert again.measures[key].state_dict() == part.state_dict()


class Paying(Signs):
    """`pay` for each answer, right or wrong."""

    pay = 1.0

    def step(self, state: torch.Tensor, action: torch.Tensor) -> Step:
        made = super().step(state, action)
        return made._replace(reward=torch.full_like(made.reward, self.pay))


@pytest.mark.parametrize(("pay", "times"), [(1.0, 0), (1e-2, 0), (1e-5, 1), (0.0, 0)])
def test_rewards_that_are_small_beside_a_new_critic_are_warned_of(pay: float, times: int) -> None:
    task = Paying(discrete=True)
    task.pay = pay
    config = PolicyGradientConfig(recipe="ppo", **(SMALL | {"group": 1}))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        PolicyGradient(task.spec, config, seed=0).learn(task, 12, callbacks=[])
    assert sum("the critic begins with" in str(w.message) for w in seen) == times
