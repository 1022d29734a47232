"""Sampling beside learning: no conversation lost or used twice, none too old, and a record that
can be played again."""

import json
import multiprocessing
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language import tasks
from algorithms.language.learner import ModelConfig
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling import workers as workers_module
from algorithms.language.sampling.async_collector import (
    AsyncCollector,
    Group,
    Ledger,
    Record,
    ReplayCollector,
    events,
    worker_config,
)
from algorithms.language.sampling.conversation import Conversation, GenerationLimits
from algorithms.language.sampling.rollouts import to_rollouts
from algorithms.language.sampling.workers import (
    Hired,
    Inline,
    Processes,
    RayWorkers,
    Weights,
    Work,
    WorkerConfig,
    WorkerModel,
)
from mbrl.errors import CheckpointError
from mbrl.training import train
from tests.algorithms.language.small import TINY, Digits


class Shuffled:
    """Workers that come back in any order, and sometimes not at all."""

    def __init__(self, told: WorkerConfig, count: int, seed: int, lost: float = 0.0) -> None:
        self.inner, self.count, self.lost = WorkerModel(told), count, lost
        self.out: list[tuple[int, Any]] = []
        self.random = random.Random(seed)

    def idle(self) -> int:
        return self.count - len(self.out)

    def give(self, work: Work, weights: Callable[[], Weights]) -> None:
        rows = self.inner.generate(work, weights())
        self.out.append((work.number, None if self.random.random() < self.lost else rows))

    def arrived(self) -> list[tuple[int, Any]]:
        many = self.random.randint(1, len(self.out)) if self.out else 0
        return [self.out.pop(self.random.randrange(len(self.out))) for _ in range(many)]

    def close(self) -> None: ...


def learner(**changes: Any) -> LanguagePolicyGradient:
    values = {
        "task": "guessing",
        "levels": (8,),
        "prompts": 3,
        "group": 2,
        "minibatches": 1,
        "recipe": "nsr",
        "staleness": 2,
    }
    model = ModelConfig(transformer=TINY)
    return LanguagePolicyGradient(config=LanguageConfig(model=model, **(values | changes)))


def checked(path: Path, batch: int, staleness: int) -> None:
    """The record says that every group was learned from once, in time, and none began too early."""
    begun: dict[int, int] = {}
    learned: Counter[int] = Counter()
    out: dict[int, list[int]] = {}
    version = pieces = count = 0
    for event, value in events(path):
        if event == "begin":
            assert count + value <= (version + staleness + 1) * batch
            begun |= dict.fromkeys(range(count, count + value), version)
            count += value
        elif event == "take":
            pieces += 1
            out[pieces] = value
        elif event in ("came", "lost"):
            out.pop(value)
        else:
            assert len(value) == batch
            assert all(version - begun[n] <= staleness for n in value)
            learned.update(value)
            version += 1
    assert set(learned.values()) == {1}
    assert len(learned) == version * batch and count >= len(learned)


@pytest.mark.parametrize("seed", range(20))
def test_the_ledger_keeps_its_bound_whoever_is_slow(seed: int) -> None:
    """Random pieces, random arrivals, one group in five very slow."""
    draw = random.Random(seed)
    batch, staleness = draw.randint(1, 5), draw.randint(0, 4)
    ledger, numbers, used = Ledger(batch, staleness), iter(range(10**6)), Counter[int]()
    slow: dict[int, int] = {}
    for _ in range(400):
        if (new := min(draw.randint(0, 3), ledger.may_begin())) > 0:
            groups = [Group(next(numbers), ledger.version, [{"done": False}]) for _ in range(new)]
            slow |= {g.number: 30 if draw.random() < 0.2 else 1 for g in groups}
            ledger.begin(groups)
        waiting = list(ledger.waiting)
        if waiting and draw.random() < 0.6:
            ledger.take(draw.sample(waiting, draw.randint(1, len(waiting))))
        if ledger.working and draw.random() < 0.7:
            piece = draw.choice(list(ledger.working))
            rows = None
            if draw.random() > 0.2:
                rows = []
                for group in ledger.working[piece]:
                    slow[group.number] -= 1
                    rows.append({"done": slow[group.number] <= 0})
            ledger.returned(piece, rows)
        if (chosen := ledger.chosen()) is not None:
            for group in ledger.learn(chosen):
                used[group.number] += 1
                assert 0 <= ledger.version - 1 - group.begun <= staleness
        again = Ledger(batch, staleness)
        again.load_state_dict(json.loads(json.dumps(ledger.state_dict()), object_hook=_numbers))
        assert again == ledger
    assert set(used.values()) == {1} and ledger.version > 2


def _numbers(values: dict[str, Any]) -> dict[Any, Any]:
    return {int(k) if k.isdigit() else k: v for k, v in values.items()}


@pytest.mark.parametrize(
    ("budget", "old"),
    [
        (None, None),
        (2, "start"),
        *(pytest.param(*p, marks=pytest.mark.long) for p in ((None, "start"), (2, None))),
    ],
)
def test_a_record_gives_the_same_updates_again(
    old: str | None, budget: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "schedule.jsonl"
    agent, again = learner(old=old), learner(old=old)
    workers = Shuffled(worker_config(agent, budget, 1), 3, seed=1, lost=0.2)
    source = AsyncCollector(agent, workers, chunk=2, record=path)
    train(agent, 6, [], source)
    checked(path, 3, 2)
    assert "lost" in {event for event, _ in events(path)}
    replay = ReplayCollector(again, Inline(worker_config(again, budget, 1)), path)
    train(again, 6, [], replay)
    for a, b in zip(agent.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(CheckpointError, match="no more rounds"):
        replay.collect(again)


@pytest.mark.long
def test_fifty_stops_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped at any moment and taken up from the last state that was saved."""
    monkeypatch.setitem(tasks.TASKS, "digits", Digits())
    path, draw = tmp_path / "schedule.jsonl", random.Random(0)
    small = {"task": "digits", "levels": (4,), "prompts": 2, "group": 1, "recipe": "nsr"}
    told = worker_config(learner(**small), 4, 1)
    saved, stops = False, 0
    while stops < 50:
        agent = learner(**small)
        source = AsyncCollector(
            agent, Shuffled(told, 2, draw.randrange(10**6)), chunk=1, record=path
        )
        if saved:
            agent = LanguagePolicyGradient.load(tmp_path / "agent.pt")
            source.load_state_dict(torch.load(tmp_path / "source.pt", weights_only=True))
        call = _until(source.workers.arrived, draw.randint(1, 16))
        source.workers.arrived = call  # type: ignore[method-assign]
        try:
            while True:
                train(agent, agent.step + 1, [], source)
                if draw.random() < 0.5:
                    saved = True
                    agent.save(tmp_path / "agent.pt")
                    torch.save(source.state_dict(), tmp_path / "source.pt")
        except KeyboardInterrupt:
            stops += 1
    source.record.cut(torch.load(tmp_path / "source.pt", weights_only=True)["events"])
    checked(path, 2, 2)
    known, again = LanguagePolicyGradient.load(tmp_path / "agent.pt"), learner(**small)
    assert known.step > 10
    train(again, known.step, [], ReplayCollector(again, Inline(told), path))
    for a, b in zip(known.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def _until(call: Callable[[], Any], count: int) -> Callable[[], Any]:
    left = [count]

    def counted() -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return call()

    return counted


def test_the_age_of_conversations_is_in_updates() -> None:
    """With two updates a round, workers that are a round behind are two updates behind."""
    agent = learner(minibatches=2, staleness=2)
    source = AsyncCollector(agent, Inline(worker_config(agent, None, 1), 1), chunk=3)
    ages = []

    def observe(event: str, agent: Any, metrics: dict[str, Any]) -> None:
        if "rollout/age" in metrics:
            ages.append(float(metrics["rollout/age"]))

    train(agent, 8, [observe], source)
    assert ages[0] == 0.0 and set(ages) <= {0.0, 2.0} and ages[-1] == 2.0


class Broken(WorkerModel):
    def generate(self, work: Work, weights: Weights | None) -> list[dict[str, Any]]:
        raise ValueError("no such word")


def test_what_goes_wrong_in_a_worker_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread that stands for the process: errors are sent, not swallowed with the worker."""
    monkeypatch.setattr(workers_module, "WorkerModel", Broken)
    monkeypatch.setattr(workers_module.signal, "signal", lambda *a: None)
    agent = learner()
    workers = Processes(worker_config(agent, None, 1), 0)
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=workers_module.serve, args=(theirs, workers.config))
    thread.start()
    workers.workers = [Hired(process=None, pipe=ours, at=None)]
    workers.give(Work(1, 0, []), dict)
    with pytest.raises(RuntimeError, match=r"a worker failed:(.|\n)*no such word"):
        workers.arrived()
    ours.close()
    thread.join()


class Dead:
    """A process that has ended."""

    def join(self) -> None: ...


def test_workers_that_all_die_are_not_replaced_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def hire(self: Processes) -> Hired:
        ours, theirs = multiprocessing.Pipe()
        theirs.close()
        return Hired(Dead(), ours)

    monkeypatch.setattr(Processes, "_hire", hire)
    workers = Processes(worker_config(learner(), None, 1), 2)
    for number in range(6):
        workers.give(Work(number, 0, []), dict)
        assert workers.arrived() == [(number, None)]
    workers.give(Work(6, 0, []), dict)
    with pytest.raises(RuntimeError, match="7 workers died one after the other"):
        workers.arrived()


def test_a_record_that_is_cut_is_never_half_written(tmp_path: Path, monkeypatch) -> None:
    record = Record(tmp_path / "schedule.jsonl")
    for number in range(5):
        record.add("begin", number)
    assert record.path is not None
    whole = record.path.read_text()

    def stop(*names: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr("os.replace", stop)
        with pytest.raises(KeyboardInterrupt):
            record.cut(3)
    assert record.path.read_text() == whole
    record.cut(3)
    assert record.path.read_text() == "".join(whole.splitlines(keepends=True)[:3])
    record.path.unlink()
    with pytest.raises(CheckpointError, match="has 0 events, the checkpoint has seen 2"):
        record.cut(2)
    record.cut(0)  # nothing had happened


@pytest.mark.long
def test_processes_work_and_are_replaced(tmp_path: Path) -> None:
    agent, path = learner(), tmp_path / "schedule.jsonl"
    workers = Processes(worker_config(agent, None, 1), 2)
    try:
        source = AsyncCollector(agent, workers, chunk=2, record=path)
        train(agent, 2, [], source)
        workers.workers[0].process.kill()
        train(agent, 5, [], source)
    finally:
        workers.close()
    checked(path, 3, 2)
    again = learner()
    train(again, 5, [], ReplayCollector(again, Inline(worker_config(again, None, 1)), path))
    for a, b in zip(agent.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_ray_workers_train_resume_and_are_replayed(tmp_path: Path) -> None:
    """Two actors; a run that was stopped goes on from its checkpoint, an actor that dies is
    replaced, and the record played again in this process gives the same weights."""
    ray = pytest.importorskip("ray")
    agent, path = learner(), tmp_path / "schedule.jsonl"
    workers = RayWorkers(worker_config(agent, None, 1), 2)
    try:
        source = AsyncCollector(agent, workers, chunk=2, record=path)
        train(agent, 2, [], source)
        agent.save(tmp_path / "agent.pt")
        state = source.state_dict()
        train(agent, 3, [], source)  # lost with the process that did it
        workers.close()
        agent = LanguagePolicyGradient.load(tmp_path / "agent.pt")
        workers = RayWorkers(worker_config(agent, None, 1), 2)
        source = AsyncCollector(agent, workers, chunk=2, record=path)
        source.load_state_dict(state)
        ray.kill(workers.free[0])
        train(agent, 5, [], source)
    finally:
        workers.close()
        ray.shutdown()
    checked(path, 3, 2)
    again = learner()
    train(again, 5, [], ReplayCollector(again, Inline(worker_config(again, None, 1)), path))
    for a, b in zip(agent.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_conversations_of_workers_have_log_probs_of_their_policies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", Digits())
    voice = WorkerModel(
        WorkerConfig(ModelConfig(transformer=TINY), "digits", GenerationLimits(), budget=2)
    )
    problem = Digits().problem(4, random.Random(0))
    start = Conversation(problem, voice.codec.opening(problem.prompt), seed=5).plain()
    rows = [start]
    models = []
    for version in range(3):
        other = learner()
        with torch.no_grad():
            for weight in other.model.parameters():
                weight.mul_(1.0 + version)
        models.append(other.model)
        weights = {k: v.detach().numpy().copy() for k, v in other.model.state_dict().items()}
        rows = voice.generate(Work(version, version, rows), weights)
    found = to_rollouts([Conversation.from_plain(r) for r in rows], 0, torch.empty(0))
    for version, model in enumerate(models):
        log_p = model(found.tokens)[:, :-1].log_softmax(-1)
        here = found.data.mask & (found.data.policy_version == version)
        chosen = log_p.gather(-1, found.tokens[:, 1:, None])[..., 0]
        assert here.any()
        torch.testing.assert_close(
            chosen[here].detach(), found.data.log_probs["behaviour"][here], rtol=0, atol=1e-4
        )


def test_shares_of_what_is_learned_are_replayed(tmp_path: Path) -> None:
    """Which part a problem is of depends on what was learned before it began."""
    path = tmp_path / "schedule.jsonl"
    changes = {"task": "guessing+addition", "levels": (8, 1001), "shares_of": "learned"}
    agent, again = (learner(**changes, group=1, turn_tokens=3) for _ in range(2))
    workers = Shuffled(worker_config(agent, 4, 1), 3, seed=1, lost=0.2)
    train(agent, 6, [], AsyncCollector(agent, workers, chunk=2, record=path))
    train(again, 6, [], ReplayCollector(again, Inline(worker_config(again, 4, 1)), path))
    assert agent.domains.state_dict() == again.domains.state_dict()
    assert sum(agent.domains.counts) > 0
    pairs = zip(agent.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_run_that_can_go_nowhere_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would where the rule of admission were wrong: it says so, and does not wait."""
    agent = learner()
    collector = AsyncCollector(agent, Inline(worker_config(agent, None, 1)))
    monkeypatch.setattr(type(collector.ledger), "may_begin", lambda ledger: 0)
    with pytest.raises(RuntimeError, match="0 groups began"):
        collector.collect(agent)


@pytest.mark.parametrize(
    ("name", "of"), [("truncated_is_grpo", "old"), ("areal", "proximal"), ("grpo", "old")]
)
def test_without_staleness_a_samplers_precision_is_seen(name: str, of: str) -> None:
    """The learner's log-probs are its own and not the quantised sampler's, as without workers."""
    agent = learner(recipe=name, staleness=0, sampling_precision="int3")
    with torch.no_grad():
        for weight in agent.model.parameters():
            weight.mul_(8.0 if weight.ndim == 2 else 1.0)
    AsyncCollector(agent, Inline(worker_config(agent, None, 1))).collect(agent)
    batch = agent.trainer.data
    known, mask = batch.data.log_probs, batch.data.mask
    own = agent.measured(agent.model, batch.rollouts)[0]
    assert torch.equal(known[of][mask], own[mask])
    assert float((own - known["behaviour"])[mask].abs().max()) > 0.1
