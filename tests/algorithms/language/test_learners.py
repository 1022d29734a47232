"""The learners of text tasks: known answers, exact gradients, exact continuation."""

import dataclasses
import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language import tasks
from algorithms.language.evaluation import evaluate
from algorithms.language.imitation import Imitation, ImitationConfig
from algorithms.language.learner import ModelConfig, put
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.tokens import Sampling
from mbrl import checkpoint
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Estimate
from mbrl.policy_gradient.axes.step_size import StepSize
from mbrl.training import train
from tests.algorithms.language.small import MODEL, TINY, Digits, Echo


@pytest.fixture(autouse=True)
def _digits(monkeypatch: pytest.MonkeyPatch) -> None:
    for task in (Digits(), Echo()):
        monkeypatch.setitem(tasks.TASKS, task.name, task)


def learner(seed: int = 0, warm: Path | None = None, **changes: Any) -> LanguagePolicyGradient:
    values = {"task": "digits", "model": MODEL, "prompts": 4, "group": 4, "learning_rate": 3e-3}
    agent = LanguagePolicyGradient(config=LanguageConfig(**(values | changes)), seed=seed)
    if warm is not None:
        agent.begin_with(warm)
    return agent


def weights(agent: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in agent.model.parameters()]


def equal(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


@dataclasses.dataclass(frozen=True)
class Quarter(StepSize):
    def __call__(self, log_ratio, log_prob, advantage, t) -> torch.Tensor:
        return torch.tensor(0.25)


def test_a_recipes_step_size_is_that_of_the_weights() -> None:
    """The first step of Adam, which takes no notice of the size of a gradient."""
    moved = []
    for step_size in (None, Quarter()):
        agent = learner()
        agent.recipe = dataclasses.replace(agent.recipe, step_size=step_size)
        before = weights(agent)
        agent.collect()
        batch = agent.next_batch()  # in which nobody is right yet
        good = Estimate(torch.ones_like(batch.estimate.advantage), batch.estimate.weight)
        agent.update(batch._replace(estimate=good))
        moved.append([b - a for a, b in zip(before, weights(agent), strict=True)])
    assert max(float(m.abs().max()) for m in moved[0]) > 1e-4
    for whole, quarter in zip(*moved, strict=True):
        assert torch.allclose(quarter, 0.25 * whole, atol=1e-7)


def test_imitation_learns_what_is_shown() -> None:
    agent = Imitation(
        config=ImitationConfig(task="addition", levels=(1,), model=MODEL, learning_rate=3e-3)
    )
    first = float(agent.update(agent.next_batch())["imitation/loss"])
    train(agent, 60)
    last = float(agent.update(agent.next_batch())["imitation/loss"])
    assert last < first / 2  # it knows the alphabet of answers and where they end


def test_the_loss_of_imitation_is_the_mean_over_turns_tokens() -> None:
    agent = Imitation(config=ImitationConfig(task="digits", model=MODEL, rows=5, rows_at_once=2))
    batch = agent.next_batch()
    log_p = agent.model(batch.tokens[:, :-1]).log_softmax(-1)
    picked = [
        -float(log_p[b, t, batch.tokens[b, t + 1]].detach())
        for b, t in batch.data.mask.nonzero().tolist()
    ]
    assert float(agent.update(batch)["imitation/loss"]) == pytest.approx(
        sum(picked) / len(picked), rel=1e-5
    )


@pytest.mark.parametrize("recipe", ["grpo"])
def test_a_policy_gradient_finds_what_is_rewarded(recipe: str, tmp_path: Path) -> None:
    """Demonstrations show that the answer is one of four digits; that it is the one in the prompt
    only the reward tells. Chance is a quarter."""
    shown = ImitationConfig(task="echo", model=MODEL, learning_rate=1e-2, rows=32)
    first = Imitation(config=shown, seed=1)
    train(first, 60)
    first.save(tmp_path / "first.pt")
    rates = {"learning_rate": 1e-2, "minibatches": 1}
    agent = learner(
        task="echo", recipe=recipe, prompts=16, group=8, warm=tmp_path / "first.pt", **rates
    )
    before = evaluate(agent.model, agent.codec, agent.task, (4,), problems=200)[0].accuracy
    train(agent, 100, collector=agent)
    after = evaluate(agent.model, agent.codec, agent.task, (4,), problems=200)[0].accuracy
    assert before < 0.35 and after > 0.5


def test_the_first_update_of_a_round_has_ratios_of_1() -> None:
    agent = learner(sampling=Sampling(0.8, 0.9))
    agent.collect()
    metrics = agent.update(agent.next_batch())
    assert float(metrics["policy/ratio_max"]) == pytest.approx(1.0, abs=1e-5)
    assert float(metrics["rollout/age"]) == 0
    norm, limit = float(metrics["policy/gradient_norm"]), agent.config.clip_norm
    assert float(metrics["policy/gradient_clipped"]) == float(norm > limit)


def test_the_distance_from_the_sampler_is_that_of_a_slow_loop(warm: Path) -> None:
    agent = learner(warm=warm, prompts=6, staleness=4, learning_rate=0.05)
    train(agent, 2, collector=agent)
    agent.collect()
    batch = agent.next_batch()
    t, (now, _, _) = batch.rollouts.data, agent.measured(agent.model, batch.rollouts)
    sums, far, count = [], 0, 0
    for row, own in enumerate(t.mask.tolist()):
        places = [i for i, on in enumerate(own) if on]
        ratios = [float(now[row, i] - t.log_probs["behaviour"][row, i]) for i in places]
        sums.append(math.exp(sum(ratios)))
        far += sum(not 0.5 <= math.exp(r) <= 2 for r in ratios)
        count += len(ratios)
    share = sum(sums) ** 2 / (len(sums) * sum(w * w for w in sums))
    found = agent.update(batch)
    assert 0 < share < 0.999 and 0 < far < count
    assert float(found["behaviour/effective"]) == pytest.approx(share, rel=1e-4)
    assert float(found["behaviour/tail"]) == pytest.approx(far / count)


def test_demonstrations_go_on_from_those_of_another(warm: Path) -> None:
    config = ImitationConfig(task="digits", model=MODEL, learning_rate=1e-2, rows=32)
    apart, whole = Imitation(config=config), Imitation(config=config)
    apart.begin_with(warm)
    train(apart, 3)
    train(whole, 63)
    assert equal(apart, whole) and apart.step == 3 and apart.updates == 63
    path = warm.parent / "other.pt"
    learner().save(path)
    with pytest.raises(ConfigError, match="not of a learner from demonstrations"):
        apart.begin_with(path)
    slower = Imitation(config=dataclasses.replace(config, learning_rate=1e-5))
    slower.begin_with(warm)
    before = weights(slower)
    train(slower, 1)
    moved = max(float((a - b).abs().max()) for a, b in zip(before, weights(slower), strict=True))
    assert 0 < moved < 2e-5


def test_parts_of_a_minibatch_have_its_gradient() -> None:
    whole, parts = learner(minibatches=1), learner(minibatches=1, rows_at_once=5)
    assert equal(whole, parts)
    for agent in (whole, parts):
        agent.collect()
        batch = agent.next_batch()
        found = Estimate(torch.randn_like(batch.estimate.advantage).sign(), batch.estimate.weight)
        generator = torch.Generator().manual_seed(0)
        signs = torch.rand(found.advantage.shape, generator=generator) - 0.5
        agent.update(batch._replace(estimate=Estimate(signs, batch.estimate.weight)))
    for x, y in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert x.grad is not None and y.grad is not None
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-6)


def test_a_start_of_other_sizes_is_told_by_what_differs(tmp_path: Path) -> None:
    learner().save(tmp_path / "agent.pt")
    wider = dataclasses.replace(TINY, width=2 * TINY.width)
    other = LanguagePolicyGradient(None, LanguageConfig(model=ModelConfig(transformer=wider)))
    said = f"has transformer.width {TINY.width}, this one transformer.width {wider.width}; give"
    with pytest.raises(ConfigError, match=said):
        other.begin_with(tmp_path / "agent.pt")
    with pytest.raises(ConfigError, match=r"its .*weight is \[.*\], that of this one \["):
        put(other.model, learner().model.state_dict())


def test_stale_conversations_are_as_old_as_stated() -> None:
    agent = learner(staleness=4, minibatches=2)
    ages = []
    for _ in range(5):
        for _ in range(agent.collect()):
            metrics = agent.update(agent.next_batch())
        ages.append(int(metrics["rollout/age"]))
    assert ages == [0, 2, 4, 4, 4]
    assert agent.old == "sampling" and learner(recipe="truncated_is_grpo").old == "start"
    with pytest.raises(ConfigError, match="staleness is 3 updates, it must be a multiple of the 2"):
        learner(staleness=3)


def test_old_log_probs_are_of_the_policy_that_is_named(warm: Path) -> None:
    for old in ("sampling", "start"):
        agent = learner(warm=warm, staleness=2, minibatches=2, recipe="areal", old=old)
        for _ in range(3):
            updates = agent.collect()
            found = agent.data.rollouts
            now = agent.measured(agent.model, found)[0]
            mask = found.data.mask
            torch.testing.assert_close(found.data.log_probs["proximal"][mask], now[mask])
            wanted = now if old == "start" else found.data.log_probs["behaviour"]
            torch.testing.assert_close(
                found.data.log_probs["old"][mask], wanted[mask], rtol=0, atol=1e-5
            )
            for _ in range(updates):
                agent.update(agent.next_batch())


def test_tokens_are_counted(warm: Path) -> None:
    """Sampled ones once a round, trained ones in every update that they are part of."""
    agent = learner(warm=warm, minibatches=2, epochs=2)
    sampled = trained = 0
    for _ in range(2):
        updates = agent.collect()
        sampled += int(agent.data.rollouts.data.mask.sum())
        for _ in range(updates):
            batch = agent.next_batch()
            trained += int(batch.rollouts.data.mask.sum())
            metrics = agent.update(batch)
            assert int(metrics["tokens/sampled"]) == sampled
            assert int(metrics["tokens/trained"]) == trained
    assert trained == 2 * sampled


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": "grpo", "staleness": 2, "minibatches": 2},
        {"recipe": "gigpo", "sampling": Sampling(0.9, 0.8)},
    ],
    ids=["stale", "states"],
)
def test_it_continues_bit_for_bit(changes: dict[str, Any], warm: Path, tmp_path: Path) -> None:
    whole, broken = learner(warm=warm, **changes), learner(warm=warm, **changes)
    train(whole, 5, collector=whole)
    train(broken, 2, collector=broken)
    broken.save(tmp_path / "agent.pt")
    again = LanguagePolicyGradient.load(tmp_path / "agent.pt")
    train(again, 5, collector=again)
    assert equal(whole, again) and not equal(whole, broken)
    assert whole.tokens == again.tokens and whole.updates == again.updates


def test_the_reference_is_the_first_policy(warm: Path, tmp_path: Path) -> None:
    first = Imitation.load(warm)
    agent = learner(recipe="gigpo", warm=warm)
    assert equal(agent, first)
    train(agent, 2, collector=agent)
    assert not equal(agent, first)
    for x, y in zip(agent.anchors["reference"].parameters(), first.model.parameters(), strict=True):
        assert torch.equal(x, y)
    # Of other layers and widths, and of the same weights that are another function.
    for change in ({"layers": 1}, {"hidden": 32}, {"heads": 1}):
        model = ModelConfig(transformer=dataclasses.replace(TINY, **change))
        other = Imitation(config=ImitationConfig(task="digits", model=model))
        other.save(tmp_path / "other.pt")
        with pytest.raises(ConfigError, match="the same values"):
            learner().begin_with(tmp_path / "other.pt")


def test_every_pass_has_every_conversation_once() -> None:
    agent = learner(epochs=2, minibatches=3)
    assert agent.collect() == 6
    seen = []
    for _ in range(6):
        batch = agent.next_batch()
        seen.append([tuple(t) for t in batch.rollouts.turns])
        agent.update(batch)
    for start in (0, 3):
        rows = list(itertools.chain(*seen[start : start + 3]))
        assert sorted(rows) == sorted(agent.data.rollouts.turns)
    with pytest.raises(ConfigError, match="no round to learn from"):
        agent.next_batch()


def test_answers_that_are_compared_are_learned_from_together() -> None:
    """And their lengths are shares of the longest that the task has."""
    agent = learner(task="guessing", recipe="drpo_decoupled", turn_tokens=5, minibatches=2)
    assert agent.recipe.gate.longest == 5 * agent.task.max_turns
    agent.collect()
    for _ in range(2):
        prompts = agent.next_batch().rollouts.data.groups["prompt"][:, 0].tolist()
        agent.trainer.updated()
        assert sorted(Counter(prompts).values()) == [4, 4]


def test_what_was_shown_is_not_what_rewards_are_for() -> None:
    shown = Imitation(config=ImitationConfig(task="addition", model=MODEL))
    agent = learner(task="addition")
    sums = [{one.problem(i).prompt for i in range(8)} for one in (shown, agent)]
    assert len(sums[0] & sums[1]) < 4


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task": "additon"}, "did you mean 'addition'"),
        ({"recipe": "grppo"}, "did you mean 'grpo'"),
        ({"levels": (4, 5)}, r"levels is \(4, 5\), digits has 4, 9"),
        ({"prompts": 0}, "prompts is 0"),
        ({"minibatches": 17}, "more than the 16 conversations"),
        ({"sampling": Sampling(0.0)}, "greedy answers have nothing to learn from"),
        ({"learning_rate": 0.0}, "learning_rate is 0"),
        ({"model": ModelConfig(path="/nowhere")}, "/nowhere holds no model"),
        ({"recipe": "cj_grpo"}, r"recipe cj_grpo needs segments\.decode"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        learner(**changes)


def test_a_pool_comes_again(tmp_path: Path) -> None:
    agent = learner(pool=6)
    assert agent.problem(1) == agent.problem(7) != agent.problem(2)
    assert learner(seed=1).problem(1) != agent.problem(1) or learner(seed=1).problem(
        2
    ) != agent.problem(2)
    content = tmp_path / "x.pt"
    agent.save(content)
    assert checkpoint.load(content)["spec"]["task"] == "language/digits"
