"""Critics of whole turns, learned from all conversations so far, and turns that the policy says
anew where some of them stood."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.measures.critics import stopped
from algorithms.language.measures.heads import (
    Heads,
    fit,
    optimiser_of,
    over_turns,
    read,
    turn_ends,
    turn_starts,
)
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem
from mbrl.errors import ConfigError
from mbrl.networks import polyak_update, target_copy
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields
from mbrl.training import Metrics

DISCOUNT = 0.95  # from turn to turn; the authors' scripts
RATE = 0.1  # of the soft updates of the targets; the authors' scripts
WARM_UP = 20  # rounds in which only the critics learn; the authors' scripts
STEPS, BATCH = 20, 64  # of the critics, in a round; the authors have 50 of 256
KEPT = 2000  # conversations; the authors keep 100,000 turns


class Utterances(LanguageMeasure):
    """A round's conversations go into a replay. Then the critics have 20 steps on 64 turns each,
    drawn with replacement from all that are kept; and from as many turns as the round has
    conversations, drawn alike, the policy says the turn anew: these are learned from.

    `signals.utterance_q`, what such a turn is worth after all before it, and
    `signals.utterance_v`, what the state before it is worth, alike at all steps of the turn: the
    smaller of two critics each, all four linear heads on one copy of the model. Q_i is fitted to
    the turn's reward plus the discounted target of V_i before the next turn (0 after the last), V_i
    to the target of Q_i at a turn that the policy says there now; targets follow by soft updates
    after every step.

    `acts`: the share of the states to act in that are from earlier rounds. ArCHer, arXiv
    2402.19446; discount 0.95, rate 0.1 and 20 rounds in which the policy waits are those of the
    authors' scripts (github.com/YifeiZhou02/ArCHer)."""

    provides = ("signals.utterance_q", "signals.utterance_v")
    fulfils = (Requirement.UTTERANCE_CRITICS,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.heads = Heads(agent.model, 4, agent.generator)  # Q, Q, V, V
        self.slow = target_copy(self.heads)
        self.modules = {"utterances": self.heads, "slow_utterances": self.slow}
        self.optimisers = {"utterances": optimiser_of(self.heads, agent.config)}
        self.replay: list[Conversation] = []  # oldest first
        self.loss = 0.0

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        if config.horizon:
            raise ConfigError(
                f"horizon is {config.horizon}: recipe {objective.name} draws turns from "
                "conversations that the task has ended; leave it out"
            )

    def begin(self) -> None:
        self.heads.begin(self.agent.model)
        self.slow.load_state_dict(self.heads.state_dict())

    def skip_update(self) -> bool:
        return bool(self.agent.step < WARM_UP)

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, collector = self.agent, self.agent.collector
        count = agent.config.group
        rows = collector.copies(collector.open(problems), [count] * len(problems))
        rows, _ = collector.finish(rows, [i for i in range(len(problems)) for _ in range(count)])
        before = len(self.replay)
        self.replay = [*self.replay, *rows][-KEPT:]
        dropped = before + len(rows) - len(self.replay)
        self.success = sum(row.replies[-1].success for row in rows) / len(rows)
        for _ in range(STEPS):
            self.loss = float(self.step(self.turns(self.draw(BATCH))))
        chosen = self.draw(len(rows))
        self.acts = sum(i < before - dropped for i, _ in chosen) / len(chosen)
        new = collector.one_turn([self.state(i, k) for i, k in chosen])
        # Groups mean nothing here: nothing is compared but a turn with its state.
        return collector.to_rollouts(new, range(len(new)))  # type: ignore[no-any-return]

    def draw(self, count: int) -> list[tuple[int, int]]:
        """Turns of the replay, with replacement: which conversation, which turn."""
        every = [(i, k) for i, row in enumerate(self.replay) for k in range(len(row.turns))]
        device, generator = self.agent.device, self.agent.generator
        drawn = torch.randint(len(every), (count,), generator=generator, device=device)
        return [every[i] for i in drawn.tolist()]

    def state(self, i: int, k: int) -> Conversation:
        """Where conversation `i` stood before its turn `k`."""
        return self.replay[i].up_to(k).again(self.agent.drawn_seed())

    def turns(self, chosen: Sequence[tuple[int, int]]) -> tuple[Rollouts, Rollouts]:
        """Turns that were taken, and in the same states turns that the policy takes now."""
        taken = [ended_after(self.replay[i], k) for i, k in chosen]
        collector = self.agent.collector
        now = collector.one_turn([self.state(i, k) for i, k in chosen])
        pair = [collector.to_rollouts(rows, range(len(rows))) for rows in (taken, now)]
        return pair[0], pair[1]

    def step(self, pair: tuple[Rollouts, Rollouts]) -> Tensor:
        """One step of all critics on the squared errors of a batch of turns."""
        taken = pair[0]
        t = taken.data
        starts, ends = turn_starts(t), turn_ends(t)
        wanted_q, wanted_v = self.wanted(*pair)

        def squared(values: Tensor, rows: Tensor) -> Tensor:
            error_q = (values[:, 1:, :2] - wanted_q[rows])[ends[rows]]
            error_v = (values[:, :-1, 2:] - wanted_v[rows])[starts[rows]]
            return (error_q.square().sum() + error_v.square().sum()) / len(taken)

        with torch.enable_grad():
            loss = fit(self.heads, self.optimisers["utterances"], taken, self.agent.config, squared)
        with torch.no_grad():
            polyak_update(self.slow, self.heads, RATE)
        return loss

    def wanted(self, taken: Rollouts, now: Rollouts) -> tuple[Tensor, Tensor]:
        """[B, T, 2] each, alike at all steps of a turn: what the two Q are to be after it, and the
        two V before it."""
        t, config = taken.data, self.agent.config
        after = t.reward.new_zeros(2, *t.mask.shape)
        for row, step, values in stopped(self.slow, taken, self.agent.codec):
            after[:, row, step] = values[2:]
        reward = over_turns(t.reward, t.mask, t)
        wanted_q = [reward + DISCOUNT * over_turns(a, turn_ends(t), t) for a in after]
        q = read(self.slow, now, config)[:, 1:, :2]
        own = [torch.where(turn_ends(now.data), q[..., i], 0.0).sum(1) for i in range(2)]
        wanted_v = [value[:, None].expand_as(t.reward) for value in own]
        return torch.stack(wanted_q, -1), torch.stack(wanted_v, -1)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        values, t = read(self.heads, rollouts, self.agent.config), rollouts.data
        q, v = values[:, 1:, :2].amin(-1), values[:, :-1, 2:].amin(-1)
        return with_fields(
            rollouts,
            "signals",
            utterance_q=over_turns(q, turn_ends(t), t),
            utterance_v=over_turns(v, turn_starts(t), t),
        )

    def learn(self, rollouts: Rollouts, targets: dict[str, Tensor]) -> Metrics:
        """The critics had their steps when the round was made."""
        return {"utterances/loss": rollouts.data.reward.new_tensor(self.loss)}

    def begin_stage(self) -> None:
        self.replay = []

    def state_dict(self) -> dict[str, Any]:
        return {"replay": [row.plain() for row in self.replay], "loss": self.loss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.replay = [Conversation.from_plain(values) for values in state["replay"]]
        self.loss = float(state["loss"])


def ended_after(row: Conversation, k: int) -> Conversation:
    """The conversation up to the end of its turn `k`, all before that turn given."""
    start, stop = row.spans[k]
    known = Conversation(
        row.problem,
        row.tokens[:stop],
        spans=row.spans[: k + 1],
        turns=row.turns[: k + 1],
        replies=row.replies[: k + 1],
        given=k,
    )
    known.behaviour = known.model = [0.0] * (stop - start)  # nothing is weighed by them
    known.versions = [0] * (stop - start)
    if row.kept:
        said = sum(b - a for a, b in row.spans[row.given : k])
        known.kept = row.kept[said : said + stop - start]
    known.cut = row.cut and k + 1 == len(row.spans)
    return known
