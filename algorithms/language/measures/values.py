"""What prompts are worth: from greedy or sampled answers, or from what was earned before."""

import hashlib
from collections.abc import Sequence
from typing import Any

from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.measures.locate import firsts, outcomes, prompts, whole
from algorithms.language.sampling.rollouts import Rollouts, roll_out
from algorithms.language.sampling.tokens import Sampling
from algorithms.language.tasks.base import Problem
from mbrl.policy_gradient.measures.trackers import SuccessTracker
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields

OF_PROMPTS, OF_LEVELS = 0.9, 0.99  # how much of a success rate is left after one more answer


class GreedyReturn(LanguageMeasure):
    """`signals.greedy_return` of the whole conversation: the whole reward of a greedy one about its
    prompt, by the model before the round's updates. ReMax, arXiv 2310.10505. Costs one more
    conversation a prompt."""

    provides = ("signals.greedy_return",)
    fulfils = (Requirement.GREEDY_ANSWERS,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        greedy = Sampling(temperature=0.0)
        values = mean_returns(self.agent, self.agent.model, rollouts, greedy, 1)
        return with_fields(rollouts, "signals", greedy_return=values)


class Rates:
    """Success rates so far, in (0, 1), 1/2 before anything was seen. `by_prompt`: of every prompt,
    known by its text; else of every level, for problems that do not come again. What was seen
    before fades: a prompt's last 10 answers or so count, a level's last 100. Rewards outside [0, 1]
    count as the nearer end."""

    def __init__(self, by_prompt: bool) -> None:
        self.by_prompt = by_prompt
        self.tracker = SuccessTracker(OF_PROMPTS if by_prompt else OF_LEVELS)

    def key(self, problem: Problem) -> int:
        if not self.by_prompt:
            return problem.level
        digest = hashlib.blake2b(problem.prompt.encode(), digest_size=7).digest()
        return int.from_bytes(digest, "big")

    def value(self, problem: Problem) -> float:
        return self.tracker.value(self.key(problem))

    def update(self, problems: Sequence[Problem], rewards: Sequence[float]) -> None:
        for problem, reward in zip(problems, rewards, strict=True):
            self.tracker.update(self.key(problem), min(max(reward, 0.0), 1.0))

    def state_dict(self) -> dict[str, Any]:
        return self.tracker.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tracker.load_state_dict(state)


class TrackedValue(LanguageMeasure):
    """`signals.tracked_value` of the whole conversation: its prompt's success rate before the
    round, as in `Rates`: of the prompt itself with a `pool` of problems, of its level without one.
    MSSR, arXiv 2512.18215."""

    provides = ("signals.tracked_value",)
    fulfils = (Requirement.SUCCESS_TRACKER,)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.tracker = Rates(agent.config.pool > 0)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        return with_fields(rollouts, "signals", tracked_value=before(self.tracker, rollouts))


class PriorValue(LanguageMeasure):
    """`signals.prior_value` of the whole conversation: what the scheduler thought of its prompt
    (v_half_scheduler, with V_0's value model where it has one), or else the success rate of its
    level before the round, as in `Rates`, which stands for it. "V_0.5: Generalist Value Model as a
    Prior for Sparse RL Rollouts", arXiv 2603.10848."""

    provides = ("signals.prior_value",)
    fulfils = (Requirement.PRIOR_VALUE,)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.tracker = Rates(by_prompt=False)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        if "prior_value" in rollouts.data.signals:
            return rollouts
        return with_fields(rollouts, "signals", prior_value=before(self.tracker, rollouts))


def before(rates: Rates, rollouts: Rollouts) -> Any:
    """[B, T]: the rates before the round, which then takes the round in."""
    values = whole(rollouts, [rates.value(problem) for problem in rollouts.problems])
    rates.update(rollouts.problems, outcomes(rollouts))
    return values


def mean_returns(
    agent: Any, model: Any, rollouts: Rollouts, sampling: Sampling, samples: int
) -> Any:
    """[B, T]: the mean whole reward of `samples` conversations of `model` about the same prompt, in
    the same words and up to the same horizon."""
    rows = firsts(rollouts)
    spoken = rollouts.data.mask.int().argmax(1) + 1  # where the first turn begins
    talked = roll_out(
        model,
        agent.codec,
        agent.task,
        [rollouts.problems[row] for row in rows.values()],
        sampling,
        agent.generator,
        group=samples,
        turn_tokens=agent.turn_tokens,
        max_turns=agent.collector.limits().max_turns if agent.config.horizon else None,
        openings=[rollouts.tokens[row, : int(spoken[row])].tolist() for row in rows.values()],
    )
    agent.tokens["sampled"] += int(talked.data.mask.sum())
    earned = outcomes(talked)
    means = [sum(earned[i : i + samples]) / samples for i in range(0, len(earned), samples)]
    value = dict(zip(rows, means, strict=True))
    return whole(rollouts, [value[prompt] for prompt in prompts(rollouts)])
