"""Recording with interventions: a policy acts, and a corrector takes over where it fails.

The rules are those of RaC: Robot Learning for Long-Horizon Tasks by Scaling Recovery and Correction
(arXiv 2509.07953). Rule 1: an intervention first recovers, back to what the policy knows, and then
corrects, on to the end of the sub-task. Rule 2: the episode ends with the correction, as later
sub-tasks would mix what two policies reach. Without the first part and the second rule it is
HG-DAgger (arXiv 1810.02890).
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from experiments.recording.behaviour import RecordingFailed, TimedBehaviour, step_limit
from experiments.recording.environment import RecordingStopped, behaviour, dataset_of_rows
from mbrl.errors import ConfigError, TaskError
from mbrl.tasks import Task, as_live
from mbrl.types import SEGMENTS, Dataset, Transitions

POLICY, DEMONSTRATION, RECOVER, CORRECT = range(len(SEGMENTS))
CORRECTORS = {"doors": "experiments.recording.door_corrector:DoorCorrector"}
IDLE = 50  # episodes in a row without a failure after which recording stops


class Corrector(Protocol):
    """Who watches and takes over. Observations are those of one copy, [S]."""

    def failing(self, seen: list[Tensor]) -> bool:
        """Whether the policy needs help; `seen` since it began to act, the newest last."""
        ...

    def familiar(self, obs: Tensor) -> bool:
        """Whether the policy knows states like this one."""
        ...

    def recover(self, obs: Tensor) -> Tensor:
        """The action [A] that leads back to a familiar state."""
        ...

    def correct(self, obs: Tensor) -> Tensor:
        """The action [A] that leads on in the sub-task."""
        ...

    def over(self, obs: Tensor, next_obs: Tensor) -> bool:
        """Whether the step from `obs` to `next_obs` ended a sub-task."""
        ...


@dataclass(frozen=True)
class Rules:
    """What an intervention is made of."""

    recover: bool = True  # back to a familiar state first
    correct: bool = True  # on to the end of the sub-task
    ends: bool = True  # the episode is cut there

    def __post_init__(self) -> None:
        if not (self.recover or self.correct):
            raise ConfigError("an intervention must recover or correct; both are False")
        if self.ends and not self.correct:
            raise ConfigError("an episode can only end with a correction; set ends to False")


RULES = {
    "rac": Rules(),
    "rac-goes-on": Rules(ends=False),
    "correct": Rules(recover=False, ends=False),
    "recover": Rules(correct=False, ends=False),
}


def named_corrector(name: str, known: Dataset) -> Corrector:
    """The corrector that a name on the command line stands for, made with the observations of the
    rows that the policy knows: doors (of DoorChain-v0), or an entry point module:Class."""
    module, colon, attribute = CORRECTORS.get(name, name).partition(":")
    if not colon:
        allowed = ", ".join(CORRECTORS)
        raise ConfigError(
            f"corrector is {name!r}; allowed: {allowed}, or mypackage.correctors:Class"
        )
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as problem:
        raise ConfigError(f"corrector {name!r} cannot be imported: {problem}") from problem
    corrector: Corrector = kind(known.transitions.obs)
    return corrector


def intervened(
    task: Task,
    policy: Any,
    corrector: Corrector,
    frames: int,
    *,
    rules: Rules | None = None,
    seed: int = 0,
    greedy: bool = True,
    recipe: str | None = None,
) -> Dataset:
    """A dataset of episodes of `policy` (as in `collect`) with interventions of the `corrector`,
    which makes `frames` of its rows. Raises `RecordingStopped`, with what was recorded, where the
    environment fails."""
    act = behaviour(policy, task.spec, greedy=greedy)
    generator = torch.Generator().manual_seed(seed)

    acting = act if isinstance(act, TimedBehaviour) else lambda obs: act(obs, generator)
    try:
        rows = record_interventions(task, acting, corrector, frames, generator, rules)
    except RecordingFailed as problem:
        if problem.rows is None:
            raise
        kept = dataset_of_rows(problem.rows, task.spec, recipe)
        raise RecordingStopped(problem, kept) from problem
    return dataset_of_rows(rows, task.spec, recipe)


@torch.no_grad()
def record_interventions(
    task: Task,
    policy: Callable[[Tensor], Tensor] | TimedBehaviour,
    corrector: Corrector,
    frames: int,
    generator: torch.Generator,
    rules: Rules | None = None,
) -> Transitions:
    """Episodes of the `policy`, observations [1, S] to actions [1, A] (or one that asks for the
    time), with interventions, until the corrector made `frames` rows, exactly; the last episode is
    cut there. Their column `segment` says who acted. Fewer where the policy did not fail in 50
    episodes in a row. Raises `ConfigError` for fewer than one frame and tasks with action masks,
    `RecordingFailed` where the environment fails."""
    if frames < 1:
        raise ConfigError(f"frames is {frames}, it must be at least 1")
    if task.spec.action_mask:
        raise ConfigError(
            f"{task.spec.task} tells which actions are allowed in a state, and neither policy nor "
            "corrector is told here; record its policy without a corrector"
        )
    rules, rows, left, idle = rules or Rules(), list[Transitions](), frames, 0
    while left > 0 and idle < IDLE:
        begun = len(rows)
        try:
            _episode(task, policy, corrector, left, generator, rules, rows)
        except TaskError as problem:
            raise RecordingFailed(problem, _joined(rows) if rows else None) from problem
        episode = rows[begun:]
        made = sum(int(row.segment[0] > POLICY) for row in episode if row.segment is not None)
        left, idle = left - made, 0 if made else idle + 1
    return _joined(rows)


def _episode(
    task: Task,
    policy: Callable[[Tensor], Tensor] | TimedBehaviour,
    corrector: Corrector,
    left: int,
    generator: torch.Generator,
    rules: Rules,
    rows: list[Transitions],
) -> None:
    """One episode, its rows added to `rows`, with at most `left` of the corrector."""
    state = task.reset(1, generator)
    obs, mode = task.observe(state), POLICY
    seen: list[Tensor] = []
    for t in range(step_limit(task.spec)):
        seen.append(obs[0])
        if mode == POLICY and corrector.failing(seen):
            mode = RECOVER if rules.recover else CORRECT
        if mode == RECOVER and corrector.familiar(obs[0]):
            mode, seen = (CORRECT, seen) if rules.correct else (POLICY, [obs[0]])
        if mode != POLICY:
            action = (corrector.recover if mode == RECOVER else corrector.correct)(obs[0])[None]
            left -= 1
        elif isinstance(policy, TimedBehaviour):
            action = policy.act(obs, generator, t)
        else:
            action = policy(obs)
        step = task.step(state, action)
        over = corrector.over(obs[0], step.obs[0])
        corrected = mode == CORRECT and over
        last = t + 1 == step_limit(task.spec) or (mode > POLICY and left == 0)
        cut = (step.ended | last | (corrected and rules.ends)) & ~step.terminated
        rows.append(
            Transitions(
                obs, action, step.reward, step.obs, step.terminated, cut,
                segment=torch.tensor([mode]),
            )
        )  # fmt: skip
        if bool(step.terminated | cut):
            break
        if corrected:
            mode = POLICY
        if over or corrected:
            seen = []
        state, obs = step.state, step.obs
    _give_back(task, step.state)


@torch.no_grad()
def record_demonstrations(
    task: Task,
    corrector: Corrector,
    frames: int,
    generator: torch.Generator,
) -> Transitions:
    """Whole episodes in which the corrector alone acts, `frames` rows; the last one is cut."""
    rows: list[Transitions] = []
    while len(rows) < frames:
        state = task.reset(1, generator)
        obs = task.observe(state)
        for t in range(step_limit(task.spec)):
            action = corrector.correct(obs[0])[None]
            step = task.step(state, action)
            last = t + 1 == step_limit(task.spec) or len(rows) + 1 == frames
            cut = (step.ended | last) & ~step.terminated
            rows.append(
                Transitions(
                    obs, action, step.reward, step.obs, step.terminated, cut,
                    segment=torch.tensor([DEMONSTRATION]),
                )
            )  # fmt: skip
            if bool(step.terminated | cut) or len(rows) == frames:
                break
            state, obs = step.state, step.obs
        _give_back(task, step.state)
    return _joined(rows)


def _give_back(task: Task, state: Tensor) -> None:
    """Free the environments of episodes that were cut in their midst."""
    environments = as_live(task)
    if environments is not None:
        environments.release(state)


def _joined(rows: list[Transitions]) -> Transitions:
    """All rows, of which the last ends its episode."""
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "segment")
    joined = {name: torch.cat([getattr(row, name) for row in rows]) for name in names}
    joined["truncated"][-1] |= ~joined["terminated"][-1]
    return Transitions(**joined)
