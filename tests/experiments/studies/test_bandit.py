"""NEUBAY's bandit: the fit of the reward models and the learner's targets against loops,
and whole cells on tiny budgets."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from experiments import studies
from experiments.studies import bandit
from experiments.studies import bandit_world as world
from experiments.studies.bandit_agent import (
    AgentConfig,
    Batch,
    Learner,
    QNetwork,
    Replay,
    double_q_loss,
    epsilon,
)
from experiments.tables import plan
from mbrl import checkpoint
from mbrl.errors import ConfigError

SMALL_AGENT = AgentConfig(updates=40, pulls=5, width=8, states=4, tape=23)
SMALL = {
    "members": 6,
    "kept": 5,
    "epochs": 3,
    "updates": 12,
    "pulls": 6,
    "width": 8,
    "states": 4,
    "tape": 20,
    "episodes": 3,
    "looks": 3,
    "samples": 8,
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_data_have_as_many_ones_as_the_authors() -> None:
    rewards = world.behaviour_rewards()
    assert rewards.shape == (1000,) and rewards.sum() == 494
    assert set(rewards.tolist()) == {0.0, 1.0}
    assert 0.3 < rewards[:200].mean() < 0.7


def one_member(weights: dict[str, np.ndarray], arm: int) -> tuple[float, float]:
    """Mean and log deviation of a model, from its arrays, a unit at a time."""
    h = [float(arm == 0), float(arm == 1)]
    for layer in range(3):
        w, b = weights[f"mlp.weights.{layer}"], weights[f"mlp.biases.{layer}"][0]
        h = [sum(h[i] * w[i, o] for i in range(len(h))) + b[o] for o in range(w.shape[1])]
        if layer < 2:
            middle = sum(h) / len(h)
            spread = math.sqrt(sum((v - middle) ** 2 for v in h) / len(h) + 1e-5)
            scale, shift = (weights[f"mlp.{n}.{layer}"][0] for n in ("scales", "shifts"))
            h = [(v - middle) / spread * scale[i] + shift[i] for i, v in enumerate(h)]
            h = [v if v > 0 else 0.01 * v for v in h]
    log_std = 0.25 - math.log1p(math.exp(0.25 - h[1]))
    return h[0], -5 + math.log1p(math.exp(log_std + 5))


@pytest.mark.parametrize("initialisation", ["torch", "flax"])
def test_reward_models_against_a_loop_and_scipy(initialisation: str) -> None:
    config = world.RewardConfig(members=3, hidden=4, initialisation=initialisation)
    models = world.RewardModels(config, seeded())
    rewards = torch.tensor([0.0, 1.0, 1.0, 0.3])
    for e in range(3):
        own = {name: t[e].detach().double().numpy() for name, t in models.state_dict().items()}
        for arm in range(2):
            mean, log_std = one_member(own, arm)
            with torch.no_grad():
                result = models(torch.eye(2)[arm][None])
            assert float(result[0][e, 0]) == pytest.approx(mean, abs=1e-5)
            assert float(result[1][e, 0]) == pytest.approx(log_std, abs=1e-5)
            nll = world.negative_log_likelihood(result[0][e], result[1][e], rewards)
            expected = -stats.norm(mean, math.exp(log_std)).logpdf(rewards.numpy())
            np.testing.assert_allclose(nll.numpy(), expected, rtol=1e-4)


def test_initialisations_have_their_moments() -> None:
    """Of 2,000 members: a uniform weight of a layer with 16 inputs has deviation 1 / sqrt(48), a
    normal one of LeCun 1 / 4 and is cut at two deviations of the uncut normal."""
    kinds = {}
    for name in world.INITIALISATIONS:
        config = world.RewardConfig(members=2000, initialisation=name)
        kinds[name] = world.RewardModels(config, seeded()).mlp
    uniform, normal = (kinds[name].weights[1].detach() for name in ("torch", "flax"))
    assert float(uniform.std()) == pytest.approx(1 / math.sqrt(48), rel=0.01)
    assert float(uniform.abs().max()) <= 0.25
    assert float(normal.std()) == pytest.approx(0.25, rel=0.01)
    entry = kinds["flax"].weights[0].detach()
    assert float(entry.std()) == pytest.approx(1 / math.sqrt(2), rel=0.01)
    assert float(normal.abs().max()) == pytest.approx(0.5 / 0.8796, rel=0.01)
    assert not any(b.any() for b in kinds["flax"].biases)
    assert float(kinds["torch"].biases[1].detach().std()) == pytest.approx(
        1 / math.sqrt(48), rel=0.02
    )


def test_the_holdout_rule_against_a_loop() -> None:
    """Errors that are made up: each member keeps the weights of its last gain above the
    threshold, absolute, and the fit stops after `patience` epochs in which none gains."""
    config = world.RewardConfig(members=3, hidden=2, patience=2, min_gain=0.01)
    models = world.RewardModels(config, seeded())
    errors = [
        [1.0, 1.0, -1.0],
        [0.995, 0.9, -1.005],  # gains of 0.005 do not count
        [0.985, 0.95, -1.02],
        [0.98, 0.895, -1.02],
        [0.976, 0.5, -1.02],
        [0.976, 0.5, -1.029],
        [0.976, 0.5, -1.029],
        [0.0, 0.0, -9.0],
    ]
    judge = world.Judge(models, torch.tensor(errors[0]), config)
    best, kept, stalled = list(errors[0]), [0, 0, 0], 0
    states = [{k: v.clone() for k, v in models.state_dict().items()}]
    for epoch, row in enumerate(errors[1:], 1):
        for p in models.parameters():
            p.data += 1.0
        states.append({k: v.clone() for k, v in models.state_dict().items()})
        gained = False
        for e, error in enumerate(row):
            if best[e] - error > 0.01:
                best[e], kept[e], gained = error, epoch, True
        stalled = 0 if gained else stalled + 1
        stop = judge.look(torch.tensor(row))
        assert stop == (stalled == 2)
        if stop:
            break
    assert epoch == 6 and kept == [2, 4, 2]
    judge.restore()
    for name, result in models.state_dict().items():
        for e in range(3):
            assert torch.equal(result[e], states[kept[e]][name][e]), name


def test_the_fit_against_one_member_at_a_time() -> None:
    """The same steps of AdamW, member by member with its own orders, all rows of every epoch."""
    config = world.RewardConfig(members=3, hidden=4, epochs=3, batch_size=300, min_gain=-1e9)
    rewards = world.behaviour_rewards()
    models, alone = (world.RewardModels(config, seeded(1)) for _ in range(2))
    result = world.fit(models, rewards, config, seeded(2))
    order, draws = torch.randperm(1000, generator=seeded(42)), seeded(2)
    held, train = order[:200], order[200:]
    orders = [torch.rand(3, 800, generator=draws).argsort(1) for _ in range(3)]
    arm = torch.eye(2)[:1]
    for e in range(3):
        own = [p.detach()[e : e + 1].clone().requires_grad_() for p in alone.parameters()]
        names = [name for name, _ in alone.named_parameters()]
        single = world.RewardModels(world.RewardConfig(members=1, hidden=4), seeded())
        optimiser = torch.optim.AdamW(own, lr=1e-3, weight_decay=1e-4)

        def nll(rows, values=own, names=names, model=single):
            parts = dict(zip(names, values, strict=True))
            mean, log_std = torch.func.functional_call(model, parts, (arm,))
            dist = torch.distributions.Normal(mean[0], log_std[0].exp())
            return -dist.log_prob(rewards[rows]).mean()

        for keys in orders:
            for start in range(0, 800, 300):
                optimiser.zero_grad()
                (nll(train[keys[e, start : start + 300]]) / 3).backward()
                optimiser.step()
        assert float(result[e]) == pytest.approx(float(nll(held).detach()), abs=2e-4)
        for p, q in zip(own, models.parameters(), strict=True):
            torch.testing.assert_close(p[0], q[e], atol=3e-4, rtol=1e-3)


def test_the_best_members_are_kept_and_the_penalty_is_their_spread() -> None:
    """Arm 0's deviation of members must be small beside arm 1's, and the penalty c times each."""
    config = world.RewardConfig(members=12, kept=5, epochs=40)
    result, all_of_them = (
        world.fitted_members(c, 0.5, 3) for c in (config, world.RewardConfig(12, 12, epochs=40))
    )
    nll = [
        -stats.norm(m[0], s[0]).logpdf(HELD).mean()
        for m, s in zip(all_of_them.mean.numpy(), all_of_them.std.numpy(), strict=True)
    ]
    torch.testing.assert_close(result.mean, all_of_them.mean[:5])
    assert nll == pytest.approx(sorted(nll), abs=1e-6)
    np.testing.assert_allclose(result.penalty, 0.5 * result.mean.numpy().std(0), rtol=1e-4)
    assert result.penalty[1] > 3 * result.penalty[0]
    assert result.mean[:, 0].numpy() == pytest.approx([0.494] * 5, abs=0.1)
    none = world.fitted_members(config, 0.0, 3)
    assert not none.penalty.any() and torch.equal(none.mean, result.mean)


HELD = world.behaviour_rewards()[torch.randperm(1000, generator=seeded(42))[:200]].numpy()

TWO = world.Members(
    mean=torch.tensor([[0.5, 0.9], [0.4, 0.1]]),
    std=torch.tensor([[0.3, 0.4], [0.2, 0.6]]),
    penalty=torch.tensor([0.05, 0.2]),
)


def test_an_imagined_pull_shows_the_reward_and_pays_it_with_the_penalty() -> None:
    arm = torch.tensor([1, 0])
    seen, paid = TWO.pull(arm, seeded())
    noise = torch.randn(2, generator=seeded()).tolist()
    assert seen.tolist() == pytest.approx([0.9 + 0.4 * noise[0], 0.4 + 0.2 * noise[1]])
    assert (seen - paid).tolist() == pytest.approx([0.2, 0.05])


def test_what_an_agent_sees_while_it_plays() -> None:
    """Row i plays arms in a fixed order; inputs tell the pull before, real rewards follow their
    chance, the first input says arm 0 and reward 0."""

    def act(inputs, memory, generator):
        count = torch.zeros(len(inputs), 1) if memory is None else memory + 1
        return ((count[:, 0] + torch.arange(len(inputs))) % 2).long(), count

    chances = torch.tensor([0.0, 1.0])
    result = world.play(act, world.real_arms(chances), 2, 4, seeded())
    assert result.arm.T.tolist() == [[0, 1, 0, 1], [1, 0, 1, 0]]
    assert result.paid[1::2, 0].tolist() == [0.0, 0.0]
    assert result.paid[0::2, 1].tolist() == [1.0, 1.0]
    assert result.inputs[0].tolist() == [[0, 1, 0, 0]] * 2
    for t in range(4):
        for b in range(2):
            arm, reward = int(result.arm[t, b]), float(result.paid[t, b])
            assert result.inputs[t + 1, b].tolist() == [0, 1 - arm, arm, reward]
    many = world.play(act, world.real_arms(torch.full((400,), 0.3)), 400, 20, seeded())
    for arm, chance in ((0, 0.5), (1, 0.3)):
        assert float(many.paid[many.arm == arm].mean()) == pytest.approx(chance, abs=0.03)


def test_epsilon_is_a_line_then_flat() -> None:
    config = AgentConfig(updates=20_000)
    steps = [0, 500, 1000, 2000, 2001, 19_999]
    assert [epsilon(config, s) for s in steps] == pytest.approx([1, 0.775, 0.55, 0.1, 0.1, 0.1])
    learner = Learner(SMALL_AGENT, 0)
    learner.step = 2  # half of a tenth of 40 updates
    inputs = torch.tensor([[0.0, 1.0, 0.0, 0.0]]).expand(4000, 4)
    greedy = learner.act(inputs, None, seeded())[0]
    arms = learner.exploring()(inputs, None, seeded())[0]
    assert float((arms != greedy).float().mean()) == pytest.approx(0.55 / 2, abs=0.03)


def test_the_dueling_head_by_hand() -> None:
    network = QNetwork(SMALL_AGENT, seeded())
    features = torch.randn(7, 8)
    with torch.no_grad():
        h, q = network.hidden(features), network.head(features)
        value, advantage = network.value(h), network.advantage(h)
    for t in range(7):
        mean = (advantage[t, 0] + advantage[t, 1]) / 2
        for arm in range(2):
            expected = float(value[t, 0] + advantage[t, arm] - mean)
            assert float(q[t, arm]) == pytest.approx(expected, abs=1e-6)
    assert float(network.value.weight.detach().abs().max()) <= 0.1 / math.sqrt(8)
    assert not network.advantage.bias.any()


def test_the_loss_of_episodes_against_a_loop() -> None:
    g = seeded()
    q, target = 2 * torch.randn(4, 3, 2, generator=g), 2 * torch.randn(4, 3, 2, generator=g)
    arm, paid = torch.randint(2, (3, 3), generator=g), torch.randn(3, 3, generator=g)
    pulled = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 0]], dtype=torch.bool)
    q.requires_grad_()
    loss = double_q_loss(q, target, Batch(torch.zeros(4, 3, 4), arm, paid, pulled), 0.9)
    total, count, gradient = 0.0, 0, torch.zeros(4, 3, 2)
    for t, b in ((t, b) for t in range(3) for b in range(3) if pulled[t, b]):
        preferred = 0 if q[t + 1, b, 0] >= q[t + 1, b, 1] else 1
        goal = float(paid[t, b]) + 0.9 * float(target[t + 1, b, preferred])
        gap = float(q.detach()[t, b, arm[t, b]]) - goal
        total += 0.5 * gap * gap if abs(gap) < 1 else abs(gap) - 0.5
        gradient[t, b, arm[t, b]] = max(-1.0, min(1.0, gap))
        count += 1
    assert count == 7
    assert float(loss.detach()) == pytest.approx(total / count, rel=1e-5)
    torch.testing.assert_close(torch.autograd.grad(loss, q)[0], gradient / count)


def test_the_replay_returns_whole_episodes_and_forgets_the_oldest() -> None:
    """Three places for episodes of four pulls, filled by rounds of two: the third round's second
    episode takes the place of the first round's second."""
    replay = Replay(capacity=15, pulls=4)
    for n in range(3):
        inputs = torch.zeros(5, 2, 4)
        inputs[..., 3] = torch.arange(5)[:, None] + 10 * torch.arange(2 * n, 2 * n + 2)
        replay.add(world.Pulls(inputs, torch.ones(4, 2).long(), inputs[1:, :, 3]))
    seen = set()
    for seed in range(30):
        inputs, arm, paid, pulled = replay.sample(8, seeded(seed))
        assert inputs.shape == (5, 2, 4) and arm.shape == paid.shape == pulled.shape == (4, 2)
        # Eight rows are all five of the first episode and three of the second: two pulls.
        assert pulled.T.tolist() == [[True] * 4, [True, True, False, False]]
        for b in range(2):
            episode = int(inputs[0, b, 3]) // 10
            seen.add(episode)
            for t in range(5):
                assert float(inputs[t, b, 3]) == 10 * episode + t
                if t < 4:
                    assert float(paid[t, b]) == 10 * episode + t + 1
                    assert arm[t, b] == 1
    assert seen == {3, 4, 5}


def test_an_update_moves_encoder_and_head_by_their_own_rates() -> None:
    """The first step of Adam is its rate for every parameter whose gradient is not tiny; the
    target follows by tau."""
    learner = Learner(replace(SMALL_AGENT, tau=0.5), 0)
    learner.replay.add(world.play(learner.exploring(), TWO.pull, 2, 5, learner.generator))
    before = {name: p.detach().clone() for name, p in learner.q.named_parameters()}
    learner.update()
    for name, p in learner.q.named_parameters():
        rate = 3e-6 if name.startswith("encoder") else 1e-4
        moved = (p.detach() - before[name]).abs()
        assert float(moved.max()) == pytest.approx(rate, rel=0.1), name
        target = dict(learner.target.named_parameters())[name]
        half = (target - before[name]).abs().max()
        assert float(half) == pytest.approx(rate / 2, rel=0.3), name
    gradients = [p.grad for p in learner.parts[1]]
    assert float(torch.stack([g.norm() for g in gradients]).norm()) <= 1 + 1e-5


def test_what_the_memory_plays_is_what_the_tape_learns() -> None:
    learner = Learner(SMALL_AGENT, 0)
    played = world.play(learner.act, TWO.pull, 2, 5, learner.generator)
    for b in range(2):
        first = torch.arange(6) == 0
        q = learner.q(played.inputs[:, b], first)
        assert q[:-1].argmax(-1).tolist() == played.arm[:, b].tolist()


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    for change, text in (
        ({"agent": "magic"}, "magic"),
        ({"initialisation": "magic"}, "magic"),
        ({"kept": 7}, r"1\.\.6"),
        ({"episodes": 0}, "episodes is 0"),
        ({"tape": 1}, "tape is 1"),
    ):
        with pytest.raises(ConfigError, match=text):
            bandit.measure(bandit.DEFAULTS | SMALL | change, 0, tmp_path)


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """The leaves of nested dicts and lists by path."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, part in pairs for k, v in flat(part, f"{name}/{key}").items()}
    return {name: value}


def test_what_a_look_measures() -> None:
    """An agent that takes arm 1 in the first 30 rows alone, where it pays 0.01."""

    def act(inputs, memory, generator):
        return (torch.arange(len(inputs)) < 30).long(), torch.zeros(1)

    result = bandit.evaluate(act, TWO, bandit.DEFAULTS | {"episodes": 30, "pulls": 40}, 0)
    for p in bandit.CHANCES:
        assert result[f"best/{p:g}"] == (0.01 < p < 0.5)
        expected = 0.01 if p == 0.01 else 0.5
        assert result[f"return/{p:g}"] == pytest.approx(expected, abs=0.06)
    assert result["regret"] == pytest.approx((0.49 + 0.05 + 0.2 + 0.35 + 0.49) / 8)
    assert result["imagined"] == pytest.approx((0.9 + 0.1) / 2 - 0.2)


def test_a_cell_is_the_same_again_and_after_an_interruption(tmp_path: Path) -> None:
    settings = bandit.DEFAULTS | SMALL
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    first = bandit.measure(settings, 1, folders[0])
    assert bandit.measure(settings, 1, folders[1]) == first
    assert bandit.measure(settings, 2, folders[1] / "none") != first
    kept, count = Learner.update, 0

    def stop(self):
        nonlocal count
        count += 1
        if count == 7:
            raise KeyboardInterrupt
        return kept(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", stop)
        with pytest.raises(KeyboardInterrupt):
            bandit.measure(settings, 1, folders[2])
    assert bandit.measure(settings, 1, folders[2]) == first
    ends = [flat(checkpoint.load(folders[i] / "learner.pt")) for i in (0, 2)]
    assert ends[0].keys() == ends[1].keys() and len(ends[0]) > 100
    for name, value in ends[0].items():
        same = torch.equal(value, ends[1][name]) if torch.is_tensor(value) else None
        assert same or value == ends[1][name], name
    assert first.curves["step"] == [4, 8, 12]
    for p in bandit.CHANCES:
        assert first.curves[f"return/{p:g}"][-1] == pytest.approx(
            first.values[f"return/{p:g}"], abs=1e-3
        )
    gaps = [abs(p - 0.5) * (1 - first.values[f"best/{p:g}"]) for p in bandit.CHANCES]
    assert first.values["regret"] == pytest.approx(np.mean(gaps), abs=1e-3)


def test_oracles_play_and_are_drawn(tmp_path: Path) -> None:
    settings = bandit.DEFAULTS | SMALL
    rows = {}
    for label, change in (
        ("learned", {}),
        ("T", {"agent": "thompson"}),
        ("L", {"agent": "lookahead"}),
    ):
        result = bandit.measure(settings | change, 0, tmp_path)
        rows[label] = [{"values": result.values, "curves": result.curves}]
    assert (
        not rows["T"][0]["curves"]
        and rows["T"][0]["values"]["better"] == rows["L"][0]["values"]["better"]
    )
    files = bandit.draw(rows, tmp_path, "-2")
    assert [f.name for f in files] == ["returns-2.png", "learning-2.png"]
    assert all(f.exists() for f in files)
    text = files[0].with_suffix(".csv").read_text()
    assert "published without penalty (read off a figure),0.7,0.69" in text
    del rows["learned"]
    assert len(bandit.draw(rows, tmp_path, "")) == 1


def test_the_table() -> None:
    blocks = plan.load("bandit").blocks
    assert [len(b.rows) * len(b.seeds) for b in blocks] == [10, 20, 5, 4]
    for block in blocks:
        for row in block.rows:
            assert studies.settings_of("bandit", row.settings)["updates"] == 20_000
