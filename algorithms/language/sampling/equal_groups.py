"""Rounds of groups whose rewards differ: the others teach nothing, and make room. Dynamic sampling
of "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", arXiv 2503.14476; beside
workers as in "Beyond Ten Turns: Unlocking Long-Horizon Agentic Search with Large-Scale Asynchronous
RL" (ASearcher), arXiv 2508.07976."""

from collections.abc import Sequence

from algorithms.language.sampling.collectors import ConversationCollector
from algorithms.language.sampling.conversation import Conversation, earned
from algorithms.language.sampling.rollouts import Rollouts

TRIES = 50  # rounds of equal groups before a run gives up


def differ(rows: Sequence[Conversation]) -> bool:
    """Whether a group's conversations earned different rewards."""
    return len({earned(row) for row in rows}) > 1


def give_up(dropped: int, batch: int) -> None:
    """Raises `RuntimeError` once so many groups were `dropped` for a round of `batch` groups."""
    if dropped >= TRIES * batch:
        raise RuntimeError(
            f"{dropped} groups had equal rewards each, and a round needs {batch} groups whose "
            "rewards differ; choose levels that the model solves now and then, or leave "
            "drop_equal off"
        )


class UnequalCollector(ConversationCollector):
    """Rounds of groups whose rewards differ: as many problems as a round has are tried at once,
    until there are enough; what is left over is dropped as well. `acts`: the share of the groups
    that were dropped for their equal rewards."""

    def collect(self) -> Rollouts:
        a, c = self.agent, self.agent.config
        kept: list[list[Conversation]] = []
        tried = equal = 0
        while len(kept) < c.prompts:
            problems = a.problems(a.new_numbers(c.prompts))
            rows, _ = self.finish(self.copies(self.open(problems), [c.group] * len(problems)), [])
            groups = [rows[i : i + c.group] for i in range(0, len(rows), c.group)]
            new = [group for group in groups if differ(group)]
            tried, equal = tried + len(groups), equal + len(groups) - len(new)
            kept += new
            give_up(equal, c.prompts)
        self.acts = equal / tried
        rows = [row for group in kept[: c.prompts] for row in group]
        return self.to_rollouts(rows, [i for i in range(c.prompts) for _ in range(c.group)])
