"""Which turns and conversations are compared: histories of states, bundles of questions, pairs."""

from typing import Any

import numpy as np

from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.measures.locate import firsts, of_turns, outcomes, prompts, whole
from algorithms.language.measures.values import Rates
from algorithms.language.sampling.rollouts import Rollouts
from mbrl.policy_gradient.axes.credit import BundleRisk
from mbrl.policy_gradient.measures.group_ids import bundled, history_ids
from mbrl.policy_gradient.measures.trackers import QuantileTracker
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields


class Histories(LanguageMeasure):
    """`groups.history_2`, `groups.history_3`: turns of one prompt whose last 2 (3) states are
    equal, the one they acted in among them. "Hierarchy-of-Groups Policy Optimization for
    Long-Horizon Agentic Tasks"."""

    provides = ("groups.history_2", "groups.history_3")
    fulfils = (Requirement.OBSERVATION_HISTORIES,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        states, ends = rollouts.data.groups["state"].cpu(), []
        turn = rollouts.data.segments["turn"].cpu()
        for i, turns in enumerate(rollouts.turns):
            ends.append([int(states[i, (turn[i] == k).nonzero()[0, 0]]) for k in range(len(turns))])
        counts = [len(row) for row in ends]
        flat = np.concatenate([np.array(row) for row in ends])
        sequence = np.repeat(np.arange(len(ends)), counts)
        prompt = np.repeat(np.array(prompts(rollouts)), counts)
        cuts = np.cumsum(counts)[:-1]
        ids = {
            f"history_{k}": of_turns(
                rollouts,
                [x.tolist() for x in np.split(history_ids(flat, sequence, prompt, k), cuts)],
            )
            for k in (2, 3)
        }
        return with_fields(rollouts, "groups", **ids)


class Bundles(LanguageMeasure):
    """`groups.bundle`: about five questions each, neighbours in the round, as evenly as it goes.
    `groups.paper`: the answer number i to each of them. `signals.quantile_low`, `quantile_high` at
    every step: the 0.2 and 0.8 quantiles of the papers' scores, tracked, with this round's.
    "RiskPO: Risk-based Policy Optimization via Verifiable Reward for LLM Post-Training"."""

    provides = BundleRisk().needs()[1:]  # but the prompt
    fulfils = (Requirement.BUNDLES, Requirement.SCORE_QUANTILES)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.tracker = QuantileTracker((0.2, 0.8), 0.1)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        made = bundled(prompts(rollouts), outcomes(rollouts))
        low, high = self.tracker.update(made.scores).tolist()
        rows, ids = len(rollouts), {"bundle": made.bundle, "paper": made.paper}
        rollouts = with_fields(
            rollouts, "groups", **{n: whole(rollouts, x) for n, x in ids.items()}
        )
        return with_fields(
            rollouts,
            "signals",
            quantile_low=whole(rollouts, [low] * rows),
            quantile_high=whole(rollouts, [high] * rows),
        )


class Pairs(LanguageMeasure):
    """`groups.pair`: the prompt of the round with the lowest success rate so far and the one with
    the highest, then the next two; of an odd number the middle one is alone. `signals.hard`: 1 for
    the first of a pair, 0 for the second, of the whole conversation. Rates are those before the
    round, as in `Rates`; of equal ones a higher level is harder. Weighted GRPO, arXiv
    2602.03452."""

    provides = ("groups.pair", "signals.hard")
    fulfils = (Requirement.PROMPT_PAIRS,)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.tracker = Rates(agent.config.pool > 0)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        problems = {prompt: rollouts.problems[row] for prompt, row in firsts(rollouts).items()}
        ranked = sorted(
            problems, key=lambda p: (self.tracker.value(problems[p]), -problems[p].level, p)
        )
        last = len(ranked) - 1
        pair = {prompt: min(i, last - i) for i, prompt in enumerate(ranked)}
        hard = {prompt: float(2 * i < len(ranked)) for i, prompt in enumerate(ranked)}
        if len(ranked) % 2:  # one that is alone is hard if it is mostly not solved
            middle = ranked[last // 2]
            hard[middle] = float(self.tracker.value(problems[middle]) < 0.5)
        self.tracker.update(rollouts.problems, outcomes(rollouts))
        ids = prompts(rollouts)
        rollouts = with_fields(rollouts, "groups", pair=whole(rollouts, [pair[p] for p in ids]))
        return with_fields(rollouts, "signals", hard=whole(rollouts, [hard[p] for p in ids]))
