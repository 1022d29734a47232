"""Recording with interventions: the two rules, the number of frames, and the scripted corrector."""

from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.cli.collect import main as collect_main
from experiments.recording.actor_arrays import Actor
from experiments.recording.door_corrector import DoorCorrector
from experiments.recording.environment import RecordingStopped
from experiments.recording.interventions import (
    CORRECT,
    DEMONSTRATION,
    POLICY,
    RECOVER,
    RULES,
    Rules,
    intervened,
    record_demonstrations,
    record_interventions,
)
from mbrl.data import from_arrays, load, save_npz
from mbrl.errors import ConfigError, DataError, TaskError
from mbrl.tasks import make
from mbrl.tasks.base import LiveStep
from mbrl.types import Transitions
from tests.mbrl.own_environments import Corridor

TASK = make("DoorChain-v0")


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def known() -> Transitions:
    corrector = DoorCorrector(torch.zeros(5, 8))
    return record_demonstrations(TASK, corrector, 300, draws())


def ahead(obs: Tensor) -> Tensor:
    """A policy that walks on, past most doors."""
    return torch.tensor([[1.0, 0.0]]).expand(len(obs), 2)


@cache
def recorded(rules: Rules, frames: int = 300) -> tuple[Transitions, DoorCorrector]:
    corrector = DoorCorrector(known().obs)
    return record_interventions(TASK, ahead, corrector, frames, draws(1), rules), corrector


def parts(rows: Transitions) -> list[list[tuple[int, int, int]]]:
    """For each episode its parts: segment, first row, row behind the last."""
    assert rows.segment is not None
    result = []
    for a, b in rows.episodes():
        spans, at = [], a
        for segment, group in groupby(rows.segment[a:b].tolist()):
            length = len(list(group))
            spans.append((segment, at, at + length))
            at += length
        result.append(spans)
    return result


def test_demonstrations_are_whole_but_the_last() -> None:
    rows = known()
    assert len(rows) == 300 and rows.segment is not None
    assert (rows.segment == DEMONSTRATION).all()
    assert rows.terminated[[b - 1 for _, b in rows.episodes()[:-1]]].all()


@pytest.mark.parametrize("rules", [Rules(), Rules(ends=False), Rules(recover=False, ends=False)])
def test_frames_of_the_corrector_are_counted_exactly(rules: Rules) -> None:
    for frames in (1, 17, 150):
        rows, _ = recorded(rules, frames)
        assert rows.segment is not None
        assert int((rows.segment > POLICY).sum()) == frames
        assert bool(rows.ends[-1])


def test_recover_comes_before_correct_and_the_episode_ends_after() -> None:
    rows, corrector = recorded(Rules())
    episodes = parts(rows)
    recovered = 0
    for number, spans in enumerate(episodes):
        order = [segment for segment, _, _ in spans]
        assert order in (
            [POLICY], [POLICY, RECOVER], [POLICY, CORRECT], [POLICY, RECOVER, CORRECT]
        )  # fmt: skip
        if number == len(episodes) - 1:
            continue  # cut where the frames were made
        for segment, a, b in spans:
            if segment == RECOVER and b < spans[-1][2]:
                assert corrector.familiar(rows.next_obs[b - 1])  # within 0.05 of a known state
                assert not any(corrector.familiar(obs) for obs in rows.obs[a:b])
                recovered += 1
            if segment == CORRECT:
                over = [corrector.over(rows.obs[i], rows.next_obs[i]) for i in range(a, b)]
                assert not any(over[:-1])
                assert over[-1] or len(range(spans[0][1], b)) == 200
                assert bool(rows.ends[b - 1])
    assert recovered > 5


def test_without_the_second_rule_the_policy_goes_on() -> None:
    rows, _ = recorded(Rules(ends=False))
    after = [
        later
        for spans in parts(rows)
        for (segment, _, _), (later, _, _) in pairwise(spans)
        if segment == CORRECT
    ]
    assert len(after) > 3 and set(after) == {POLICY}


def test_corrections_alone_and_recoveries_alone() -> None:
    rows, _ = recorded(Rules(recover=False, ends=False))
    assert rows.segment is not None and not (rows.segment == RECOVER).any()
    rows, corrector = recorded(Rules(correct=False, ends=False), 60)
    assert rows.segment is not None and not (rows.segment == CORRECT).any()
    for spans in parts(rows)[:-1]:
        for (segment, _, stop), (later, _, _) in pairwise(spans):
            if segment == RECOVER:
                assert later == POLICY and corrector.familiar(rows.next_obs[stop - 1])


def test_a_policy_that_does_not_fail_is_left_alone() -> None:
    corrector = DoorCorrector(known().obs)

    def policy(obs: Tensor) -> Tensor:
        return corrector.correct(obs[0])[None]

    rows = record_interventions(TASK, policy, corrector, 10, draws(2))
    assert rows.segment is not None and (rows.segment == POLICY).all()
    assert len(rows.episodes()) == 50


def test_the_corrector_sees_failures() -> None:
    corrector = DoorCorrector(known().obs)
    held, free = torch.zeros(8), torch.zeros(8)
    held[3] = 1.0
    assert corrector.failing([free, held, held, held])
    assert not corrector.failing([held, held]) and not corrector.failing([held, free, held, held])
    assert not corrector.failing([free] * 25) and corrector.failing([free] * 26)
    closer = [torch.tensor([0.01 * i, 0, 0, 0, 1, 0, 0, 0]) for i in range(60)]
    assert not corrector.failing(closer)
    with pytest.raises(DataError, match="record more demonstrations"):
        DoorCorrector(torch.arange(40.0).view(5, 8) * (torch.arange(8) != 3))


def test_what_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(ConfigError, match="must recover or correct"):
        Rules(recover=False, correct=False)
    with pytest.raises(ConfigError, match="only end with a correction"):
        Rules(correct=False)
    with pytest.raises(ConfigError, match="frames is 0"):
        recorded(Rules(), 0)


def test_segments_are_a_column_of_files(tmp_path: Path) -> None:
    rows, _ = recorded(Rules(), 40)
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "segment")
    dataset = from_arrays(**{n: getattr(rows, n) for n in names}, spec=TASK.spec)
    save_npz(dataset, tmp_path / "rows.npz")
    again = load(tmp_path / "rows.npz").transitions.segment
    assert again is not None and torch.equal(again, rows.segment)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="segment is 4 in row 2; it must be 0 to 3"):
        from_arrays([[0.0]] * 3, [0.0] * 3, [0.0] * 3, next_obs=[[1.0]] * 3,
                    terminated=[False, False, True], segment=[0, 3, 4])  # fmt: skip


def test_the_command_records_with_a_corrector(tmp_path: Path) -> None:
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "segment")
    rows = known()
    dataset = from_arrays(**{n: getattr(rows, n) for n in names}, spec=TASK.spec)
    save_npz(dataset, tmp_path / "known.npz")
    options = ["--corrector", "doors", "--known", str(tmp_path / "known.npz"), "--steps", "25"]
    for rules in RULES:
        out = tmp_path / f"{rules}.npz"
        command = ["DoorChain-v0", *options, "--rules", rules, "--out", str(out)]
        assert collect_main(command) == 0
        again = load(out)
        assert again.transitions.segment is not None
        assert int((again.transitions.segment > POLICY).sum()) == 25
        assert f"--rules {rules} --steps 25 --seed 0" in str(again.provenance.recipe)
    for words, text in (
        (["DoorChain-v0", "--corrector", "doors"], "needs --known"),
        (["DoorChain-v0", "--corrector", "me", *options[2:]], "allowed: doors, or mypackage"),
        (["DoorChain-v0", "--corrector", "no:One", *options[2:]], "cannot be imported"),
        (["pendulum", "--corrector", "doors"], "are for tasks"),
    ):
        with pytest.raises(ConfigError, match=text):
            collect_main(words)


class Impatient:
    """The doors, in a task that cuts its episodes itself after five steps and cannot go on then."""

    def __init__(self) -> None:
        self.spec, self.device, self.steps = TASK.spec, TASK.device, 0

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        self.steps = 0
        return TASK.reset(count, generator)

    def observe(self, state: Tensor) -> Tensor:
        return TASK.observe(state)

    def step(self, state: Tensor, action: Tensor) -> LiveStep:
        assert self.steps < 5, "the episode is over"
        self.steps += 1
        step = LiveStep(*TASK.step(state, action))
        step.cut = torch.tensor([self.steps == 5])
        return step


def test_episodes_that_the_task_cuts_are_over() -> None:
    task: Any = Impatient()
    rows = record_demonstrations(task, DoorCorrector(torch.zeros(5, 8)), 23, draws())
    assert [b - a for a, b in rows.episodes()] == [5, 5, 5, 5, 3] and rows.truncated[4]
    rows = record_interventions(task, ahead, DoorCorrector(known().obs), 12, draws(1), Rules())
    assert max(b - a for a, b in rows.episodes()) <= 5


class Waking:
    """Takes over after two steps of the policy, for two of its own."""

    def __init__(self) -> None:
        self.own = 0

    def failing(self, seen: list[Tensor]) -> bool:
        return len(seen) == 3

    def familiar(self, obs: Tensor) -> bool:
        return True

    def recover(self, obs: Tensor) -> Tensor:
        return torch.zeros(1)

    def correct(self, obs: Tensor) -> Tensor:
        self.own += 1
        return torch.zeros(1)

    def over(self, obs: Tensor, next_obs: Tensor) -> bool:
        done = self.own == 2
        self.own = 0 if done else self.own
        return done


def test_environments_of_cut_episodes_are_used_again() -> None:
    task: Any = make(lambda: gymnasium.make("Pendulum-v1"))
    still = torch.zeros(1, 1)
    rows = record_interventions(task, lambda obs: still, Waking(), 8, draws(), Rules())
    assert [b - a for a, b in rows.episodes()] == [4, 4, 4, 4]
    record_demonstrations(task, Waking(), 5, draws())
    assert len(task._copies) == 1 and task._copies[0].ticket is None


def test_a_policy_that_asks_for_the_time_is_told() -> None:
    actor = Actor("timed", lambda inputs: (inputs[:, -1:], None), inputs=4, actions=1)
    data = intervened(make("Pendulum-v1"), actor, Waking(), 4, rules=Rules())
    actions = data.transitions.action[:, 0].view(-1, 4)[:, :2]
    torch.testing.assert_close(actions, torch.tensor([[1.0, 1 - 1 / 200]]).expand(2, 2))


def test_tasks_with_action_masks_are_refused() -> None:
    with pytest.raises(ConfigError, match="which actions are allowed in a state"):
        intervened(make(Corridor), "random", Waking(), 4)


class Breaking(gymnasium.Env):  # type: ignore[misc]
    """Fails at its tenth step in all."""

    observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    max_episode_steps, steps = 20, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 10:
            raise RuntimeError("unplugged")
        return np.full(1, self.steps, np.float32), 0.0, False, False, {}


def test_what_was_recorded_before_a_failure_is_kept() -> None:
    policy = lambda obs, generator: torch.zeros(1, 1)  # noqa: E731
    with pytest.raises(RecordingStopped, match="unplugged") as stopped:
        intervened(make(Breaking), policy, Waking(), 50, rules=Rules())
    rows = stopped.value.dataset.transitions
    assert rows.obs[:, 0].tolist() == [0, 1, 2, 3, 0, 5, 6, 7, 0] and rows.segment is not None
    assert rows.segment.tolist() == [0, 0, 3, 3, 0, 0, 3, 3, 0]
    assert rows.truncated.nonzero().flatten().tolist() == [3, 7, 8]


def test_the_verb_keeps_it_too(tmp_path: Path) -> None:
    columns = [torch.zeros(3, 1), torch.zeros(3, 1), torch.zeros(3)]
    ends = {"terminated": torch.zeros(3), "truncated": torch.tensor([0, 0, 1])}
    save_npz(from_arrays(*columns, **ends), tmp_path / "known.npz")
    words = [f"{__name__}:Breaking", "--corrector", f"{__name__}:Told", "--steps", "50"]
    words += ["--known", str(tmp_path / "known.npz"), "--out", str(tmp_path / "x.npz")]
    with pytest.raises(TaskError, match="The 9 transitions before that are in"):
        collect_main(words)
    assert len(load(tmp_path / "x.npz")) == 9


class Told(Waking):
    """As the command line makes it."""

    def __init__(self, known: Tensor) -> None:
        super().__init__()
