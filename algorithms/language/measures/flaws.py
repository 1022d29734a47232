"""Which answers were reached over flawed steps: by the program, or by a detector that learns it
from the program."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from algorithms.language.measures.base import LanguageMeasure, require_task
from algorithms.language.measures.heads import Heads, fit, optimiser_of, read
from algorithms.language.measures.judged import steps, tells_steps
from algorithms.language.measures.locate import whole
from algorithms.language.sampling.rollouts import Rollouts
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.scans import following
from mbrl.policy_gradient.trainer import with_fields
from mbrl.training import Metrics
from mbrl.types import Trajectories


class Flawed(LanguageMeasure):
    """`signals.flawed` of the whole conversation. With `flaws` "program": 1 if any step that was
    written in it is not right, else 0. With "learned": how likely that is, in (0, 1), by a linear
    head on a copy of the model, read after the last token and fitted to what the program says of
    every round (cross-entropy). Either stands for the process reward model of "FAPO", arXiv
    2510.22543; recipes read it of right answers alone, as flawed above 1/2."""

    provides = ("signals.flawed",)
    fulfils = (Requirement.PROCESS_REWARD_MODEL,)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.heads: Heads | None = None
        if agent.config.flaws == "learned":
            self.heads = Heads(agent.model)
            self.modules = {"flaws": self.heads}
            self.optimisers = {"flaws": optimiser_of(self.heads, agent.config)}

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        require_task(
            config,
            tells_steps,
            f"recipe {objective.name} reads which steps of an answer are flawed, and {config.task} "
            "tells no steps apart; a task that does",
        )

    def begin(self) -> None:
        if self.heads is not None:
            self.heads.begin(self.agent.model)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        if self.heads is None:
            flawed = self.labels(rollouts)
        else:
            logits = read(self.heads, rollouts, self.agent.config)[:, 1:, 0]
            flawed = whole(rollouts, logits[last_steps(rollouts.data)].sigmoid())
        return with_fields(rollouts, "signals", flawed=flawed)

    def labels(self, rollouts: Rollouts) -> Tensor:
        """[B, T]: 1 for conversations with a flawed step."""
        rows = [
            float(
                any(not step.right for k in range(len(turns)) for step in steps(self, p, turns, k))
            )
            for p, turns in zip(rollouts.problems, rollouts.turns, strict=True)
        ]
        return whole(rollouts, rows)

    def targets(self, rollouts: Rollouts) -> dict[str, Tensor]:
        return {} if self.heads is None else {"flawed": self.labels(rollouts)}

    def learn(self, rollouts: Rollouts, targets: dict[str, Tensor]) -> Metrics:
        if self.heads is None:
            return {}
        last, label = last_steps(rollouts.data), targets["flawed"]

        def surprise(values: Tensor, rows: Tensor) -> Tensor:
            logits = values[:, 1:, 0][last[rows]]
            wanted = label[rows][last[rows]].to(logits.dtype)
            total = binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
            return total / len(rollouts)

        config = self.agent.config
        return {"flaws/loss": fit(self.heads, self.optimisers["flaws"], rollouts, config, surprise)}


def last_steps(t: Trajectories) -> Tensor:
    """[B, T] bool: the last step of every conversation."""
    return t.mask & (following(torch.ones_like(t.reward), t.mask) == 0)
