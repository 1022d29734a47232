"""Policy gradients in control: rounds of whole episodes, what recipes get to see, known answers."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from algorithms import PolicyGradient, PolicyGradientConfig
from algorithms.control.measures import log_probs_and_entropy
from algorithms.policy_gradient import Critic, Moments
from experiments.runs import jobs
from experiments.runs import training as runs
from experiments.settings import RunSettings, build_config
from mbrl.errors import ConfigError, DivergenceError
from mbrl.evaluation import evaluate
from mbrl.policy_gradient.axes.step_size import StepSize
from mbrl.policy_gradient.collectors import EpisodeCollector
from mbrl.tasks import make
from mbrl.tasks.base import Step
from mbrl.types import Spec, Trajectories
from tests.algorithms.continued import continued
from tests.behaviour.test_resume import assert_same_runs, killed_after, settings
from tests.small import CONFIGS


class Signs:
    """Observe a random sign; right is to answer it, with the arm or the half-line of that sign. An
    episode lasts four answers, or ends at the second wrong one."""

    device = torch.device("cpu")

    def __init__(self, discrete: bool) -> None:
        bounds = ((0.0,), (1.0,)) if discrete else ((-1.0,), (1.0,))
        self.spec = Spec("signs", 1, 1, 2 if discrete else None, *bounds, 4)

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        seed = torch.randint(0, 1000, (count, 1), generator=generator).float()
        return torch.cat([seed, torch.zeros(count, 1)], 1)

    def observe(self, state: Tensor) -> Tensor:
        return torch.where((state[:, :1] * 7 + 3) % 11 > 5, 1.0, -1.0)

    def step(self, state: Tensor, action: Tensor) -> Step:
        answer = action * 2.0 - 1 if self.spec.discrete else action[:, 0].sign()
        right = answer == self.observe(state)[:, 0]
        after = torch.stack([state[:, 0] + 1, state[:, 1] + (~right)], 1)
        return Step(after, self.observe(after), right.float(), after[:, 1] >= 2)


LEARNING = {"hidden": (16,), "envs": 32, "learning_rate": 0.01, "critic_rate": 0.02}
RECIPES = ["reinforce", "a2c", "ppo", "vtrace", "grpo", "rloo", "gspo", "skywork_or1"]
VERDICTS = ["topr", "psr", "nsr", "w_reinforce", "ngrpo", "bnpo", "drpo_decoupled", "red_drop"]
VERDICTS += ["red_weight", "xrpo", "adora", "dapo", "mini_o3"]  # the last two: may be cut off
SHORT = {True: ("ppo", "vtrace", "nsr", "mini_o3"), False: ("grpo",)}  # by discrete actions


@pytest.mark.parametrize(
    ("name", "discrete"),
    [
        pytest.param(n, discrete, marks=[] if n in SHORT[discrete] else pytest.mark.long)
        for names, discrete in ((RECIPES + VERDICTS, True), (("ppo", "grpo", "nsr", "dapo"), False))
        for n in names
    ],
)
def test_recipes_learn_to_answer(name: str, discrete: bool) -> None:
    """The best policy earns 4 an episode, a random one less than 2."""
    task = Signs(discrete)
    # Ratios of whole sequences move little before their clip: one pass a round.
    once = {"epochs": 1} if name in ("reinforce", "a2c", "rloo", "topr") else {}
    config = PolicyGradientConfig(recipe=name, **(LEARNING | once))
    agent = PolicyGradient(task.spec, config, seed=0)
    before = evaluate(agent, task, 200, deterministic=False).mean()
    agent.learn(task, 120, callbacks=[])
    assert before < 2.5
    assert evaluate(agent, task, 200).mean() > 3.8


@pytest.mark.long
def test_ppo_learns_in_mujoco() -> None:
    """To keep a pole up for longer than the first policy's 24 steps."""
    task = make("InvertedPendulum-v5")
    config = PolicyGradientConfig(learning_rate=3e-3, critic_rate=3e-3)
    agent = PolicyGradient(task.spec, config, seed=0)
    assert evaluate(agent, task, 20).mean() < 30
    agent.learn(task, 1500, callbacks=[])
    assert evaluate(agent, task, 20).mean() > 90


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "steps", "least"), [("Acrobot-v1", 6000, -120), ("Pendulum-v1", 14_000, -600)]
)
def test_ppo_swings_up(name: str, steps: int, least: float) -> None:
    """Acrobot within the rounds and updates in which stable-baselines3 does, Pendulum, whose values
    are in the hundreds, before; random policies earn -500 and -1220."""
    task = make(name)
    agent = PolicyGradient(task.spec, PolicyGradientConfig(recipe="ppo", group=1), seed=0)
    agent.learn(task, steps, callbacks=[])
    assert evaluate(agent, task, 20).mean() > least


def test_values_of_any_size_are_learned_alike() -> None:
    """1024 times the rewards, with values of 0 at first; sums with a power of two round alike."""
    policies, losses = [], []
    for scale in (1.0, 1024.0):
        config = PolicyGradientConfig(recipe="ppo", hidden=(16,), reward_scale=scale)
        agent = PolicyGradient((task := make("Pendulum-v1")).spec, config, seed=0)
        assert agent.critic is not None
        torch.nn.init.zeros_(agent.critic.net.layers[-1].weight)
        agent.learn(task, 650, callbacks=[])
        assert agent.critic.scale > 2 * scale  # it has seen three rounds of targets
        policies.append(torch.cat([p.detach().flatten() for p in agent.policy.parameters()]))
        heard(agent, task)
        losses.append(agent.update(agent.next_batch())["critic/loss"])
    torch.testing.assert_close(*policies, atol=1e-5, rtol=0)
    torch.testing.assert_close(losses[1], losses[0], atol=0, rtol=1e-4)


def test_values_are_measured_by_the_targets_of_real_steps() -> None:
    """Episodes of CartPole end at different steps; what is beyond is no target."""
    task = make("CartPole-v1")
    agent = PolicyGradient(task.spec, PolicyGradientConfig(recipe="ppo"), seed=0)
    heard(agent, task)
    assert agent.data is not None and agent.critic is not None
    mask = agent.data.data.mask
    target = agent.data.targets["value"][mask].double()
    assert not mask.all()
    assert float(agent.critic.centre) == pytest.approx(float(target.mean()))
    assert float(agent.critic.scale) == pytest.approx(float(target.std(correction=0)))


def test_values_stay_as_they_are_when_their_measure_changes() -> None:
    critic = Critic(make("Pendulum-v1").spec, (8,), "tanh", torch.Generator().manual_seed(0))
    obs = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    before, moments = critic(obs), Moments(1, torch.device("cpu"))
    for mean, deviation in ((-300.0, 50.0), (20.0, 0.1)):
        values = torch.randn(1000, 1, generator=torch.Generator().manual_seed(2))
        moments.add(mean + deviation * values)
        critic.rescale(moments)
        torch.testing.assert_close(critic(obs), before, atol=1e-3, rtol=0)
    assert float(critic.centre) == pytest.approx(float(moments.mean[0]))
    assert float(critic.scale) == pytest.approx(float(moments.std()[0])) and critic.scale > 100


def test_networks_begin_as_those_of_on_policy_methods_do() -> None:
    """Orthogonal weights, biases of 0, tanh: the policy nearly alike in all states."""
    agent = PolicyGradient(make("CartPole-v1").spec, PolicyGradientConfig(recipe="ppo"), seed=0)
    assert agent.critic is not None
    for net, last in ((agent.policy.net, 0.01), (agent.critic.net, 1.0)):
        gains = (2**0.5, 2**0.5, last)
        for layer, gain in zip(net.layers, gains, strict=True):
            w = layer.weight.detach() / gain
            square = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
            torch.testing.assert_close(square, torch.eye(len(square)), atol=1e-5, rtol=0)
            assert not layer.bias.any()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    for net, found in ((agent.policy.net, agent.policy.logits), (agent.critic.net, agent.critic)):
        first, second, out = net.layers
        plain = torch.nn.Sequential(first, torch.nn.Tanh(), second, torch.nn.Tanh(), out)
        torch.testing.assert_close(found(x).view(5, -1), plain(x))
    continuous = PolicyGradient(make("Pendulum-v1").spec, PolicyGradientConfig(), seed=0)
    assert continuous.policy.net.activation == "tanh"


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_three_actions_and_rounds_of_whole_limits(name: str) -> None:
    """Acrobot: nobody swings up by chance, so that all episodes reach the limit of 500 steps."""
    task = make("Acrobot-v1")
    agent = PolicyGradient(task.spec, PolicyGradientConfig(recipe=name, envs=4, group=2), seed=0)
    agent.learn(task, 501, callbacks=[])
    (t,) = agent.rounds
    assert t.mask.shape == (4, 500) and set(t.action[t.mask].tolist()) == {0, 1, 2}
    assert all(torch.isfinite(p).all() for p in agent.policy.parameters())


def heard(agent: PolicyGradient, task) -> Trajectories:
    """The next round of `agent`, before it learns from it."""
    source = agent.collector(task)
    while not source.collect(agent):
        pass
    return agent.rounds[-1]


def test_runs_of_equal_length_have_seen_equally_much() -> None:
    """A call brings as many transitions as there are copies, however early most of them end."""
    task = make("CartPole-v1")
    for envs, group in ((16, 4), (5, 1)):
        config = PolicyGradientConfig(envs=envs, group=group, minibatches=1, epochs=1)
        agent = PolicyGradient(task.spec, config, seed=0)
        source, rounds = agent.collector(task), 0
        for call in range(1, 200):
            rounds += bool(source.collect(agent))
            agent.trainer.left = 0
            assert envs * (call - 2) < source.rows_seen <= envs * call
        assert rounds > 3


def test_success_is_to_earn_at_least_the_median_of_the_round() -> None:
    task = Signs(discrete=True)
    given = PolicyGradient(task.spec, PolicyGradientConfig(recipe="grpo", **LEARNING), seed=0)
    plain = heard(given, task)
    totals = plain.reward.sum(1).tolist()
    middle = sorted(totals)[(len(totals) - 1) // 2]
    for name, reward in (("grpo", "success"), ("nsr", None)):
        config = PolicyGradientConfig(recipe=name, reward=reward, reward_scale=7.0, **LEARNING)
        t = heard(PolicyGradient(task.spec, config, seed=0), task)
        for row, (total, length) in enumerate(zip(totals, t.lengths.tolist(), strict=True)):
            expected = [0.0] * t.reward.shape[1]
            expected[length - 1] = float(total >= middle)
            assert t.reward[row].tolist() == expected
    config = PolicyGradientConfig(recipe="nsr", reward="task", **LEARNING)
    assert torch.equal(heard(PolicyGradient(task.spec, config, seed=0), task).reward, plain.reward)
    with pytest.raises(ConfigError, match=r"reward.*'succes'.*success"):
        PolicyGradientConfig(reward="succes")  # type: ignore[arg-type]


def test_what_a_horizon_cuts_is_cut_off_and_what_the_task_ends_is_not() -> None:
    """DAPO leaves out answers that were cut off."""
    task, kept = Signs(discrete=True), []
    for horizon in ((), (3,), (4,)):
        config = PolicyGradientConfig(recipe="dapo", horizon=horizon, **LEARNING)
        agent = PolicyGradient(task.spec, config, seed=0)
        t = heard(agent, task)
        cut = (t.truncated & t.mask).any(1)
        assert cut.any() and not cut.all()
        assert agent.data is not None
        varied = torch.stack([g != g.mean() for g in t.reward.sum(1).view(-1, 4)]).flatten()
        weight = agent.data.estimate.weight.amax(1) > 0
        kept.append(bool(weight[cut & varied].any()))
        assert weight[~cut & varied].all()
    assert kept == [True, False, True]


def test_a_recipe_that_compares_needs_something_to_compare_with() -> None:
    with pytest.raises(
        ConfigError, match="compares copies that begin in one state, and group is 1"
    ):
        PolicyGradientConfig(recipe="grpo", group=1)
    PolicyGradientConfig(recipe="ppo", group=1)
    PolicyGradientConfig(recipe="grpo", group=1, pool=8, scheduler="mpts")


def test_the_entropy_bonus_follows_its_target_through_a_resume() -> None:
    task = Signs(discrete=True)
    config = PolicyGradientConfig(recipe="skywork_or1", **LEARNING)
    agent = PolicyGradient(task.spec, config, seed=0)
    agent.measures["EntropyControl"].tracker.target = 10.0  # above any entropy of two actions
    weights = []
    for _ in range(3):
        heard(agent, task)
        assert agent.data is not None
        weights.append(float(agent.data.data.signals["entropy_weight"][0, 0]))
    assert weights == pytest.approx([0.0, 1e-4, 2e-4])
    again = PolicyGradient(task.spec, config, seed=0)
    again.load_state_dict(agent.state_dict())
    assert again.measures["EntropyControl"].tracker.weight == pytest.approx(3e-4)


@dataclasses.dataclass(frozen=True)
class Quarter(StepSize):
    def __call__(self, log_ratio, log_prob, advantage, t) -> Tensor:
        return torch.tensor(0.25)


def test_a_recipes_step_size_is_that_of_the_policys_weights() -> None:
    """The first step of Adam, which takes no notice of the size of a gradient."""
    moved, task = [], make("CartPole-v1")
    for step_size in (None, Quarter()):
        agent = PolicyGradient(task.spec, PolicyGradientConfig(envs=6, group=3), seed=1)
        agent.recipe = dataclasses.replace(agent.recipe, step_size=step_size)
        before = [p.detach().clone() for p in agent.policy.parameters()]
        source = agent.collector(task)
        while not source.collect(agent):
            pass
        agent.update(agent.next_batch())
        after = list(agent.policy.parameters())
        moved.append([(b - a).detach() for a, b in zip(before, after, strict=True)])
    for whole, quarter in zip(*moved, strict=True):
        assert torch.allclose(quarter, 0.25 * whole, atol=1e-7)
    assert any(float(whole.abs().max()) > 1e-4 for whole in moved[0])


def test_rounds_are_whole_episodes_that_begin_together() -> None:
    task = make("CartPole-v1")
    agent = PolicyGradient(task.spec, PolicyGradientConfig(envs=6, group=3), seed=1)
    source = agent.collector(task)
    while not source.collect(agent):
        pass
    (t,) = agent.rounds
    assert t.obs.shape[0] == 6
    for first in (0, 3):
        assert torch.equal(t.obs[first, 0], t.obs[first + 2, 0])
    assert not torch.equal(t.obs[0, 0], t.obs[3, 0])
    last = t.lengths - 1
    rows = torch.arange(6)
    assert (t.terminated | t.truncated)[rows, last].all()
    assert (t.terminated | t.truncated).sum() == 6
    assert torch.equal(t.reward.sum(1).double(), torch.tensor(source.returns))
    assert (t.obs[:, 1:] == t.next_obs[:, :-1])[t.mask[:, 1:]].all()
    assert t.groups["prompt"][:, 0].tolist() == [0, 0, 0, 1, 1, 1]


def test_replayed_rounds_keep_the_log_probs_of_the_policy_that_acted() -> None:
    task = Signs(discrete=True)
    config = PolicyGradientConfig(recipe="vtrace", keep=3, **LEARNING)
    agent = PolicyGradient(task.spec, config, seed=0)
    agent.learn(task, 16, callbacks=[])
    assert agent.data is not None and len(agent.rounds) == 3
    t = agent.data.data
    assert len(t.mask) == 96 and int(t.groups["prompt"].max()) == 23
    moved = (t.log_probs["old"] - t.log_probs["behaviour"]).abs().amax(1).view(3, 32)
    # The newest round was drawn by the policy before the updates.
    assert moved[0].max() > 1e-3 and moved[2].max() < 1e-6


def test_log_probs_and_entropies_are_those_of_torch_distributions() -> None:
    for discrete in (True, False):
        task = Signs(discrete)
        agent = PolicyGradient(task.spec, PolicyGradientConfig(**LEARNING), seed=0)
        source = agent.collector(task)
        while not source.collect(agent):
            pass
        (t,) = agent.rounds
        log_prob, entropy = log_probs_and_entropy(agent.policy, t)
        if discrete:
            law = torch.distributions.Categorical(logits=agent.policy.logits(t.obs))
            expected, wanted = law.log_prob(t.action), law.entropy()
        else:
            mean, log_std = agent.policy.distribution(t.obs)
            base = torch.distributions.Normal(mean, log_std.exp())
            squashed = torch.distributions.TransformedDistribution(
                base, [torch.distributions.transforms.TanhTransform()]
            )
            expected = squashed.log_prob(torch.tanh(t.action)).sum(-1)
            wanted = base.entropy().sum(-1)
        torch.testing.assert_close(log_prob[t.mask], expected[t.mask], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(entropy, wanted)


def test_log_probs_are_exact_where_actions_are_at_the_bounds() -> None:
    """Draws 9 and more deviations of the squash out, which are all 1 in the task, against
    scipy's normal and the logarithm of 1 - tanh^2 = 4 / (e^x + e^-x)^2 in float64."""
    task = Signs(discrete=False)
    agent = PolicyGradient(task.spec, PolicyGradientConfig(**LEARNING), seed=0)
    with torch.no_grad():
        agent.policy.net.layers[-1].bias.copy_(torch.tensor([12.0, 0.5]))  # mean, log deviation
        agent.policy.net.layers[-1].weight.zero_()
    t = heard(agent, task)
    pre = t.action[t.mask].double().numpy()[:, 0]
    assert (pre > 7.5).mean() > 0.9 and len(set(pre.tolist())) > 0.9 * len(pre)
    slope = 2 * (np.log(2) - np.logaddexp(pre, -pre))
    expected = stats.norm.logpdf(pre, 12.0, np.exp(0.5)) - slope
    found = log_probs_and_entropy(agent.policy, t)[0][t.mask].detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_prompts_stay_together_where_answers_are_compared() -> None:
    """drpo_decoupled sets right answers against wrong ones of one prompt in its loss."""
    task = Signs(discrete=True)
    for name, whole in (("drpo_decoupled", True), ("grpo", False)):
        config = PolicyGradientConfig(recipe=name, envs=16, group=4, minibatches=4)
        agent = PolicyGradient(task.spec, config, seed=0)
        heard(agent, task)
        orders = []
        for _ in range(2):
            for _ in range(4):
                agent.next_batch()
                agent.trainer.updated()
            orders.append(agent.trainer.order.tolist())
            ids = agent.data.data.groups["prompt"][:, 0][agent.trainer.order].view(4, 4)  # type: ignore[union-attr]
            assert bool((ids == ids[:, :1]).all()) == whole
        assert orders[0] != orders[1] and sorted(orders[0]) == list(range(16))


def test_moments_are_those_of_all_values_so_far() -> None:
    values = torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) * 5 + 100
    found = Moments(3, torch.device("cpu"))
    for part in values.split([1, 99, 200]):
        found.add(part)
    np.testing.assert_allclose(found.mean, values.double().mean(0), rtol=1e-12)
    variance = values.double().var(0, correction=0)
    np.testing.assert_allclose(found.squares / found.count, variance, rtol=1e-10)
    small = Moments(2, torch.device("cpu"))  # in a small unit; the second never varies
    small.add(values[:, :2] * torch.tensor([1e-9, 0.0]) + torch.tensor([0.0, 0.1]))
    np.testing.assert_allclose(small.std(), [1e-9 * values[:, 0].std(), 1.0], rtol=0.01)


def test_every_pass_uses_every_episode_once() -> None:
    task = Signs(discrete=True)
    config = PolicyGradientConfig(envs=8, group=4, epochs=2, minibatches=3)
    agent = PolicyGradient(task.spec, config, seed=0)
    source = agent.collector(task)
    while not (updates := source.collect(agent)):
        pass
    assert updates == 6
    seen = []
    for _ in range(updates):
        batch = agent.next_batch()
        seen.append(batch.data.reward.sum(1) * 100 + batch.estimate.advantage.sum(1))
        ids = batch.data.groups["prompt"]  # of no more groups than there are steps
        assert ids.unique().tolist() == list(range(len(ids.unique())))
        agent.update(batch)
    whole = agent.data
    assert whole is not None
    wanted = (whole.data.reward.sum(1) * 100 + whole.estimate.advantage.sum(1)).sort().values
    for epoch in (seen[:3], seen[3:]):
        torch.testing.assert_close(torch.cat(epoch).sort().values, wanted)


@pytest.mark.parametrize("recipe", ["remix", "ppo"])
def test_it_saves_and_continues_bit_for_bit(recipe: str, tmp_path: Path) -> None:
    task = Signs(discrete=False)
    agent = PolicyGradient(task.spec, PolicyGradientConfig(recipe=recipe, **LEARNING), seed=0)
    continued(agent, task, tmp_path / "agent.pt", 22, 41)


def test_a_killed_run_resumes_exactly(tmp_path: Path) -> None:
    config = build_config("policy_gradient", CONFIGS["policy_gradient"])
    chosen = settings("policy_gradient", "CartPole-v1")
    runs.start(chosen, config, tmp_path / "whole", quiet=True)
    folder = tmp_path / "killed"
    start = lambda: runs.start(chosen, config, folder, quiet=True)  # noqa: E731
    killed_after(folder, start, PolicyGradient, "observe_rows", 24)
    killed_after(folder, lambda: jobs.resume(folder, quiet=True), PolicyGradient, "update", 3)
    jobs.resume(folder, quiet=True)
    assert_same_runs(tmp_path / "whole", folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"recipe": "mssr"}, r"needs signals\.tracked_value"),
        ({"recipe": "remax", "group": 1}, "last copy of every start act greedily, and group is 1"),
        ({"recipe": "remax", "pool": 8}, "pool is 8, set it to 0"),
        ({"recipe": "gigpo"}, r"needs groups\.state"),
        ({"recipe": "nlpo"}, "needs log-probs of the policy masked by its earlier copy's top p"),
        ({"recipe": "reinforce_ada"}, "needs rounds of sampling until both kinds"),
        ({"gamma": 1.5}, r"gamma is 1\.5, it must lie in"),
        ({"lam": -0.1}, r"lam is -0\.1, it must lie in"),
        ({"critic_rate": -1.0}, r"critic_rate is -1\.0, it must be at least 0"),
        ({"clip_norm": 0.0}, r"clip_norm is 0\.0, it must be above 0"),
        ({"hidden": (8, 0)}, r"hidden is \(8, 0\), each must be at least 1"),
        ({"activation": "sine"}, "tanh"),
        ({"recipe": "pppo"}, "did you mean 'ppo'"),
        ({"envs": 6, "group": 4}, "not a multiple of group"),
        ({"minibatches": 40}, "more than the 16 episodes"),
        ({"epochs": 0}, "at least 1"),
    ],
)
def test_impossible_settings_are_refused(changes: dict, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        PolicyGradientConfig(**changes)


def test_a_policy_without_probabilities_is_said_to_have_diverged() -> None:
    task = make("CartPole-v1")
    agent = PolicyGradient(task.spec, PolicyGradientConfig(learning_rate=1e30, activation="relu"))
    with pytest.raises(DivergenceError, match="probabilities are not numbers"):
        agent.learn(task, 200, callbacks=[])


def test_squared_probabilities_are_those_of_discrete_actions() -> None:
    config = PolicyGradientConfig(recipe="optimal_token_baseline", **LEARNING)
    with pytest.raises(ConfigError, match="continuous actions do not have"):
        PolicyGradient(Signs(discrete=False).spec, config)
    task = Signs(discrete=True)
    agent = PolicyGradient(task.spec, config, seed=0).learn(task, 8, callbacks=[])
    t = agent.data.data
    old = t.log_probs["old"].exp()
    expected = old**2 + (1 - old) ** 2
    torch.testing.assert_close(t.sum_prob_squared[t.mask], expected[t.mask])


def test_logged_data_are_refused(cartpole) -> None:
    agent = PolicyGradient(cartpole.spec)
    with pytest.raises(ConfigError, match="learns by acting"):
        agent.fit(cartpole, 1)
    with pytest.raises(ConfigError, match="give a task, such as CartPole-v1"):
        runs.check(RunSettings("policy_gradient", "cartpole/random", steps=1))
    with pytest.raises(ConfigError, match="no round to learn from"):
        agent.next_batch()
    task = make("CartPole-v1")
    with pytest.raises(ConfigError, match="a multiple of group"):
        EpisodeCollector(task, envs=5, group=2)
    endless = dataclasses.replace(task.spec, max_episode_steps=None)
    with pytest.raises(ConfigError, match="no episode limit"):
        EpisodeCollector(type("Endless", (), {"spec": endless, "device": "cpu"})())
