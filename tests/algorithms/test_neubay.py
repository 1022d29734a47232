"""NEUBAY: losses against loops over positions, memory against single steps, rollouts and what is
stored of them, the threshold, and that memory finds what a Markov agent cannot."""

import math

import numpy as np
import pytest
import torch

from algorithms import NEUBAY, NEUBAYConfig
from algorithms.learners import recurrent_actor_critic
from algorithms.learners.recurrent_actor_critic import (
    MemoryConfig,
    RecurrentActorCritic,
    RecurrentLearnerConfig,
)
from algorithms.sources.histories import threshold_of
from mbrl import config as configs
from mbrl import data
from mbrl.errors import ConfigError
from mbrl.sequences import SequenceBuffer
from mbrl.types import Dataset, Spec
from tests.small import CONFIGS
from world_models import EnsembleConfig, EnsembleDynamics, Prediction, RolloutConfig, rollout
from world_models.ensemble_network import EnsembleNetwork

SPEC = Spec("t", obs_dim=2, action_dim=1, action_low=(-2.0,), action_high=(2.0,))


def agent(seed: int = 0, **rollouts: object) -> tuple[NEUBAY, Dataset]:
    dataset = data.load("pendulum/medium-replay")
    values = CONFIGS["neubay"] | {"rollouts": CONFIGS["neubay"]["rollouts"] | rollouts}
    made = NEUBAY(dataset.spec, configs.from_dict(NEUBAYConfig, values), seed=seed)
    made.prepare(dataset, lambda metrics: None)
    return made, dataset


def learner(**changes: object) -> RecurrentActorCritic:
    values = {"hidden": (8,), "critics": 3, "memory": MemoryConfig(width=8, layers=1, states=4)}
    config = RecurrentLearnerConfig(**(values | changes))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    return RecurrentActorCritic(SPEC, config, torch.device("cpu"), generator)


def filled(episodes: int = 6) -> SequenceBuffer:
    buffer, generator = SequenceBuffer(SPEC, 200, 0.9), torch.Generator().manual_seed(1)
    for _ in range(episodes):
        steps = int(torch.randint(2, 9, (1,), generator=generator))
        buffer.append(
            torch.randn(steps + 1, 2, generator=generator),
            torch.rand(steps, 1, generator=generator),
            torch.randn(steps, generator=generator),
            torch.rand(steps, generator=generator) < 0.2,
            torch.rand(steps, generator=generator) < 0.5,
        )
    return buffer


@torch.no_grad()
def test_losses_against_a_loop_over_positions() -> None:
    made, generator = learner(real_weight=0.3, huber=0.5), torch.Generator().manual_seed(2)
    tape = made.draw(filled().sample(30, generator), generator)
    weights = recurrent_actor_critic.step_weights(tape.mask, tape.real, 0.3)
    target = made.value_target(tape)
    q = made.critic.values(made.critic.encoder(tape.x, tape.first), tape.action)
    loss = recurrent_actor_critic.critic_loss(q, target, weights, 0.5)

    actions, log_probs = made.sample(tape, tape.noise[1])
    features = made.target.encoder(tape.x, tape.first)
    groups = {True: [], False: []}
    for t in range(29):
        if not tape.mask[t]:
            continue
        x = torch.cat([features[t + 1], actions[t + 1]])[None]
        next_q = min(float(made.target.heads.member(x, int(n))) for n in tape.subset)
        alpha = float(made.log_alpha.exp())
        y = float(tape.reward[t]) + float(tape.discount[t]) * (
            next_q - alpha * float(log_probs[t + 1])
        )
        assert float(target[t]) == pytest.approx(y, abs=1e-5)
        errors = []
        for n in range(3):
            gap = abs(float(q[n, t]) - y)
            errors.append(0.5 * gap**2 if gap <= 0.5 else 0.5 * (gap - 0.25))
        groups[bool(tape.real[t])].append(np.mean(errors))
    expected = 0.3 * np.mean(groups[True]) + 0.7 * np.mean(groups[False])
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    assert len(tape.subset) == 2 and len(set(tape.subset.tolist())) == 2


def test_losses_of_policy_and_temperature_against_a_loop() -> None:
    """(alpha log pi - the mean of all heads) by the weights of steps; and of the temperature's
    logarithm, minus the weighted mean of log pi + target entropy."""
    made, generator = learner(real_weight=0.3, alpha=0.4), torch.Generator().manual_seed(2)
    tape = made.draw(filled().sample(30, generator), generator)
    with torch.no_grad():
        actions, log_probs = made.sample(tape, tape.noise[0])
        features = made.critic.encoder(tape.x, tape.first)
    losses: dict[bool, list[float]] = {True: [], False: []}
    gaps: dict[bool, list[float]] = {True: [], False: []}
    for t in torch.nonzero(tape.mask).flatten().tolist():
        x = torch.cat([features[t], actions[t]])[None]
        value = np.mean([float(made.critic.heads.member(x, n).detach()) for n in range(3)])
        losses[bool(tape.real[t])].append(0.4 * float(log_probs[t]) - float(value))
        gaps[bool(tape.real[t])].append(float(log_probs[t]) - 1.0)  # one action dimension
    weights = recurrent_actor_critic.step_weights(tape.mask, tape.real, 0.3)
    # The temperature is updated first, so the actor's loss has the new one in it.
    metrics = made.update_policy(tape, weights, features)
    mean = 0.3 * np.mean(gaps[True]) + 0.7 * np.mean(gaps[False])
    # After the first step Adam's average is (1 - 0.9) times the gradient.
    average = made.optimisers["alpha"].state[made.log_alpha]["exp_avg"]
    assert float(average) == pytest.approx(-0.1 * mean, rel=1e-4)
    change = float(made.log_alpha.detach().exp()) - 0.4
    entropy = 0.3 * np.mean(gaps[True]) + 0.7 * np.mean(gaps[False]) + 1.0
    expected = 0.3 * np.mean(losses[True]) + 0.7 * np.mean(losses[False]) + change * entropy
    assert float(metrics["actor/loss"]) == pytest.approx(expected, rel=1e-4)
    assert float(metrics["actor/entropy"]) == pytest.approx(-entropy, rel=1e-4)


def test_weights_where_one_kind_is_absent() -> None:
    mask = torch.tensor([True, True, False])
    real = torch.ones(3, dtype=torch.bool)
    found = recurrent_actor_critic.step_weights(mask, real, 0.3)
    np.testing.assert_allclose(found.numpy(), [0.15, 0.15, 0.0])


@torch.no_grad()
def test_what_a_tape_teaches_is_what_acting_sees() -> None:
    """Log-probabilities on a tape are those of acting step by step with the memory carried."""
    made, generator = learner(), torch.Generator().manual_seed(3)
    tape = filled(3).sample(20, generator)
    features = made.policy.encoder(tape.x, tape.first)
    mean, _ = made.policy.distribution(features)
    state = None
    for t in range(20):
        state = None if tape.first[t] else state
        action, state = made.policy.step(tape.x[t : t + 1, :2], state, None)
        torch.testing.assert_close(action, 2.0 * torch.tanh(mean[t : t + 1]), rtol=1e-4, atol=1e-5)
        size = made.policy.encoder.state_size
        state = made.policy.carried(state[:, :size], tape.action[t : t + 1], torch.zeros(1))
        state = made.policy.observe_reward(state, tape.reward[t : t + 1])


def test_memory_carried_into_a_rollout_is_that_of_its_history() -> None:
    made, _ = agent()
    starts, times, _ = made.source.histories(5, made.generator)
    carried = made.source.carried(starts, times)
    s = made.spec.obs_dim
    for row, (start, time) in enumerate(zip(starts.tolist(), times.tolist(), strict=True)):
        state = torch.zeros(1, made.policy.carried_size)
        for t in range(time):
            past = made.source.recorded.rows[start + t : start + t + 1]
            _, state = made.policy.step(past[:, :s], state, None)
            size = made.policy.encoder.state_size
            state = made.policy.carried(state[:, :size], past[:, s : s + 1], past[:, s + 1])
        torch.testing.assert_close(carried[row : row + 1], state, rtol=1e-3, atol=1e-4)


class Line:
    """Two members that move by +1 and -1; disagreement is the distance from 0; ends beyond 5."""

    spec, num_members, device = SPEC, 2, torch.device("cpu")

    def predict(self, obs, action, generator, *, member=None, state=None, measure=None):
        step = torch.where(member[:, None] == 0, 1.0, -1.0)
        following = obs + step
        level = following[:, 0].abs()
        ended = following[:, 0] > 5
        return Prediction(following, member.float(), ended, disagreement=level)

    def disagreement(self, obs, action, name):
        raise AssertionError("asked twice")


def test_rollouts_keep_their_member_and_stop_by_limit_threshold_or_end() -> None:
    made = learner()
    config = RolloutConfig(horizon=8, member="per_rollout", stop="epistemic_mean", stop_above=3.5)
    found = rollout(
        Line(), made.policy, torch.zeros(6, 2), config, torch.Generator().manual_seed(4),
        memory=torch.zeros(6, made.policy.carried_size),
        limits=torch.tensor([0, 1, 2, 8, 8, 8]),
    )  # fmt: skip
    assert found.lengths.tolist() == [0, 1, 2, 4, 4, 4]
    for row in range(6):
        part = found.reward[row][found.mask[row]]
        assert len(set(part.tolist())) <= 1
    ends = [found.truncated[r, n - 1].item() for r, n in enumerate(found.lengths.tolist()) if n]
    assert all(ends) and not found.terminated.any()


def test_every_member_is_drawn_as_often_in_a_collection() -> None:
    seen = []

    class Watched(Line):
        def predict(self, obs, action, generator, *, member=None, **rest):
            seen.append(member.clone())
            return super().predict(obs, action, generator, member=member, **rest)

    config = RolloutConfig(horizon=1, member="per_rollout")
    rollout(
        Watched(),
        lambda o, g: torch.zeros(len(o), 1),
        torch.zeros(10, 2),
        config,
        torch.Generator(),
    )
    assert torch.bincount(seen[0]).tolist() == [5, 5]


@pytest.mark.parametrize("kind", ["per_rollout", "per_step"])
def test_fewer_rollouts_than_members_use_all_members_in_turn(kind: str) -> None:
    seen = []

    class Many(Line):
        num_members = 50

        def predict(self, obs, action, generator, *, member=None, **rest):
            seen.append(member.clone())
            return super().predict(obs, action, generator, member=member, **rest)

    generator = torch.Generator().manual_seed(7)
    for _ in range(300):
        config = RolloutConfig(horizon=1, member=kind)  # type: ignore[arg-type]
        rollout(Many(), lambda o, g: torch.zeros(len(o), 1), torch.zeros(20, 2), config, generator)
    assert all(len(set(m.tolist())) == 20 for m in seen)  # none twice in a collection
    counts = torch.bincount(torch.cat(seen), minlength=50)
    assert len(counts) == 50 and bool(((counts - 120).abs() < 5 * (120 * 0.6) ** 0.5).all())


def test_thresholds_by_hand() -> None:
    levels = torch.arange(1.0, 101.0)[torch.randperm(100)]
    assert float(threshold_of(levels, 1.0, "quantile")) == 100
    assert float(threshold_of(levels, 0.9, "quantile")) == 90
    assert float(threshold_of(levels, 0.901, "quantile")) == 91
    assert float(threshold_of(levels, 1.0, "supported")) == 91
    assert float(threshold_of(levels, 0.5, "supported")) == 50
    assert float(threshold_of(levels, 0.5, "never")) == math.inf


def test_without_a_quantile_only_the_limit_stops() -> None:
    made, _ = agent(rule="never", cap=9, parallel=6)
    assert "rollouts stop at no disagreement (never; mean of" in made.forecast(100)[0]
    made.source.levels = torch.tensor([0.0, 1.0])  # which a rule would stop at
    assert "rollout/threshold" not in made.source.collect(made.generator)
    _, _, limits = histories = made.source.histories(6, made.generator)
    imagined = made.source.imagine(*histories, made.generator)
    assert imagined is not None and imagined.lengths.tolist() == limits.tolist()


def test_rollouts_may_go_on_to_the_time_limit_and_not_from_a_terminal_end() -> None:
    made, _ = agent(cap=None)
    steps = made.spec.max_episode_steps
    assert steps == 200
    starts, times, limits = made.source.histories(3000, made.generator)
    assert torch.equal(limits, steps - times) and int(times.max()) == 200  # pendulums never end
    begin, length = made.source.recorded.episodes[2]
    made.source.recorded.rows[begin + length - 2, 5] = 0.0  # now this one's last step terminates
    starts, times, limits = made.source.histories(3000, made.generator)
    at_end = (starts == begin) & (times == length - 1)
    assert bool(at_end.any()) and not limits[at_end].any()
    assert torch.equal(limits[~at_end], (steps - times)[~at_end])


def test_stored_episodes_are_history_then_rollout() -> None:
    made, dataset = agent(parallel=8)
    kept: list = []
    imagine = made.source.imagine
    made.source.imagine = lambda *a: kept.append(imagine(*a)) or kept[-1]  # type: ignore[method-assign]
    made.source.collect(made.generator)
    raw = dataset.transitions
    total = 0
    for row, (start, length) in enumerate(made.source.sequences.episodes):
        rows = made.source.sequences.rows[start : start + length]
        real = int(rows[:-1, 6].sum())
        total += length - 1
        assert bool((rows[:real, 6] == 1).all())
        assert not rows[real:-1, 6].any()
        steps = length - 1 - real  # imagined ones, each row after what it led to
        torch.testing.assert_close(rows[real : real + steps, :3], kept[0].obs[row, :steps])
        torch.testing.assert_close(rows[real + 1 :, :3], kept[0].next_obs[row, :steps])
        torch.testing.assert_close(rows[real:-1, 4], kept[0].reward[row, :steps])
        torch.testing.assert_close(rows[real:-1, 3:4] * 2, kept[0].action[row, :steps])
        if real:
            matches = (raw.obs == rows[0, :3]).all(1).nonzero().flatten()
            begin = int(matches[0])
            torch.testing.assert_close(rows[:real, :3], raw.obs[begin : begin + real])
            torch.testing.assert_close(rows[:real, 4], raw.reward[begin : begin + real])
            torch.testing.assert_close(rows[:real, 3:4] * 2, raw.action[begin : begin + real])
    assert made.source.due == max(1, math.ceil(0.05 * total))


@pytest.mark.parametrize("cap", [1, 7])
def test_a_cap_bounds_rollouts_and_the_penalty_lowers_rewards(cap: int) -> None:
    made, _ = agent(cap=cap, parallel=6, zeta=1.0)
    histories = made.source.histories(6, made.generator)
    assert int(histories[2].max()) <= cap
    made.source.levels = torch.tensor([math.inf, 2.0])
    plain = made.source.imagine(*histories, made.generator)
    state = made.generator.get_state()
    made.generator.manual_seed(5)
    plain = made.source.imagine(*histories, made.generator)
    object.__setattr__(made.config.rollouts, "penalty", 3.0)
    made.generator.manual_seed(5)
    penalised = made.source.imagine(*histories, made.generator)
    made.generator.set_state(state)
    first = plain.mask[:, 0]
    level = penalised.disagreement[:, 0][first]
    gap = (plain.reward - penalised.reward)[:, 0][first]
    torch.testing.assert_close(gap, 3.0 / 2.0 * level, rtol=1e-4, atol=1e-5)


def test_a_penalty_is_learned_from_and_never_heard() -> None:
    """As in the task, where nobody takes anything off: what stands before an imagined step on a
    tape, and what the policy heard while it imagined, is the model's reward."""
    made, _ = agent(parallel=5, penalty=4.0, cap=6, rule="never")
    heard, listen = [], made.policy.observe_reward
    made.policy.observe_reward = lambda m, r, a=None: heard.append(r) or listen(m, r, a)
    kept: list = []
    imagine = made.source.imagine
    made.source.imagine = lambda *a: kept.append(imagine(*a)) or kept[-1]  # type: ignore[method-assign]
    made.source.collect(made.generator)
    (found,), mean = kept, float(made.source.levels[1])
    plain = found.reward + 4.0 / mean * found.disagreement
    torch.testing.assert_close(heard[0], plain[:, 0][found.mask[:, 0]], rtol=1e-3, atol=1e-3)
    for row, (start, length) in enumerate(made.source.sequences.episodes):
        positions = torch.arange(start, start + length)
        tape = made.source.sequences.tape(positions, positions == start)
        steps = int(found.mask[row].sum())
        torch.testing.assert_close(tape.reward[-1 - steps : -1], found.reward[row, :steps])
        torch.testing.assert_close(tape.x[-steps:, -1], plain[row, :steps], rtol=1e-3, atol=1e-3)


def test_a_markov_agent_sees_the_observation_alone() -> None:
    obs = torch.tensor([[0.3, -1.0]])
    for kind, alike in (("none", True), ("lru", False)):
        made = learner(memory=MemoryConfig(kind=kind, width=8, layers=1, states=4))  # type: ignore[arg-type]
        state = made.policy.step(obs, None, None)[1]
        first = made.policy.step(obs, made.policy.observe_reward(state, torch.zeros(1)), None)[0]
        other = made.policy.observe_reward(state, torch.full((1,), 5.0), torch.ones(1, 1))
        assert torch.equal(first, made.policy.step(obs, other, None)[0]) == alike
        tape = filled().sample(20, torch.Generator().manual_seed(1))
        moved = tape.x.clone()
        moved[:, 2:] += 1.0
        same = torch.equal(*(made.critic.encoder(x, tape.first) for x in (tape.x, moved)))
        assert same == alike


def test_deviations_of_members_are_bounded_as_in_the_authors_code() -> None:
    """There the logarithm of the deviation lies in [-5, 0.25]; half of a log-variance here."""
    network = EnsembleNetwork(4, 2, 3, NEUBAYConfig().model)
    for far, limit in ((-60.0, -5.0), (60.0, 0.25)):
        _, log_variance = network.split(torch.full((3, 4, 4), far))
        torch.testing.assert_close(
            log_variance / 2, torch.full_like(log_variance, limit), rtol=0, atol=1e-4
        )


def test_the_forecast_tells_and_changes_nothing() -> None:
    made, _ = agent()
    before = made.generator.get_state()
    weights = torch.cat([p.flatten() for p in made.policy.parameters()])
    lines = made.forecast(1000)
    assert torch.equal(weights, torch.cat([p.flatten() for p in made.policy.parameters()]))
    assert torch.equal(made.generator.get_state(), before) and not made.source.sequences.episodes
    assert f"{float(made.source.levels[0]):.4g}" in lines[0] and "steps long" in lines[2]
    assert "1000 updates at" in lines[3] and "GiB" in lines[3]


def test_the_forecast_counts_the_actions_that_pass_the_threshold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model that disagrees about large torques alone: of uniform ones in [-2, 2] three quarters
    are above 0.5; of the data's as many as it has."""
    made, dataset = agent()
    monkeypatch.setattr(made.model, "disagreement", lambda obs, action, measure: action[:, 0].abs())
    made.source.levels = torch.tensor([0.5, 0.1])
    others, uniform = made._beyond(made.generator)
    logged = float((dataset.transitions.action[:, 0].abs() > 0.5).float().mean())
    assert uniform == pytest.approx(0.75, abs=0.03) and others == pytest.approx(logged, abs=0.05)
    # A model that disagrees about what was not done there: no row has another's action by chance.
    rows = dataset.transitions
    known = {tuple(o): float(a) for o, a in zip(rows.obs.tolist(), rows.action[:, 0], strict=True)}

    def unlike(obs: torch.Tensor, action: torch.Tensor, measure: str) -> torch.Tensor:
        return (action[:, 0] - torch.tensor([known[tuple(o)] for o in obs.tolist()])).abs()

    monkeypatch.setattr(made.model, "disagreement", unlike)
    made.source.levels = torch.tensor([1e-3, 0.1])
    assert min(made._beyond(made.generator)) > 0.8
    told = made.forecast(1000)[1]
    assert "of the actions of other rows and" in told and told.endswith("of uniform ones")


@pytest.mark.long
def test_memory_solves_what_a_markov_agent_cannot() -> None:
    """The action's reward is +1 or -1 by a sign that only the first observation shows; with memory
    the second step earns nearly 1 on average, without it nearly 0."""
    earned = {}
    for kind in ("lru", "none"):
        made = learner(
            memory=MemoryConfig(kind=kind, width=16, layers=1, states=8), hidden=(16,),
            encoder_lr=3e-3, head_lr=3e-3, alpha_lr=3e-3, alpha=0.02, learn_alpha=False,
            tape=256, real_weight=1.0, gamma=0.5,
        )  # fmt: skip
        generator = torch.Generator().manual_seed(6)
        buffer = SequenceBuffer(SPEC, 6000, 0.5)
        for _ in range(1500):
            sign = float(torch.randint(0, 2, (1,), generator=generator)) * 2 - 1
            obs = torch.tensor([[sign, 0.0], [0.0, 0.0], [0.0, 0.0]])
            action = torch.rand(2, 1, generator=generator) * 2 - 1
            reward = torch.stack([torch.zeros(()), sign * action[1, 0]])
            ended = torch.tensor([False, True])
            buffer.append(obs, action, reward, ended, torch.ones(2, dtype=torch.bool))
        for _ in range(250):
            made.update(made.draw(buffer.sample(256, generator), generator))
        gains = []
        for sign in (-1.0, 1.0):
            action, state = made.policy.step(torch.tensor([[sign, 0.0]]), None, None)
            state = made.policy.observe_reward(state, torch.zeros(1))
            action, _ = made.policy.step(torch.zeros(1, 2), state, None)
            gains.append(sign * float(action) / 2)
        earned[kind] = float(np.mean(gains))
    assert earned["lru"] > 0.8
    assert abs(earned["none"]) < 0.3


def test_episodes_longer_than_a_tape_are_warned_of() -> None:
    dataset = data.load("pendulum/medium-replay")
    made = NEUBAY(dataset.spec, configs.from_dict(NEUBAYConfig, CONFIGS["neubay"]), seed=0)
    said = r"learner.tape is 64 and the longest episode has 200 steps.*--learner.tape 201"
    with pytest.warns(UserWarning, match=said):
        made.prepare(dataset, lambda metrics: None)


def test_predict_empties_the_memory_where_an_episode_begins() -> None:
    """With Stable-Baselines3's helper, two copies side by side: what each is shown first in every
    episode, and what it does there, is what a new agent does."""
    made, _ = agent()
    obs = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(8)).numpy()
    state, start = None, np.ones(2, dtype=bool)
    for t in range(6):
        action, state = made.predict(obs[t], state, start, deterministic=True)
        for copy in range(2):
            new, _ = made.predict(obs[t][copy : copy + 1], deterministic=True)
            assert np.allclose(action[copy], new[0], atol=1e-5) == bool(start[copy])
        start = np.array([t == 2, t == 3])


def test_bad_settings() -> None:
    dataset = data.load("pendulum/medium-replay")
    with pytest.raises(ConfigError, match="zeta is 0"):
        configs.from_dict(NEUBAYConfig, {"rollouts": {"zeta": 0.0}})
    with pytest.raises(ConfigError, match="target_min_of"):
        configs.from_dict(NEUBAYConfig, {"learner": {"critics": 1}})
    spec = Spec("mine", obs_dim=3, action_dim=1, action_low=(-2.0,), action_high=(2.0,))
    values = CONFIGS["neubay"] | {"rollouts": {"termination": "never"}}
    made = NEUBAY(spec, configs.from_dict(NEUBAYConfig, values))
    with pytest.raises(ConfigError, match=r"no episode limit.*--rollouts.cap 200 \(the longest"):
        made.prepare(dataset, lambda metrics: None)


def test_large_ensembles_keep_the_best() -> None:
    """32 members trained as one, 20 kept: those with the least holdout error."""
    dataset = data.load("pendulum/medium")
    config = EnsembleConfig(
        members=32, elites=20, hidden=(8,), layer_norm=True, activation="leaky_relu",
        target="standardised", log_variance_bounds="fixed", bootstrap="none", weight_decay=(5e-5,),
        min_epochs=1, max_epochs=2,
    )  # fmt: skip
    model = EnsembleDynamics(dataset.spec, config)
    model.fit(dataset.transitions)
    assert model.num_members == 20 and len(model.holdout_mse) == 20
