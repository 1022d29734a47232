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

    def measure(self, found: Rollouts) -> Rollouts:
        states, ends = found.data.groups["state"].cpu(), []
        turn = found.data.segments["turn"].cpu()
        for i, turns in enumerate(found.turns):
            ends.append([int(states[i, (turn[i] == k).nonzero()[0, 0]]) for k in range(len(turns))])
        counts = [len(row) for row in ends]
        flat = np.concatenate([np.array(row) for row in ends])
        sequence = np.repeat(np.arange(len(ends)), counts)
        prompt = np.repeat(np.array(prompts(found)), counts)
        cuts = np.cumsum(counts)[:-1]
        ids = {
            f"history_{k}": of_turns(
                found, [x.tolist() for x in np.split(history_ids(flat, sequence, prompt, k), cuts)]
            )
            for k in (2, 3)
        }
        return with_fields(found, "groups", **ids)


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

    def measure(self, found: Rollouts) -> Rollouts:
        made = bundled(prompts(found), outcomes(found))
        low, high = self.tracker.update(made.scores).tolist()
        rows, ids = len(found), {"bundle": made.bundle, "paper": made.paper}
        found = with_fields(found, "groups", **{n: whole(found, x) for n, x in ids.items()})
        return with_fields(
            found,
            "signals",
            quantile_low=whole(found, [low] * rows),
            quantile_high=whole(found, [high] * rows),
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

    def measure(self, found: Rollouts) -> Rollouts:
        problems = {prompt: found.problems[row] for prompt, row in firsts(found).items()}
        ranked = sorted(
            problems, key=lambda p: (self.tracker.value(problems[p]), -problems[p].level, p)
        )
        last = len(ranked) - 1
        pair = {prompt: min(i, last - i) for i, prompt in enumerate(ranked)}
        hard = {prompt: float(2 * i < len(ranked)) for i, prompt in enumerate(ranked)}
        if len(ranked) % 2:  # one that is alone is hard if it is mostly not solved
            middle = ranked[last // 2]
            hard[middle] = float(self.tracker.value(problems[middle]) < 0.5)
        self.tracker.update(found.problems, outcomes(found))
        ids = prompts(found)
        found = with_fields(found, "groups", pair=whole(found, [pair[p] for p in ids]))
        return with_fields(found, "signals", hard=whole(found, [hard[p] for p in ids]))
