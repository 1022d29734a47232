"""Conversations with tasks, which can stop after any token and go on, also under another policy."""

import copy
import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from algorithms.language.models.protocol import LanguageModel
from algorithms.language.models.vocabulary import Codec
from algorithms.language.sampling.tokens import SampledTurn, Sampling, sample_turn
from algorithms.language.tasks.base import Problem, Reply, TextTask


@dataclass
class Conversation:
    """A problem, the `tokens` of what was said so far, and the `spans` of the model's turns in
    them, of which the last one may be going on. Of every token that the model said: `behaviour`,
    its log-prob under the distribution that drew it, `model`, that of the logits as they are, the
    policy's `versions`, and with `top_p` below 1 the set that it was drawn from (`kept`). `turns`
    and `replies` are those that are over. `seed` draws its tokens, number k token k, so that a
    text depends on the policies alone. The first `given` turns were there when it began: nothing is
    known of how they were drawn. `origins` are places in `tokens`, from and up to, in the turns
    after those that somebody else said: a teacher, or a stored trace (`prefix`), see `prefixes`."""

    problem: Problem
    tokens: list[int]
    seed: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    behaviour: list[float] = field(default_factory=list)
    model: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    kept: list[list[int]] = field(default_factory=list)
    cut: bool = False  # its last turn ran out of tokens
    done: bool = False
    given: int = 0
    origins: list[tuple[int, int, str]] = field(default_factory=list)

    @property
    def turn_length_so_far(self) -> int:
        """Tokens of the turn that is going on."""
        going_on = len(self.spans) > len(self.turns)
        return self.spans[-1][1] - self.spans[-1][0] if going_on else 0

    def extend_turn(self, tokens: Sequence[int]) -> None:
        """Go on with the turn, or begin the next one."""
        start = len(self.tokens)
        if len(self.spans) > len(self.turns):
            start = self.spans.pop()[0]
        self.tokens += tokens
        self.spans.append((start, len(self.tokens)))

    def add_turn_tokens(self, said: SampledTurn, version: int) -> None:
        """Take in what the model of this `version` said."""
        self.extend_turn(said.tokens)
        self.behaviour += said.behaviour
        self.model += said.model
        self.versions += [version] * len(said.tokens)
        self.kept += said.kept

    def finish(self, task: TextTask, codec: Codec, max_turns: int) -> None:
        """End the turn and take in what the task replies; after `max_turns` it is over."""
        finish_turns([self], task, codec, max_turns)

    def up_to(self, turns: int) -> "Conversation":
        """A conversation that begins after the first `turns` of this one, which has more."""
        return Conversation(
            self.problem,
            self.tokens[: self.spans[turns][0]],
            spans=self.spans[:turns],
            turns=self.turns[:turns],
            replies=self.replies[:turns],
            given=turns,
        )

    def again(self, seed: int) -> Self:
        """One that is as far, with a seed of its own; shares nothing that changes."""
        return type(self)(**(unshared(self.values()) | {"seed": seed}))

    def values(self) -> dict[str, Any]:
        """All fields by name, as they are."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def plain(self) -> dict[str, Any]:
        """Numbers and texts alone, for a checkpoint or another process; shares nothing that
        changes."""
        values = unshared(self.values())
        parts = {
            "problem": dataclasses.asdict(self.problem),
            "replies": [dataclasses.asdict(reply) for reply in self.replies],
        }
        return values | parts

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> Self:
        """What `plain` was made of; shares nothing that changes with `values`."""
        changed = {
            "problem": Problem(**copy.deepcopy(values["problem"])),
            "spans": [(a, b) for a, b in values["spans"]],
            "replies": [Reply(**copy.deepcopy(reply)) for reply in values["replies"]],
            "origins": [(a, b, who) for a, b, who in values.get("origins", [])],
        }
        return cls(**(unshared(values) | changed))


def unshared(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a conversation with lists of their own: a list at a time, which is many times
    faster than number after number (`asdict`, `deepcopy`)."""
    own = {name: list(value) for name, value in values.items() if isinstance(value, list)}
    return values | own | {"kept": [list(ids) for ids in values.get("kept", [])]}


def finish_turns(
    rows: Sequence[Conversation], task: TextTask, codec: Codec, max_turns: int
) -> None:
    """End the turns of all `rows` and take in what the task replies to them."""
    for row in rows:
        start, stop = row.spans[-1]
        row.cut = row.tokens[-1] != codec.end
        row.turns.append(codec.decode(row.tokens[start:stop]))
    replies = task.replies([(row.problem, row.turns) for row in rows])
    for row, reply in zip(rows, replies, strict=True):
        row.replies.append(reply)
        row.done = reply.done or len(row.turns) >= max_turns
        if not row.done:
            row.tokens += codec.between(reply.observation)


def earned(row: Conversation) -> float:
    """The whole reward so far."""
    return sum(reply.reward for reply in row.replies)


@dataclass(frozen=True)
class GenerationLimits:
    """How conversations are sampled: the distribution of tokens, and how long turns (`turn_tokens`)
    and conversations (`max_turns`) may be; None: as the task says."""

    sampling: Sampling = field(default_factory=Sampling)
    turn_tokens: int | None = None
    max_turns: int | None = None

    def limit(self, task: TextTask) -> int:
        """Tokens of a turn at most, its end among them."""
        return task.turn_length + 1 if self.turn_tokens is None else self.turn_tokens

    def rounds(self, task: TextTask) -> int:
        """Turns at most."""
        return task.max_turns if self.max_turns is None else min(self.max_turns, task.max_turns)


@torch.no_grad()
def advance(
    model: LanguageModel,
    codec: Codec,
    task: TextTask,
    rows: Sequence[Conversation],
    limits: GenerationLimits,
    *,
    version: int = 0,
    budget: int | None = None,
) -> None:
    """Take all conversations that are not done to their end, or each by `budget` tokens of its own.
    The model's `version` is noted at every token."""
    device = next(model.parameters()).device
    limit, rounds = limits.limit(task), limits.rounds(task)
    left = [limit * rounds if budget is None else budget for _ in rows]
    uniforms = [draws(row.seed, limit * rounds) for row in rows]
    alive = [i for i, row in enumerate(rows) if not row.done]
    cache: Any = None
    begun = [0] * len(rows)  # tokens that the cache has
    while alive:
        chunks = [rows[i].tokens[begun[i] :] for i in alive]
        if cache is None:
            cache, logits = opened(model, codec, task, rows, alive, limit, rounds)
        else:
            tokens, real = aligned(chunks, codec.pad, device)
            logits = model.extend(tokens, real, cache)
        most = [min(limit - rows[i].turn_length_so_far, left[i]) for i in alive]
        uniform = torch.zeros(len(alive), max(most), dtype=torch.float64)
        for place, i in enumerate(alive):
            at = len(rows[i].behaviour)
            uniform[place, : most[place]] = uniforms[i][at : at + most[place]]
        turn = sample_turn(
            model,
            cache,
            logits,
            limits.sampling,
            uniform.to(device),
            torch.tensor(most, device=device),
            end=codec.end,
            pad=codec.pad,
        )
        ended, said = [], turn.rows()
        for place, i in enumerate(alive):
            row, count = rows[i], len(said[place].tokens)
            begun[i] = len(row.tokens) + count - 1  # all but the last token
            left[i] -= count
            row.add_turn_tokens(said[place], version)
            if row.tokens[-1] == codec.end or row.turn_length_so_far == limit:
                ended.append(row)
        finish_turns(ended, task, codec, rounds)
        going = [place for place, i in enumerate(alive) if not rows[i].done and left[i] > 0]
        if len(going) < len(alive):
            cache = cache.select(torch.tensor(going, dtype=torch.int64, device=device))
        alive = [alive[place] for place in going]


def opened(
    model: LanguageModel,
    codec: Codec,
    task: TextTask,
    rows: Sequence[Conversation],
    alive: Sequence[int],
    limit: int,
    rounds: int,
) -> tuple[Any, Tensor]:
    """The cache of what was said so far in the rows `alive`, and the logits after it. What several
    rows have in common altogether (the prompt of a group) is read once."""
    device = next(model.parameters()).device
    places: dict[tuple[int, ...], int] = {}
    owner = [places.setdefault(tuple(rows[i].tokens), len(places)) for i in alive]
    tokens, real = aligned([list(key) for key in places], codec.pad, device)
    room = tokens.shape[1] + rounds * (limit + 1) + (rounds - 1) * (task.prompt_length + 2)
    cache = model.cache(len(places), room)
    logits = model.extend(tokens, real, cache)
    spread = torch.tensor(owner, device=device)
    return cache.select(spread), logits[spread]


def draws(seed: int, count: int) -> Tensor:
    """`count` numbers in [0, 1), float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, dtype=torch.float64, generator=generator)


def aligned(parts: Sequence[Sequence[int]], pad: int, device: Any) -> tuple[Tensor, Tensor]:
    """Token lists as one batch [B, N] that ends together, and what of it is real."""
    widest = max(len(p) for p in parts)
    tokens = torch.tensor([[pad] * (widest - len(p)) + list(p) for p in parts], device=device)
    real = torch.tensor([[False] * (widest - len(p)) + [True] * len(p) for p in parts])
    return tokens, real.to(device)


def padded(parts: Sequence[Sequence[int]], pad: int, device: Any) -> Tensor:
    """Token lists as one batch [B, N] that begins together."""
    widest = max(len(p) for p in parts)
    return torch.tensor([[*p, *[pad] * (widest - len(p))] for p in parts], device=device)


def demonstration(
    codec: Codec,
    task: TextTask,
    problem: Problem,
    rng: random.Random,
    opening: Sequence[int] | None = None,
) -> Conversation:
    """A conversation by one who can do it, after the `opening` (None: the bare prompt). The
    log-probs are zeros: nobody's."""
    row = Conversation(problem, list(opening or codec.opening(problem.prompt)))
    while not row.done:
        tokens = codec.turn(task.demonstration(problem, row.turns, rng))
        row.extend_turn(tokens)
        row.behaviour += [0.0] * len(tokens)
        row.model += [0.0] * len(tokens)
        row.versions += [0] * len(tokens)
        row.finish(task, codec, task.max_turns)
    return row
