"""Supervised learning from demonstrations: the warm start before rewards, and the control row
beside them."""

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from algorithms.language.learner import LanguageLearner, LanguageLearnerConfig, state_at, trainable
from algorithms.language.models.passes import passes
from algorithms.language.sampling.contexts import after_example, opening
from algorithms.language.sampling.rollouts import Rollouts, demonstrated
from algorithms.language.tasks import text_task
from algorithms.language.tasks.base import Problem
from mbrl.config import Count, Probability
from mbrl.errors import ConfigError
from mbrl.training import Metrics


@dataclass(frozen=True)
class ImitationConfig(LanguageLearnerConfig):
    """Settings of supervised learning."""

    rows: Count = 64  # demonstrations in an update
    hinted: Probability = 0.0  # of demonstrations that a hint of the task precedes
    shots: Probability = 0.0  # of demonstrations that a solved example precedes; not with hinted

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shots and (self.hinted or text_task(self.task).max_turns > 1):
            raise ConfigError(
                f"shots is {self.shots}, hinted {self.hinted} and the task {self.task}: examples "
                "are for tasks of one turn, and not beside hints"
            )


class Imitation(LanguageLearner):
    """Maximises the likelihood of demonstrated turns."""

    version = 2
    series = "shown "
    config: ImitationConfig

    def __init__(
        self,
        spec: object = None,
        config: ImitationConfig | None = None,
        *,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(spec, config, device=device, seed=seed)  # type: ignore[arg-type]

    @classmethod
    def default(cls) -> ImitationConfig:
        return ImitationConfig()

    def begin_with(self, path: Any) -> None:
        """Go on where another learner from demonstrations stopped: its weights, its optimiser (at
        this one's learning rate), and the problems that come after those it saw. Raises
        `ConfigError` if it is of another kind or model."""
        known = state_at(path, self.config.model)
        if known["modules"].keys() != self.modules.keys() or "tokens" in known:
            raise ConfigError(
                f"{path} is not of a learner from demonstrations; give the checkpoint of one, such "
                "as that of `language warm-start`"
            )
        self.load_state_dict(known)
        for group in self.optimisers["model"].param_groups:
            group["lr"] = group["full"] = self.config.learning_rate

    def next_batch(self) -> Rollouts:
        """Demonstrations of the next problems."""
        numbers = self.new_numbers(self.config.rows)
        rngs = [random.Random(f"demonstration {self.seed} {n}") for n in numbers]
        problems = [self.problem(n) for n in numbers]
        if not self.config.hinted and not self.config.shots:
            return demonstrated(self.codec, self.task, problems, rngs)
        hints = [random.Random(f"hint {self.seed} {n}") for n in numbers]
        openings = [self.opening(p, rng) for p, rng in zip(problems, hints, strict=True)]
        return demonstrated(self.codec, self.task, problems, rngs, openings)

    def opening(self, problem: Problem, rng: random.Random) -> list[int]:
        """The problem, in a share `hinted` of cases with a hint, at random one for the beginning or
        for one who has said a part of a demonstrated turn."""
        if self.config.shots:
            return self.after_shot(problem, rng)
        if rng.random() >= self.config.hinted:
            return opening(self.codec, problem)
        shown = self.task.demonstration(problem, [], rng)
        turns = [shown[: rng.randrange(len(shown))]] if rng.random() < 0.5 else []
        if self.task.max_turns > 1:
            turns = []
        return opening(self.codec, problem, self.task.hint(problem, turns))

    def after_shot(self, problem: Problem, rng: random.Random) -> list[int]:
        """The problem, in a share `shots` of cases after a solved one of its level."""
        if rng.random() >= self.config.shots:
            return opening(self.codec, problem)
        other = self.task.problem(problem.level, rng, held_out=False)
        shown = self.task.demonstration(other, [], rng)
        return after_example(self.codec, problem, (other.prompt, shown))

    def update(self, batch: Rollouts) -> Metrics:
        """One step on the mean negative log-likelihood of the turns' tokens."""
        self.set_rate()
        tokens, mask = batch.tokens.to(self.device), batch.data.mask.to(self.device)
        optimiser, total = self.optimisers["model"], torch.zeros((), device=self.device)
        optimiser.zero_grad()
        for rows, steps in passes(mask, self.config.rows_at_once):
            here = mask[rows, :steps]
            logits = self.model.logits_at(tokens[rows, :steps], here)
            wanted = tokens[rows, 1 : steps + 1][here]
            loss = F.cross_entropy(logits, wanted, reduction="sum") / mask.sum()
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(trainable(self.model), self.config.clip_norm)
        optimiser.step()
        self.updates += 1
        return {"imitation/loss": total, "imitation/tokens": mask.sum()}
