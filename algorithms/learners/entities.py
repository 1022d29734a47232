"""Observations with goals as sets of entities: a goal is a place of each of several things, and an
observation shows where these are, beside what else the agent sees of itself. Networks over such
sets give the same for every order of the entities."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from mbrl.errors import ConfigError
from mbrl.goals import GoalEntries
from mbrl.networks import EnsembleMLP, Normaliser
from mbrl.types import Spec


class Entities(nn.Module):
    """Takes observations [B, S] apart. Entity i has the goal entries from i `size` on, and the
    achieved ones of the same numbers; `rest` are the entries that are neither. With `size` 0 all of
    the goal is one entity. Raises `ConfigError` where the goal's entries are not whole entities."""

    rest: Tensor

    def __init__(self, spec: Spec, size: int) -> None:
        super().__init__()
        self.entries = GoalEntries(spec)
        goals = len(spec.goal)
        self.size = size or goals
        if goals % self.size:
            raise ConfigError(
                f"entity_size is {size} and a goal of {spec.task!r} has {goals} entries; it must "
                "divide them, or be 0: one entity"
            )
        self.count = goals // self.size
        rest = [k for k in self.entries.own.tolist() if k not in spec.achieved]
        self.register_buffer("rest", torch.tensor(rest, dtype=torch.int64), persistent=False)

    def split(self, values: Tensor) -> Tensor:
        """[..., count, size] of goals, or of what is achieved, [..., G]."""
        parts: Tensor = values.unflatten(-1, (self.count, self.size))
        return parts

    def rest_of(self, obs: Tensor) -> Tensor:
        """[..., R]: what is of no entity."""
        return obs.index_select(-1, self.rest)

    def own_from(self, rest: Tensor, achieved: Tensor, obs: Tensor) -> Tensor:
        """`obs` [..., S] with `rest` [..., R] and `achieved` [..., G] in the place of its own."""
        obs = obs.index_copy(-1 + obs.ndim, self.rest, rest)
        return obs.index_copy(-1 + obs.ndim, self.entries.achieved, achieved)


class EntityNormaliser(Normaliser):
    """Standardises observations [..., S]. An entry of an entity has the moments of that entry over
    all entities, in goals too, so that no entity differs from another."""

    def __init__(self, entities: Entities, size: int) -> None:
        super().__init__(size)
        self.entities = entities

    def fit(self, values: Tensor, eps: float = 0.0) -> None:
        """`Normaliser.fit` of observations [N, S]; goals, which are things achieved, have the
        moments of what is achieved."""
        super().fit(values, eps)
        e = self.entities
        each = Normaliser(e.size).to(values.device)
        each.fit(e.split(e.entries.achieved_of(values)).flatten(0, 1), eps)
        for entries in (e.entries.achieved, e.entries.goal):
            self.mean[entries] = each.mean.repeat(e.count).to(self.mean)
            self.std[entries] = each.std.repeat(e.count).to(self.std)


class EntityEnsemble(nn.Module):
    """`members` functions of observations and `actions` further entries, [B, S + actions] to
    [members, B, outputs]: a network sees one entity, its goal, and the rest; its last hidden layer
    is summed over the entities, and a second network goes on from there (Deep Sets, arXiv
    1703.06114)."""

    normaliser: EntityNormaliser | None

    def __init__(
        self,
        entities: Entities,
        members: int,
        actions: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        activation: str,
        layer_norm: bool,
        generator: Generator,
    ) -> None:
        super().__init__()
        self.entities, self.actions = entities, actions
        self.normaliser = None  # see `standardise`
        inputs = 2 * entities.size + len(entities.rest) + actions
        *first, width = hidden
        self.each = EnsembleMLP(
            members, inputs, first, width,
            activation=activation, layer_norm=layer_norm, generator=generator,
        )  # fmt: skip
        self.all = EnsembleMLP(
            members, width, (width,), outputs,
            activation=activation, layer_norm=layer_norm, generator=generator,
        )  # fmt: skip

    def standardise(self, size: int) -> None:
        """Add a normaliser of the first `size` inputs, which is the identity until it is fitted."""
        self.normaliser = EntityNormaliser(self.entities, size)

    def forward(self, x: Tensor) -> Tensor:
        e, size = self.entities, x.shape[-1] - self.actions
        obs = x[..., :size] if self.normaliser is None else self.normaliser(x[..., :size])
        rest = torch.cat([e.rest_of(obs), x[..., size:]], -1)
        goal, here = e.split(e.entries.goal_of(obs)), e.split(e.entries.achieved_of(obs))
        rest = rest[:, None].expand(-1, e.count, -1)
        rows = torch.cat([here, goal, rest], -1).flatten(0, 1)
        each = torch.nn.functional.gelu(self.each(rows))
        summed = each.unflatten(1, (-1, e.count)).sum(2)
        result: Tensor = self.all(summed)
        return result


class EntityNetwork(EntityEnsemble):
    """One function of observations, [B, S] to [B, outputs]."""

    def __init__(
        self, entities: Entities, hidden: Sequence[int], outputs: int, generator: Generator
    ) -> None:
        super().__init__(
            entities, 1, 0, hidden, outputs,
            activation="relu", layer_norm=False, generator=generator,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


class EntityTokens(nn.Module):
    """Tokens of an observation: one of `rest`, if there is any, and one of each entity, all of the
    `width` of the widest, with zeros behind. They are standardised by the moments of all tokens
    together, so that no entity differs from another."""

    mean: Tensor
    std: Tensor

    def __init__(self, entities: Entities) -> None:
        super().__init__()
        self.entities = entities
        rest = len(entities.rest)
        self.width, self.count = max(entities.size, rest), entities.count + (rest > 0)
        self.register_buffer("mean", torch.zeros(self.width))
        self.register_buffer("std", torch.ones(self.width))

    def tokens(self, rest: Tensor, achieved: Tensor) -> Tensor:
        """[B, count, width] of rest [B, R] and what is achieved, or goals, [B, G]."""
        parts = [self._wide(self.entities.split(achieved))]
        if len(self.entities.rest) > 0:
            parts.insert(0, self._wide(rest[:, None]))
        return (torch.cat(parts, 1) - self.mean) / self.std

    def of(self, obs: Tensor) -> Tensor:
        """Tokens of where everything is in `obs` [B, S]."""
        entries = self.entities.entries
        return self.tokens(self.entities.rest_of(obs), entries.achieved_of(obs))

    def of_goal(self, obs: Tensor) -> Tensor:
        """Tokens of where the goal of `obs` [B, S] has everything; the rest, which it does not ask
        about, as it is."""
        return self.tokens(self.entities.rest_of(obs), self.entities.entries.goal_of(obs))

    def back(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """rest [B, R] and what is achieved [B, G] of `tokens` [B, count, width]."""
        values = tokens * self.std + self.mean
        has_rest = int(self.count > self.entities.count)
        rest = values[:, 0, : len(self.entities.rest)]
        return rest, values[:, has_rest:, : self.entities.size].flatten(1)

    def fit(self, obs: Tensor) -> None:
        """Take the moments of the tokens of `obs` [N, S]; a constant entry keeps its scale."""
        self.mean.zero_()
        self.std.fill_(1.0)
        values = self.of(obs).double().flatten(0, 1)
        mean, std = values.mean(0), values.std(0, correction=0)
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std < 1e-12, 1.0, std))

    def _wide(self, part: Tensor) -> Tensor:
        more = part.new_zeros(*part.shape[:-1], self.width - part.shape[-1])
        return torch.cat([part, more], -1)
