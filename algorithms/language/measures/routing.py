"""Which experts tokens take in an update: those of the policy before it, or of the sampler."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.language.learner import log_probs_and_entropy_at
from algorithms.language.measures.assembled import own_groups
from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.models.experts import Replayed, rounded, routing
from algorithms.language.models.passes import passes, together
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields
from mbrl.training import Metrics


class Routed(LanguageMeasure):
    """In the passes of a round's updates, and in that of its old log-probs, tokens take the experts
    that are noted in `signals.routing_<layer>_<place>`, ascending in a layer; the router's weights
    of these are learned as ever. With `sampler_bits` conversations are sampled by a copy of the
    policy with weights of so many bits of mantissa. "Stabilizing Reinforcement Learning with LLMs:
    Formulation and Practices", arXiv 2512.01374."""

    changes_sampling: ClassVar[bool] = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.ids: Tensor | None = None  # of the minibatch
        self.changed = 0.0

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        transformer = config.model.transformer
        if config.model.path is not None or not transformer.experts:
            raise ConfigError(
                f"recipe {objective.name} replays which experts tokens take, and the model has "
                "none; set model.transformer.experts to 2 or more"
            )

    def sampling_model(self, model: Any) -> Any:
        bits = self.agent.config.sampler_bits
        return rounded(model, bits) if bits else model

    def noted(self, model: Any, rollouts: Rollouts) -> Rollouts:
        """With the experts that `model` takes."""
        ids = routing(model, rollouts.tokens[:, :-1]).to(rollouts.data.reward)
        names = {
            f"routing_{k}_{i}": number
            for k, layer in enumerate(ids)
            for i, number in enumerate(layer.unbind(-1))
        }
        return with_fields(rollouts, "signals", **names)

    def experts(self, rollouts: Rollouts) -> Tensor:
        """int64 [L, B, T, active]: the experts noted in `rollouts`."""
        c, signals = self.agent.config.model.transformer, rollouts.data.signals
        layers = [
            torch.stack([signals[f"routing_{k}_{i}"] for i in range(c.active)], -1)
            for k in range(c.layers)
        ]
        return torch.stack(layers).long()

    def apart(self, model: Any, rollouts: Rollouts) -> float:
        """The share of the steps in the mask at which `model` takes other experts in a layer."""
        other = (routing(model, rollouts.tokens[:, :-1]) != self.experts(rollouts)).any(-1).any(0)
        return float(other[rollouts.data.mask].double().mean())

    def with_old(self, rollouts: Rollouts) -> Rollouts:
        """With old log-probs under the experts that are noted."""
        agent, ids, mask = self.agent, self.experts(rollouts), rollouts.data.mask
        todo = passes(mask, agent.config.rows_at_once)
        temperature, tokens = agent.config.sampling.temperature, rollouts.tokens
        with torch.no_grad():
            pieces = [
                log_probs_and_entropy_at(
                    self.replayed(ids[:, one.rows]),
                    tokens,
                    mask,
                    temperature,
                    rollouts.kept,
                    one,
                )
                for one in todo
            ]
        log_prob = together(pieces, todo, mask.shape[1])[..., 0]
        return with_fields(rollouts, "log_probs", old=log_prob)

    def replayed(self, ids: Tensor) -> Any:
        return Replayed(self.agent.model, ids)

    def before_update(self, rollouts: Rollouts) -> None:
        self.ids = self.experts(rollouts)

    def training_model(self, model: Any, rows: Tensor) -> Any:
        assert self.ids is not None
        return Replayed(model, self.ids[:, rows])

    def learn(self, rollouts: Rollouts, targets: dict[str, Tensor]) -> Metrics:
        self.changed = self.apart(self.agent.model, rollouts)
        return {"routing/changed": rollouts.data.reward.new_tensor(self.changed)}

    def state_dict(self) -> dict[str, Any]:
        return {"changed": self.changed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.changed = state["changed"]


class RoutedUpdates(Routed):
    """Routing replay (R2): the experts are those of the policy at the start of the round's updates.

    `acts`: the share of the trained steps at which the policy would take other experts by the last
    update of the round before."""

    provides = ()
    fulfils = (Requirement.ROUTING_REPLAY,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        self.acts = self.changed
        return self.with_old(self.noted(self.agent.model, rollouts))


class RoutedSampler(Routed):
    """Rollout routing replay (R3): the experts are those that the sampler takes. They are read off
    a whole pass of the sampler over what it said.

    `acts`: the share of the steps at which the policy of the updates would take other experts."""

    provides = ()
    fulfils = (Requirement.ROLLOUT_ROUTING_REPLAY,)

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        groups = own_groups(self.agent, problems)
        rows = [row for group in groups for row in group]
        owner = [i for i, group in enumerate(groups) for _ in group]
        rollouts: Rollouts = self.agent.collector.to_rollouts(rows, owner)
        return self.noted(self.agent.sampling_model(), rollouts)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        self.acts = self.apart(self.agent.model, rollouts)
        return self.with_old(rollouts)
