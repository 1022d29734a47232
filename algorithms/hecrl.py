"""HECRL: entity-centric reinforcement learning with a hierarchy of subgoals (arXiv 2602.02722): a
diffusion model proposes where all entities could be some steps later, the values choose among its
samples, and a policy goes there. Compared with the authors' code (DanHrmti/HECRL at 4ea7ce5,
agents/sgiql.py, agents/diffuser/, config.yaml).

Differences: a goal says nothing of the agent itself, so a subgoal's own entries are sampled too
but only asked about the entities. Values and policy sum over entities (Deep Sets), theirs attend;
the critics' minimum stands in the policy's loss, theirs the first; values end at goals and targets
are not cut to their range. The diffusion has EDM's levels and squared error, theirs ten steps of
DDPM and absolute error, which it also takes over the tokens that are given. State and goal stand
beside each entity's noisy token, theirs are tokens of their own: entities must keep their order.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from algorithms.gciql import GCIQLConfig, ImplicitGoalQ
from algorithms.learners.entities import (
    Entities,
    EntityEnsemble,
    EntityNetwork,
    EntityNormaliser,
    EntityTokens,
)
from algorithms.learners.generative import Diffusion, Drawn, kept_noise
from algorithms.learners.goal_conditioned import GoalPolicy, goal_rows, learned_parameters
from algorithms.sources.relabelled import FUTURE, GoalDraws, RelabelledRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, CountOrZero, NonNegative
from mbrl.logged_rules import drawn_obs
from mbrl.networks import adam, descend
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Dataset, Spec
from world_models.denoisers import WindowTransformer

Choice = Literal["filtered", "best", "any", "goal"]


@dataclass(frozen=True)
class HECRLConfig(GCIQLConfig):
    """Settings of HECRL; the defaults are the authors' where they are not named as differences."""

    alpha: NonNegative = 0.1  # weight of the clone; or the temperature of the advantage weights
    batch_size: Count = 512  # rows an update
    value_goals: GoalDraws = field(default_factory=lambda: GoalDraws(0.2, 0.8, 0.0, False))
    policy_goals: GoalDraws = field(default_factory=lambda: FUTURE)  # the policy's
    entity_size: CountOrZero = 0  # entries of a goal an entity; 0: all of it is one
    subgoal_steps: Count = 50  # how far ahead the subgoals of the data lie
    diffusion: Diffusion = field(default_factory=lambda: Diffusion(steps=10))
    width: Count = 64  # of the diffusion's transformer
    levels: Count = 4  # its blocks
    candidates: Count = 256  # samples of a subgoal
    choice: Choice = "filtered"  # by reach and value, by value alone, the first, or none: the goal
    reach: NonNegative = 30.0  # a subgoal with a value below minus this is too far
    held_steps: Count = 25  # steps that a subgoal is held for
    subgoals: Count = 32  # of an episode; then the goal itself


def chosen(
    near: Tensor, value: Tensor, direct: Tensor, least: float | None
) -> tuple[Tensor, Tensor]:
    """Of K candidates the index [B] of the one with the largest `value` [K, B] among those with
    `near` [K, B] of at least `least` (None: any), and whether the goal is to be taken instead [B]
    bool: where no candidate is near enough, or the state's own value `direct` [B] is larger."""
    check_shapes(near=(near, "K B"), value=(value, "K B"), direct=(direct, "B"))
    if least is None:
        return value.argmax(0), torch.zeros_like(direct, dtype=torch.bool)
    allowed = near >= least
    best = torch.where(allowed, value, -torch.inf).max(0)
    return best.indices, ~allowed.any(0) | (direct > best.values)


class SubgoalDiffusion(nn.Module):
    """A diffusion of the tokens of a later state, given those of the state and of the goal."""

    noise: Tensor

    def __init__(self, spec: Spec, config: HECRLConfig, generator: Generator) -> None:
        super().__init__()
        self.path = config.diffusion
        self.tokens = EntityTokens(Entities(spec, config.entity_size))
        count, width = self.tokens.count, self.tokens.width
        # noisy token, state, goal, and whether it is one of an entity
        self.net = WindowTransformer(3 * width + 1, 0, config.width, config.levels, generator)
        self.register_buffer("noise", kept_noise(config.candidates, count * width, generator))

    def network(self, obs: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """The network [B, count width] at `obs` [B, S]."""
        shape = (self.tokens.count, self.tokens.width)
        here, goal = self.tokens.of(obs), self.tokens.of_goal(obs)
        kind = torch.ones_like(here[..., :1])
        if self.tokens.count > self.tokens.entities.count:
            kind = torch.cat([torch.zeros_like(kind[:, :1]), kind[:, 1:]], 1)

        def out(x: Tensor, level: Tensor) -> Tensor:
            seen = torch.cat([x.unflatten(1, shape), here, goal, kind], -1)
            result: Tensor = self.net(seen, level)[..., : shape[1]].flatten(1)
            return result

        return out

    def loss(self, obs: Tensor, later: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """The diffusion's loss [] at the states `later` [B, S] than `obs` [B, S] with its goal."""
        tokens = self.tokens.of(later).flatten(1)
        loss: Tensor = self.path.loss(self.network(obs), tokens, noise, level)
        return loss

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Later states [K, B, S], with the goal of `obs` [B, S], from `noise` [K, B, D]."""
        count, rows = noise.shape[0], obs.shape[0]
        repeated = obs.expand(count, rows, -1).flatten(0, 1)
        flat = self.path.sample(self.network(repeated), noise.flatten(0, 1))
        shape = (self.tokens.count, self.tokens.width)
        rest, achieved = self.tokens.back(flat.unflatten(1, shape))
        later = self.tokens.entities.own_from(rest, achieved, repeated)
        samples: Tensor = later.unflatten(0, (count, rows))
        return samples


class SubgoalPolicy(nn.Module):
    """A policy of actions that is given a subgoal, which is held for some steps. State [B, G + 2]:
    the subgoal, steps that it is still held for, subgoals so far."""

    def __init__(
        self, flat: GoalPolicy, value: nn.Module, subgoals: SubgoalDiffusion, config: HECRLConfig
    ) -> None:
        super().__init__()
        self.flat, self.value, self.subgoals, self.config = flat, value, subgoals, config
        self.scale, self.normaliser = flat.scale, flat.normaliser
        self.entries = subgoals.tokens.entities.entries

    def values(self, obs: Tensor) -> Tensor:
        """V(s, g) [...] of `obs` [..., S]."""
        flat: Tensor = self.value(obs.flatten(0, -2))[0, :, 0]
        return flat.view(obs.shape[:-1])

    def subgoal(self, obs: Tensor, generator: Generator | None = None) -> Tensor:
        """A goal [B, G] for the next steps from `obs` [B, S], of samples from the kept noise, or
        with a generator from fresh noise."""
        c, goal, noise = self.config, self.entries.goal_of(obs), self.subgoals.noise
        if c.choice == "goal":
            return goal
        shape = (noise.shape[0], obs.shape[0], noise.shape[1])
        if generator is None:
            draws = noise[:, None].expand(shape)
        else:
            draws = torch.randn(shape, generator=generator, device=obs.device)
        if c.choice == "any":
            return self.entries.achieved_of(self.subgoals.sample(obs, draws[:1])[0])
        later = self.subgoals.sample(obs, draws)
        reached = self.entries.achieved_of(later)
        near = self.values(self.entries.with_goal(obs.expand(later.shape), reached))
        least = -c.reach if c.choice == "filtered" else None
        index, direct = chosen(near, self.values(later), self.values(obs), least)
        wide = index[None, :, None].expand(1, -1, reached.shape[2])
        return torch.where(direct[:, None], goal, reached.gather(0, wide)[0])

    def step(
        self,
        obs: Tensor,
        state: Tensor | None,
        generator: Generator | None,
        *,
        deterministic: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Actions [B, A] in the task's units, and the state to give back."""
        goal = self.entries.goal_of(obs)
        if state is None:
            state = obs.new_zeros(obs.shape[0], goal.shape[1] + 2)
        held, left, count = state[:, :-2], state[:, -2:-1], state[:, -1:]
        due = left <= 0
        fresh = held
        if torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export() or bool(due.any()):
            fresh = self.subgoal(obs, None if deterministic else generator)
            fresh = torch.where(count < self.config.subgoals, fresh, goal)
        held = torch.where(due, fresh, held)
        left = torch.where(due, float(self.config.held_steps), left) - 1
        after = torch.cat([held, left, count + due.to(count)], 1)
        asked = self.entries.with_goal(obs, held)
        action: Tensor = self.flat(asked) if deterministic else self.flat.explore(asked, generator)
        return action, after

    def observe_reward(self, state: Tensor, reward: Tensor, action: Tensor | None = None) -> Tensor:
        """The state as it is: rewards say nothing of subgoals."""
        return state

    def forward(self, obs: Tensor) -> Tensor:
        """The greedy action of an episode's first step."""
        return self.step(obs, None, None)[0]

    def explore(self, obs: Tensor, generator: Generator | None) -> Tensor:
        """A sampled action of an episode's first step."""
        return self.step(obs, None, generator, deterministic=False)[0]


class EntityHierarchy(ImplicitGoalQ):
    """GCIQL over sets of entities, and a diffusion of subgoals beside it."""

    config: HECRLConfig

    def __init__(
        self, spec: Spec, config: HECRLConfig, device: torch.device, generator: Generator
    ) -> None:
        super().__init__(spec, config, device, generator)
        self.subgoals = SubgoalDiffusion(spec, config, generator).to(device)
        self.acting = SubgoalPolicy(self.flat, self.value, self.subgoals, config)
        self.modules["subgoals"] = self.subgoals
        self.optimisers["subgoals"] = adam(learned_parameters(self.subgoals), config.learning_rate)

    @property
    def policy(self) -> SubgoalPolicy:
        return self.acting

    def flat_policy(self, generator: Generator) -> GoalPolicy:
        c = self.config
        entities = Entities(self.spec, c.entity_size)
        net = EntityNetwork(entities, c.hidden, self.spec.action_dim, generator)
        policy = GoalPolicy(self.spec, c.hidden, generator=generator, net=net)
        policy.normaliser = EntityNormaliser(entities, self.spec.obs_dim)
        return policy

    def values(self, members: int, actions: int, generator: Generator) -> nn.Module:
        c = self.config
        values = EntityEnsemble(
            Entities(self.spec, c.entity_size), members, actions, c.hidden, 1,
            activation="gelu", layer_norm=c.layer_norm, generator=generator,
        )  # fmt: skip
        if c.normalise_obs:
            values.standardise(self.spec.obs_dim)
        return values

    def draw(self, batch: Batch, generator: Generator) -> Drawn:
        """The batch with noise and a level for each row."""
        shape = (len(batch.obs), self.subgoals.noise.shape[1])
        noise = torch.randn(shape, generator=generator, device=batch.obs.device)
        level = self.config.diffusion.levels(shape[0], generator, batch.obs.device)
        return Drawn(batch, noise, level)

    def update(self, batch: Drawn, count: int = 0) -> Metrics:
        """One step of GCIQL and one of the diffusion."""
        rows, goal = batch.batch, batch.batch.policy_goal
        assert goal is not None and rows.waypoint is not None
        metrics = super().update(rows, count)
        obs = self.entries.with_goal(rows.obs, goal)
        loss = self.subgoals.loss(obs, rows.waypoint, batch.noise, batch.level)
        descend(self.optimisers["subgoals"], loss)
        return metrics | {"subgoal/loss": loss.detach()}


class HECRL(Agent[Drawn]):
    """Goal-conditioned implicit Q-learning over entities, with diffused subgoals.

    Formula:

        values       GCIQL's, whose networks sum over entities: the same for every order of them
        policy       GCIQL's, of actions for a goal or subgoal
        subgoals     a diffusion of the state k steps ahead (at most at the goal), given s and g
        acting       every T steps: K samples w; those with V(s, w) < -R are dropped; the one with
                     the largest V(w, g), or g where none is left or V(s, g) is larger

    When not to use it: where a goal is one thing in one place; the sum over entities then says
    nothing, and `hiql` has a hierarchy for less. R must suit the values: a state n steps away has
    the value -(1 - gamma^n) / (1 - gamma).
    """

    version = 2
    needs_goals = True
    config: HECRLConfig

    def build(self, generator: Generator) -> tuple[EntityHierarchy, RelabelledRows]:
        c = self.config
        learner = EntityHierarchy(self.spec, c, self.device, generator)
        source = goal_rows(
            self.spec, c, self.device, c.value_goals, c.subgoal_steps, last_states=False
        )
        return learner, source

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Take logged data in, and the moments of its tokens before the first update."""
        if self.step == 0:
            obs: Any = drawn_obs(dataset.transitions).to(self.device)
            self.learner.subgoals.tokens.fit(obs)
        super().prepare(dataset, on_progress)
