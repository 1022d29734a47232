"""Datasets of published agents: a card says, for each tier, which policies act and for how long."""

import zlib
from collections.abc import Callable
from pathlib import Path

import torch

from experiments.recording.behaviour import Report, record, with_noise
from experiments.recording.environment import behaviour, named_policy
from mbrl.data.cards import Card, PolicyRows, Tier
from mbrl.data.loading import joined_rows
from mbrl.errors import MissingDataError
from mbrl.tasks import Task, make
from mbrl.types import Transitions

Stage = Callable[[str, int], Report]  # a new progress bar: its text and total


class MixtureRecorder:
    """The transitions of a card's tiers, recorded with the agents in a folder.

    A policy's episodes depend on its task, its agent, its noise and the seed alone, so a tier with
    fewer rows of a policy begins as one with more does.
    """

    def __init__(self, card: Card, agents: Path, seed: int, steps: int | None = None) -> None:
        self.card, self.agents, self.seed, self.steps = card, agents, seed, steps

    def make(self, tier: Tier, stage: Stage) -> Transitions:
        """Record `tier`, its policies one after the other."""
        environment = self.card.environment(tier)
        task = make(str(environment.task), **environment.task_options)
        total = sum(policy.rows for policy in tier.policies)
        parts = []
        for policy in tier.policies:
            rows = policy.rows
            if self.steps is not None:
                rows = max(1, round(self.steps * policy.rows / total))
            report = stage(f"{tier.name}: {policy.agent}", rows)
            parts.append(self._rows(task, policy, rows, report))
        return joined_rows(parts)

    def _rows(self, task: Task, policy: PolicyRows, rows: int, report: Report) -> Transitions:
        name = f"{task.spec.task}/{policy.agent}/{policy.greedy}/{policy.noise}/{self.seed}"
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        acting = behaviour(self._agent(policy.agent), task.spec, greedy=policy.greedy)
        with torch.no_grad():
            noisy = with_noise(acting, task.spec, policy.noise)
            return record(task, noisy, rows, generator, report=report)

    def _agent(self, name: str) -> object:
        if name == "random":
            return name
        path = self.agents / f"{name}.npz"
        if not path.is_file():
            raise MissingDataError(
                f"the agent {path} is not on this machine: put {self.card.agents}'s files into "
                f"{self.agents}, or say where they are with --agents"
            )
        return named_policy(str(path))

    def recipe_text(self, tier: Tier, rows: Transitions) -> str:
        """The command that makes `rows`."""
        steps = "" if self.steps is None else f" --steps {self.steps}"
        family = self.card.family
        return (
            f"python -m experiments collect {family} --tiers {tier.name}{steps} --seed {self.seed}"
        )
