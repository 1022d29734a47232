"""Further likelihoods: of prompts, of answers to spoiled prompts, of an expert; their gradients,
and how open turns have been."""

import dataclasses
from typing import Any

import torch

from algorithms.language.learner import trainable
from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.measures.gains import likelihoods
from algorithms.language.measures.locate import firsts, lines, of_turns, prompts, spans, whole
from algorithms.language.measures.teachers import check_expert, expert_model
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.sampling.tokens import log_probs_and_entropy
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.measures import trackers
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields

SPOILED = 0.3  # of a prompt's tokens are replaced


class PromptConfidence(LanguageMeasure):
    """`signals.prompt_confidence` in [0, 1] of the whole conversation: the geometric mean of the
    probabilities of all tokens before the first turn but the first one, under the model before the
    round's updates. ARM (ProGRPO), arXiv 2602.05281. Costs one pass over each prompt."""

    provides = ("signals.prompt_confidence",)
    fulfils = (Requirement.PROMPT_CONFIDENCE,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        places, rows, first = spans(rollouts), lines(rollouts), firsts(rollouts)
        pairs = [(rows[i][:1], rows[i][1 : places[i][0][0]]) for i in first.values()]
        means = [float(x.double().mean().exp()) for x in likelihoods(self.agent, pairs)]
        value = dict(zip(first, means, strict=True))
        values = whole(rollouts, [value[prompt] for prompt in prompts(rollouts)])
        return with_fields(rollouts, "signals", prompt_confidence=values)


class Degraded(LanguageMeasure):
    """`log_probs.degraded`: of the same turns after a prompt of which three tenths of the tokens,
    the first and last of them never, are replaced by others of the round's prompts, alike for all
    answers to a prompt. The spoiled picture of "Q-Hawkeye", arXiv 2601.22920. Costs one pass over
    the round."""

    provides = ("log_probs.degraded",)
    fulfils = (Requirement.DEGRADED_LOG_PROBS,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        spoiled = dataclasses.replace(rollouts, tokens=self.spoiled(rollouts))
        log_prob = self.agent.measured(self.agent.model, spoiled)[0]
        return with_fields(rollouts, "log_probs", degraded=log_prob)

    def spoiled(self, rollouts: Rollouts) -> torch.Tensor:
        """The round's tokens with other prompts."""
        places, rows, first = spans(rollouts), lines(rollouts), firsts(rollouts)
        inner = {p: rows[i][1 : places[i][0][0] - 1] for p, i in first.items()}
        letters = [token for own in inner.values() for token in own]
        if not letters:
            return rollouts.tokens
        changed = {}
        for prompt, own in inner.items():
            uniform = torch.rand(
                (2, len(own)),
                dtype=torch.float64,
                generator=self.agent.generator,
                device=self.agent.device,
            ).tolist()
            changed[prompt] = [
                letters[int(which * len(letters))] if hit < SPOILED else token
                for token, hit, which in zip(own, *uniform, strict=True)
            ]
        tokens = rollouts.tokens.clone()
        for i, prompt in enumerate(prompts(rollouts)):
            own = changed[prompt]
            tokens[i, 1 : 1 + len(own)] = torch.tensor(own, dtype=tokens.dtype).to(tokens.device)
        return tokens


class Expert(LanguageMeasure):
    """`log_probs.expert`: of the model in the checkpoint that the setting `expert` names, of the
    same shape (for instance one that learned from demonstrations). It stays as it is, and a
    checkpoint of the run holds it. CalibRL: "Controllable Exploration in Hybrid-Policy RLVR for
    Multi-Modal Reasoning". Costs one pass over the round."""

    provides = ("log_probs.expert",)
    fulfils = (Requirement.EXPERT_LOG_PROBS,)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_expert(objective, config)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.model = expert_model(agent)
        self.modules = {"expert": self.model}

    def measure(self, rollouts: Rollouts) -> Rollouts:
        log_prob = self.agent.measured(self.model, rollouts)[0]
        return with_fields(rollouts, "log_probs", expert=log_prob)


class GradientNorms(LanguageMeasure):
    """`signals.gradient_norm_squared` of the whole conversation: the squared norm of the gradient
    of the sum of its turns' log-probs, with regard to all weights that are trained, exactly, at the
    model before the round's updates. "Stable Asynchrony: Variance-Controlled Off-Policy RL for
    LLMs". Costs a pass forward and back for every conversation by itself."""

    provides = ("signals.gradient_norm_squared",)
    fulfils = (Requirement.GRADIENT_NORMS,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        weights, norms = trainable(self.agent.model), []
        for i, turns in enumerate(spans(rollouts)):
            stop = turns[-1][1]
            tokens = rollouts.tokens[i : i + 1, :stop]
            sets = None if rollouts.kept is None else rollouts.kept[i : i + 1, : stop - 1]
            with torch.enable_grad():
                logits = self.agent.model(tokens[:, :-1])
                log_prob = log_probs_and_entropy(
                    logits, tokens[:, 1:], self.agent.config.sampling.temperature, sets
                )[0]
                own = rollouts.data.mask[i : i + 1, : stop - 1]
                total = torch.where(own, log_prob, 0.0).sum()
                gradients = torch.autograd.grad(total, weights, allow_unused=True)
            norms.append(torch.stack([g.square().sum() for g in gradients if g is not None]).sum())
        values = whole(rollouts, torch.stack(norms))
        return with_fields(rollouts, "signals", gradient_norm_squared=values)


class EntropyHistory(LanguageMeasure):
    """`signals.entropy_history` of the turn: the mean over earlier rounds of the mean entropy of
    all turns of its number; in the first round that has such a turn, that round's. EPO, arXiv
    2509.22576, with rounds for updates."""

    provides = ("signals.entropy_history",)
    fulfils = (Requirement.ENTROPY_HISTORY,)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.tracker = trackers.EntropyHistory()

    def measure(self, rollouts: Rollouts) -> Rollouts:
        t = rollouts.data
        assert t.entropy is not None
        history = self.tracker.update(t.entropy[t.mask], t.segments["turn"][t.mask])
        rows = [history[: len(turns)] for turns in rollouts.turns]
        return with_fields(rollouts, "signals", entropy_history=of_turns(rollouts, rows))


class EntropyControl(LanguageMeasure):
    """`signals.entropy_weight`: the weight of the recipe's `EntropyTarget` in this round, by the
    mean entropy of its tokens. "Skywork Open Reasoner 1 Technical Report", arXiv 2505.22312."""

    provides = ("signals.entropy_weight",)
    fulfils = (Requirement.ENTROPY_WEIGHT,)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        tracker = agent.recipe.entropy_weight()
        assert tracker is not None  # nothing else reads it
        self.tracker = tracker

    def measure(self, rollouts: Rollouts) -> Rollouts:
        t = rollouts.data
        assert t.entropy is not None
        weight = self.tracker.update(float(t.entropy[t.mask].mean()))
        return with_fields(rollouts, "signals", entropy_weight=torch.full_like(t.reward, weight))
