"""Language models by policy gradients: any recipe of `mbrl.policy_gradient`, on conversations that
the model has about problems of a task. The trainer knows no recipe: it gives what `Recipe.needs`
names, and `measures` give what is more than log-probs."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from algorithms.language import measures, schedule
from algorithms.language.domains import domains_of, learned_groups
from algorithms.language.learner import (
    LanguageLearner,
    log_probs_and_entropy_at,
    measured,
    put,
    state_at,
    trainable,
)
from algorithms.language.models.passes import Pass, passes, together
from algorithms.language.models.quantised import in_precision
from algorithms.language.sampling.partial_episodes import make_collector
from algorithms.language.sampling.rewards import with_rewards
from algorithms.language.sampling.rollouts import Rollouts, from_plain, plain
from algorithms.language.settings import LanguageConfig
from algorithms.language.subnetwork import read
from algorithms.language.tasks.base import Problem
from mbrl.policy_gradient import Recipe, loss, recipe
from mbrl.policy_gradient.axes.ratio import log_difference
from mbrl.policy_gradient.axes.step_size import at_rate, effective_share
from mbrl.policy_gradient.trainer import Minibatch, Trainer, with_fields
from mbrl.training import Metrics
from mbrl.types import Trajectories

__all__ = ["LanguageConfig", "LanguagePolicyGradient", "Minibatch"]


class LanguagePolicyGradient(LanguageLearner):
    """Policy gradients on a text task. A step is a round: conversations, then updates on them."""

    version = 2
    config: LanguageConfig

    def __init__(
        self,
        spec: Any = None,
        config: LanguageConfig | None = None,
        *,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(spec, config, device=device, seed=seed)
        self.task = with_rewards(self.task, self.config.rewards, self.config.reward_retries)
        self.domains = domains_of(self.config, self.task)
        self.recipe: Recipe = schedule.fitted(recipe(self.config.recipe), self.config)
        self.trainer: Trainer[Rollouts] = Trainer(
            self.recipe,
            self.model,
            [],
            lambda model, rollouts: self.measured(model, rollouts)[0],
            self.generator,
            epochs=self.config.epochs,
            minibatches=self.config.minibatches,
        )
        self.modules |= self.anchors
        if self.config.subnetwork is not None:
            self.modules["subnetwork"] = read(self.config.subnetwork, self.model)
        self.measures = [kind(self) for kind in measures.kinds(self.recipe)]
        self.trainer.measures = self.measures
        for measure in self.measures:
            self.modules |= measure.modules
            self.optimisers |= measure.optimisers
        self.queue: list[Rollouts] = []  # sampled and not yet learned from, oldest first
        self.of_round: Metrics = {}
        self.apart: Metrics = {}  # of learning and sampling, in the latest round
        self.tokens = {"sampled": 0, "trained": 0}
        self.collector = make_collector(self)

    @classmethod
    def default(cls) -> LanguageConfig:
        return LanguageConfig()

    def begin_with(self, path: Any) -> None:
        """Take the model of another learner's checkpoint as the first policy. Raises `ConfigError`
        if it is another model."""
        put(self.model, state_at(path, self.config.model)["modules"]["model"])
        for anchor in self.anchors.values():
            anchor.load_state_dict(self.model.state_dict())
        for measure in self.measures:
            measure.begin()

    @property
    def anchors(self) -> dict[str, nn.Module]:
        """Policies that the current one is held to."""
        return self.trainer.anchors

    @property
    def data(self) -> Minibatch[Rollouts] | None:
        """The part of the round that is learned from."""
        return self.trainer.data

    @property
    def left(self) -> int:
        """Updates that the round has left."""
        return self.trainer.left

    @property
    def old(self) -> str:
        """Of which policy the `old` log-probs are."""
        decoupled = "log_probs.behaviour" in self.recipe.needs
        return self.config.old or ("start" if decoupled else "sampling")

    def collect(self, agent: Any = None) -> int:
        """Conversations of a round, and the estimates of the one that is learned from; returns how
        many updates follow."""
        each = self.config.epochs * self.config.minibatches
        while len(self.queue) <= self.config.staleness // each:
            self.queue.append(self.sample_round())
        return self.take_in(self.queue.pop(0))

    def take_in(self, rollouts: Rollouts) -> int:
        """Make a round of these conversations, which have `old` log-probs; returns how many updates
        follow."""
        batch = self.estimated(rollouts)
        worth = (batch.estimate.advantage * batch.estimate.weight).abs().sum(1)
        levels = [problem.level for problem in rollouts.problems]
        self.domains.count(learned_groups(rollouts.data.groups["prompt"][:, 0], worth, levels))
        self.of_round = self.round_metrics(batch)
        return self.trainer.begin_round(batch)

    def sample_round(self) -> Rollouts:
        """Conversations of a round, with the `old` log-probs of the policy that had them: those
        that come again have the sampler's own."""
        if self.domains.advance(self.tokens["sampled"]):
            self.begin_stage()
        rollouts = self.with_old(self.collector.collect())
        known, signals = rollouts.data.log_probs, rollouts.data.signals
        if self.config.sampling_precision != "full":
            self.apart = apart(known["old"], known["behaviour"], rollouts.data.mask)
        if (taught := signals.get("teacher")) is not None:  # nobody's log-probs: as if sampled
            known["behaviour"] = torch.where(taught > 0.5, known["old"], known["behaviour"])
        again = signals.get("replayed")
        if again is None or self.old == "start":
            return rollouts
        known["old"] = torch.where(again > 0, known["behaviour"], known["old"])
        return rollouts

    def begin_stage(self) -> None:
        """A stage of one part of the task begins: with its learning rate, without conversations
        of earlier stages that would come again, and with a new state of the optimiser where the
        settings say so."""
        parts: list[Any] = [*self.measures, self.collector]
        for part in parts:
            part.begin_stage()
        c, stage, optimiser = self.config, self.domains.stage, self.optimisers["model"]
        if c.stage_reset:
            optimiser.state.clear()
        rate = c.learning_rate if stage is None else stage.learning_rate or c.learning_rate
        for group in optimiser.param_groups:
            group["lr"] = group["full"] = rate

    @property
    def stage_over(self) -> bool:
        """Whether the next round is of another stage."""
        return self.domains.over(self.tokens["sampled"])

    @property
    def turn_tokens(self) -> int | None:
        """The longest turn of the round."""
        stage = self.domains.stage
        own = None if stage is None else stage.turn_tokens
        limit: int | None = own or self.config.turn_tokens
        return limit

    def sampling_model(self) -> Any:
        """What conversations are sampled with: the model, as measures change it."""
        model: Any = in_precision(self.model, self.config.sampling_precision)
        for measure in self.measures:
            model = measure.sampling_model(model)
        return model

    def problems(self, numbers: Sequence[int]) -> Sequence[Problem]:
        """The problems of these numbers, as measures want them."""
        problems: Sequence[Problem] = [self.problem(n) for n in numbers]
        for measure in self.measures:
            problems = measure.problems(problems)
        return problems

    def with_old(self, rollouts: Rollouts, *, sampled: bool = False) -> Rollouts:
        """With log-probs, entropy and sum of squares of the model as it is; with `sampled` the
        log-probs are the sampler's own."""
        log_prob, entropy, squares = self.measured(self.model, rollouts)
        if sampled:
            log_prob = rollouts.data.log_probs["behaviour"]
        data = dataclasses.replace(
            rollouts.data,
            log_probs=rollouts.data.log_probs | {"old": log_prob},
            entropy=entropy,
            sum_prob_squared=squares,
        )
        return dataclasses.replace(rollouts, data=data)

    def measured(self, model: Any, rollouts: Rollouts) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        return measured(
            in_precision(model, c.training_precision),
            rollouts.tokens,
            rollouts.data.mask,
            c.sampling.temperature,
            rollouts.kept,
            c.rows_at_once,
        )

    def estimated(self, rollouts: Rollouts) -> Minibatch[Rollouts]:
        """With the log-probs of the policies that the recipe compares."""
        proximal = rollouts.data.log_probs["old"]
        if (self.config.staleness or "replayed" in rollouts.data.signals) and (
            self.old == "start" or "log_probs.proximal" in self.recipe.needs
        ):
            now = self.with_old(rollouts)
            proximal = now.data.log_probs["old"]
            if self.old == "start":
                rollouts = now
        return self.trainer.estimated(with_fields(rollouts, "log_probs", proximal=proximal))

    @torch.no_grad()
    def round_metrics(self, batch: Minibatch[Rollouts]) -> Metrics:
        """What a round was like."""
        rollouts, t, like = batch.rollouts, batch.data, batch.estimate.advantage
        success = rollouts.success.to(like)
        own = t.signals["aided"][:, 0] < 0.5 if "aided" in t.signals else success >= 0
        parts: list[Any] = [*self.measures, self.collector]
        acts = [part.acts for part in parts if part.acts is not None]
        by_itself = [part.success for part in self.measures if part.success is not None]
        prompt = t.groups["prompt"][:, 0]
        sizes = like.new_zeros(int(prompt.max()) + 1).index_add(0, prompt, torch.ones_like(success))
        right = torch.zeros_like(sizes).index_add(0, prompt, success)
        steps = t.mask.sum().clamp_min(1)
        entropy = torch.zeros_like(like) if t.entropy is None else t.entropy
        assert t.policy_version is not None
        age = torch.where(t.mask, self.updates - t.policy_version, 0)
        return {
            # Of what the policy did by itself: no hint, prefix or correction counts as its answer.
            "rollout/success": like.new_tensor(by_itself[0])
            if by_itself
            else success[own].sum() / own.sum().clamp_min(1),
            "rollout/reward": torch.where(t.mask, t.reward, 0.0).sum() / len(rollouts),
            "rollout/mixed_groups": ((right > 0) & (right < sizes)).to(like).mean(),
            "rollout/length": t.lengths.to(like).mean(),
            "rollout/turns": like.new_tensor([len(r) for r in rollouts.turns]).mean(),
            "rollout/cut_off": t.truncated.any(1).to(like).mean(),
            "rollout/entropy": torch.where(t.mask, entropy, 0.0).sum() / steps,
            "rollout/age": age.sum().to(like.dtype) / steps,
            "tokens/sampled": like.new_tensor(self.tokens["sampled"], dtype=torch.float64),
            **self.apart,
        } | ({"rollout/acts": like.new_tensor(min(acts))} if acts else {})

    def next_batch(self) -> Minibatch[Rollouts]:
        """Conversations of the round, each once a pass. Raises `ConfigError` before a round is
        over."""
        return self.trainer.next_batch()

    def update(self, batch: Minibatch[Rollouts]) -> Metrics:
        """One step of the model on the recipe's loss, and of what is learned beside it."""
        self.set_rate()
        t = batch.rollouts.data
        for measure in self.measures:
            measure.before_update(batch.rollouts)
        metrics = self.descend(batch)
        for measure in self.measures:
            metrics |= measure.learn(batch.rollouts, batch.targets)
        self.tokens["trained"] += int(t.mask.sum())
        self.updates += 1
        metrics |= self.trainer.updated()
        trained_on = t.reward.new_tensor(self.tokens["trained"], dtype=torch.float64)
        return metrics | self.of_round | {"tokens/trained": trained_on}

    def descend(self, batch: Minibatch[Rollouts]) -> Metrics:
        """One step of the model. More rows than `rows_at_once` go through it in parts, twice: the
        loss is of all of them, so its gradient at their log-probs is taken first, and carried into
        the weights part by measure."""
        c, t, optimiser = self.config, batch.rollouts.data, self.optimisers["model"]
        optimiser.zero_grad()
        todo, teacher = passes(t.mask, c.rows_at_once), batch.targets.get("teacher")
        if len(t.mask) <= c.rows_at_once:
            values = self.current(batch.rollouts, todo, teacher)
            value, metrics = self.loss_of(batch, values)
            if value.requires_grad:
                value.backward()
        else:
            with torch.no_grad():
                whole = self.current(batch.rollouts, todo, teacher)
            values = tuple(v.requires_grad_() for v in whole)
            value, metrics = self.loss_of(batch, values)
            if value.requires_grad:
                value.backward()
                gradients = [v.grad for v in values]
                self.backpropagate(batch.rollouts, todo, gradients, teacher)
        log_prob, entropy = values[:2]
        if (alone := self.modules.get("subnetwork")) is not None:
            alone.restrict(self.model)  # type: ignore[operator]
        norm = torch.nn.utils.clip_grad_norm_(trainable(self.model), c.clip_norm)
        waits = any(measure.skip_update() for measure in self.measures)
        if not waits and bool(torch.isfinite(norm)):
            with at_rate(optimiser, metrics):
                optimiser.step()
        steps = t.mask.sum().clamp_min(1)
        metrics["policy/entropy"] = torch.where(t.mask, entropy.detach(), 0.0).sum() / steps
        metrics["policy/gradient_norm"] = norm.detach()
        metrics["policy/gradient_clipped"] = (norm.detach() > c.clip_norm).to(norm.dtype)
        return metrics | distance(log_prob.detach(), t)

    def loss_of(
        self, batch: Minibatch[Rollouts], values: tuple[Tensor, ...]
    ) -> tuple[Tensor, Metrics]:
        """The recipe's loss of what `current` gives, with its divergences from a teacher among the
        signals."""
        rollouts, (log_prob, entropy, *divergences) = batch.rollouts, values
        if divergences:
            both = dict(zip(("reverse_kl", "forward_kl"), divergences, strict=True))
            rollouts = with_fields(rollouts, "signals", **both)
        return loss(self.recipe, log_prob, rollouts.data, batch.estimate, entropy)

    def backpropagate(
        self,
        rollouts: Rollouts,
        todo: Sequence[Pass],
        gradients: Sequence[Tensor | None],
        teacher: Tensor | None = None,
    ) -> None:
        """Carry gradients at what `current` gives into the weights."""
        for one in todo:
            values = self.one_pass(rollouts, one, teacher).unbind(-1)
            pairs = [
                (v, g[one.rows, : one.steps])
                for v, g in zip(values, gradients, strict=True)
                if g is not None
            ]
            torch.autograd.backward([v for v, _ in pairs], [g for _, g in pairs])

    def current(
        self, rollouts: Rollouts, todo: Sequence[Pass], teacher: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Log-probs and entropies [B, T] of the model as it is, or as measures change it for an
        update, with gradients; with the log-probs [B, T, V] of a `teacher` also its reverse and its
        forward divergence from it."""
        pieces = [self.one_pass(rollouts, one, teacher) for one in todo]
        return together(pieces, todo, rollouts.data.mask.shape[1]).unbind(-1)

    def one_pass(self, rollouts: Rollouts, one: Pass, teacher: Tensor | None = None) -> Tensor:
        """The two of one pass, [b, steps, 2], or with a teacher the four."""
        model: Any = in_precision(self.model, self.config.training_precision)
        for measure in self.measures:
            model = measure.training_model(model, one.rows)
        temperature = self.config.sampling.temperature
        mask = rollouts.data.mask
        values = log_probs_and_entropy_at(
            model, rollouts.tokens, mask, temperature, rollouts.kept, one, teacher
        )
        return values[..., [0, 1, *range(3, values.shape[-1])]]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "queue": [plain(rollouts) for rollouts in self.queue],
            "tokens": dict(self.tokens),
            "domains": self.domains.state_dict(),
            "parts": [measure.state_dict() for measure in self.measures],
            "rounds": self.collector.state_dict(),
            **self.trainer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trainer.load_state_dict(state)
        super().load_state_dict(state)
        self.queue = [from_plain(values) for values in state["queue"]]
        self.tokens = dict(state["tokens"])
        if "domains" in state:  # not in checkpoints of before there were parts
            self.domains.load_state_dict(state["domains"])
        for measure, values in zip(self.measures, state["parts"], strict=True):
            measure.load_state_dict(values)
        self.collector.load_state_dict(state["rounds"])


def distance(log_prob: Tensor, t: Trajectories) -> Metrics:
    """How far a policy with `log_prob` [B, T] is from the one that sampled, whatever the recipe
    makes of it: the share of effective samples of the conversations' whole weights, and the share
    of tokens that are twice or half as likely now, or beyond."""
    log_ratio = log_difference(log_prob, t.log_probs["behaviour"], t.mask)
    far = (log_ratio.abs() > math.log(2)).to(log_prob.dtype)
    return {
        "behaviour/effective": effective_share(log_ratio.sum(1), t.mask.any(1)),
        "behaviour/tail": far.sum() / t.mask.sum().clamp_min(1),
    }


def apart(learner: Tensor, sampler: Tensor, mask: Tensor) -> Metrics:
    """How far the log-probs [B, T] of what learns are from the sampler's of the same weights: the
    divergence of the sampler from it by the estimate k3 a token, and the largest difference."""
    log_ratio = log_difference(learner, sampler, mask)
    k3 = torch.where(mask, log_ratio.exp() - 1 - log_ratio, 0.0)
    return {
        "rollout/precision_kl": k3.sum() / mask.sum().clamp_min(1),
        "rollout/precision_gap": log_ratio.abs().max(),
    }
