"""What turns tell: how likely the right answer became, what an observation changed, what answers
that are asked for after a turn are like."""

import math
import re
from typing import Any

import torch

from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.measures.judged import demonstrated
from algorithms.language.measures.locate import (
    at_ends,
    firsts,
    lines,
    of_turns,
    prompts,
    scored,
    spans,
)
from algorithms.language.sampling.conversation import aligned
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.sampling.tokens import sample_turn
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields

PROBES = 4  # answers that are asked for after a turn
_WORD = re.compile("[a-z]+ ")


class AnswerGain(LanguageMeasure):
    """`signals.information_gain` in [-1, 1], at the last step of every turn: how much likelier the
    right answer is as the next turn after it (with its observation) than before it; 0 for the last
    turn, after which nothing is said. Likely is the geometric mean of the tokens' probabilities,
    its end among them, under the model before the round's updates. The right answer is the last
    turn of a demonstration (in the grid world: its last move, as there is no other answer).

    "Information Gain-based Policy Optimization: A Simple and Effective Approach for Multi-Turn LLM
    Agents"; A^2TGPO, arXiv 2605.06200. Costs one pass over each conversation up to each turn.
    """

    provides = ("signals.information_gain",)
    fulfils = (Requirement.ANSWER_PROBABILITY,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        agent, places, rows = self.agent, spans(rollouts), lines(rollouts)
        answers = {
            prompt: agent.codec.turn(demonstrated(agent.task, rollouts.problems[row])[-1][0])
            for prompt, row in firsts(rollouts).items()
        }
        pairs = [
            (row[:start], answers[prompt])
            for row, turns, prompt in zip(rows, places, prompts(rollouts), strict=True)
            for start, _ in turns
        ]
        likely = iter([math.exp(mean(x)) for x in likelihoods(agent, pairs)])
        gains = []
        for turns in places:
            p = [next(likely) for _ in turns]
            gains.append([b - a for a, b in zip(p, p[1:], strict=False)] + [0.0])
        return with_fields(rollouts, "signals", information_gain=at_ends(rollouts, gains))


class ObservationGain(LanguageMeasure):
    """`signals.information_gain`, at the last step of every turn: the mean log-prob of the next
    turn's tokens with the observation that came between, less that with an empty one in its place;
    0 for the last turn. Under the model before the round's updates. "InfoPO: Information-Driven
    Policy Optimization for User-Centric Agents", whose fixed text for the observation left out is
    the empty one here. Costs one pass over each conversation up to each turn."""

    provides = ("signals.information_gain",)
    fulfils = (Requirement.OBSERVATION_GAIN,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        agent, places, rows = self.agent, spans(rollouts), lines(rollouts)
        empty, pairs = agent.codec.between(""), []
        for row, turns in zip(rows, places, strict=True):
            for (_, end), (start, stop) in zip(turns, turns[1:], strict=False):
                pairs.append(([*row[:end], *empty], row[start:stop]))
        without = iter(likelihoods(agent, pairs))
        # One pass has all turns of a conversation as they were said.
        whole = likelihoods(agent, [(row[:1], row[1:]) for row in rows])
        gains = []
        for turns, log_prob in zip(places, whole, strict=True):
            observed = [log_prob[start - 1 : stop - 1] for start, stop in turns[1:]]
            gains.append([mean(x) - mean(next(without)) for x in observed] + [0.0])
        return with_fields(rollouts, "signals", information_gain=at_ends(rollouts, gains))


class Probes(LanguageMeasure):
    """`signals.accuracy` and `signals.confidence` in [0, 1] of the turn. After every turn but the
    last 4 answers are sampled as the next turn, which begins with the word of the task's right
    answers if they have one ("answer 12"): accuracy is the share that solves the problem,
    confidence the mean of the geometric means of their tokens' probabilities. Of the last turn they
    are its own: whether it solved the problem, and how likely it was.

    "Step Potential Advantage Estimation: Harnessing Intermediate Confidence and Correctness for
    Efficient Mathematical Reasoning", arXiv 2601.03823, with turns as steps. Costs four more turns
    a turn.
    """

    provides = ("signals.accuracy", "signals.confidence")
    fulfils = (Requirement.ANSWER_PROBES,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        places, rows = spans(rollouts), lines(rollouts)
        states = [(i, k) for i, turns in enumerate(places) for k in range(len(turns) - 1)]
        accuracy = [[float(r.success) for r in replies] for replies in rollouts.replies]
        confidence = [[0.0] * len(turns) for turns in places]
        sampled = rollouts.data.log_probs["behaviour"]
        for i, turns in enumerate(places):
            start, stop = turns[-1]
            confidence[i][-1] = math.exp(sampled[i, start - 1 : stop - 1].double().mean())
        words = {p: self.word(rollouts, row) for p, row in firsts(rollouts).items()}
        ids, limit = prompts(rollouts), self.limit()
        uniform = torch.rand(
            (len(states) * PROBES, limit),
            dtype=torch.float64,
            generator=self.agent.generator,
            device=self.agent.device,
        )
        at_once = max(1, self.agent.config.rows_at_once // PROBES)
        for i in range(0, len(states), at_once):
            chunk = states[i : i + at_once]
            contexts = [
                [*rows[row][: places[row][k + 1][0]], *words[ids[row]][0]] for row, k in chunk
            ]
            drawn = self.probe(contexts, uniform[i * PROBES : (i + len(chunk)) * PROBES])
            for j, (text, likely) in enumerate(drawn):
                row, k = chunk[j // PROBES]
                said = [*rollouts.turns[row][: k + 1], words[ids[row]][1] + text]
                right = self.agent.task.reply(rollouts.problems[row], said).success
                accuracy[row][k] += float(right) / PROBES
                confidence[row][k] += likely / PROBES
        return with_fields(
            rollouts,
            "signals",
            accuracy=of_turns(rollouts, accuracy),
            confidence=of_turns(rollouts, confidence),
        )

    def limit(self) -> int:
        """Tokens that a turn may have."""
        most: int | None = self.agent.turn_tokens
        return self.agent.task.turn_length + 1 if most is None else most

    def word(self, rollouts: Rollouts, row: int) -> tuple[list[int], str]:
        """The word that right answers begin with, as tokens and as text."""
        answer = demonstrated(self.agent.task, rollouts.problems[row])[-1][0]
        match = _WORD.match(answer)
        text = match[0] if match else ""
        return (self.agent.codec.turn(text)[:-1] if text else []), text

    @torch.no_grad()
    def probe(self, contexts: list[list[int]], uniform: Any) -> list[tuple[str, float]]:
        """`PROBES` turns after each of `contexts`: their texts and the geometric means of their
        tokens' probabilities."""
        agent = self.agent
        chunk, real = aligned(contexts, agent.codec.pad, agent.device)
        cache = agent.model.cache(len(contexts), chunk.shape[1] + uniform.shape[1])
        logits = agent.model.extend(chunk, real, cache)
        each = torch.arange(len(contexts), device=agent.device).repeat_interleave(PROBES)
        turn = sample_turn(
            agent.model,
            cache.select(each),
            logits[each],
            agent.config.sampling,
            uniform,
            torch.full((len(each),), uniform.shape[1], device=agent.device),
            end=agent.codec.end,
            pad=agent.codec.pad,
        )
        agent.tokens["sampled"] += int(turn.real.sum())
        answers = []
        for tokens, own, log_prob in zip(turn.tokens, turn.real, turn.behaviour, strict=True):
            likely = math.exp(log_prob[own].double().mean())
            answers.append((agent.codec.decode(tokens[own].tolist()), likely))
        return answers


def mean(log_prob: torch.Tensor) -> float:
    return float(log_prob.double().mean())


def likelihoods(agent: Any, pairs: list[tuple[list[int], list[int]]]) -> list[torch.Tensor]:
    """Log-probs of continuations under the agent's model."""
    c = agent.config
    return scored(agent.model, pairs, c.sampling.temperature, agent.codec.pad, c.rows_at_once)
