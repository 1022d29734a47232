"""PETS: Deep Reinforcement Learning in a Handful of Trials using Probabilistic Dynamics Models
(arXiv 1805.12114): plans by the cross-entropy method, valued by particles in an ensemble.

Differences: rewards are predicted by the model (the paper: given); the model keeps early stopping;
all members see all data but for their bootstrap; the plan's mean is acted upon, without noise; all
iterations are made (the authors' code stops where every variance is below 0.001).
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from algorithms.sources.imagined import RefitConfig
from algorithms.sources.model_rows import ModelRows, own_ensemble
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, Discount, Rate, Settings, Share
from mbrl.errors import ConfigError
from mbrl.networks import ActionScale
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec
from world_models import EnsembleConfig, EnsembleDynamics, WorldModel


@dataclass(frozen=True)
class PlannerConfig(Settings):
    """How a plan is found."""

    horizon: Count = 15  # steps ahead
    population: Count = 350  # plans tried an iteration
    elite_share: Rate = 0.1  # of them that the next iteration follows
    iterations: Count = 5  # of the cross-entropy method
    momentum: Share = 0.1  # share of the mean and variance before that is kept
    particles: Count = 20  # imagined trajectories a plan
    sampling: Literal["ts_inf", "ts_1"] = "ts_inf"  # a particle's member: kept, or drawn each step
    discount: Rate = 1.0  # of imagined rewards, a step

    @property
    def elites(self) -> int:
        return max(1, round(self.population * self.elite_share))


@dataclass(frozen=True)
class PETSConfig(Settings):
    """Settings of PETS; the planner's are mbrl-lib's for its cartpole."""

    planner: PlannerConfig = field(default_factory=PlannerConfig)
    model: EnsembleConfig = field(
        default_factory=lambda: EnsembleConfig(
            members=5, elites=5, learning_rate=7.5e-4, weight_decay=(3e-5,)
        )
    )
    online: RefitConfig = field(
        default_factory=lambda: RefitConfig(warmup=200, refit_every=50, refit_epochs=25)
    )
    # where imagined episodes end; learned: by a probability learned from the data
    termination: Literal["task", "never", "learned"] = "task"
    gamma: Discount = 0.99  # of offline evaluation; plans have planner.discount


def refitted(
    plans: Tensor, values: Tensor, mean: Tensor, variance: Tensor, config: PlannerConfig
) -> tuple[Tensor, Tensor]:
    """Mean and variance [B, H, A] for the next iteration: those of the best plans by `values`
    [B, P] among `plans` [B, P, H, A], with the momentum of the present ones."""
    check_shapes(
        plans=(plans, "B P H A"),
        values=(values, "B P"),
        mean=(mean, "B H A"),
        variance=(variance, "B H A"),
    )
    best = values.nan_to_num(-torch.inf).topk(config.elites, 1).indices
    elites = plans.gather(1, best[:, :, None, None].expand(-1, -1, *plans.shape[2:]))
    keep = config.momentum
    return (
        keep * mean + (1 - keep) * elites.mean(1),
        keep * variance + (1 - keep) * elites.var(1, correction=0),
    )


def bounded_deviation(mean: Tensor, variance: Tensor) -> Tensor:
    """Deviation of plans in [-1, 1], such that two of it stay inside the bounds."""
    room = (1.0 - mean.abs()).clamp_min(0.0) / 2
    return torch.minimum(room, variance.sqrt())


@torch.no_grad()
def plan_values(
    model: WorldModel,
    obs: Tensor,
    actions: Tensor,
    config: PlannerConfig,
    generator: Generator,
) -> Tensor:
    """Mean over particles of the discounted reward [B, P] of open-loop `actions` [B, P, H, A], in
    the task's units, from `obs` [B, S]. A particle that ended earns nothing more."""
    batch, population, horizon, dims = actions.shape
    shape = (batch, population, config.particles)
    now = obs[:, None, None].expand(*shape, -1).flatten(0, 2)
    total = torch.zeros(len(now), device=obs.device)
    alive = torch.ones(len(now), dtype=torch.bool, device=obs.device)
    state: Tensor | None = None
    # As evenly as can be, and for every plan the same, so that plans differ in their actions alone.
    member = torch.arange(config.particles, device=obs.device) % model.num_members
    member = member.expand(shape).flatten()
    for t in range(horizon):
        action = actions[:, :, None, t].expand(*shape, dims).flatten(0, 2)
        if config.sampling == "ts_1":
            member = torch.randint(
                model.num_members, (len(now),), generator=generator, device=obs.device
            )
        chosen = member if model.num_members > 1 else None
        guess = model.predict(now, action, generator, member=chosen, state=state)
        if guess.valid is not None:
            alive = alive & guess.valid
        total = total + torch.where(alive, config.discount**t * guess.reward, 0.0)
        alive = alive & ~guess.terminated
        now, state = guess.next_obs, guess.state
    return total.view(shape).mean(2)


class CrossEntropyPlanner(nn.Module):
    """A policy that plans: raw observations in, the first action of the best plan out. Its weights
    are the world model's."""

    def __init__(self, spec: Spec, model: WorldModel, config: PlannerConfig, seed: int) -> None:
        super().__init__()
        self.model, self.config, self.seed = model, config, seed
        self.scale = ActionScale(spec)
        start = torch.zeros(config.horizon, spec.action_dim)  # a fresh plan, in [-1, 1]
        self.start = nn.Parameter(start, requires_grad=False)

    @torch.no_grad()
    def step(
        self,
        obs: Tensor,
        state: Tensor | None,
        generator: Generator | None,
        *,
        deterministic: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Actions [B, A] and the rest of the plans, shifted by a step: [B, H, A] in [-1, 1], where
        zeros are a fresh plan. Without a generator the draws are the same at every call;
        `deterministic` changes nothing, the plan's mean is acted upon."""
        c, device = self.config, self.start.device
        if generator is None:
            generator = Generator(device=device).manual_seed(self.seed)
        fresh = self.start.expand(len(obs), -1, -1)
        if state is not None and state.shape != fresh.shape:
            raise ConfigError(
                f"state has shape {tuple(state.shape)}, plans for {len(obs)} observations have "
                f"{tuple(fresh.shape)}; give back what the step before returned, or None"
            )
        mean = fresh if state is None else state.to(fresh)
        variance = torch.full_like(mean, 0.25)  # two deviations reach the bounds
        shape = (len(obs), c.population, *self.start.shape)
        for _ in range(c.iterations):
            noise = torch.empty(shape, device=device)
            nn.init.trunc_normal_(noise, a=-2.0, b=2.0, generator=generator)
            plans = mean[:, None] + bounded_deviation(mean, variance)[:, None] * noise
            values = plan_values(self.model, obs, self.scale.to_task(plans), c, generator)
            mean, variance = refitted(plans, values, mean, variance, c)
        shifted = torch.cat([mean[:, 1:], fresh[:, -1:]], 1)
        return self.scale.to_task(mean[:, 0]), shifted

    def forward(self, obs: Tensor) -> Tensor:
        """The action of a fresh plan; `step` continues one."""
        return self.step(obs, None, None)[0]

    def explore(
        self, obs: Tensor, generator: Generator | None, mask: Tensor | None = None
    ) -> Tensor:
        """The action of a fresh plan, with its draws from `generator`."""
        return self.step(obs, None, generator)[0]

    def observe_reward(self, state: Tensor, reward: Tensor, action: Tensor | None = None) -> Tensor:
        """The plan, which neither reward nor action changes."""
        return state

    def get_extra_state(self) -> Any:
        return self.model.state_dict() if isinstance(self.model, EnsembleDynamics) else None

    def set_extra_state(self, state: Any) -> None:
        if isinstance(self.model, EnsembleDynamics):
            self.model.load_state_dict(state)


class Planning:
    """The planner as a learner that learns nothing: what is learned is the world model."""

    def __init__(self, planner: CrossEntropyPlanner, config: PETSConfig) -> None:
        self.policy, self.config = planner, config
        self.modules: dict[str, nn.Module] = {"policy": planner}
        self.optimisers: dict[str, torch.optim.Optimizer] = {}

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        return batch

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        """Nothing is learned here; the model's holdout error is reported."""
        model = self.policy.model
        if not isinstance(model, EnsembleDynamics) or model.holdout_mse is None:
            return {}
        return {"model/holdout_mse": model.holdout_mse.mean()}


class PETS(Agent[Batch]):
    """Planning in a learned ensemble. Nothing but the model is learned, so updates are empty:
    `fit` fits the model to logged data, whatever its `steps`; `learn` acts, and refits it. `model`
    replaces the ensemble.

    Formula:

        model        Gaussian members p_e(s', r | s, a)
        plan         a_1 ... a_H, by the cross-entropy method, with the largest
                     mean over particles of sum_t discount^t r_t
        particle     follows the plan in one member (ts_inf), or in a random one at each step (ts_1)
        action       the first of the plan

    When not to use it: where an action has to come fast, or a policy has to be exported: it plans
    anew at every step and has none. What lies beyond the plan's horizon counts nothing.
    """

    version = 1
    config: PETSConfig

    @property
    def ready(self) -> bool:
        """Whether there is a model to plan in: an ensemble is fitted once the warm-up is over."""
        return self.learned is None or bool(self.learned.fitted)

    def build(
        self, generator: Generator, model: WorldModel | None = None
    ) -> tuple[Planning, ModelRows]:
        c = self.config
        model = model or own_ensemble(self.spec, c.model, c.termination, self.device, self.seed)
        planner = CrossEntropyPlanner(self.spec, model, c.planner, self.seed).to(self.device)
        rows = ModelRows(self.spec, model, c.gamma, 1, c.online, self.device, saves_model=False)
        return Planning(planner, c), rows
