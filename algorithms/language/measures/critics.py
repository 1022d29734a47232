"""Critics: what a state is worth, learned beside the model."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from algorithms.language.measures.base import has_signal, require_task
from algorithms.language.measures.heads import (
    Heads,
    Learned,
    read,
    turn_ends,
)
from algorithms.language.measures.locate import at_ends, lines, spans
from algorithms.language.models.vocabulary import Codec
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Reply
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.axes.credit import Bootstrapped
from mbrl.policy_gradient.axes.modulation import Elsewhere
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.scans import following
from mbrl.policy_gradient.trainer import with_fields
from mbrl.training import Metrics
from mbrl.types import Trajectories


class Critic(Learned):
    """`signals.value` of the state before every choice, and `signals.next_value` of the one after
    it. Where a conversation was stopped before the task had ended it, that is the value of the
    state in which it would have gone on, after the observation; where the task had ended it nothing
    follows, also if its last turn ran out of tokens: no one acts in the state after that, so that
    its value would be learned from itself alone. A linear head on a copy of the model, both trained
    on the squared error to the targets of the recipe's credit, with the recipe's own discount. The
    copy begins as the first policy, the head at 0."""

    label = "critic"
    provides = ("signals.value",)
    fulfils = (Requirement.CRITIC,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        t = rollouts.data
        now = torch.where(t.mask, read(self.heads, rollouts, self.agent.config)[:, :-1, 0], 0.0)
        after = following(now, t.mask)
        for row, step, values in stopped(self.heads, rollouts, self.agent.codec):
            after[row, step] = values[0]
        return with_fields(
            rollouts, "signals", value=now, next_value=torch.where(t.mask, after, 0.0)
        )

    def targets(self, rollouts: Rollouts) -> dict[str, Tensor]:
        return {"value": bootstrapped(self.agent.recipe, rollouts.data)}

    def learn(self, rollouts: Rollouts, targets: dict[str, Tensor]) -> Metrics:
        t, target = rollouts.data, targets["value"]
        steps = t.mask.sum().clamp_min(1)

        def squared(values: Tensor, rows: Tensor) -> Tensor:
            error = torch.where(t.mask[rows], values[:, :-1, 0] - target[rows], 0.0)
            return error.square().sum() / steps

        return self.fitted(rollouts, squared)


@torch.no_grad()
def stopped(heads: Heads, rollouts: Rollouts, codec: Codec) -> Iterator[tuple[int, int, Tensor]]:
    """Conversations that the task had not ended, their last steps, and what `heads` say of the
    states in which they would have gone on, after the observations."""
    places, rows, mask = spans(rollouts), lines(rollouts), rollouts.data.mask
    for i, replies in enumerate(rollouts.replies):
        if not replies[-1].done:
            shown = codec.between(replies[-1].observation)
            text = [*rows[i][: places[i][-1][1]], *shown]
            tokens = torch.tensor([text], device=rollouts.tokens.device)
            yield i, int(mask[i].nonzero()[-1]), heads(tokens)[0, -1]


def bootstrapped(objective: Recipe, t: Trajectories) -> Tensor:
    """[B, T]: the targets of the credit that the critic's values go into, of a term or of what
    stands elsewhere than in a window."""
    for term in objective.terms:
        if isinstance(term.credit, Bootstrapped):
            return term.credit.targets(term.reward(t), t)
    for changed in objective.modulation:
        if isinstance(changed, Elsewhere) and isinstance(changed.credit, Bootstrapped):
            return changed.credit.targets(t.reward, t)
    raise AssertionError(f"recipe {objective.name} has no credit with a critic")


class Progress(Learned):
    """`signals.progress`, at the last step of every turn: what the turn brought, by an estimator
    whose values of a conversation's turns sum to its whole reward: a linear head on a copy of the
    model, read after the turn, fitted to (sum - reward)^2 of every round. `signals.grounding` at
    the same steps: 1 for a turn that could be carried out, which is one that its reply marks
    neither as `void` nor with a `penalty`, else 0.

    "SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution", which fits the estimator to
    sampled conversations first and leaves it as it is then."""

    label = "progress"
    provides = ("signals.progress", "signals.grounding")
    fulfils = (Requirement.PROGRESS_ESTIMATOR,)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        require_task(
            config,
            has_signal("void"),
            f"recipe {objective.name} reads whether turns could be carried out, which replies of "
            f"{config.task} do not tell; a task that does",
        )

    def measure(self, rollouts: Rollouts) -> Rollouts:
        t = rollouts.data
        values = read(self.heads, rollouts, self.agent.config)[:, 1:, 0]
        done = [[float(carried_out(reply)) for reply in row] for row in rollouts.replies]
        return with_fields(
            rollouts,
            "signals",
            progress=torch.where(turn_ends(t), values, 0.0),
            grounding=at_ends(rollouts, done),
        )

    def learn(self, rollouts: Rollouts, targets: dict[str, Tensor]) -> Metrics:
        t = rollouts.data
        ends, earned = turn_ends(t), torch.where(t.mask, t.reward, 0.0).sum(1)

        def squared(values: Tensor, rows: Tensor) -> Tensor:
            total = torch.where(ends[rows], values[:, 1:, 0], 0.0).sum(1)
            return (total - earned[rows]).square().sum() / len(rollouts)

        return self.fitted(rollouts, squared)


def carried_out(reply: Reply) -> bool:
    return not reply.signals["void"] and not reply.signals.get("penalty", 0.0)
