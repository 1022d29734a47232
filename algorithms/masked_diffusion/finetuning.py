"""Masked models trained by reward: policy gradients along the decoding that was really done, and
the one-step estimate that it replaces."""

import copy
import dataclasses
import random
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from algorithms.language.adapters import advantages, loss
from algorithms.language.tasks.base import Problem
from algorithms.masked_diffusion.decoding import (
    Decoded,
    DecodingConfig,
    decode,
    log_probs,
)
from algorithms.masked_diffusion.model import Layout, MaskedModel
from mbrl.config import Count, CountOrZero, Positive, Probability, Settings, require_same
from mbrl.errors import ConfigError
from mbrl.native.adam import Adam
from mbrl.policy_gradient import RECIPES
from mbrl.training import Metrics


@dataclass(frozen=True)
class MaskedFinetuningConfig(Settings):
    """Settings of a fine-tuning. A round has `prompts` problems with `group` answers each, and
    `epochs` updates on all of them."""

    # trajectory: every token at the region that its own step of the decoding began with (CJ-GRPO);
    # one_step: all tokens at a region that is masked whole (diffu-GRPO)
    likelihood: Literal["trajectory", "one_step"] = "trajectory"
    recipe: str = "cj_grpo"  # advantages and loss; segments are decoding steps
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    levels: tuple[int, ...] = ()  # of the problems; none: those that the task trains on
    prompts: Count = 8
    group: Count = 6
    epochs: Count = 8  # updates a round
    learning_rate: Positive = 1e-4  # Adam
    clip_norm: Positive = 0.2  # of the gradient
    sync: CountOrZero = 64  # rounds after which the reference becomes the policy; 0: never
    hidden_prompt: Probability = (
        0.15  # share of prompt tokens that one_step masks, anew each update
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group < 2:
            raise ConfigError(f"group is {self.group}; advantages compare 2 answers or more")
        if self.decoding.temperature == 0.0:
            raise ConfigError(
                "decoding.temperature is 0, so that all answers of a group are the same; give one "
                "above 0"
            )


class Round(NamedTuple):
    """The answers of a round: their prompts [B, P], what was decoded, and their rewards [B]."""

    prompt: Tensor
    decoded: Decoded
    reward: Tensor


class MaskedFinetuning:
    """Fine-tunes `model` on the problems of `layout` by their rewards.

    Formula: the mean over decoding steps j of the mean over the tokens revealed at j of
    -min(A rho, A clip(rho, 1 - 0.5, 1 + 0.5)) + 0.04 KL (k3), where the ratio rho of a token is
    that of its probability at the region before step j ("Taming Masked Diffusion Language Models
    via Consistency Trajectory Reinforcement Learning with Fewer Decoding Step", arXiv 2509.23924).
    With `one_step` probabilities are those of d1's diffu-GRPO (arXiv 2504.12216): given a region
    masked whole and a prompt with tokens masked at random, others in every update; the divergence
    and the ratio compare networks under the same masks, and what follows the first end does not
    count. The mean is over answers of that over their tokens (d1: over all tokens of a batch).

    `update` is a round; `evaluations` counts the rows that went through the network, sampled and
    learned from.
    """

    def __init__(
        self,
        model: MaskedModel,
        layout: Layout,
        config: MaskedFinetuningConfig | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.config, self.layout, self.seed = config or MaskedFinetuningConfig(), layout, seed
        if self.config.recipe not in RECIPES:
            raise ConfigError(f"recipe {self.config.recipe!r} is unknown; see docs/language.md")
        self.recipe = RECIPES[self.config.recipe]
        self.counts = self.config.decoding.counts(layout.answer)
        self.model = copy.deepcopy(model).requires_grad_(True)
        self.reference = copy.deepcopy(model).requires_grad_(False)
        self.optimiser = Adam(self.model.parameters(), lr=self.config.learning_rate)
        self.generator = torch.Generator().manual_seed(seed + 89)
        self.rounds = self.evaluations = 0

    # Answers.

    def problems(self) -> list[Problem]:
        """Those of the next round, none of which is held out."""
        rng = random.Random(f"reward {self.seed} {self.rounds}")
        task, levels = self.layout.task, self.config.levels or self.layout.task.trained
        return [
            task.problem(rng.choice(levels), rng, held_out=False)
            for _ in range(self.config.prompts)
        ]

    def answers(self, problems: list[Problem]) -> Round:
        """`group` answers to each problem."""
        each = [p for p in problems for _ in range(self.config.group)]
        prompt = self.layout.prompts(each)
        decoded = self.decode(prompt, self.config.decoding, self.generator)
        self.evaluations += len(prompt) * len(self.counts)
        return Round(prompt, decoded, self.layout.rewards(each, decoded.answer))

    def decode(
        self, prompt: Tensor, decoding: DecodingConfig, generator: torch.Generator
    ) -> Decoded:
        where = self.layout
        return decode(
            self.model, prompt, where.answer, where.mask, where.codec.end, decoding, generator
        )

    # A round.

    def update(self) -> Metrics:
        c = self.config
        done = self.answers(self.problems())
        counted = self.counted(done.decoded)
        prompt = torch.arange(len(done.reward)) // c.group
        segments = {"segments.decode": self.segments(done.decoded)}
        advantage, weight = advantages(self.recipe, done.reward, counted, prompt, fields=segments)
        metrics: Metrics = {}
        draws = c.epochs if c.likelihood == "one_step" else 1
        inputs = [self.inputs(done) for _ in range(draws)]
        with torch.no_grad():
            before = [
                [self.log_probs(model, done, at) for model in (self.reference, self.model)]
                for at in inputs
            ]
        for epoch in range(c.epochs):
            reference, old = before[epoch % draws]
            now = self.log_probs(self.model, done, inputs[epoch % draws])
            value, metrics = loss(
                self.recipe,
                now,
                advantage,
                counted,
                old=old,
                weight=weight,
                reference=reference,
                reward=done.reward,
                prompt=prompt,
                fields=segments,
            )
            self.optimiser.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), c.clip_norm)
            self.optimiser.step()
        self.rounds += 1
        if c.sync and self.rounds % c.sync == 0:
            self.reference.load_state_dict(self.model.state_dict())
        return metrics | {"reward/mean": done.reward.mean()}

    def order(self, decoded: Decoded) -> Tensor:
        """The places [B, L] in the order in which they were filled in, so that the tokens of a step
        stand beside each other; with one_step as they stand."""
        if self.config.likelihood == "one_step":
            return torch.arange(decoded.step.shape[1]).expand_as(decoded.step)
        return decoded.step.argsort(dim=1, stable=True)

    def segments(self, decoded: Decoded) -> Tensor:
        """Which step [B, L] each token is of, in that order; the same for all with one_step."""
        steps = decoded.step.gather(1, self.order(decoded))
        return steps if self.config.likelihood == "trajectory" else torch.zeros_like(steps)

    def counted(self, decoded: Decoded) -> Tensor:
        """1 for the tokens [B, L], in that order, that a loss is the mean of: of a trajectory all,
        with one_step those up to the first end."""
        if self.config.likelihood == "trajectory":
            return torch.ones_like(decoded.log_prob)
        ends = (decoded.answer == self.layout.codec.end).long()
        return (ends.cumsum(1) - ends == 0).to(decoded.log_prob)

    def inputs(self, done: Round) -> tuple[Tensor, Tensor]:
        """Prompts [N, P] and regions [N, L] that log-probabilities are taken at: of all steps one
        after the other, or one a row, with masks in the prompt that are drawn anew."""
        if self.config.likelihood == "trajectory":
            states = done.decoded.states
            return done.prompt.repeat(len(states), 1), states.flatten(0, 1)
        draw = torch.rand(done.prompt.shape, generator=self.generator)
        shown = (draw >= self.config.hidden_prompt) | (done.prompt == self.layout.codec.pad)
        prompt = torch.where(shown, done.prompt, self.layout.mask)
        return prompt, torch.full_like(done.decoded.answer, self.layout.mask)

    def log_probs(self, model: MaskedModel, done: Round, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """[B, L]: of the answers' tokens, in the order in which they were filled in."""
        self.evaluations += len(inputs[0])
        answer, temperature = done.decoded.answer, self.config.decoding.temperature
        logits = model(*inputs)
        if self.config.likelihood == "trajectory":
            logits = logits.unflatten(0, (-1, len(answer)))
            each = log_probs(logits, answer.expand(len(logits), -1, -1), temperature)
            own = each.gather(0, done.decoded.step[None])[0]
        else:
            own = log_probs(logits, answer, temperature)
        return own.gather(1, self.order(done.decoded))

    # State.

    def state_dict(self) -> dict[str, Any]:
        return {
            "config": dataclasses.asdict(self.config),
            "model": self.model.state_dict(),
            "reference": self.reference.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "seed": self.seed,
            "rounds": self.rounds,
            "evaluations": self.evaluations,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`. Raises `ConfigError` for one of other settings."""
        require_same(self.config, state["config"])
        self.model.load_state_dict(state["model"])
        self.reference.load_state_dict(state["reference"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])
        self.seed = state.get("seed", self.seed)  # problems are drawn by it
        self.rounds, self.evaluations = state["rounds"], state["evaluations"]


def solved(
    tuning: MaskedFinetuning, decoding: DecodingConfig, problems: list[Problem], seed: int
) -> float:
    """The share of `problems` that one answer each, decoded in that way, solves."""
    generator = torch.Generator().manual_seed(seed)
    prompt = tuning.layout.prompts(problems)
    answer = tuning.decode(prompt, decoding, generator).answer
    return float(tuning.layout.rewards(problems, answer).mean())
