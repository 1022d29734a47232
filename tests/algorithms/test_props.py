"""PROPS: the sampling policy does less of what there is too much of."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from algorithms import PROPS, PolicyGradientConfig, PROPSConfig
from algorithms.policy_gradient import PolicyGradient
from algorithms.props import divergence, sampling_loss
from experiments.runs import jobs
from experiments.runs import training as runs
from experiments.settings import build_config
from mbrl.errors import ConfigError
from mbrl.evaluation import evaluate
from mbrl.networks import CategoricalPolicy, SquashedGaussianPolicy
from mbrl.tasks.base import Step
from mbrl.types import Spec
from tests.algorithms.continued import continued
from tests.algorithms.test_policy_gradient import Signs
from tests.behaviour.test_resume import assert_same_runs, killed_after, settings
from tests.small import CONFIGS


class Arms:
    """One state, four arms, one step: nothing to learn but how often each was drawn."""

    device = torch.device("cpu")
    spec = Spec("arms", 1, 1, 4, (0.0,), (3.0,), 1)

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.zeros(count, 1)

    def observe(self, state: Tensor) -> Tensor:
        return torch.ones(len(state), 1)

    def step(self, state: Tensor, action: Tensor) -> Step:
        return Step(state, self.observe(state), torch.zeros(len(state)), torch.ones(len(state)) > 0)


def sampling_error(agent: PolicyGradient, steps: int) -> float:
    """KL of the arms' shares in the kept data from the learned policy, which is never updated."""
    agent.learn(Arms(), steps, callbacks=[])
    drawn = torch.cat([part.action.flatten() for part in agent.rounds])
    share = torch.bincount(drawn, minlength=4).double() / len(drawn)
    law = torch.softmax(agent.policy.logits(torch.ones(1, 1)).detach(), -1)[0].double()
    seen = share > 0
    return float((share[seen] * (share[seen] / law[seen]).log()).sum())


@pytest.mark.long
def test_data_look_more_like_the_policy_than_its_own_draws() -> None:
    """Eight rounds of four draws: the divergence of the empirical shares from the policy, mean over
    policies and seeds (of a policy's own 32 draws it is about 3 / 64)."""
    errors = {"own": [], "props": []}
    common = {"envs": 4, "group": 1, "keep": 8, "minibatches": 1, "learning_rate": 0.0}
    for seed in range(25):
        spread = torch.randn(4, generator=torch.Generator().manual_seed(seed))
        own = PolicyGradientConfig(recipe="reinforce", epochs=1, **common)
        fast = {"sampling_rate": 0.05, "sampling_clip": 0.9, "stop_kl": 0.5, "sampling_kl": 0.01}
        fast |= {"every": 100, "sampling_epochs": 20, "sampling_minibatches": 1}
        props = PROPSConfig(recipe="reinforce", **fast, **common)
        for name, agent in (
            ("own", PolicyGradient(Arms.spec, own, seed=seed)),
            ("props", PROPS(Arms.spec, props, seed=seed)),
        ):
            with torch.no_grad():
                agent.policy.net.layers[-1].bias.copy_(spread)
            if isinstance(agent, PROPS):
                agent.sampling.load_state_dict(agent.policy.state_dict())
            errors[name].append(sampling_error(agent, 8))
    own_error, props_error = np.array(errors["own"]), np.array(errors["props"])
    assert 0.03 < own_error.mean() < 0.07
    assert props_error.mean() < 0.7 * own_error.mean()


def test_the_loss_pushes_away_from_what_was_done_until_the_ratio_leaves_its_range() -> None:
    """By hand: at ratio r the push is r, held at 1 - clip once r is below it."""
    task = Arms()
    agent = PROPS(task.spec, PROPSConfig(envs=4, group=1, stop_kl=10.0, sampling_kl=0.5), seed=0)
    while not agent.rounds:
        agent.learn(task, 1, callbacks=[])
    t = agent.kept()
    far = float(np.exp(0.5))
    for log_ratio, push, slope in ((0.0, 1.0, 1.0), (0.5, far, far), (-0.5, 0.7, 0.0)):
        t.log_probs["old"] = torch.full_like(t.reward, -1.0)
        now = torch.full_like(t.reward, -1.0 + log_ratio).requires_grad_()
        apart = torch.full_like(t.reward, 0.2)
        value = sampling_loss(now, t, apart, agent.config)
        assert value.item() == pytest.approx(push + 0.5 * 0.2, rel=1e-6)
        gradient = torch.autograd.grad(value, now)[0].sum().item()
        assert gradient == pytest.approx(slope, abs=1e-6)
    beyond = PROPSConfig(stop_kl=0.1, sampling_kl=0.5)
    assert sampling_loss(now, t, apart, beyond).item() == pytest.approx(0.1)


@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
def test_divergences_are_those_of_torch(discrete: bool) -> None:
    spec = (
        Spec("any", 3, 1, 4, (0.0,), (3.0,), 9)
        if discrete
        else Spec("any", 3, 2, None, (-1.0, -1.0), (1.0, 1.0))
    )
    kind = CategoricalPolicy if discrete else SquashedGaussianPolicy
    ours, theirs = (
        kind(spec, (8,), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    obs = torch.randn(5, 3, generator=torch.Generator().manual_seed(2))
    laws = []
    for policy in (ours, theirs):
        if discrete:
            laws.append(torch.distributions.Categorical(logits=policy.logits(obs)))
        else:
            mean, log_std = policy.distribution(obs)
            normal = torch.distributions.Normal(mean, log_std.exp())
            laws.append(torch.distributions.Independent(normal, 1))
    expected = torch.distributions.kl_divergence(*laws)
    torch.testing.assert_close(divergence(ours, theirs, obs), expected)
    if discrete:
        mask = torch.tensor([True, False, True, True]).expand(5, 4)
        allowed = (torch.distributions.Categorical(logits=law.logits[:, mask[0]]) for law in laws)
        expected = torch.distributions.kl_divergence(*allowed)
        torch.testing.assert_close(divergence(ours, theirs, obs, mask), expected)


def test_it_learns_and_continues_bit_for_bit(tmp_path: Path) -> None:
    task = Signs(discrete=True)
    config = PROPSConfig(hidden=(16,), envs=32, learning_rate=0.02, critic_rate=0.02)
    agent = PROPS(task.spec, config, seed=0)
    continued(agent, task, tmp_path / "agent.pt", 62, 120)
    assert evaluate(agent, task, 200).mean() > 3.8


def test_a_killed_run_resumes_exactly(tmp_path: Path) -> None:
    config = build_config("props", CONFIGS["props"])
    chosen = settings("props", "CartPole-v1")
    runs.start(chosen, config, tmp_path / "whole", quiet=True)
    folder = tmp_path / "killed"
    killed_after(
        folder, lambda: runs.start(chosen, config, folder, quiet=True), PROPS, "observe_rows", 31
    )
    jobs.resume(folder, quiet=True)
    assert_same_runs(tmp_path / "whole", folder)


def test_impossible_settings_are_refused() -> None:
    agent = PROPS(Spec("bandit", 1, num_actions=2), PROPSConfig(envs=4))
    with pytest.raises(ConfigError, match="no round to learn from"):
        agent.next_batch()
    with pytest.raises(ConfigError, match="every is 0"):
        PROPSConfig(every=0)
    with pytest.raises(ConfigError, match="sampling_clip is 1"):
        PROPSConfig(sampling_clip=1.0)
