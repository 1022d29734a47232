"""Environments, a policy and a trainer joined by streams, against one loop over one environment."""

import copy
import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from mbrl.distributed.acting import STEP, EnvironmentWorker, Episode, learn, run_together
from mbrl.distributed.streams import (
    CategoricalActs,
    GaussianActs,
    InlineInference,
    InlineSamples,
    NullSamples,
    PolicyWorker,
    RayInference,
    RaySamples,
    RoundRobinSamples,
)
from mbrl.errors import ConfigError
from mbrl.networks import CategoricalPolicy, SquashedGaussianPolicy
from mbrl.tasks import make
from mbrl.tasks.gym_task import GymTask

TASK = make("CartPole-v1")
TASK.spec = dataclasses.replace(TASK.spec, max_episode_steps=30)


def policy(seed: int = 0) -> CategoricalPolicy:
    return CategoricalPolicy(TASK.spec, (8,), generator=torch.Generator().manual_seed(seed))


def alone(env: int, episodes: int, seed: int = 0) -> list[Episode]:
    """What an environment does under the policy, step by step, written with plain loops."""
    net, generator = policy().double(), torch.Generator().manual_seed(seed * 1_000_003 + env)
    done, state = [], TASK.reset(1, generator)
    for number in range(episodes):
        steps: dict[str, list[Any]] = {name: [] for name in STEP}
        for t in range(30):
            obs = TASK.observe(state)
            draw = float(torch.rand(1, generator=generator, dtype=torch.float64))
            p = torch.softmax(net.logits(obs.double())[0], -1).tolist()
            action = 0 if draw <= p[0] else 1
            step = TASK.step(state, torch.tensor([action]))
            ended = bool(step.terminated[0])
            row = (obs[0], action, step.reward[0], step.obs[0], ended, not ended and t == 29, 5)
            for name, value in zip(STEP, row, strict=True):
                steps[name].append(np.asarray(value))
            state = step.state
            if ended:
                break
        done.append(Episode(env, number, **{n: np.array(v) for n, v in steps.items()}))
        state = TASK.reset(1, generator)
    return done


def equal(one: list[Episode], two: list[Episode]) -> bool:
    order = lambda rows: sorted(rows, key=lambda e: (e.env, e.number))  # noqa: E731
    pairs = list(zip(order(one), order(two), strict=True))
    return all(
        (a.env, a.number) == (b.env, b.number)
        and all(np.array_equal(getattr(a, n), getattr(b, n)) for n in STEP)
        for a, b in pairs
    )


@pytest.mark.parametrize(("ring", "size", "batch"), [(1, 4, 1), (2, 2, 4), (4, 1, 3)])
def test_episodes_do_not_depend_on_rings_and_batches(ring: int, size: int, batch: int) -> None:
    acting = PolicyWorker(CategoricalActs(policy()), batch)
    acting.version = 5
    samples, stream = InlineSamples(), InlineInference(acting)
    workers = [
        EnvironmentWorker(TASK, stream, samples, ring=ring, size=size, first=first)
        for first in (0, 4)
    ]
    run_together(workers, 2)
    expected = [e for env in range(8) for e in alone(env, 2)]
    assert equal(samples.take(16) or [], expected)
    assert samples.take(1) is None
    assert acting.rows == sum(w.frames for w in workers) == sum(map(len, expected))


def test_what_waits_is_answered_in_one_pass() -> None:
    acts: list[int] = []

    def act(obs: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        acts.append(len(obs))
        return obs[:, 0] + uniform

    stream = InlineInference(PolicyWorker(act, 4))
    tickets = [stream.ask(np.full((2, 1), float(k)), np.array([0.1, 0.2])) for k in range(3)]
    assert acts == [4]  # the first two were enough
    answers = [stream.answer(ticket) for ticket in tickets]
    assert acts == [4, 2]
    assert [a.action.tolist() for a in answers] == [[k + 0.1, k + 0.2] for k in range(3)]


@given(
    moves=st.lists(st.one_of(st.none(), st.integers(1, 3)), max_size=60),
    bound=st.integers(3, 6),
    reuses=st.integers(1, 3),
)
def test_samples_are_used_as_often_as_they_may(
    moves: list[int | None], bound: int, reuses: int
) -> None:
    """None is a `put`, a number a `take`."""
    stream, times, there = InlineSamples(bound, reuses), dict[int, int](), 0
    for move in moves:
        if move is None:
            room = stream.put(there)
            assert room == (sum(n < reuses for n in times.values()) < bound)
            if room:
                times[there] = 0
                there += 1
            continue
        taken = stream.take(move)
        left = [n for n, used in times.items() if used < reuses]
        assert (taken is None) == (len(left) < move)
        for n in taken or []:
            times[n] += 1
        assert taken is None or len(set(taken)) == move
        assert all(used <= reuses for used in times.values())
    while (last := stream.take(1)) is not None:
        times[last[0]] += 1
    assert set(times.values()) <= {reuses}


def test_other_sample_streams() -> None:
    null = NullSamples()
    assert null.put(1) and null.take(1) is None
    two, three = InlineSamples(2), InlineSamples(3)
    shared = RoundRobinSamples([two, three])
    assert [shared.put(k) for k in range(6)] == [True] * 5 + [False]
    assert two.take(2) == [0, 2] and three.take(3) == [1, 3, 4] and two.refused == 2
    with pytest.raises(ConfigError, match="behind a round robin"):
        shared.take(1)
    for call in (lambda: InlineSamples(0), lambda: InlineSamples(1, 0), lambda: two.take(3)):
        with pytest.raises(ConfigError):
            call()


def test_a_full_stream_holds_environments_back() -> None:
    samples = InlineSamples(1)
    stream = InlineInference(PolicyWorker(CategoricalActs(policy()), 1))
    worker = EnvironmentWorker(TASK, stream, samples, ring=1)
    worker.begin(3)
    got: list[Episode] = []
    for _ in range(500):
        worker.step()
    frames = worker.frames
    worker.step()
    assert worker.frames == frames and len(worker.held) == 1
    while worker.step():
        got += samples.take(1) or []
    got += samples.take(1) or []
    for episode in got:
        episode.version[:] = 5
    assert equal(got, alone(0, 3))


def test_what_does_not_fit_is_refused() -> None:
    stream = InlineInference(PolicyWorker(CategoricalActs(policy()), 1))
    with pytest.raises(ConfigError, match="ring is 0"):
        EnvironmentWorker(TASK, stream, NullSamples(), ring=0)
    endless = make("Pendulum-v1")
    endless.spec = dataclasses.replace(endless.spec, max_episode_steps=None)
    with pytest.raises(ConfigError, match="no episode limit"):
        EnvironmentWorker(endless, stream, NullSamples())
    with pytest.raises(ConfigError, match="either how many episodes"):
        EnvironmentWorker(TASK, stream, NullSamples()).run()
    with pytest.raises(ConfigError, match="the sample stream is full"):
        run_together([EnvironmentWorker(TASK, stream, InlineSamples(1))], 2)
    with pytest.raises(ConfigError, match="max_batch is 0"):
        PolicyWorker(CategoricalActs(policy()), 0)
    with pytest.raises(ConfigError, match="0 episodes for a policy gradient with envs 16"):
        learn(PolicyGradient(TASK.spec, PolicyGradientConfig(group=1)), [])


@pytest.mark.parametrize(("ring", "size"), [(1, 4), (2, 2)])
def test_continuous_actions_and_gymnasiums_environments(ring: int, size: int) -> None:
    """Against a loop over gymnasium's own environment, with scipy's normal quantiles."""
    task = GymTask("Pendulum-v1")
    task.spec = dataclasses.replace(task.spec, max_episode_steps=20)
    net = SquashedGaussianPolicy(task.spec, (8,), generator=torch.Generator().manual_seed(0))
    samples, stream = InlineSamples(), InlineInference(PolicyWorker(GaussianActs(net), 3))
    worker = EnvironmentWorker(task, stream, samples, ring=ring, size=size, seed=2)
    run_together([worker], 2)
    worker.close()
    got = sorted(samples.take(8) or [], key=lambda e: (e.env, e.number))
    for env in range(4):
        draw = torch.Generator().manual_seed(2 * 1_000_003 + env)
        own = gymnasium.make("Pendulum-v1")
        for number in range(2):
            episode = got[2 * env + number]
            assert (episode.env, episode.number, len(episode)) == (env, number, 20)
            obs = own.reset(seed=int(torch.randint(2**31 - 1, (1,), generator=draw)))[0]
            for t in range(20):
                uniform = torch.rand((1, 1), generator=draw, dtype=torch.float64)
                with torch.no_grad():
                    mean, log_std = net.distribution(torch.from_numpy(obs)[None].double())
                noise = stats.norm.ppf(float(uniform))
                drawn = np.float32(float(mean) + np.exp(float(log_std)) * noise)
                obs, reward, *_ = own.step(2.0 * np.tanh(np.array([drawn])))
                assert episode.action[t, 0] == pytest.approx(drawn, abs=1e-5)
                assert episode.reward[t] == pytest.approx(float(reward), abs=1e-4)
                np.testing.assert_allclose(episode.next_obs[t], obs, atol=1e-4)
            assert episode.truncated.tolist() == [False] * 19 + [True]
            assert not episode.terminated.any()


def test_an_environment_may_end_its_episode_before_the_limit() -> None:
    task = GymTask("tests.mbrl.own_environments:Corridor", masked=False, limit=3)
    task.spec = dataclasses.replace(task.spec, max_episode_steps=50)
    samples = InlineSamples()
    stream = InlineInference(PolicyWorker(lambda obs, uniform: np.zeros(len(obs), int), 1))
    run_together([EnvironmentWorker(task, stream, samples, ring=1)], 1)
    (episode,) = samples.take(1) or []
    assert episode.truncated.tolist() == [False, False, True] and not episode.terminated.any()
    masked = GymTask("tests.mbrl.own_environments:Corridor")
    with pytest.raises(ConfigError, match="do not all allow all actions"):
        EnvironmentWorker(masked, stream, samples, ring=1)


def test_a_trainer_learns_from_continuous_actions() -> None:
    task = make("Pendulum-v1")
    task.spec = dataclasses.replace(task.spec, max_episode_steps=10)
    config = PolicyGradientConfig(envs=2, group=1, hidden=(8,), epochs=1, minibatches=1)
    learner = PolicyGradient(task.spec, config, seed=0)
    before, acting = copy.deepcopy(learner.policy), copy.deepcopy(learner.policy)
    samples, stream = InlineSamples(), InlineInference(PolicyWorker(GaussianActs(acting), 1))
    run_together([EnvironmentWorker(task, stream, samples, size=1, ring=2)], 1)
    updates, metrics = learn(learner, samples.take(2) or [])
    assert updates == 1 and all(torch.isfinite(torch.as_tensor(v)) for v in metrics.values())
    same = zip(before.parameters(), learner.policy.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in same)


def agent() -> PolicyGradient:
    config = PolicyGradientConfig(envs=8, group=1, hidden=(8,), epochs=2, minibatches=2)
    return PolicyGradient(TASK.spec, config, seed=3)


def acts_of(learner: PolicyGradient) -> CategoricalActs:
    own = policy()
    own.net = type(own.net)(4, (8,), 2, activation="tanh")
    own.load_state_dict(learner.policy.state_dict())
    return CategoricalActs(own)


def trained(rounds: int) -> PolicyGradient:
    """Inline: rounds of an episode of each environment, then updates."""
    learner, samples = agent(), InlineSamples()
    acting = PolicyWorker(acts_of(learner), 4)
    stream = InlineInference(acting)
    workers = [EnvironmentWorker(TASK, stream, samples, size=2, first=k) for k in (0, 4)]
    for version in range(1, rounds + 1):
        run_together(workers, 1)
        updates, metrics = learn(learner, samples.take(8) or [])
        assert updates == 4 and all(torch.isfinite(torch.as_tensor(v)) for v in metrics.values())
        acting.load(acts_of(learner), version)
    return learner


def test_a_trainer_learns_from_the_streams() -> None:
    before, after = agent(), trained(2)
    same = zip(before.policy.parameters(), after.policy.parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in same)


@pytest.mark.long
def test_ray_gives_the_same_weights() -> None:
    ray = pytest.importorskip("ray")
    learner, samples = agent(), RaySamples(cpus=3)
    stream = RayInference.served(acts_of(learner), 4, 0.002, cpus=3)
    kind = ray.remote(num_cpus=1)(EnvironmentWorker)
    workers = [kind.remote(TASK, stream, samples, size=2, first=k) for k in (0, 4)]
    for version in (1, 2):
        ray.get([worker.run.remote(1) for worker in workers])
        learn(learner, samples.take(8) or [])
        ray.get(stream.actor.load.remote(acts_of(learner), version))
    counts = ray.get(stream.actor.counts.remote())
    with pytest.raises(ConfigError, match="count is 0"):
        samples.take(0)
    ray.shutdown()
    assert counts["passes"] < counts["rows"]
    for a, b in zip(learner.policy.parameters(), trained(2).policy.parameters(), strict=True):
        assert torch.equal(a, b)
