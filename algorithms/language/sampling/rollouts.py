"""Whole conversations with tasks, as token sequences for the estimators."""

import dataclasses
import math
import numbers
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithms.language.models.protocol import LanguageModel
from algorithms.language.models.vocabulary import Codec
from algorithms.language.sampling.conversation import (
    Conversation,
    GenerationLimits,
    advance,
    demonstration,
)
from algorithms.language.sampling.prefixes import PREFIX
from algorithms.language.sampling.tokens import Sampling
from algorithms.language.tasks.base import Problem, Reply, TextTask
from mbrl.errors import ConfigError
from mbrl.policy_gradient.groups import numbered
from mbrl.types import Trajectories
from mbrl.types import joined as longest


@dataclass(frozen=True)
class Rollouts:
    """B conversations. `data` [B, T] holds them as the estimators see them: position t is the
    choice of token t + 1 of `tokens` [B, T + 1], in the mask where the model chose it (prompts and
    observations are not), with the turn's reward at its last token, `segments["turn"]`, the groups
    of `grouped` and `log_probs["behaviour"]`. `model_log_prob` [B, T] are those of the logits
    as they are. `kept` [B, T, K] is the set that each token was drawn from, where `top_p` was below
    1. `problems`, `turns` and `replies` are the texts, one of each a row."""

    tokens: Tensor
    data: Trajectories
    model_log_prob: Tensor
    kept: Tensor | None
    problems: tuple[Problem, ...]
    turns: tuple[tuple[str, ...], ...]
    replies: tuple[tuple[Reply, ...], ...]

    def __len__(self) -> int:
        return len(self.problems)

    @property
    def success(self) -> Tensor:
        """[B] bool: whether the problem was solved."""
        return torch.tensor([bool(r) and r[-1].success for r in self.replies])

    def select(self, rows: Sequence[int] | Tensor) -> "Rollouts":
        """These conversations, in this order."""
        at = torch.as_tensor(rows, device=self.tokens.device)
        rows = at.tolist()
        return Rollouts(
            self.tokens[at],
            self.data.select(at),
            self.model_log_prob[at],
            None if self.kept is None else self.kept[at],
            tuple(self.problems[i] for i in rows),
            tuple(self.turns[i] for i in rows),
            tuple(self.replies[i] for i in rows),
        )

    def compact(self) -> "Rollouts":
        """Without the padding that all have. Groups are numbered anew, as ids are to be below the
        number of steps."""
        used = self.data.mask.any(0).nonzero()
        steps = int(used.max()) + 1 if len(used) else 1
        data = self.data.map(lambda value: value[:, :steps])
        groups = {name: numbered(ids) for name, ids in data.groups.items()}
        return dataclasses.replace(
            self,
            tokens=self.tokens[:, : steps + 1],
            data=dataclasses.replace(data, groups=groups),
            model_log_prob=self.model_log_prob[:, :steps],
            kept=None if self.kept is None else self.kept[:, :steps],
        )


def roll_out(
    model: LanguageModel,
    codec: Codec,
    task: TextTask,
    problems: Sequence[Problem],
    sampling: Sampling,
    generator: torch.Generator,
    *,
    group: int | Sequence[int] = 1,
    turn_tokens: int | None = None,
    max_turns: int | None = None,
    openings: Sequence[Sequence[int]] | None = None,
    version: int = 0,
) -> Rollouts:
    """Conversations about `problems`, `group` of each (one number, or one a problem), which stand
    together. Each is taken turn by turn, turns of at most `turn_tokens` tokens (None: the task's)
    and at most `max_turns` of them (None: the task's; a conversation that is stopped before its end
    is truncated). `openings` are the tokens of the prompts (None: as they stand in the problems);
    `version` is the policy's. Raises `ConfigError` for an empty group."""
    counts = [group] * len(problems) if isinstance(group, int) else list(group)
    if not problems or len(counts) != len(problems) or min(counts) < 1:
        raise ConfigError(
            f"{len(problems)} problems in groups of {group}: give at least one problem, and every "
            "problem a group of at least 1"
        )
    limits = GenerationLimits(sampling, turn_tokens, max_turns)
    owner = [i for i, count in enumerate(counts) for _ in range(count)]
    if openings is None:
        openings = [codec.opening(p.prompt) for p in problems]
    seeds = torch.randint(2**62, (len(owner),), generator=generator, device=generator.device)
    rows = [
        Conversation(problems[i], list(openings[i]), seed)
        for i, seed in zip(owner, seeds.tolist(), strict=True)
    ]
    advance(model, codec, task, rows, limits, version=version)
    like = next(model.parameters())
    return grouped(to_rollouts(rows, codec.pad, like), owner)


def demonstrated(
    codec: Codec,
    task: TextTask,
    problems: Sequence[Problem],
    rngs: Sequence[random.Random],
    openings: Sequence[Sequence[int]] | None = None,
) -> Rollouts:
    """One conversation about each of `problems` by one who can do it, drawn with its `rngs`, after
    `openings` (None: the bare prompts). The log-probs are zeros: nobody's."""
    texts = openings or [codec.opening(problem.prompt) for problem in problems]
    triples = zip(problems, rngs, texts, strict=True)
    rows = [demonstration(codec, task, problem, rng, text) for problem, rng, text in triples]
    return grouped(to_rollouts(rows, codec.pad, torch.empty(0)), range(len(rows)))


def to_rollouts(rows: Sequence[Conversation], pad: int, like: Tensor) -> Rollouts:
    """Conversations that are over, as padded tensors on the device and in the precision of
    `like`. Turns that were given to them are no choices: like a prompt, and without reward. Tokens
    of a stored trace are none either."""
    b, length = len(rows), max(len(r.tokens) for r in rows)
    # Written as arrays: to write into a tensor row by row takes several times as long.
    tokens, steps = np.full((b, length), pad), (b, length - 1)
    mask, terminated, truncated = (np.zeros(steps, dtype=bool) for _ in range(3))
    reward, behaviour, plain = (np.zeros(steps) for _ in range(3))
    turn, version = (np.zeros(steps, dtype=np.int64) for _ in range(2))
    widest = max((len(k) for r in rows for k in r.kept), default=0)
    kept = np.full((*steps, widest), -1)
    for i, row in enumerate(rows):
        tokens[i, : len(row.tokens)] = row.tokens
        at = [j - 1 for start, stop in row.spans[row.given :] for j in range(start, stop)]
        mask[i, at], version[i, at] = True, row.versions
        behaviour[i, at], plain[i, at] = row.behaviour, row.model
        for start, stop, who in row.origins:
            mask[i, start - 1 : stop - 1] &= who != PREFIX
        for j, ids in zip(at, row.kept, strict=bool(widest)):
            kept[i, j, : len(ids)] = ids
        for k, ((start, stop), reply) in enumerate(zip(row.spans, row.replies, strict=True)):
            turn[i, start - 1 :] = k
            reward[i, stop - 2] = reward_of(reply, row) if k >= row.given else 0.0
        last = row.spans[-1][1] - 2
        ended = row.replies[-1].done and not row.cut
        terminated[i, last], truncated[i, last] = ended, not ended

    def on(values: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(values).to(like.device)
        return tensor.to(like.dtype) if tensor.is_floating_point() else tensor

    said = on(tokens)
    data = Trajectories(
        obs=said[:, :-1, None],
        action=said[:, 1:],
        reward=on(reward),
        next_obs=said[:, 1:, None],
        terminated=on(terminated),
        truncated=on(truncated),
        mask=on(mask),
        log_probs={"behaviour": on(behaviour)},
        segments={"turn": on(turn)},
        policy_version=on(version),
    )
    return Rollouts(
        said,
        data,
        on(plain),
        on(kept) if widest else None,
        tuple(r.problem for r in rows),
        tuple(tuple(r.turns) for r in rows),
        tuple(tuple(r.replies) for r in rows),
    )


def reward_of(reply: Reply, row: Conversation) -> float:
    """The reward of a turn. Raises `ConfigError` where a task gave what is no finite number, which
    would end all learning in silence."""
    value = reply.reward
    if not isinstance(value, numbers.Real | np.bool_) or not math.isfinite(value):
        raise ConfigError(
            f"the reward of a turn is {value!r}, on the problem {row.problem.prompt!r}; a task's "
            "rewards are finite numbers"
        )
    return float(value)


def grouped(rollouts: Rollouts, prompts: Sequence[int]) -> Rollouts:
    """With `groups["prompt"]`, conversations about one problem, which equal numbers in `prompts`
    [B] name, and `groups["state"]`, turns that acted in one state of it."""
    at, states = dict[int, int](), dict[tuple[int, str], int]()
    turn = rollouts.data.segments["turn"].cpu()
    prompt_ids, state_ids = torch.zeros_like(turn), torch.zeros_like(turn)
    for i, (problem, replies) in enumerate(zip(rollouts.problems, rollouts.replies, strict=True)):
        prompt = at.setdefault(prompts[i], len(at))
        names = [problem.state, *(r.state for r in replies[:-1])]
        ids = torch.tensor([states.setdefault((prompt, n), len(states)) for n in names])
        prompt_ids[i], state_ids[i] = prompt, ids[turn[i]]
    device = rollouts.tokens.device
    groups = {"prompt": prompt_ids.to(device), "state": state_ids.to(device)}
    return dataclasses.replace(rollouts, data=dataclasses.replace(rollouts.data, groups=groups))


def joined(parts: Sequence[Rollouts], pad: int) -> Rollouts:
    """All conversations of `parts`, in groups that `grouped` gives them anew."""
    data = longest([dataclasses.replace(part.data, groups={}) for part in parts])
    kept = [part.kept for part in parts if part.kept is not None]
    return Rollouts(
        stacked([part.tokens for part in parts], pad),
        data,
        stacked([part.model_log_prob for part in parts], 0),
        stacked(kept, -1) if kept else None,
        tuple(x for part in parts for x in part.problems),
        tuple(x for part in parts for x in part.turns),
        tuple(x for part in parts for x in part.replies),
    )


def stacked(values: Sequence[Tensor], fill: float) -> Tensor:
    """Tensors [B_i, T_i, ...] one after the other, each filled up to the largest of its sizes."""
    sizes = [max(v.shape[d] for v in values) for d in range(1, values[0].ndim)]
    out = values[0].new_full((sum(len(v) for v in values), *sizes), fill)
    start = 0
    for v in values:
        out[(slice(start, start + len(v)), *(slice(n) for n in v.shape[1:]))] = v
        start += len(v)
    return out


def plain(rollouts: Rollouts) -> dict[str, Any]:
    """Tensors, numbers and texts alone, for a checkpoint."""
    values = {f.name: getattr(rollouts, f.name) for f in dataclasses.fields(rollouts)}
    texts = {
        "problems": [dataclasses.asdict(p) for p in rollouts.problems],
        "turns": [list(row) for row in rollouts.turns],
        "replies": [[dataclasses.asdict(r) for r in row] for row in rollouts.replies],
    }
    return values | {"data": dataclasses.asdict(rollouts.data)} | texts


def from_plain(values: dict[str, Any]) -> Rollouts:
    """What `plain` was made of."""
    return Rollouts(
        values["tokens"],
        Trajectories(**values["data"]),
        values["model_log_prob"],
        values["kept"],
        tuple(Problem(**p) for p in values["problems"]),
        tuple(tuple(row) for row in values["turns"]),
        tuple(tuple(Reply(**r) for r in row) for row in values["replies"]),
    )
