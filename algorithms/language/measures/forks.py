"""Votes that fork where the policy is uncertain."""

from collections.abc import Sequence
from typing import Any

from algorithms.language.measures.answers import meaning
from algorithms.language.measures.assembled import Assembled, check_help, own_groups
from algorithms.language.measures.base import LanguageMeasure, require_one_turn
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.prefixes import begun, places
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement

FORKS, EACH = 2, 2  # tokens of every whole answer at which it forks, and how often at each


class ForkedVotes(LanguageMeasure):
    """A fifth of a group, rounded up, are whole answers. Each of them forks twice at the two tokens
    where the policy's entropy is largest (fewer where the group is full): what stands before is
    read again, and the policy goes on from there. So a group has as many votes as ever for fewer
    tokens. Nothing is learned twice: of a fork only what was said anew is trained on.

    `acts`: the share of the forks that end with another answer than what they forked from. ETTRL:
    "Balancing Exploration and Exploitation in LLM Test-Time Reinforcement Learning Via Entropy
    Mechanism", arXiv 2508.11356."""

    provides = ()
    fulfils = (Requirement.VOTE_FORKS,)
    changes_sampling = True

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, lambda task: True, "")
        why = f"votes on answers, and a turn of {config.task} is none"
        require_one_turn(objective, config, why)

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, size = self.agent, self.agent.config.group
        whole = -(-size // (1 + FORKS * EACH))
        trunks = own_groups(agent, problems, whole)
        flat = [row for rows in trunks for row in rows]
        places_of = self.uncertain(flat)
        forks = []
        for i in range(len(problems)):
            mine = range(i * whole, (i + 1) * whole)
            # The most uncertain token of every answer first, then the next one of each.
            once = [(n, j) for rank in range(FORKS) for j in mine for n in places_of[j][rank:][:1]]
            starts = once * EACH
            forks.append([(j, begun(flat[j], n, agent.drawn_seed())) for n, j in starts])
            forks[-1] = forks[-1][: size - whole]
        agent.collector.advance([f for own in forks for _, f in own], agent.collector.limits())
        round_, other = Assembled(agent), list[bool]()
        for rows, own in zip(trunks, forks, strict=True):
            round_.add([*rows, *(fork for _, fork in own)])
            other += [meaning(f.turns[-1]) != meaning(flat[j].turns[-1]) for j, f in own]
        self.acts = sum(other) / max(1, len(other))
        return round_.rollouts()

    def uncertain(self, rows: Sequence[Conversation]) -> list[list[int]]:
        """Of every answer the numbers of its tokens, the largest entropy of the policy first, as
        many as it forks."""
        agent = self.agent
        rollouts = agent.collector.to_rollouts(rows, range(len(rows)))
        entropy = agent.measured(agent.model, rollouts)[1].tolist()
        ordered = []
        for row, values in zip(rows, entropy, strict=True):
            at = places(row)
            order = sorted(range(len(at)), key=lambda n: (-values[at[n] - 1], n))
            ordered.append(order[:FORKS])
        return ordered
