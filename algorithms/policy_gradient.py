"""Policy gradients in control: any recipe of `mbrl.policy_gradient` that needs nothing but a policy
and a critic, on whole episodes gathered in rounds.

REINFORCE, A2C, PPO, V-trace and the GRPO family are names of recipes here. Copies that begin in one
state are a group, each step is a turn of its own.

Differences: rounds of whole episodes instead of stretches of fixed length; minibatches of episodes;
a critic that measures values in deviations of its targets; a squashed Gaussian, whose actions are
kept as they were drawn, before the squash, so that log-probs are exact at the bounds too.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from algorithms.control_measures import described, needed
from algorithms.control_recipes import ANCHORS, check, in_control, success
from algorithms.offline import Offline
from mbrl import agent as shared
from mbrl.errors import ConfigError, unknown_name
from mbrl.networks import (
    ACTIVATIONS,
    MLP,
    CategoricalPolicy,
    Normaliser,
    SquashedGaussianPolicy,
    descend,
    target_copy,
)
from mbrl.policy_gradient import Estimate, estimate, loss, recipe, shuffled
from mbrl.policy_gradient.axes.credit import Bootstrapped
from mbrl.policy_gradient.axes.step_size import at_rate
from mbrl.policy_gradient.collectors import EpisodeCollector, ScheduledEpisodeCollector
from mbrl.policy_gradient.collectors import check as check_scheduler
from mbrl.policy_gradient.groups import numbered
from mbrl.policy_gradient.schedulers import SCHEDULERS
from mbrl.policy_gradient.schedulers.curricula import Horizon
from mbrl.policy_gradient.schedulers.settings import settings
from mbrl.tasks import Task
from mbrl.training import Callback, Metrics
from mbrl.types import Dataset, Spec, Trajectories, Transitions, joined


@dataclass(frozen=True)
class PolicyGradientConfig:
    """Settings of a policy gradient in control."""

    recipe: str = "ppo"  # the objective, a name of `list recipes`
    hidden: tuple[int, ...] = (64, 64)  # widths of policy and critic
    activation: str = "tanh"  # between their layers: relu, silu, leaky_relu, tanh, gelu
    learning_rate: float = 1e-3  # Adam, policy
    critic_rate: float = 1e-3  # Adam, critic
    gamma: float = 0.99  # discount factor, where the recipe discounts
    lam: float | None = None  # of advantage estimates; None: the recipe's own
    reward_scale: float = 1.0  # rewards are multiplied by it before anything else
    # What is learned from: the task's rewards ("task"), or 1 at the end of an episode that earned
    # at least the round's median, else 0 ("success"); None: what the recipe is made for.
    reward: Literal["task", "success"] | None = None
    envs: int = 16  # copies of the task in a round
    group: int = 4  # copies that begin in one state
    keep: int = 1  # rounds that an update learns from, the newest ones
    epochs: int = 4  # passes over them after each round
    minibatches: int = 4  # updates a pass
    clip_norm: float = 0.5  # largest norm of a gradient
    normalise_obs: bool = False  # standardise observations with all that was seen
    scheduler: str = "uniform"  # which start states get how many copies
    scheduler_settings: tuple[str, ...] = ()  # its own ones, as name=value
    pool: int = 0  # start states that come again, for a scheduler; 0: new ones in every round
    horizon: tuple[int, ...] = ()  # longest episodes, stage by stage (ScalingInter); (): the task's
    horizon_every: int = 50  # rounds of a stage

    def __post_init__(self) -> None:
        for name in ("envs", "group", "keep", "epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be at least 1")
        for name in ("learning_rate", "critic_rate"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be finite, from 0 on")
        for name in ("reward_scale", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be above 0 and finite")
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"gamma is {self.gamma}, it must lie in [0, 1]")
        if self.lam is not None and not 0 <= self.lam <= 1:
            raise ConfigError(f"lam is {self.lam}, it must lie in [0, 1], or None")
        if any(width < 1 for width in self.hidden):
            raise ConfigError(f"hidden is {self.hidden}, every width must be at least 1")
        if self.activation not in ACTIVATIONS:
            raise unknown_name("activation", self.activation, ACTIVATIONS)
        if self.reward not in (None, "task", "success"):
            raise unknown_name("reward", str(self.reward), ("task", "success"))
        if self.envs % self.group:
            raise ConfigError(f"envs is {self.envs}, not a multiple of group, {self.group}")
        if self.minibatches > self.envs:
            raise ConfigError(
                f"minibatches is {self.minibatches}, more than the {self.envs} episodes of a round"
            )
        check_scheduler(self.scheduler, self.pool)
        settings(self.scheduler, self.scheduler_settings)
        if self.horizon:
            Horizon(self.horizon, self.horizon_every)
        check(recipe(self.recipe), self.group, self.scheduler, self.pool)


class Minibatch(NamedTuple):
    """Episodes with their estimates, and the critic's targets [B, T] where there is a critic."""

    data: Trajectories
    found: Estimate
    target: Tensor | None


class PolicyGradient(Offline):
    """Policy gradients (REINFORCE, A2C, PPO, V-trace, GRPO, ...) by acting."""

    version = 5
    action_kinds = ("continuous", "discrete")
    learns_offline = False
    learn = shared.learn
    config: PolicyGradientConfig

    def __init__(
        self,
        spec: Spec,
        config: PolicyGradientConfig | None = None,
        *,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        config = config or PolicyGradientConfig()
        initial = self.setup(spec, config, device, seed)
        kind = CategoricalPolicy if spec.discrete else SquashedGaussianPolicy
        self.policy = kind(spec, config.hidden, activation=config.activation)
        self.policy.net.orthogonal(0.01, initial)  # nearly one distribution in all states
        self.policy.to(self.device)
        self.recipe = in_control(recipe(config.recipe), spec, config.gamma, config.lam)
        if "sum_prob_squared" in self.recipe.needs and not spec.discrete:
            raise ConfigError(
                f"recipe {config.recipe} needs the sum of squared probabilities, which continuous "
                "actions do not have; choose another recipe"
            )
        self.measures = {kind.__name__: kind(self) for kind in needed(self.recipe)}
        if any(m.discrete for m in self.measures.values()) and not spec.discrete:
            raise ConfigError(
                f"recipe {config.recipe} compares entropies of discrete actions, and those of "
                f"{spec.task} are continuous; choose another recipe"
            )
        self.reward = config.reward or ("success" if self.recipe.verdict else "task")
        credits = [term.credit for term in self.recipe.terms]
        self.credit = next((c for c in credits if isinstance(c, Bootstrapped)), None)
        learned: dict[str, nn.Module] = {"policy": self.policy}
        self.critic: Critic | None = None
        if "signals.value" in self.recipe.needs:
            self.critic = Critic(spec, config.hidden, config.activation, initial).to(self.device)
            learned["critic"] = self.critic
        self.anchors = {
            name: target_copy(self.policy)
            for name in ANCHORS
            if f"log_probs.{name}" in self.recipe.needs
        }
        self.own(config.learning_rate, learned, **self.anchors)
        if self.critic is not None:
            self.optimisers["critic"].param_groups[0]["lr"] = config.critic_rate
        self.heard: list[tuple[Transitions, Tensor]] = []  # of the round that is going on
        self.drawn = torch.empty(0)  # what `explored` drew last, before the squash
        self.owner = self.usual()  # the start of every copy of the round that is over
        self.chosen: Tensor | None = None  # those that are trained on; None: all
        self.rounds: list[Trajectories] = []
        self.seen = Moments(spec.obs_dim, self.device)
        self.aims = Moments(1, self.device)  # targets of the critic
        self.data: Minibatch | None = None
        self.order, self.left = torch.empty(0, dtype=torch.int64), 0

    def usual(self) -> Tensor:
        """[E]: the starts of a round without a scheduler."""
        return torch.arange(self.config.envs, device=self.device) // self.config.group

    @property
    def acting(self) -> CategoricalPolicy | SquashedGaussianPolicy:
        """The policy that gathers experience."""
        policy: CategoricalPolicy | SquashedGaussianPolicy = self.policy
        return policy

    def collector(self, task: Task) -> EpisodeCollector:
        """What acts in `task` with the agent's exploration."""
        c = self.config
        horizon = Horizon(c.horizon, c.horizon_every) if c.horizon else None
        if c.pool == 0:
            greedy = any(m.greedy for m in self.measures.values())
            return EpisodeCollector(
                task, envs=c.envs, group=c.group, seed=self.seed, horizon=horizon, greedy=greedy
            )
        return ScheduledEpisodeCollector(
            task,
            c.scheduler,
            c.pool,
            envs=c.envs,
            group=c.group,
            seed=self.seed,
            horizon=horizon,
            settings=settings(c.scheduler, c.scheduler_settings),
        )

    def fit(
        self, dataset: Dataset, steps: int, *, callbacks: Sequence[Callback] | None = None
    ) -> Self:
        """Raises `ConfigError`: a policy gradient learns by acting."""
        raise ConfigError(
            "policy_gradient learns by acting and not from logged data; use learn(task, steps), or "
            "an algorithm of `list` that learns offline"
        )

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        self.fit(dataset, 0)

    def explored(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """What `acting` draws."""
        self.drawn = self.acting.draw(obs, generator)
        return self.acting.taken(self.drawn)

    def observe(self, data: Transitions, rows: Tensor) -> None:
        """Add one step of the copies `rows` of the round, for which `explored` drew last. (What a
        greedy copy did instead is not kept: it is not learned from.)"""
        drawn = self.drawn.to(data.obs.device)
        self.heard.append((dataclasses.replace(data, action=drawn), rows))

    def starts(self, owner: Tensor, kept: Tensor) -> None:
        """Which start [E] every copy of the round that is over had, and which are trained on."""
        self.owner, self.chosen = owner.to(self.device), kept.to(self.device)

    def end_round(self) -> int:
        """Take the round's episodes in; returns how many updates follow."""
        self.take_in()
        self.data = self._estimated(self.kept())
        self.left = self.config.epochs * self.splits
        return self.left

    @property
    def splits(self) -> int:
        """Updates a pass: fewer where a scheduler keeps fewer episodes than minibatches."""
        assert self.data is not None
        return min(self.config.minibatches, len(self.data.data.mask))

    def take_in(self) -> None:
        """Make episodes of what was heard since the last round."""
        self.rounds = [*self.rounds, self._episodes()][-self.config.keep :]
        self.heard = []
        self.seen.add(self.rounds[-1].obs[self.rounds[-1].mask])

    def kept(self) -> Trajectories:
        """All kept rounds; the groups of different ones are different groups."""
        first, parts = 0, []
        for part in self.rounds:
            shifted = {name: ids + first for name, ids in part.groups.items()}
            parts.append(dataclasses.replace(part, groups=shifted))
            first = 1 + max(int(ids.max()) for ids in shifted.values())
        return joined(parts)

    def _episodes(self) -> Trajectories:
        """The round's steps as padded episodes."""
        owner, first = self.owner, self.heard[0][0]
        count, places = torch.zeros(len(owner), dtype=torch.int64, device=first.obs.device), []
        for _, rows in self.heard:
            places.append(count[rows].clone())
            count[rows] += 1
        steps = int(count.max())

        def padded(name: str) -> Tensor:
            value = getattr(first, name)
            whole = value.new_zeros(len(owner), steps, *value.shape[1:])
            for (data, rows), at in zip(self.heard, places, strict=True):
                whole[rows, at] = getattr(data, name)
            return whole.to(self.device)

        mask = torch.arange(steps, device=self.device) < count.to(self.device)[:, None]
        at = torch.arange(steps, device=self.device)
        t = Trajectories(
            padded("obs"),
            padded("action"),
            padded("reward") * self.config.reward_scale,
            padded("next_obs"),
            padded("terminated"),
            padded("truncated"),
            mask,
            groups={"prompt": owner[:, None].expand(-1, steps)},
            segments={"turn": at.expand(len(owner), -1)},
        )
        if self.reward == "success":
            t = dataclasses.replace(t, reward=success(t))
        if self.chosen is not None:
            if getattr(SCHEDULERS[self.config.scheduler].make, "of_all", False):
                t.signals["trained"] = self.chosen[:, None].expand(-1, steps).to(t.reward.dtype)
            else:
                t = t.select(self.chosen.nonzero().flatten())
                t.groups["prompt"] = numbered(t.groups["prompt"])
            self.owner, self.chosen = self.usual(), None
        for measure in self.measures.values():
            t = measure.on_episodes(t, self.config.group)
        with torch.no_grad():
            t.log_probs["behaviour"] = described(self.acting, t)[0]
        return t

    @torch.no_grad()
    def _estimated(self, t: Trajectories) -> Minibatch:
        """Everything that stays as it is during the updates of a round."""
        now, entropy = described(self.policy, t)
        log_probs = t.log_probs | {"old": now, "proximal": now}
        log_probs |= {name: described(anchor, t)[0] for name, anchor in self.anchors.items()}
        signals = dict(t.signals)
        if self.critic is not None:
            signals |= {"value": self.critic(t.obs), "next_value": self.critic(t.next_obs)}
        if "signals.uniform" in self.recipe.needs:
            signals["uniform"] = torch.rand(
                t.mask.shape, generator=self.generator, device=self.device
            )
        t = dataclasses.replace(
            t,
            log_probs=log_probs,
            signals=signals,
            entropy=entropy,
            sum_prob_squared=self._sum_prob_squared(t),
        )
        for measure in self.measures.values():
            t = measure.measure(t)
        found = estimate(self.recipe, t)
        target = None if self.credit is None else self.credit.targets(t.reward, t)
        if self.critic is not None and target is not None:
            self.aims.add(target[t.mask][:, None])
            self.critic.rescale(self.aims)
        if "previous" in self.anchors:
            self.anchors["previous"].load_state_dict(self.policy.state_dict())
        if "trained" not in t.signals:
            return Minibatch(t, found, target)
        rows = t.signals["trained"][:, 0].nonzero().flatten()
        found = Estimate(found.advantage[rows], found.weight[rows])
        return Minibatch(t.select(rows), found, None if target is None else target[rows])

    def _sum_prob_squared(self, t: Trajectories) -> Tensor | None:
        if not isinstance(self.policy, CategoricalPolicy):
            return None
        return torch.softmax(self.policy.logits(t.obs), -1).square().sum(-1)

    def next_batch(self) -> Minibatch:  # type: ignore[override]
        """Episodes of the kept rounds, each once a pass. Raises `ConfigError` before a round is
        over."""
        if self.data is None or self.left == 0:
            raise ConfigError("there is no finished round to learn from; call learn")
        data, found, target = self.data
        place = (self.config.epochs * self.splits - self.left) % self.splits
        if place == 0:
            self.order = shuffled(self.recipe, data, self.generator)
        rows = self.order.tensor_split(self.splits)[place]
        part = data.select(rows)
        for ids in part.groups:  # which may be no larger than the steps that are left
            part.groups[ids] = numbered(part.groups[ids])
        return Minibatch(
            part,
            Estimate(found.advantage[rows], found.weight[rows]),
            None if target is None else target[rows],
        )

    def update(self, batch: Minibatch) -> Metrics:  # type: ignore[override]
        """One step of the policy on the recipe's loss, and of the critic on squared errors."""
        t, clip = batch.data, self.config.clip_norm
        log_prob, entropy = described(self.policy, t)
        value, metrics = loss(self.recipe, log_prob, t, batch.found, entropy)
        if value.requires_grad:
            with at_rate(self.optimisers["policy"], metrics):
                descend(self.optimisers["policy"], value, clip)
        steps = t.mask.sum().clamp_min(1)
        metrics["policy/entropy"] = torch.where(t.mask, entropy.detach(), 0.0).sum() / steps
        if self.critic is not None and batch.target is not None:
            error = torch.where(t.mask, self.critic(t.obs) - batch.target, 0.0) / self.critic.scale
            critic_loss = error.square().sum() / steps
            descend(self.optimisers["critic"], critic_loss, clip)
            metrics["critic/loss"] = critic_loss.detach()
        self.left -= 1
        if self.left == 0 and self.config.normalise_obs:
            self.seen.apply(self.policy.normaliser)
            if self.critic is not None:
                self.seen.apply(self.critic.normaliser)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        heard = [(dataclasses.asdict(data), rows) for data, rows in self.heard]
        rounds = [dataclasses.asdict(part) for part in self.rounds]
        seen = self.seen.state_dict()
        measures = {name: m.state_dict() for name, m in self.measures.items()}
        aims = self.aims.state_dict()
        kept = {"heard": heard, "rounds": rounds, "seen": seen, "aims": aims, "parts": measures}
        return super().state_dict() | kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.heard = [(Transitions(**data), rows) for data, rows in state["heard"]]
        self.rounds = [Trajectories(**part) for part in state["rounds"]]
        self.seen.load_state_dict(state["seen"])
        self.aims.load_state_dict(state["aims"])
        for name, measure in self.measures.items():
            measure.load_state_dict(state["parts"][name])


class Critic(nn.Module):
    """V(s) [...] of raw observations [..., S].

    The network's output is in deviations of the targets so far from their mean, so that values in
    the hundreds are learned no later than those around 1; when these numbers change, the last layer
    changes with them, so that values stay ("Learning values across many orders of magnitude", arXiv
    1602.07714, section 2).
    """

    centre: Tensor
    scale: Tensor

    def __init__(
        self, spec: Spec, hidden: Sequence[int], activation: str, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.normaliser = Normaliser(spec.obs_dim)
        self.net = MLP(spec.obs_dim, hidden, 1, activation=activation)
        self.net.orthogonal(1.0, generator)
        self.register_buffer("centre", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, obs: Tensor) -> Tensor:
        value: Tensor = self.net(self.normaliser(obs))[..., 0]
        return self.centre + self.scale * value

    @torch.no_grad()
    def rescale(self, moments: "Moments") -> None:
        """Measure in deviations from the mean of `moments` (of one number), with values as they
        are."""
        mean, std = moments.mean[0].float(), moments.std()[0].float()
        last = self.net.layers[-1]
        assert isinstance(last, nn.Linear)
        last.weight.mul_(self.scale / std)
        last.bias.copy_((self.centre + self.scale * last.bias - mean) / std)
        self.centre.copy_(mean)
        self.scale.copy_(std)


class Moments:
    """Mean and variance of all observations so far, by the parallel update of Chan et al."""

    def __init__(self, dim: int, device: torch.device) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(dim, dtype=torch.float64, device=device)
        self.squares = torch.zeros(dim, dtype=torch.float64, device=device)

    def add(self, values: Tensor) -> None:
        """Take in `values` [N, D]."""
        new, count = values.double(), len(values)
        mean = new.mean(0)
        apart, total = mean - self.mean, self.count + count
        self.squares = self.squares + (new - mean).square().sum(0)
        self.squares = self.squares + apart.square() * self.count * count / total
        self.mean, self.count = self.mean + apart * count / total, total

    def std(self) -> Tensor:
        """[D], 1 where nothing varies."""
        std = (self.squares / self.count.clamp_min(1)).sqrt()
        return torch.where(std < 1e-6, torch.ones_like(std), std)

    def apply(self, normaliser: Normaliser) -> None:
        normaliser.mean.copy_(self.mean)
        normaliser.std.copy_(self.std())

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("count", "mean", "squares")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.count, self.mean, self.squares = state["count"], state["mean"], state["squares"]
