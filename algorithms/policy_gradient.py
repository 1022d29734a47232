"""Policy gradients in control: any recipe of `mbrl.policy_gradient` that needs nothing but a policy
and a critic, on whole episodes gathered in rounds.

REINFORCE, A2C, PPO, V-trace and the GRPO family are names of recipes here. Copies that begin in one
state are a group, each step is a turn of its own.

Differences: rounds of whole episodes instead of stretches of fixed length; minibatches of episodes;
a critic that measures values in deviations of its targets; a squashed Gaussian, whose actions are
kept as they were drawn, before the squash, so that log-probs are exact at the bounds too.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from algorithms.control.bonuses import Bonus, BonusConfig
from algorithms.control.critic import Critic, Moments
from algorithms.control.measures import CriticValues, Episodes, log_probs_and_entropy, needed
from algorithms.control.recipes import check, in_control, success
from mbrl.agent import AFRESH, Agent
from mbrl.collector import CollectorConfig
from mbrl.config import Count, CountOrZero, NonNegative, Positive, Probability, Settings
from mbrl.errors import ConfigError, unknown_name
from mbrl.networks import (
    ACTIVATIONS,
    CategoricalPolicy,
    SquashedGaussianPolicy,
    adam,
    descend,
)
from mbrl.policy_gradient import loss, recipe
from mbrl.policy_gradient.axes.step_size import at_rate
from mbrl.policy_gradient.collectors import EpisodeCollector, ScheduledEpisodeCollector
from mbrl.policy_gradient.collectors import check as check_scheduler
from mbrl.policy_gradient.groups import numbered
from mbrl.policy_gradient.schedulers.curricula import Horizon
from mbrl.policy_gradient.schedulers.settings import settings
from mbrl.policy_gradient.trainer import Minibatch, Trainer
from mbrl.tasks import Task
from mbrl.training import Callback, Metrics
from mbrl.types import Dataset, Trajectories, Transitions, joined


@dataclass(frozen=True)
class PolicyGradientConfig(Settings):
    """Settings of a policy gradient in control."""

    recipe: str = "ppo"  # the objective, a name of `list recipes`
    hidden: tuple[Count, ...] = (64, 64)  # widths of policy and critic; (): both linear
    activation: str = "tanh"  # between their layers: relu, silu, leaky_relu, tanh, gelu
    learning_rate: NonNegative = 1e-3  # Adam, policy
    critic_rate: NonNegative = 1e-3  # Adam, critic
    # its loss: squared errors, or their likelihood under a generalised Gaussian of a learned shape
    critic_loss: Literal["squared", "generalised_gaussian"] = "squared"
    gamma: Probability = 0.99  # discount factor, where the recipe discounts
    lam: Probability | None = None  # of advantage estimates; None: the recipe's own
    reward_scale: Positive = 1.0  # rewards are multiplied by it before anything else
    # What is learned from: the task's rewards ("task"), or 1 at the end of an episode that earned
    # at least the round's median, else 0 ("success"); None: what the recipe is made for.
    reward: Literal["task", "success"] | None = None
    envs: Count = 16  # copies of the task in a round
    group: Count = 4  # copies that begin in one state
    keep: Count = 1  # rounds that an update learns from, the newest ones
    epochs: Count = 4  # passes over them after each round
    minibatches: Count = 4  # updates a pass
    clip_norm: Positive = 0.5  # largest norm of a gradient
    normalise_obs: bool = False  # standardise observations with all that was seen
    ramp_rounds: Count = 100  # over which a recipe's schedule runs (D3S)
    scheduler: str = "uniform"  # which start states get how many copies
    scheduler_settings: tuple[str, ...] = ()  # its own ones, as name=value
    pool: CountOrZero = 0  # start states that come again, for a scheduler; 0: always new ones
    horizon: tuple[Count, ...] = ()  # longest episodes, by stage (ScalingInter); (): the task's
    horizon_every: Count = 50  # rounds of a stage
    bonus: BonusConfig = field(default_factory=BonusConfig)  # for exploration

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activation not in ACTIVATIONS:
            raise unknown_name("activation", self.activation, ACTIVATIONS)
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


class Networks:
    """The learner as an agent holds it: what is saved. The updates are the agent's own."""

    def __init__(self, config: Any, policy: nn.Module) -> None:
        self.config, self.policy = config, policy
        self.modules: dict[str, nn.Module] = {"policy": policy}
        self.optimisers = {"policy": adam(policy.parameters(), config.learning_rate)}


class OnPolicy:
    """The source of an agent that learns from its own rounds alone: no rows are kept here."""

    model, learned, logged = None, None, 0
    collection = CollectorConfig()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class PolicyGradient(Agent[Minibatch[Episodes]]):
    """Policy gradients (REINFORCE, A2C, PPO, V-trace, GRPO, ...) by acting.

    Formula:

        loss         L = -M(gain(rho, A)) + penalties, rho = pi(a|s) / pi_old(a|s)
        ppo          gain = min(rho A, clip(rho, 1 - eps, 1 + eps) A)
        reinforce    gain = log pi(a|s) A
        advantage    A = (R - baseline) / scale, by the recipe
        `python -m experiments explain RECIPE` prints the whole formula of a recipe

    When not to use it: on logged data, which it cannot use, and where steps in the task are dear:
    it forgets them after a round. In the table control 8,000 steps of 16 copies leave Pendulum half
    solved; SAC solves it in 10,000 (`crosscheck`).
    """

    version = 5
    action_kinds = ("continuous", "discrete")
    learns_offline = False
    takes_masks = True
    config: PolicyGradientConfig

    def build(self, generator: torch.Generator) -> tuple[Networks, OnPolicy]:
        spec, config = self.spec, self.config
        kind = CategoricalPolicy if spec.discrete else SquashedGaussianPolicy
        policy = kind(spec, config.hidden, activation=config.activation)
        policy.net.orthogonal(0.01, generator)  # nearly one distribution in all states
        self.learner = Networks(config, policy.to(self.device))  # which measures ask for
        self.recipe = in_control(recipe(config.recipe), spec, config.gamma, config.lam)
        if "sum_prob_squared" in self.recipe.needs and not spec.discrete:
            raise ConfigError(
                f"recipe {config.recipe} needs the sum of squared probabilities, which continuous "
                "actions do not have; choose another recipe"
            )
        self.initial = generator
        self.aims = Moments(1, self.device)  # targets of the critic
        self.measures = {kind.__name__: kind(self) for kind in needed(self.recipe)}
        if any(m.discrete for m in self.measures.values()) and not spec.discrete:
            raise ConfigError(
                f"recipe {config.recipe} compares entropies of discrete actions, and those of "
                f"{spec.task} are continuous; choose another recipe"
            )
        self.reward = config.reward or ("success" if self.recipe.verdict else "task")
        self.trainer: Trainer[Episodes] = Trainer(
            self.recipe,
            self.policy,
            list(self.measures.values()),
            lambda policy, episodes: log_probs_and_entropy(policy, episodes.data)[0],
            self.generator,
            epochs=config.epochs,
            minibatches=config.minibatches,
        )
        learner = self.learner
        learner.modules |= self.trainer.anchors
        for measure in self.measures.values():
            learner.modules |= measure.modules
            learner.optimisers |= measure.optimisers
        self.transitions: list[tuple[Transitions, Tensor]] = []  # of the round that is going on
        self.drawn = torch.empty(0)  # what `explore` drew last, before the squash
        self.owner = self.usual()  # the start of every copy of the round that is over
        self.chosen: Tensor | None = None  # those that are trained on; None: all
        self.of_all = False  # whether statistics are of all, chosen or not
        self.rounds: list[Trajectories] = []
        self.bonus: Bonus | None = None
        if config.bonus.kind != "none":
            self.bonus = Bonus(spec, config.bonus, self.device, generator)
        self.seen = Moments(spec.obs_dim, self.device)
        return learner, OnPolicy()

    @property
    def critic(self) -> Critic | None:
        """The critic, where the recipe needs one."""
        measure = self.measures.get("CriticValues")
        return measure.critic if isinstance(measure, CriticValues) else None

    @property
    def data(self) -> Minibatch[Episodes] | None:
        """The round that is learned from."""
        return self.trainer.data

    @property
    def left(self) -> int:
        """Updates that the round has left."""
        return self.trainer.left

    def usual(self) -> Tensor:
        """[E]: the starts of a round without a scheduler."""
        return torch.arange(self.config.envs, device=self.device) // self.config.group

    @property
    def acting(self) -> CategoricalPolicy | SquashedGaussianPolicy:
        """The policy that gathers experience."""
        policy: CategoricalPolicy | SquashedGaussianPolicy = self.policy
        return policy

    def collector(self, task: Task, acted: int = 0) -> EpisodeCollector:
        """What acts in `task` with the agent's exploration; after `acted` steps that it took
        before, from starts and with noise of its own."""
        c, seed = self.config, self.seed + AFRESH * acted
        if acted:
            self.drop_round()  # its episodes do not go on
        horizon = Horizon(c.horizon, c.horizon_every) if c.horizon else None
        if c.pool == 0:
            greedy = any(m.greedy for m in self.measures.values())
            return EpisodeCollector(
                task, envs=c.envs, group=c.group, seed=seed, horizon=horizon, greedy=greedy
            )
        return ScheduledEpisodeCollector(
            task,
            c.scheduler,
            c.pool,
            envs=c.envs,
            group=c.group,
            seed=seed,
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

    def advance(self) -> Metrics:
        """Rounds come from the collector."""
        return {}

    def explore(
        self, obs: Tensor, generator: torch.Generator | None, mask: Tensor | None = None
    ) -> Tensor:
        """What `acting` draws."""
        limits = {} if mask is None else {"mask": mask.to(obs.device)}
        self.drawn = self.acting.draw(obs, generator, **limits)
        return self.acting.taken(self.drawn)

    def observe_rows(self, data: Transitions, rows: Tensor) -> None:
        """Add one step of the copies `rows` of the round, for which `explore` drew last. (What a
        greedy copy did instead is not kept: it is not learned from.)"""
        self.acted += len(data)
        drawn = self.drawn.to(data.obs.device)
        self.transitions.append((dataclasses.replace(data, action=drawn), rows))

    def starts(self, owner: Tensor, kept: Tensor, of_all: bool = False) -> None:
        """Which start [E] every copy of the round that is over had, and which are trained on; with
        `of_all` the others count in the statistics."""
        self.owner, self.chosen = owner.to(self.device), kept.to(self.device)
        self.of_all = of_all

    def end_round(self) -> int:
        """Take the round's episodes in; returns how many updates follow."""
        self.take_in()
        return self.trainer.begin_round(self._estimated(self.kept()))

    def drop_round(self) -> None:
        """Forget the steps since the last round, whose episodes were lost."""
        self.transitions = []

    def take_in(self) -> None:
        """Make episodes of the steps since the last round."""
        self.rounds = [*self.rounds, self._episodes()][-self.config.keep :]
        self.transitions = []
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
        owner, first = self.owner, self.transitions[0][0]
        count, places = torch.zeros(len(owner), dtype=torch.int64, device=first.obs.device), []
        for _, rows in self.transitions:
            places.append(count[rows].clone())
            count[rows] += 1
        steps = int(count.max())

        def padded(name: str) -> Tensor:
            value = getattr(first, name)
            whole = value.new_zeros(len(owner), steps, *value.shape[1:])
            for (data, rows), at in zip(self.transitions, places, strict=True):
                whole[rows, at] = getattr(data, name)
            result: Tensor = whole.to(self.device)
            return result

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
            action_mask=padded("action_mask") if self.spec.action_mask else None,
            groups={"prompt": owner[:, None].expand(-1, steps)},
            segments={"turn": at.expand(len(owner), -1)},
        )
        if self.reward == "success":
            t = dataclasses.replace(t, reward=success(t))
        if self.bonus is not None:
            t = dataclasses.replace(t, reward=t.reward + self.bonus(t))
        if self.chosen is not None:
            if self.of_all:
                t.signals["trained"] = self.chosen[:, None].expand(-1, steps).to(t.reward.dtype)
            else:
                t = t.select(self.chosen.nonzero().flatten())
                t.groups["prompt"] = numbered(t.groups["prompt"])
            self.owner, self.chosen = self.usual(), None
        episodes = Episodes(t)
        for measure in self.measures.values():
            episodes = measure.on_episodes(episodes, self.config.group)
        t = episodes.data
        with torch.no_grad():
            t.log_probs["behaviour"] = log_probs_and_entropy(self.acting, t)[0]
        return t

    @torch.no_grad()
    def _estimated(self, t: Trajectories) -> Minibatch[Episodes]:
        """With the policy before the updates as the old one."""
        now, entropy = log_probs_and_entropy(self.policy, t)
        t = dataclasses.replace(
            t,
            log_probs=t.log_probs | {"old": now, "proximal": now},
            entropy=entropy,
            sum_prob_squared=self._sum_prob_squared(t),
        )
        return self.trainer.estimated(Episodes(t))

    def _sum_prob_squared(self, t: Trajectories) -> Tensor | None:
        if not isinstance(self.policy, CategoricalPolicy):
            return None
        return torch.softmax(self.policy.logits(t.obs, t.action_mask), -1).square().sum(-1)

    def next_batch(self) -> Minibatch[Episodes]:
        """Episodes of the kept rounds, each once a pass. Raises `ConfigError` before a round is
        over."""
        return self.trainer.next_batch()

    def update(self, batch: Minibatch[Episodes]) -> Metrics:
        """One step of the policy on the recipe's loss, and of what is learned beside it."""
        t = batch.data
        log_prob, entropy = log_probs_and_entropy(self.policy, t)
        value, metrics = loss(self.recipe, log_prob, t, batch.estimate, entropy)
        if value.requires_grad:
            with at_rate(self.optimisers["policy"], metrics):
                descend(self.optimisers["policy"], value, self.config.clip_norm)
        steps = t.mask.sum().clamp_min(1)
        metrics["policy/entropy"] = torch.where(t.mask, entropy.detach(), 0.0).sum() / steps
        for measure in self.measures.values():
            metrics |= measure.learn(batch.rollouts, batch.targets)
        metrics |= self.trainer.updated()
        if self.left == 0 and self.config.normalise_obs:
            self.seen.apply(self.policy.normaliser)
            if self.critic is not None:
                self.seen.apply(self.critic.normaliser)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        transitions = [(dataclasses.asdict(data), rows) for data, rows in self.transitions]
        rounds = [dataclasses.asdict(part) for part in self.rounds]
        seen = self.seen.state_dict()
        measures = {name: m.state_dict() for name, m in self.measures.items()}
        aims = self.aims.state_dict()
        kept = {
            "heard": transitions,
            "rounds": rounds,
            "seen": seen,
            "aims": aims,
            "parts": measures,
        }
        if self.bonus is not None:
            kept["bonus"] = self.bonus.state_dict()
        return super().state_dict() | kept | self.trainer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trainer.load_state_dict(state)
        super().load_state_dict(state)
        self.transitions = [(Transitions(**data), rows) for data, rows in state["heard"]]
        self.rounds = [Trajectories(**part) for part in state["rounds"]]
        self.seen.load_state_dict(state["seen"])
        self.aims.load_state_dict(state["aims"])
        for name, measure in self.measures.items():
            measure.load_state_dict(state["parts"].get(name, {}))
        if self.bonus is not None:
            self.bonus.load_state_dict(state["bonus"])
