"""Answers that branch where the model has likely alternatives, and lose the branches that stay like
what they branched from."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from algorithms.language.measures.assembled import Assembled, check_help
from algorithms.language.measures.base import LanguageMeasure, require_one_turn
from algorithms.language.sampling.conversation import Conversation, opened
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement

CANDIDATES = 2  # likeliest tokens of a step; the authors' scripts
LEAST, GAP = 0.25, 0.15  # probability of an alternative, and what it may lack; the authors' scripts
ALIKE = 0.4  # edits for each token below which a branch is given up; the authors' scripts
AGES = (4, 8)  # tokens after which it is compared; the authors' 20, 30, 50 are for long answers
FULL, EASE = 0.98, 0.05  # share of places taken at which trees end, less EASE over a turn
SHARES = ((0, 1.0), (10, 0.75), (20, 0.5), (80, 0.25), (200, 0.0))  # of a group, from round n on


@dataclass
class Sprout:
    """An answer of tree `tree` that is going on: its tokens and their log-probs, which sprout it
    branched from (None: it is a root) and at which of its tokens."""

    tree: int
    said: list[int] = field(default_factory=list)
    log_prob: list[float] = field(default_factory=list)
    parent: "Sprout | None" = None
    born: int = 0


class LookaheadTrees(LanguageMeasure):
    """A share of every group, which falls from 1 in the first round to 0 after 200, are answers of
    one tree. All of its answers take the likeliest token; one branches with the second likeliest
    where that has a probability above 0.25 and less than 0.15 below the first, while there is room;
    of too many the second tokens of later answers come last. After 4 and 8 tokens a branch whose
    edits from what it branched from are fewer than 0.4 a token is given up with its own branches,
    unless one of the two has ended. When the trees are full (98 % of their places, 5 points less by
    the end of a turn) ordinary sampling goes on from where they stand. The rest of a group, and
    what a tree has not filled, is sampled as ever. Tokens of branches that were given up count as
    sampled.

    Old log-probs are the policy's of these tokens, as if they had been sampled, which they were
    not: a bias that the paper has too. `acts`: branches that stay, for each problem. LATR:
    "Lookahead Tree-Based Rollouts for Enhanced Trajectory-Level Exploration in Reinforcement
    Learning with Verifiable Rewards", read in starreeze/latr at 2adb0ed."""

    provides = ()
    fulfils = (Requirement.LOOKAHEAD_TREES,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.rounds = 0

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, lambda task: True, "")
        why = f"branches within the first turn, and {config.task} has more"
        require_one_turn(objective, config, why)

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_, size = self.agent, Assembled(self.agent), self.agent.config.group
        share = [value for start, value in SHARES if start <= self.rounds][-1]
        self.rounds += 1
        width = round(size * share)
        bare = agent.collector.open(problems)
        trees = self.trees(bare, width)
        starts = [self.conversations(t, row) for t, row in zip(trees, bare, strict=True)]
        grown = [row for tree in starts for row in tree]
        # Of an answer that has ended only the end is lacking.
        agent.collector.advance([row for row in grown if not row.done], agent.collector.limits())
        lacking = [size - len(tree) for tree in starts]
        more = agent.collector.copies(bare, lacking)
        more, _ = agent.collector.finish(more, list(range(len(more))))
        for tree, count in zip(starts, lacking, strict=True):
            round_.add([*tree, *more[:count]])
            more = more[count:]
        branches = sum(max(0, len(tree) - 1) for tree in starts)
        self.acts = branches / len(problems)
        return round_.rollouts()

    def conversations(self, tree: Sequence[Sprout], start: Conversation) -> list[Conversation]:
        """The answers of a tree from `start` as conversations that go on, or are over."""
        agent = self.agent
        limits = agent.collector.limits()
        rows = []
        for sprout in tree:
            row = start.again(agent.drawn_seed())
            row.extend_turn(sprout.said)
            row.behaviour, row.model = list(sprout.log_prob), list(sprout.log_prob)
            row.versions = [agent.updates] * len(sprout.said)
            if sprout.said[-1] == agent.codec.end or len(sprout.said) == limits.limit(agent.task):
                row.finish(agent.task, agent.codec, 1)
            rows.append(row)
        return rows

    @torch.no_grad()
    def trees(self, starts: Sequence[Conversation], width: int) -> list[list[Sprout]]:
        """A tree of at most `width` answers from each of `starts`, as far as it goes."""
        agent = self.agent
        if width == 0:
            return [[] for _ in starts]
        limit = agent.collector.limits().limit(agent.task)
        alive = list(range(len(starts)))
        cache, logits = opened(agent.model, agent.codec, agent.task, starts, alive, limit, 1)
        rows = [Sprout(i) for i in alive]
        for step in range(limit):
            log_p = (logits / agent.config.sampling.temperature).log_softmax(-1)
            rows, tokens, order = self.extended(rows, logits.softmax(-1), log_p, width, step)
            agent.tokens["sampled"] += sum(len(row.said) == step + 1 for row in rows)
            gone = given_up(rows, step + 1, agent.codec.end)
            stay = [i for i, row in enumerate(rows) if not hangs_on(row, gone)]
            rows = [rows[i] for i in stay]
            taken = len(rows) / (width * len(starts))
            over = all(ended(row, agent.codec.end, step + 1) for row in rows)
            if over or taken >= FULL - EASE * (step + 1) / limit or step + 1 == limit:
                break
            at = torch.tensor([order[i] for i in stay], device=agent.device)
            cache = cache.select(at)
            said = torch.tensor([[tokens[i]] for i in stay], device=agent.device)
            real = torch.tensor(
                [[not ended(row, agent.codec.end, step + 1)] for row in rows], device=agent.device
            )
            logits = agent.model.extend(said, real, cache)
        return [[row for row in rows if row.tree == i] for i in range(len(starts))]

    def extended(
        self, rows: list[Sprout], p: Tensor, log_p: Tensor, width: int, step: int
    ) -> tuple[list[Sprout], list[int], list[int]]:
        """The answers with one more token and their new branches, the token of each (the end again
        where it has ended), and which of `rows` each goes on from. `p` [B, V] are raw
        probabilities, `log_p` those at the temperature."""
        end = self.agent.codec.end
        best, ids = p.topk(CANDIDATES, -1)
        likely, names = best.tolist(), ids.tolist()
        able = []  # (tree, rank, row) of branches, the order of who comes first
        for i, row in enumerate(rows):
            if ended(row, end, step):
                continue
            for rank in range(1, CANDIDATES):
                if likely[i][rank] > LEAST and likely[i][0] - likely[i][rank] < GAP:
                    able.append((row.tree, rank, i))
        room = {tree: width - sum(row.tree == tree for row in rows) for tree in range(len(rows))}
        new, tokens, order = (
            list(rows),
            [names[i][0] for i in range(len(rows))],
            [*range(len(rows))],
        )
        for tree, rank, i in sorted(able):
            if room[tree] > 0:
                room[tree] -= 1
                token = names[i][rank]
                said, known = [*rows[i].said, token], [*rows[i].log_prob, float(log_p[i, token])]
                new.append(Sprout(tree, said, known, rows[i], step))
                tokens.append(token)
                order.append(i)
        for i, row in enumerate(rows):
            if ended(row, end, step):
                tokens[i] = end
            else:
                row.said.append(tokens[i])
                row.log_prob.append(float(log_p[i, tokens[i]]))
        return new, tokens, order

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


def ended(row: Sprout, end: int, step: int) -> bool:
    """Whether an answer was over before it had `step` tokens, or with the last of them."""
    return len(row.said) < step or (bool(row.said) and row.said[-1] == end)


def given_up(rows: Sequence[Sprout], step: int, end: int) -> list[Sprout]:
    """Branches of one of the ages, now that answers have `step` tokens, that are too much like what
    they branched from over the tokens since."""
    gone = []
    for row in rows:
        age = step - row.born
        if row.parent is None or age not in AGES:
            continue
        own, other = row.said[row.born :], row.parent.said[row.born :]
        if end in own or end in other or len(own) < age or len(other) < age:
            continue
        if edits(own, other[:age]) / age < ALIKE:
            gone.append(row)
    return gone


def hangs_on(row: Sprout, gone: Sequence[Sprout]) -> bool:
    """Whether an answer is one of `gone`, or branched from one, or from what did."""
    here: Sprout | None = row
    while here is not None:
        if any(here is other for other in gone):
            return True
        here = here.parent
    return False


def edits(a: Sequence[int], b: Sequence[int]) -> int:
    """The fewest insertions, deletions and replacements that make `b` of `a`."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            known = row[j]
            row[j] = min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
            diagonal = known
    return row[-1]
