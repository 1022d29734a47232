"""Turns that are updated one by one, and tokens that are learned one by one."""

import random
from collections.abc import Sequence
from typing import Any

import torch

from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.sampling.conversation import Conversation, demonstration
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.sampling.tokens import draw, sampling_distribution, taken
from algorithms.language.tasks.base import Problem, Reply
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Estimate, Recipe
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields


class Backwards(LanguageMeasure):
    """A round's updates are on its last turns first (the conversations that have so many, and of
    their steps those of that turn), then on those before, up to the first: `epochs` times
    `minibatches` for each. `log_probs.proximal` are those of the model when a turn's updates begin,
    after the updates of all later ones; before those of the last turn it is the sampler.

    "SeeUPO: Sequence-Level Agentic-RL with Convergence Guarantees"; that turns are counted from the
    prompt on, so that conversations of fewer turns come in later, is assumed."""

    provides = ()
    fulfils = (Requirement.BACKWARD_TURNS, Requirement.LATER_TURN_LOG_PROBS)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        if config.staleness:
            raise ConfigError(
                f"staleness is {config.staleness}: recipe {objective.name} has as many updates as "
                "a round has turns, so that nobody can count them beforehand; leave it at 0"
            )

    def stages(self, batch: Any) -> list[Any]:
        t, stages = batch.rollouts.data, []
        for turn in sorted(set(t.segments["turn"][t.mask].tolist()), reverse=True):
            here = t.mask & (t.segments["turn"] == turn)
            rows = here.any(1).nonzero().flatten()
            weight = torch.where(here, batch.estimate.weight, 0.0)
            stages.append(
                batch._replace(
                    rollouts=batch.rollouts.select(rows.tolist()),
                    estimate=Estimate(batch.estimate.advantage[rows], weight[rows]),
                    targets={name: value[rows] for name, value in batch.targets.items()},
                )
            )
        return stages

    def on_stage(self, batch: Any) -> Any:
        now = self.agent.measured(self.agent.model, batch.rollouts)[0]
        return batch._replace(rollouts=with_fields(batch.rollouts, "log_probs", proximal=now))


class OneToken(LanguageMeasure):
    """Of every problem one demonstration; at each of its tokens the policy says one token in its
    place, `group` times, each a sequence of one step after what was shown before it, and earns 1 if
    it is the one that was shown, else 0. A round has so many sequences for every token of its
    demonstrations; success and accuracy in the records of training are those of tokens.

    "One-Token Rollout: Guiding Supervised Fine-Tuning of LLMs with Policy Gradient"."""

    provides = ()
    fulfils = (Requirement.TEACHER_TOKENS,)
    changes_sampling = True

    @torch.no_grad()
    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, rows = self.agent, list[Conversation]()
        rng = random.Random(agent.drawn_seed())
        shown = [demonstration(agent.codec, agent.task, problem, rng) for problem in problems]
        for row in shown:
            rows += self.tried(row)
        agent.tokens["sampled"] += len(rows)
        result: Rollouts = agent.collector.to_rollouts(
            rows, [i // agent.config.group for i in range(len(rows))]
        )
        return result

    def tried(self, shown: Conversation) -> list[Conversation]:
        """`group` sequences for every token of the demonstration."""
        agent, group = self.agent, self.agent.config.group
        at = [place for span in shown.spans for place in range(*span)]
        tokens = torch.tensor([shown.tokens], device=agent.device)
        logits = agent.model(tokens[:, :-1])[0][[place - 1 for place in at]]
        log_p, kept = sampling_distribution(logits, agent.config.sampling)
        uniform = torch.rand(
            group, len(at), generator=agent.generator, device=agent.device, dtype=torch.float64
        )
        said = draw(log_p, uniform)  # [group, places]
        behaviour, plain = (
            taken(x.expand(group, *x.shape), said) for x in (log_p, logits.log_softmax(-1))
        )
        conversations = []
        for i, place in enumerate(at):
            ids = [] if kept is None else [[k for k in kept[i].tolist() if k >= 0]]
            for j in range(group):
                conversations.append(self.one(shown, place, int(said[j, i]), ids))
                conversations[-1].behaviour = [float(behaviour[j, i])]
                conversations[-1].model = [float(plain[j, i])]
        return conversations

    def one(
        self, shown: Conversation, place: int, token: int, kept: list[list[int]]
    ) -> Conversation:
        """`token` in the place of the one that was shown."""
        turn = next(k for k, (start, stop) in enumerate(shown.spans) if start <= place < stop)
        right = token == shown.tokens[place]
        text = self.agent.codec.decode([*shown.tokens[shown.spans[turn][0] : place], token])
        return Conversation(
            shown.problem,
            [*shown.tokens[:place], token],
            spans=[*shown.spans[:turn], (place, place + 1)],
            turns=[*shown.turns[:turn], text],
            replies=[*shown.replies[:turn], Reply(float(right), True, right)],
            versions=[self.agent.updates],
            kept=kept,
            done=True,
            given=turn,
        )
