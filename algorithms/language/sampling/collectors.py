"""Where a round's conversations come from: the task's next problems, or what a scheduler asks for.
Both with a wording drawn around each prompt and a horizon that grows, where the settings say so."""

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algorithms.language import schedule
from algorithms.language.measures.locate import whole
from algorithms.language.sampling.conversation import (
    Conversation,
    GenerationLimits,
    advance,
    earned,
)
from algorithms.language.sampling.rollouts import Rollouts, grouped, to_rollouts
from algorithms.language.tasks.base import Problem
from mbrl.policy_gradient.schedulers import Outcome, Request, Scheduler, gather, scheduler
from mbrl.policy_gradient.schedulers.curricula import Horizon
from mbrl.policy_gradient.schedulers.uniform import templates
from mbrl.policy_gradient.schedulers.values import V0, V05
from mbrl.policy_gradient.trainer import with_fields


class ConversationCollector:
    """The agent's next problems, a group of conversations about each. `generator` is for choices
    beside the model's own, which come from the agent's generator."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        seed = random.Random(f"{agent.seed} rounds").getrandbits(62)
        self.generator = torch.Generator().manual_seed(seed)
        c = agent.config
        self.horizon = Horizon(c.horizon, c.horizon_every) if c.horizon else None
        self.acts: float | None = None  # as of a measure

    def collect(self) -> Rollouts:
        """The conversations of a round."""
        c = self.agent.config
        problems = self.agent.problems(self.agent.new_numbers(c.prompts))
        for part in self.agent.measures:
            if (rollouts := part.roll_out(problems)) is not None:
                result: Rollouts = rollouts
                return result
        owner = [i for i in range(len(problems)) for _ in range(c.group)]
        rows = self.copies(self.open(problems), [c.group] * len(problems))
        rows, owner = self.finish(rows, owner)
        return self.to_rollouts(rows, owner)

    def begin_stage(self) -> None:
        """As of a measure."""

    def open(self, problems: Sequence[Problem]) -> list[Conversation]:
        """A conversation about each, nothing said yet. The wording around a prompt is drawn evenly
        ("Prompt Augmentation Scales up GRPO Training on Mathematical Reasoning"); only the tokens
        have it, `problem.prompt` stays bare. There are no rewards for the form of an answer."""
        count = self.agent.config.templates
        texts = [problem.prompt for problem in problems]
        if count > 1:
            which = templates(len(problems), count, self.generator).tolist()
            texts = [schedule.TEMPLATES[i].format(t) for i, t in zip(which, texts, strict=True)]
        openings = [self.agent.codec.opening(text) for text in texts]
        return [Conversation(p, o) for p, o in zip(problems, openings, strict=True)]

    def copies(self, starts: Sequence[Conversation], counts: Sequence[int]) -> list[Conversation]:
        """That many of each, with seeds of their own."""
        a = self.agent
        whole = [start for start, n in zip(starts, counts, strict=True) for _ in range(n)]
        seeds = torch.randint(2**62, (len(whole),), generator=a.generator, device=a.device)
        return [start.again(seed) for start, seed in zip(whole, seeds.tolist(), strict=True)]

    def limits(self) -> GenerationLimits:
        """How the conversations of this round are held."""
        turns = None if self.horizon is None else self.horizon(self.agent.step)
        return GenerationLimits(self.agent.config.sampling, self.agent.turn_tokens, turns)

    def finish(
        self, rows: list[Conversation], owner: list[int]
    ) -> tuple[list[Conversation], list[int]]:
        """The conversations after their end, and whose they are: those that went on to it."""
        self.advance(rows, self.limits())
        return rows, owner

    def advance(
        self, rows: Sequence[Conversation], limits: GenerationLimits, **options: Any
    ) -> None:
        a = self.agent
        before = sum(len(row.behaviour) for row in rows)
        advance(a.sampling_model(), a.codec, a.task, rows, limits, version=a.updates, **options)
        a.tokens["sampled"] += sum(len(row.behaviour) for row in rows) - before

    def one_turn(self, rows: list[Conversation]) -> list[Conversation]:
        """The same conversations after one turn more each, where they all end."""
        limits = self.limits()
        for given in sorted({len(row.turns) for row in rows}):
            mine = [row for row in rows if len(row.turns) == given and not row.done]
            self.advance(mine, GenerationLimits(limits.sampling, limits.turn_tokens, given + 1))
        return rows

    def to_rollouts(self, rows: Sequence[Conversation], owner: Sequence[int]) -> Rollouts:
        """The conversations as tensors; equal numbers in `owner` are a group."""
        like = next(self.agent.model.parameters())
        return grouped(to_rollouts(rows, self.agent.codec.pad, like), owner)

    def mixed(
        self,
        rows: Sequence[Conversation],
        owner: Sequence[int],
        old: Sequence[Sequence[dict[str, Any]]],
    ) -> Rollouts:
        """New conversations and `old` groups, each a group for itself. `signals.replayed` says
        which are not new."""
        again = [Conversation.from_plain(values) for group in old for values in group]
        first = max(owner, default=-1) + 1
        numbers = [first + i for i, group in enumerate(old) for _ in group]
        rollouts = self.to_rollouts([*rows, *again], [*owner, *numbers])
        replayed = torch.tensor([0.0] * len(rows) + [1.0] * len(again), dtype=torch.float64)
        return with_fields(rollouts, "signals", replayed=whole(rollouts, replayed))

    def state_dict(self) -> dict[str, Any]:
        return {"chance": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["chance"])


class Recent:
    """The latest `size` groups of conversations, oldest first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.groups: list[list[dict[str, Any]]] = []

    def draw(self, count: int, generator: torch.Generator) -> list[list[dict[str, Any]]]:
        """That many of them, or all there are, drawn evenly."""
        chosen = torch.randperm(len(self.groups), generator=generator)[:count].tolist()
        return [self.groups[i] for i in chosen]

    def add(self, rows: Sequence[Conversation], owner: Sequence[int]) -> None:
        """Equal numbers in `owner` are a group."""
        groups: dict[int, list[dict[str, Any]]] = {}
        for row, prompt in zip(rows, owner, strict=True):
            groups.setdefault(prompt, []).append(row.plain())
        self.groups = [*self.groups, *groups.values()][-self.size :]


class MixedCollector(ConversationCollector):
    """For `mixed_rounds` rounds a share `mixed_share` of a round's groups (rounded down) is drawn
    evenly from the latest ones of earlier policies, each token with the log-prob that its own
    policy gave it, and the rest is new. Then all are new, and the first policy, to which the
    recipe's divergence holds the model, becomes the one that begins this stage, once.

    ReMix of "Squeeze the Soaked Sponge: Efficient Off-policy Reinforcement Finetuning for Large
    Language Model"; the share and the round of the switch are ours."""

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.recent, self.rounds = Recent(agent.config.replay), 0

    def collect(self) -> Rollouts:
        a, c = self.agent, self.agent.config
        if self.rounds == c.mixed_rounds:
            a.anchors["reference"].load_state_dict(a.model.state_dict())
        mixing = self.rounds < c.mixed_rounds
        old = self.recent.draw(int(c.mixed_share * c.prompts) if mixing else 0, self.generator)
        self.rounds += 1
        count = c.prompts - len(old)
        rows = self.copies(self.open(a.problems(a.new_numbers(count))), [c.group] * count)
        rows, owner = self.finish(rows, [i for i in range(count) for _ in range(c.group)])
        self.recent.add(rows, owner)
        return self.mixed(rows, owner, old)

    def begin_stage(self) -> None:
        self.recent.groups = []

    def state_dict(self) -> dict[str, Any]:
        own = {"recent": list(self.recent.groups), "rounds": self.rounds}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.recent.groups, self.rounds = list(state["recent"]), state["rounds"]


class ScheduledCollector(ConversationCollector):
    """What a scheduler asks for, of the problems 0 to `pool` - 1, prompts times group conversations
    a round at most. It hears of every conversation its whole reward, its "length" in tokens and,
    where the task has it, its mean "penalty" over turns.

    Rows that the scheduler does not keep are dropped before advantages are taken, or after, where
    its statistics are of all (`signals.trained` says which are kept). Where the scheduler asks for
    a share of a round (`fresh_share`), the rest are whole groups drawn evenly from the latest ones
    that were trained on: with their own log-probs, each a group for itself."""

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        c = agent.config
        problems = [agent.problem(i) for i in range(c.pool)]
        pool, value = schedule.pool_of(problems), schedule.value_of(c)
        if value is not None:
            pool = dataclasses.replace(pool, features=value.features(problems))
        self.scheduler = scheduler(
            c.scheduler,
            pool,
            budget=c.prompts * c.group,
            group=c.group,
            config=schedule.settings(c),
        )
        if isinstance(self.scheduler, (V0, V05)) and value is not None:
            self.scheduler.value = value.value
        self.recent = Recent(c.replay)
        self.successes: dict[int, dict[str, Any]] = {}  # the latest of every problem, if asked for
        self.keeps = type(self.scheduler).failed is not Scheduler.failed
        for group in agent.optimisers["model"].param_groups:
            group["lr"] *= self.scheduler.rate_scale

    def limits(self) -> GenerationLimits:
        """Turns are no longer than the scheduler has them."""
        usual, longest = super().limits(), self.scheduler.longest_turn
        if longest is None:
            return usual
        tokens = min(longest, usual.limit(self.agent.task))
        return GenerationLimits(usual.sampling, tokens, usual.max_turns)

    def collect(self) -> Rollouts:
        a, conversations = self.agent, list[Conversation]()
        starts: dict[int, Conversation] = {}  # one wording a prompt, however often it is asked for

        def roll(request: Request) -> Outcome:
            numbers, counts = request.prompts.tolist(), request.rollouts.tolist()
            new = [n for n in dict.fromkeys(numbers) if n not in starts]
            starts.update(zip(new, self.open(a.problems(new)), strict=True))
            rows = self.copies([starts[n] for n in numbers], counts)
            self.finish_within(rows, request.each())
            conversations.extend(rows)
            return outcome_of(rows, request.each())

        outcome = gather(self.scheduler, roll, self.generator)
        share = self.scheduler.fresh_share
        kept = self.scheduler.keep(outcome, self.generator)
        priors = self.scheduler.priors()
        self.scheduler.observe(outcome, self.generator)
        self.acts = self.scheduler.acts
        if not bool(kept.any()):
            raise RuntimeError(f"{a.config.scheduler} kept none of {len(kept)} conversations")
        old = self.replaced(conversations, outcome) if self.keeps else set[int]()
        in_order = outcome.prompts.argsort(stable=True)
        if self.scheduler.of_all:
            rows = [conversations[i] for i in in_order.tolist()]
            round_ = self.to_rollouts(rows, outcome.prompts[in_order].tolist())
            return with_fields(round_, "signals", trained=whole(round_, kept[in_order].double()))
        in_order = in_order[kept[in_order]]
        rows, owner = (
            [conversations[i] for i in in_order.tolist()],
            outcome.prompts[in_order].tolist(),
        )
        if self.keeps:
            rollouts = self.to_rollouts(rows, owner)
            aided = torch.tensor([float(i in old) for i in in_order.tolist()])
            return with_fields(rollouts, "signals", aided=whole(rollouts, aided))
        if priors is not None:
            worth = priors[torch.tensor(owner)]
            rollouts = self.to_rollouts(rows, owner)
            return with_fields(rollouts, "signals", prior_value=whole(rollouts, worth))
        return self.to_rollouts(rows, owner) if share is None else self.filled(rows, owner, share)

    def finish_within(self, rows: list[Conversation], prompts: Tensor) -> None:
        """Take conversations about the pool's `prompts` to their end, within the scheduler's
        limits."""
        usual = self.limits()
        limits = self.scheduler.longest_episodes(prompts, usual.rounds(self.agent.task))
        if limits is None:
            self.advance(rows, usual)
            return
        turns = limits.tolist()
        for most in sorted(set(turns)):
            mine = [row for row, own in zip(rows, turns, strict=True) if own == most]
            self.advance(mine, GenerationLimits(usual.sampling, usual.turn_tokens, most))

    def replaced(self, rows: list[Conversation], outcome: Outcome) -> set[int]:
        """Put an earlier success in the place of the first of `rows` about each problem that the
        scheduler says has failed, and keep the new successes; the places of the old ones. `acts`:
        their share of the problems."""
        places = set[int]()
        for prompt in self.scheduler.failed(outcome).tolist():
            if prompt in self.successes:
                place = outcome.prompts.tolist().index(prompt)
                rows[place] = Conversation.from_plain(self.successes[prompt])
                places.add(place)
        for i, prompt in enumerate(outcome.prompts.tolist()):
            if i not in places and rows[i].replies[-1].success:
                self.successes[prompt] = rows[i].plain()
        self.acts = len(places) / len(outcome.prompts.unique())
        return places

    def filled(self, rows: list[Conversation], owner: list[int], share: float) -> Rollouts:
        """A round of which these are `share`."""
        groups = len(set(owner))
        old = self.recent.draw(round(groups / share) - groups, self.generator)
        self.recent.add(rows, owner)
        return self.mixed(rows, owner, old)

    def state_dict(self) -> dict[str, Any]:
        own = {
            "scheduler": self.scheduler.state_dict(),
            "recent": list(self.recent.groups),
            "successes": dict(self.successes),
        }
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.scheduler.load_state_dict(state["scheduler"])
        self.recent.groups = list(state["recent"])
        self.successes = dict(state.get("successes", {}))


def outcome_of(rows: Sequence[Conversation], prompts: Tensor) -> Outcome:
    """What a scheduler hears of conversations about the pool's `prompts` [R]."""
    signals = {
        "length": torch.tensor([float(len(row.behaviour)) for row in rows]),
        "turns": torch.tensor([float(len(row.turns)) for row in rows]),
    }
    if all("penalty" in reply.signals for row in rows for reply in row.replies):
        values = [[reply.signals["penalty"] for reply in row.replies] for row in rows]
        signals["penalty"] = torch.tensor([sum(row) / len(row) for row in values])
    return Outcome(prompts, torch.tensor([earned(row) for row in rows]), signals)
