"""Conversations with a learned model of the task: what it would show, and how they would end."""

import random
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from algorithms.language.learner import build_model, trainable
from algorithms.language.measures.assembled import Assembled, check_help, own_groups, rate
from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.measures.domains import shown_row
from algorithms.language.models.vocabulary import Characters
from algorithms.language.sampling.conversation import (
    Conversation,
    GenerationLimits,
    aligned,
    draws,
    padded,
)
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.sampling.tokens import Sampling, sample_turn
from algorithms.language.tasks import text_task
from algorithms.language.tasks.base import Problem, Reply, TextTask
from mbrl.errors import ConfigError
from mbrl.networks import adam
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement
from mbrl.training import Metrics

SUCCESS, FAILURE = "$", "_"  # what the model of a task says in place of an observation at the end
REAL = 4  # one problem in so many is talked about with the task itself; ours
ALONE = 10  # rounds in which all are, and the model learns; ours
EXPERT = 2, 3  # of an expert for so many that are imagined; in the paper 40 to 50 % of all
UPDATES, ROWS, KEPT = 8, 64, 512  # of the model in a round, on so many of the latest; ours


class World(Protocol):
    """Answers the last turns of conversations that are going on: each reply and, where it goes on,
    the tokens that are shown next."""

    def replies(self, rows: Sequence[Conversation]) -> list[tuple[Reply, list[int]]]: ...


class TaskWorld:
    """The task itself."""

    def __init__(self, task: TextTask, codec: Any) -> None:
        self.task, self.codec = task, codec

    def replies(self, rows: Sequence[Conversation]) -> list[tuple[Reply, list[int]]]:
        known = [self.task.reply(row.problem, row.turns) for row in rows]
        return [(r, [] if r.done else self.codec.between(r.observation)) for r in known]


class LearnedWorld:
    """A transformer like the policy, from weights of its own, that goes on with a conversation
    after a turn: with the observation, or with a character for the end, "$" after a success and "_"
    else. Its texts are sampled, by chance of its own."""

    def __init__(self, agent: Any) -> None:
        self.agent, self.task, self.codec = agent, agent.task, agent.codec
        generator = torch.Generator().manual_seed(
            random.Random(f"{agent.seed} world").getrandbits(62)
        )
        self.model, _ = build_model(agent.config.model, generator, agent.device)
        self.optimiser = adam(trainable(self.model), agent.config.part_rate)

    @torch.no_grad()
    def replies(self, rows: Sequence[Conversation]) -> list[tuple[Reply, list[int]]]:
        agent, device = self.agent, self.agent.device
        most = self.task.prompt_length + 1
        tokens, real = aligned([row.tokens for row in rows], self.codec.pad, device)
        cache = self.model.cache(len(rows), tokens.shape[1] + most)
        logits = self.model.extend(tokens, real, cache)
        uniform = torch.stack([draws(agent.drawn_seed(), most) for _ in rows])
        limits = torch.full((len(rows),), most, device=device)
        ends = {"end": Characters.answer, "pad": self.codec.pad}
        said = sample_turn(
            self.model, cache, logits, Sampling(), uniform.to(device), limits, **ends
        )
        return [self.read(turn.tokens) for turn in said.rows()]

    def read(self, tokens: list[int]) -> tuple[Reply, list[int]]:
        """What the tokens mean. A text that does not end is an end without success."""
        whole = tokens[-1] == Characters.answer
        text = self.codec.decode(tokens[:-1] if whole else tokens)
        if not whole or text.startswith((SUCCESS, FAILURE)):
            right = whole and text == SUCCESS
            return Reply(float(right), True, right), []
        return Reply(0.0, False, False, text, text), tokens

    def learn(self, rows: Sequence[Conversation]) -> Tensor:
        """One update on what the task said in these conversations; the mean negative log-likelihood
        of its tokens."""
        tokens, here = self.lessons(rows)
        logits = self.model.logits_at(tokens[:, :-1], here)
        value = F.cross_entropy(logits, tokens[:, 1:][here])
        self.optimiser.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(trainable(self.model), self.agent.config.clip_norm)
        self.optimiser.step()
        return value.detach()

    def lessons(self, rows: Sequence[Conversation]) -> tuple[Tensor, Tensor]:
        """Tokens [B, N + 1] of the conversations with what the task says after their last turns,
        and which of the choices [B, N] are the task's."""
        texts, places = [], []
        for row in rows:
            end = self.codec.between(SUCCESS if row.replies[-1].success else FAILURE)
            texts.append([*row.tokens, *end])
            gaps = zip(row.spans, [*(a for a, _ in row.spans[1:]), len(texts[-1])], strict=True)
            places.append([at - 1 for (_, stop), start in gaps for at in range(stop, start)])
        tokens = padded(texts, self.codec.pad, self.agent.device)
        here = torch.zeros(len(rows), tokens.shape[1] - 1, dtype=torch.bool)
        for i, at in enumerate(places):
            here[i, at] = True
        return tokens, here.to(tokens.device)


class Waiting:
    """The sizes of a task, whose replies are not known yet."""

    def __init__(self, task: TextTask) -> None:
        self.turn_length, self.prompt_length = task.turn_length, task.prompt_length
        self.max_turns = task.max_turns

    def replies(self, calls: Sequence[tuple[Problem, Sequence[str]]]) -> list[Reply]:
        return [Reply(done=False) for _ in calls]


def imagined(agent: Any, world: World, rows: Sequence[Conversation]) -> None:
    """Take conversations to their end with `world` in place of the task."""
    usual, known = agent.collector.limits(), agent.task
    for count in range(1, usual.rounds(known) + 1):
        going = [row for row in rows if not row.done]
        if not going:
            return
        agent.task = Waiting(known)
        try:
            limits = GenerationLimits(usual.sampling, usual.turn_tokens, count)
            agent.collector.advance(going, limits)
        finally:
            agent.task = known
        for row, (reply, shown) in zip(going, world.replies(going), strict=True):
            row.replies[-1] = reply
            row.done = reply.done or count == usual.rounds(known)
            if not row.done:
                row.tokens += shown


class ImaginedConversations(LanguageMeasure):
    """After ten rounds with the task itself, in which a model of it learns what it says, three
    quarters of a round's problems, rounded down, are talked about with that model, and it goes on
    learning from the others. Beside them stand demonstrations about further problems, to be learned
    by heart, two for every three imagined conversations: `signals.demonstration` is 1 there. No
    success that was imagined counts as the policy's own.

    `acts`: the share of imagined groups whose conversations end in success and without. DynaWeb,
    "Model-Based Reinforcement Learning of Web Agents"."""

    provides = ("signals.demonstration",)
    fulfils = (Requirement.IMAGINED_CONVERSATIONS,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.world = LearnedWorld(agent)
        self.modules = {"world": self.world.model}
        self.optimisers = {"world": self.world.optimiser}
        self.rounds, self.turns = 0, 0
        self.kept: list[dict[str, Any]] = []  # the latest conversations with the task
        self.error = 0.0

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        if config.model.path is not None or text_task(config.task).max_turns < 2:
            raise ConfigError(
                f"recipe {objective.name} models what a task says between turns, in characters; "
                f"{config.task} with model.path {config.model.path} has none of these: take a task "
                "of several turns, such as grid_world, and no model from a folder"
            )
        check_help(objective, config, lambda task: True, "")

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_, size = self.agent, Assembled(self.agent), self.agent.config.group
        count = len(problems) if self.rounds < ALONE else -(-len(problems) // REAL)
        self.rounds += 1
        real = own_groups(agent, problems[:count])
        for rows in real:
            round_.add(rows)
        starts = agent.collector.open(problems[count:])
        dreams = agent.collector.copies(starts, [size] * len(starts))
        imagined(agent, self.world, dreams)
        groups = [dreams[i : i + size] for i in range(0, len(dreams), size)]
        for rows in groups:
            round_.add(rows, [{"aided": 1.0} for _ in rows])
        others = agent.new_numbers(EXPERT[0] * len(dreams) // EXPERT[1])
        shown = [shown_row(agent, agent.problem(n)) for n in others]
        for row in shown:
            round_.add([row], [{"aided": 1.0, "demonstration": 1.0}])
        self.acts = sum(0 < rate(rows) < 1 for rows in groups) / max(1, len(groups))
        self.train([*(row for rows in real for row in rows), *shown])
        return round_.rollouts("demonstration")

    def train(self, rows: Sequence[Conversation]) -> None:
        """Keep these conversations with the task, and have the model learn from the latest."""
        self.turns += sum(len(row.turns) for row in rows)
        self.kept = [*self.kept, *(row.plain() for row in rows)][-KEPT:]
        known = [Conversation.from_plain(values) for values in self.kept]
        for _ in range(UPDATES):
            g = self.agent.generator
            some = torch.randint(len(known), (ROWS,), generator=g, device=self.agent.device)
            self.error = float(self.world.learn([known[i] for i in some.tolist()]))

    def learn(self, rollouts: Rollouts, targets: dict[str, Tensor]) -> Metrics:
        values = {"world/loss": self.error, "world/real_turns": float(self.turns)}
        return {name: torch.tensor(value) for name, value in values.items()}

    def state_dict(self) -> dict[str, Any]:
        own = {"rounds": self.rounds, "turns": self.turns, "error": self.error}
        return own | {"kept": list(self.kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds, self.turns, self.error = state["rounds"], state["turns"], state["error"]
        self.kept = list(state["kept"])
