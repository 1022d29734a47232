"""PGD: Policy-Guided Diffusion (arXiv 2404.06356): an off-policy learner on windows that a
diffusion model of the data generates, guided towards the learner's policy, and on real rows.

Differences: the learner is one of this library's, with its own schedule (the authors' TD3+BC
updates the actor after two critic updates on one batch: `policy_every` 1 and `critic_steps` 2; the
defaults do half of that work an update); generated steps after the task's end are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from algorithms.awac import AWAC, AWACConfig
from algorithms.cql import CQL, CQLConfig
from algorithms.crr import CRR, CRRConfig
from algorithms.edac import EDAC, EDACConfig
from algorithms.iql import IQL, IQLConfig
from algorithms.rebrac import ReBRAC, ReBRACConfig
from algorithms.sac_n import SACN, SACNConfig
from algorithms.sources.logged import LoggedRows
from algorithms.td3_bc import TD3BC, TD3BCConfig
from mbrl.agent import Agent, Learner
from mbrl.buffer import Batch, Rows, sample_mixed
from mbrl.collector import CollectorConfig
from mbrl.config import Count, Finite, NonNegative, Probability, Settings, Share
from mbrl.errors import ConfigError
from mbrl.generators import generators, set_state
from mbrl.training import Metrics
from mbrl.types import Dataset, Transitions
from world_models import DiffusionConfig, PolicyGuidance, TrajectoryDiffusion
from world_models.guidance import log_prob, weight_for

LEARNERS: dict[str, Any] = {
    "td3_bc": TD3BC,
    "iql": IQL,
    "rebrac": ReBRAC,
    "awac": AWAC,
    "crr": CRR,
    "cql": CQL,
    "sac_n": SACN,
    "edac": EDAC,
}
PROBES = 256  # windows that a level is measured on
FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


@dataclass(frozen=True)
class GenerationConfig(Settings):
    """When, how much and how guided windows are generated."""

    windows: Count = 8192  # at a time; they replace those before
    every: Count = 10_000  # updates from one generation to the next; the first is not guided
    real_ratio: Probability = 0.0625  # share of real rows in a batch
    weight: NonNegative = 1.0  # lambda of the guidance; 0: none
    # instead of that weight, the one with which the mean log-density of generated actions is this
    # share of the way from logged actions' to that of the policy's greedy ones
    level: Share | None = None
    mode: Literal["paper", "score"] = "paper"  # how the guidance enters a sampler
    normalise: bool = True  # divide its gradient by the norm over a window (paper alone)
    cosine: Finite = 0.3  # beta of its schedule (paper alone)
    denoised: bool = False  # take its gradient at the denoised window

    def __post_init__(self) -> None:
        super().__post_init__()
        self.guidance(None, self.weight)
        if self.level is not None and self.weight == 0:
            raise ConfigError(
                f"level is {self.level} with weight 0; the weight, from which the one of the level "
                "is searched, must be above 0"
            )

    def guidance(self, policy: Any, weight: float) -> PolicyGuidance:
        return PolicyGuidance(policy, weight, self.mode, self.normalise, self.cosine, self.denoised)


@dataclass(frozen=True)
class PGDConfig(Settings):
    """Settings of PGD; those of the learners that `learner` does not name are not used."""

    # whose loss is trained
    learner: Literal["td3_bc", "iql", "rebrac", "awac", "crr", "cql", "sac_n", "edac"] = "td3_bc"
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    model: DiffusionConfig = field(default_factory=DiffusionConfig)
    td3_bc: TD3BCConfig = field(default_factory=TD3BCConfig)
    iql: IQLConfig = field(default_factory=IQLConfig)
    rebrac: ReBRACConfig = field(default_factory=ReBRACConfig)
    awac: AWACConfig = field(default_factory=AWACConfig)
    crr: CRRConfig = field(default_factory=CRRConfig)
    cql: CQLConfig = field(default_factory=CQLConfig)
    sac_n: SACNConfig = field(default_factory=SACNConfig)
    edac: EDACConfig = field(default_factory=EDACConfig)

    @property
    def gamma(self) -> float:
        gamma: float = getattr(self, self.learner).gamma
        return gamma


class GeneratedRows:
    """Batches of `real_ratio` real rows, from `real`, and of rows of generated windows."""

    def __init__(
        self,
        real: LoggedRows,
        policy: Any,
        model: TrajectoryDiffusion,
        config: GenerationConfig,
        generator: Generator,
    ) -> None:
        self.real, self.policy, self.model, self.config = real, policy, model, config
        self.generator = generator  # of the windows
        self.generated: Rows | None = None
        self.steps: Transitions | None = None  # what the buffer was made of
        self.weight = config.weight  # of the newest guidance

    @property
    def collection(self) -> CollectorConfig:
        return self.real.collection

    @collection.setter
    def collection(self, value: CollectorConfig) -> None:
        self.real.collection = value

    def allows(self, collection: CollectorConfig) -> None:
        """Raises `ConfigError` for settings that experience which has begun cannot follow."""
        self.real.allows(collection)

    @property
    def logged(self) -> int:
        return self.real.logged

    @property
    def reward_scale(self) -> float:
        """What the learner's rewards are multiples of."""
        return self.real.reward_scale

    @property
    def learned(self) -> TrajectoryDiffusion:
        return self.model

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Put the data on the device and fit the generator, continuing an unfinished fit."""
        self.real.prepare(dataset, on_progress)
        self._store()
        if not self.model.fitted:
            self.model.fit(dataset.transitions, on_progress)

    def observe(self, data: Transitions, step: int) -> None:
        """Add experience. The generator stays as it was fitted."""
        self.real.observe(data, step)

    def advance(self, step: int, generator: Generator) -> Metrics:
        """Generate anew when due."""
        if step % self.config.every == 0 and self.config.real_ratio < 1:
            return self.generate(guided=step > 0)
        return {}

    def generate(self, *, guided: bool) -> Metrics:
        """Replace the generated rows; before the first update without guidance, for there is no
        policy yet."""
        guidance, metrics = None, {}
        if guided:
            metrics = self.set_weight()
            guidance = self.config.guidance(self.policy, self.weight)
        windows = self.model.sample(self.config.windows, self.generator, guidance=guidance)
        self.steps = windows.transitions()
        self._store()
        return self.describe(self.steps) | metrics

    def set_weight(self) -> Metrics:
        """Search the weight of the `level`, on windows from the noise of those to come."""
        if self.config.level is None:
            return {}
        low, high = self.densities()
        state, count = self.generator.get_state(), min(PROBES, self.config.windows)

        def level(weight: float) -> float:
            generator = Generator(device=self.generator.device)
            generator.set_state(state)
            guidance = self.config.guidance(self.policy, weight)
            steps = self.model.sample(count, generator, guidance=guidance).transitions()
            return float((self.density(steps.obs, steps.action) - low) / (high - low))

        self.weight = weight_for(level, self.config.level, self.weight or self.config.weight)
        return {
            "generated/weight": torch.tensor(self.weight),
            "generated/level": torch.tensor(level(self.weight)),
        }

    @torch.no_grad()
    def densities(self) -> tuple[Tensor, Tensor]:
        """Mean log pi(a|s) of the present policy at logged observations: of the logged actions, and
        of the policy's greedy ones."""
        rows = self.real.rows.whole()
        logged = log_prob(self.policy, rows.obs, rows.action).mean()
        return logged, self.density(rows.obs, self.policy(rows.obs))

    @torch.no_grad()
    def density(self, obs: Tensor, action: Tensor) -> Tensor:
        """Mean log pi(a|s) of the present policy at `obs` [N, S] and `action` [N, A] in the task's
        units."""
        return log_prob(self.policy, obs, self.policy.scale.to_unit(action)).mean()

    def _store(self) -> None:
        if self.steps is not None:
            self.generated = self.real.to_buffer(self.steps)

    @torch.no_grad()
    def describe(self, steps: Transitions) -> Metrics:
        """Of generated steps: log pi(a|s) of the present policy, and how many end the task."""
        return {
            "generated/log_prob": self.density(steps.obs, steps.action),
            "generated/terminated": steps.terminated.float().mean(),
            "generated/reward": steps.reward.mean(),
        }

    def sample(self, generator: Generator) -> Batch:
        """Real rows, then generated ones, once there are both."""
        if self.generated is None:
            return self.real.sample(generator)
        count, ratio = self.real.batch_size, self.config.real_ratio
        return sample_mixed(self.real.rows, self.generated, count, ratio, generator)

    def state_dict(self) -> dict[str, Any]:
        steps = self.steps
        return self.real.state_dict() | {
            "model": self.model.state_dict(),
            "generating": self.generator.get_state(),
            "weight": self.weight,
            "steps": None if steps is None else {name: getattr(steps, name) for name in FIELDS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.real.load_state_dict(state)
        self.model.load_state_dict(state["model"])
        set_state(self.generator, state["generating"], state.get("updates", 0))
        self.weight = state.get("weight", self.config.weight)  # not in old checkpoints
        steps = state["steps"]
        self.steps = None if steps is None else Transitions(**steps).to(self.real.device)
        self._store()


class PGD(Agent[Batch]):
    """An off-policy learner on real and generated windows. `model` replaces the generator (one that
    is fitted already); its settings take the place of those in `config`.

    Formula:

        windows      tau ~ p(tau) of a diffusion model of logged windows
        guidance     before each step of its sampler actions move along the gradient of
                     sum_t log pi(a_t | s_t), by lambda times a schedule
        rows         `real_ratio` logged ones, the others from the newest windows
        learner      the loss of `learner` (TD3+BC, IQL, ...) on these rows

    When not to use it: with small data and budgets: in the table policy-guided neither TD3+BC nor
    IQL is better on guided windows than on the real rows, and IQL is worse. Only TD3+BC with ten
    times the updates gained, in one seed.
    """

    version = 1
    config: PGDConfig

    def build(
        self, generator: Generator, model: TrajectoryDiffusion | None = None
    ) -> tuple[Learner[Batch], GeneratedRows]:
        if model is None:
            model = TrajectoryDiffusion(
                self.spec, self.config.model, device=self.device, seed=self.seed
            )
        else:  # what a saved agent is loaded with
            self.config = replace(self.config, model=model.config)
        c, name = self.config, self.config.learner
        base = LEARNERS[name](self.spec, getattr(c, name), device=str(self.device), seed=self.seed)
        _, windows = generators(self.seed, self.device)
        source = GeneratedRows(base.source, base.policy, model, c.generation, windows)
        return base.learner, source
