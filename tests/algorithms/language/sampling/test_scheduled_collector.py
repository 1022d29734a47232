"""Rounds by schedulers: budgets, exact continuation, and groups that teach something."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language import schedule, tasks
from algorithms.language.learner import ModelConfig, build_model
from algorithms.language.models.transformer import TransformerConfig
from algorithms.language.models.vocabulary import ALPHABET
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.async_collector import AsyncCollector, worker_config
from algorithms.language.sampling.collectors import ScheduledCollector
from algorithms.language.sampling.rollouts import roll_out
from algorithms.language.sampling.workers import Inline
from algorithms.language.tasks.base import Problem, Reply, TextTask
from algorithms.language.value_model import PolicyValue, ValueConfig
from mbrl import config as configs
from mbrl.errors import CheckpointError, ConfigError
from mbrl.policy_gradient.schedulers import SCHEDULERS, Outcome
from mbrl.policy_gradient.schedulers.values import V0, V05, InContextValue
from mbrl.training import train

MODEL = ModelConfig(transformer=TransformerConfig(width=16, layers=1, heads=2, hidden=24))
SETTINGS = {
    "brorl": ("factor=2",),
    "difficulty_targeted": ("references=2",),
    "drive": ("stages=((1,), (1, 2, 0.5))",),
    "mpts": ("steps=2",),
    "reinforce_ada_scheduler": ("step=4",),
    "xrpo_scheduler": ("base=2", "step=8"),
}


class Parity(TextTask):
    """One character. At level 1 every second one is right, at level 2 all are, at level 0 none, at
    level 3 seven: a model that knows nothing solves 35 in 71 of level 1, 7 in 71 of level 3."""

    name = "parity"
    splits = False
    title = "even characters"
    levels = (0, 1, 2, 3)
    trained = (0, 1, 2)
    turn_length = 1
    prompt_length = 3
    signals = ("penalty",)

    def draw(self, level: int, rng: random.Random) -> Problem:
        return Problem(f"{level} {rng.randrange(10)}", level)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        place = ALPHABET.find(turns[-1])
        right = (False, place % 2 == 0, True, 0 < place < 8)[problem.level]
        return Reply(float(right), True, right, signals={"penalty": float(place > 9)})

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return "0"


@pytest.fixture(autouse=True)
def _parity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "parity", Parity())


def learner(scheduler: str = "uniform", seed: int = 0, **changes: Any) -> LanguagePolicyGradient:
    values = {
        "task": "parity",
        "model": MODEL,
        "turn_tokens": 1,
        "pool": 24,
        "prompts": 8,
        "group": 4,
        "scheduler": scheduler,
        "scheduler_settings": SETTINGS.get(scheduler, ()),
    }
    return LanguagePolicyGradient(config=LanguageConfig(**(values | changes)), seed=seed)


def value_file(path: Path) -> Path:
    """A value model as it begins."""
    config = ValueConfig(task="parity", model=MODEL, context=4, prompts=8)
    model, codec = build_model(MODEL, torch.Generator().manual_seed(0), torch.device("cpu"))
    value = InContextValue(16, generator=torch.Generator().manual_seed(1))
    PolicyValue(config, model, codec, value, torch.zeros(16), torch.ones(16), {}).save(path)
    return path


def weights(agent: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in agent.model.parameters()]


def equal(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "uniform"])
def test_schedulers_train_within_their_budget_and_continue(name: str, tmp_path: Path) -> None:
    stale: dict[str, Any] = (
        {"staleness": 2} if name in ("difficulty_targeted", "reinforce_ada_scheduler") else {}
    )
    if name == "scaler":  # it begins with the lowest level
        stale = {"levels": (1, 2)}
    if name == "v0":
        stale = {"value": str(value_file(tmp_path / "value.pt"))}
    whole, broken = learner(name, **stale), learner(name, **stale)
    rounds = 4
    for _ in range(rounds):
        before = whole.tokens["sampled"]
        train(whole, whole.step + 1, collector=whole)
        sampled = whole.tokens["sampled"] - before  # a conversation is one token
        assert 0 < sampled <= 32 * (2 if "staleness" in stale and whole.step == 1 else 1)
    assert all(torch.isfinite(w).all() for w in weights(whole))
    train(broken, 2, collector=broken)
    broken.save(tmp_path / "agent.pt")
    again = LanguagePolicyGradient.load(tmp_path / "agent.pt")
    train(again, rounds, collector=again)
    assert equal(whole, again) and not equal(whole, broken)
    assert whole.tokens == again.tokens and isinstance(again.collector, ScheduledCollector)


@pytest.mark.parametrize("pool", [0, 24])
def test_without_a_scheduler_nothing_has_changed(pool: int) -> None:
    """The same weights, bit for bit, as with whole conversations about the next problems."""
    agent, plain = learner(pool=pool), learner(pool=pool)

    def sampled() -> Any:
        problems = plain.problems(plain.new_numbers(8))
        found = roll_out(
            plain.model,
            plain.codec,
            plain.task,
            problems,
            plain.config.sampling,
            plain.generator,
            group=4,
            turn_tokens=1,
            version=plain.updates,
        )
        plain.tokens["sampled"] += int(found.data.mask.sum())
        return plain.with_old(found)

    plain.sample_round = sampled  # type: ignore[method-assign]
    for one in (agent, plain):
        train(one, 3, collector=one)
    assert equal(agent, plain) and agent.tokens == plain.tokens
    assert torch.equal(agent.generator.get_state(), plain.generator.get_state())


def mixed(name: str, told: tuple[str, ...], levels: tuple[int, ...]) -> tuple[float, float]:
    """(groups with both kinds of answers that are trained on, a hundred conversations; share of the
    conversations trained on that are in them). The policy stays as it is."""
    options: dict[str, Any] = {"pool": 48, "levels": levels, "scheduler_settings": told}
    agent = learner(name, learning_rate=1e-12, minibatches=1, **options)
    groups = inside = rows = 0
    for _ in range(24):
        agent.collect()
        assert agent.data is not None
        found = agent.data.rollouts
        kinds: dict[int, list[bool]] = {}
        ids = found.data.groups["prompt"][:, 0].tolist()
        for prompt, right in zip(ids, found.success.tolist(), strict=True):
            kinds.setdefault(prompt, []).append(right)
        sizes = [len(kind) for kind in kinds.values() if len(set(kind)) == 2]
        groups, inside, rows = groups + len(sizes), inside + sum(sizes), rows + len(found)
    return 100 * groups / agent.tokens["sampled"], inside / rows


@pytest.mark.parametrize(
    ("name", "told", "levels", "more"),
    [
        pytest.param("vade", (), (0, 1, 2), (1.5, 1.5), marks=pytest.mark.long),
        ("difficulty_targeted", ("references=4", "every=6", "fresh=1.0"), (0, 1, 2), (1.3, 1.3)),
        ("gdro_prompt", (), (1, 2), (1.2, 1.2)),
        # These two have wider groups instead of more.
        pytest.param("gdro_rollout", (), (0, 1, 2), (0.9, 1.2), marks=pytest.mark.long),
        ("reinforce_ada_scheduler", ("step=2", "passes=8", "first=0.35"), (1, 3), (0.8, 1.2)),
    ],
)
def test_more_is_learned_from_than_without(
    name: str, told: tuple[str, ...], levels: tuple[int, ...], more: tuple[float, float]
) -> None:
    base, found = mixed("uniform", (), levels), mixed(name, told, levels)
    print(name, *(round(x, 2) for x in (*base, *found)))
    assert all(f > m * b for f, m, b in zip(found, more, base, strict=True))


def test_groups_come_again_with_their_own_log_probs() -> None:
    agent = learner("difficulty_targeted", learning_rate=3e-2)
    seen: dict[tuple[int, str, float], int] = {}
    for step in range(5):
        updates = agent.collect()
        assert agent.data is not None
        found = agent.data.rollouts
        t, again = found.data, found.data.signals["replayed"][:, 0] > 0
        assert bool(again.any()) == (step > 0)
        torch.testing.assert_close(t.log_probs["old"][again], t.log_probs["behaviour"][again])
        assert bool((t.policy_version[again][t.mask[again]] < agent.updates).all())
        now = agent.measured(agent.model, found)[0]
        assert step == 0 or float((now - t.log_probs["old"])[t.mask].abs().max()) > 1e-3
        torch.testing.assert_close(now[~again], t.log_probs["old"][~again])
        ids = t.groups["prompt"][:, 0]
        assert not set(ids[again].tolist()) & set(ids[~again].tolist())
        for i in range(len(found)):
            key = (int(t.policy_version[i].max()), found.turns[i][0], float(t.reward[i].sum()))
            assert not again[i] or key in seen
            seen[key] = i
        for _ in range(updates):
            agent.update(agent.next_batch())


def test_reinforce_ada_compares_with_all_and_trains_on_some() -> None:
    agent = learner("reinforce_ada_scheduler", recipe="reinforce_ada", minibatches=1)
    agent.collect()
    assert agent.data is not None
    rows = agent.data.rollouts
    sizes = rows.data.groups["prompt"][:, 0].bincount()
    assert sizes.max() <= 4 and len(rows) < agent.tokens["sampled"]
    assert bool((agent.data.estimate.weight[rows.data.mask] == 1).all())  # it does not choose twice
    with pytest.raises(ConfigError, match="what the scheduler reinforce_ada_scheduler does"):
        learner(recipe="reinforce_ada")


def test_other_recipes_of_schedulers(tmp_path: Path) -> None:
    for name, recipe in (("weighted_pairs", "weighted_grpo"), ("v_half_scheduler", "v_half")):
        agent = learner(name, recipe=recipe)
        train(agent, 2, collector=agent)
        assert all(torch.isfinite(w).all() for w in weights(agent))


def test_wide_groups_have_a_larger_learning_rate() -> None:
    rates = [learner(name).optimisers["model"].param_groups[0]["lr"] for name in ("vade", "brorl")]
    assert rates[1] == pytest.approx(rates[0] * 2**0.5)


def test_few_rows_make_fewer_updates() -> None:
    agent = learner("reinforce_ada_scheduler", prompts=2, group=4, minibatches=8, levels=(0,))
    for _ in range(2):
        count = agent.collect()
        assert agent.data is not None and count == min(8, len(agent.data.rollouts))
        assert len(agent.next_batch().rollouts) >= 1
        for _ in range(count):
            agent.update(agent.next_batch())


def test_the_pool_is_described() -> None:
    agent = learner(pool=30)
    pool = schedule.pool_of([agent.problem(i) for i in range(30)])
    assert pool.features is not None and pool.levels is not None
    assert pool.levels.unique().tolist() == [0, 1, 2] and not pool.families.any()  # type: ignore
    same = pool.features @ pool.features.T
    alike = pool.levels[:, None] == pool.levels
    assert same[alike].mean() > same[~alike].mean() + 0.5


def test_settings_survive_a_file() -> None:
    config = learner("drive").config
    assert configs.from_dict(LanguageConfig, configs.to_dict(config)) == config
    assert schedule.settings(config).stages[1].groups == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scheduler": "vada"}, "did you mean 'vade'"),
        ({"scheduler": "vade", "pool": 0}, "chooses among problems that come again; give pool"),
        ({"scheduler": "vade", "scheduler_settings": ("slo=1",)}, "did you mean 'slow'"),
        ({"scheduler": "vade", "scheduler_settings": ("slow=x",)}, "give a value like slow=0.98"),
        ({"scheduler": "drive", "scheduler_settings": ("stages=3",)}, "scheduler_settings has"),
        ({"scheduler": "difficulty_targeted", "scheduler_settings": ()}, "16 references"),
        (
            {"scheduler": "grpo_roc_scheduler", "task": "addition"},
            "a task that has them: calculator",
        ),
        ({"scheduler": "vade", "prune_at": 3}, "scheduler and prune_at are each another kind"),
        ({"templates": 99}, "templates is 99, there are 8; give no more"),
        ({"starts_share": 0.5}, "parity has one turn"),
        ({"pivots": 5, "templates": 2, "scheduler": "uniform"}, "leave templates at 1"),
        ({"horizon": (1, 2)}, "parity has one turn"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        learner(**changes)


def test_workers_have_no_scheduler() -> None:
    agent = learner("vade")
    with pytest.raises(ConfigError, match="leave workers at 0"):
        AsyncCollector(agent, Inline(worker_config(agent, None, 1)))


def test_one_earlier_success_stands_in_for_a_group_that_failed() -> None:
    config = LanguageConfig(
        task="parity", model=MODEL, recipe="dart", scheduler="dart_scheduler", pool=4, prompts=4,
        group=4, levels=(1,), turn_tokens=1,
    )  # fmt: skip
    agent = LanguagePolicyGradient(config=config)
    collector = agent.collector
    assert isinstance(collector, ScheduledCollector)
    found = agent.sample_round()
    assert collector.acts == 0.0 and not found.data.signals["aided"].any()
    known = {n: dict(values) for n, values in collector.successes.items()}
    assert known
    agent.task.reply = lambda problem, turns: Reply(signals={"penalty": 0.0})  # type: ignore
    found = agent.sample_round()
    prompts = found.data.groups["prompt"][:, 0].tolist()
    aided = found.data.signals["aided"][:, 0].tolist()
    by_prompt = {p: [a for q, a in zip(prompts, aided, strict=True) if q == p] for p in prompts}
    assert sorted(map(sum, by_prompt.values())) == [0.0] * (4 - len(known)) + [1.0] * len(known)
    assert collector.acts == len(known) / 4
    for i, old in enumerate(aided):
        if old:
            stored = next(
                v for v in known.values() if v["problem"]["prompt"] == found.problems[i].prompt
            )
            own = found.data.mask[i]
            said = found.data.log_probs["behaviour"][i, own].tolist()
            assert said == pytest.approx(stored["behaviour"])  # as it was sampled
    assert found.success.tolist() == [bool(a) for a in aided]


def test_episodes_are_no_longer_than_the_scheduler_lets_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = LanguageConfig(
        task="guessing", model=MODEL, recipe="dart", scheduler="dart_scheduler", pool=4,
        prompts=4, group=2, levels=(64,), scheduler_settings=("slack=1",), turn_tokens=2,
    )  # fmt: skip
    agent = LanguagePolicyGradient(config=config)
    collector = agent.collector
    assert isinstance(collector, ScheduledCollector)
    collector.scheduler.longest[:2] = torch.tensor([2.0, 3.0])  # type: ignore[attr-defined]
    asked = {agent.problem(i).prompt: most for i, most in enumerate((2, 3, 8, 8))}
    found = agent.sample_round()
    for problem, turns in zip(found.problems, found.turns, strict=True):
        assert len(turns) == asked[problem.prompt]


def test_the_scheduler_s_prior_is_the_recipe_s(tmp_path: Path) -> None:
    """One object says what a prompt is worth: the fused baseline of the recipe is that of the
    scheduler, over all rollouts, those that were bought too."""
    path = str(value_file(tmp_path / "value.pt"))
    agent = learner("v_half_scheduler", recipe="v_half", value=path, prompts=6)
    collector = agent.collector
    assert isinstance(collector, ScheduledCollector)
    one = collector.scheduler
    assert isinstance(one, V05) and isinstance(one.value, InContextValue)
    for _ in range(3):
        told = one.priors()
        found = agent.sample_round()
        numbers = {agent.problem(i).prompt: i for i in range(24)}
        ids = torch.tensor([numbers[p.prompt] for p in found.problems])
        prior = found.data.signals["prior_value"][:, 0]
        torch.testing.assert_close(prior.double(), told[ids], atol=1e-6, rtol=0)
        outcome = Outcome(ids, found.data.reward.sum(1).double())
        now, one.told = one.told, told  # the baseline under what was thought then
        baseline = one.baseline(outcome)
        one.told = now
        batch = agent.estimated(found)
        advantage = outcome.rewards - baseline
        first = found.data.mask.int().argmax(1)
        rows = torch.arange(len(found))
        torch.testing.assert_close(
            batch.estimate.advantage[rows, first].double(), advantage, atol=1e-5, rtol=0
        )
    assert len(one.context) > 0 and collector.acts is not None


def test_a_value_model_has_to_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fit-value --task parity --out FILE"):
        learner("v0")
    with pytest.raises(ConfigError, match="a value model is for v0"):
        learner("vade", value="x.pt")
    with pytest.raises(CheckpointError, match="which is no file; make one by"):
        learner("v0", value=str(tmp_path / "none.pt"))
    path = str(value_file(tmp_path / "value.pt"))
    with pytest.raises(ConfigError, match="of the task parity, and the run is of addition"):
        learner("v0", value=path, task="addition")
    agent = learner("v0", value=path)
    one = agent.collector.scheduler  # type: ignore[attr-defined]
    assert isinstance(one, V0)
    value = PolicyValue.load(path)
    torch.testing.assert_close(one.features, value.features([agent.problem(i) for i in range(24)]))


def test_environments_are_the_tasks_of_a_joint_one() -> None:
    agent = LanguagePolicyGradient(
        config=LanguageConfig(
            task="addition+sorting+chain", model=MODEL, pool=60, prompts=6, group=2,
            scheduler="scaler", scheduler_settings=("active=2",), turn_tokens=2,
        )
    )  # fmt: skip
    problems = [agent.problem(i) for i in range(60)]
    pool = schedule.pool_of(problems)
    assert pool.families is not None and pool.levels is not None and pool.features is not None
    names = ("addition", "sorting", "chain")
    for problem, family, level in zip(
        problems, pool.families.tolist(), pool.levels.tolist(), strict=True
    ):
        assert names[family] == problem.task
        trained = tasks.TASKS[problem.task].trained
        assert trained[level] == problem.level % 1000
    assert len(pool.features.unique(dim=0)) > 50
    collector = agent.collector
    assert isinstance(collector, ScheduledCollector)
    seen = set()
    for _ in range(3):
        train(agent, agent.step + 1, collector=agent)
        window = collector.scheduler.window.tolist()  # type: ignore[attr-defined]
        assert len(window) == 2
        seen |= set(window)
    assert collector.acts is not None and collector.acts >= 0
    assert collector.scheduler.difficulty.shape == (3,)  # type: ignore[attr-defined]
