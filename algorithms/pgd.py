"""PGD: Policy-Guided Diffusion (arXiv 2404.06356): an off-policy learner on windows that a
diffusion model of the data generates, guided towards the learner's policy, and on real rows.

Differences: the learner is one of this library's, with its own schedule (the authors' TD3+BC
updates the actor after two critic updates on one batch); generated steps after the task's end are
left out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from algorithms import offline
from algorithms.awac import AWAC, AWACConfig
from algorithms.cql import CQL, CQLConfig
from algorithms.crr import CRR, CRRConfig
from algorithms.edac import EDAC, EDACConfig
from algorithms.iql import IQL, IQLConfig
from algorithms.rebrac import ReBRAC, ReBRACConfig
from algorithms.sac_n import SACN, SACNConfig
from algorithms.td3_bc import TD3BC, TD3BCConfig
from mbrl.buffer import Batch, Buffer, sample_mixed
from mbrl.errors import ConfigError
from mbrl.training import Metrics
from mbrl.types import Dataset, Spec, Transitions
from world_models import DiffusionConfig, PolicyGuidance, TrajectoryDiffusion
from world_models.guidance import log_prob

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
FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


@dataclass(frozen=True)
class GenerationConfig:
    """When, how much and how guided windows are generated."""

    windows: int = 8192  # at a time; they replace those before
    every: int = 10_000  # updates from one generation to the next; the first is not guided
    real_ratio: float = 0.0625  # share of real rows in a batch
    weight: float = 1.0  # lambda of the guidance; 0: none
    mode: Literal["paper", "score"] = "paper"  # how the guidance enters a sampler
    normalise: bool = True  # divide its gradient by the norm over a window (paper alone)
    cosine: float = 0.3  # beta of its schedule (paper alone)
    denoised: bool = False  # take its gradient at the denoised window

    def __post_init__(self) -> None:
        for name in ("windows", "every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if not 0 <= self.real_ratio <= 1:
            raise ConfigError(f"real_ratio is {self.real_ratio}, it must lie in [0, 1]")
        self.guidance(None)

    def guidance(self, policy: Any) -> PolicyGuidance:
        return PolicyGuidance(
            policy, self.weight, self.mode, self.normalise, self.cosine, self.denoised
        )


@dataclass(frozen=True)
class PGDConfig:
    """Settings of PGD; those of the learners that `learner` does not name are not used."""

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


class Mixture:
    """What the learner samples from in place of its data: real and generated rows, in a fixed
    ratio in every batch."""

    def __init__(self, real: Buffer, generated: Buffer, real_ratio: float) -> None:
        self.real, self.generated, self.real_ratio = real, generated, real_ratio

    def sample(self, count: int, generator: torch.Generator) -> Batch:
        rows = sample_mixed(self.real, self.generated, count, self.real_ratio, generator)
        return self.real.batch(rows)


class PGD(offline.Offline):
    """An off-policy learner on real and generated windows. `model` replaces the generator (one that
    is fitted already); its settings take the place of those in `config`."""

    version = 1

    def __init__(
        self,
        spec: Spec,
        config: PGDConfig | None = None,
        *,
        model: TrajectoryDiffusion | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.config: PGDConfig
        config = config or PGDConfig()
        if model is not None:
            config = replace(config, model=model.config)  # what a saved agent is loaded with
        self.setup(spec, config, device, seed)
        name = self.config.learner
        self.learner: Any = LEARNERS[name](
            spec, getattr(self.config, name), device=device, seed=seed
        )
        self.modules, self.optimisers = self.learner.modules, self.learner.optimisers
        self.policy = self.learner.policy
        if model is None:
            model = TrajectoryDiffusion(spec, self.config.model, device=self.device, seed=seed)
        self.model = model
        self.steps: Transitions | None = None  # generated ones
        self.found: Metrics = {}  # waits for the update that reports it

    @property
    def learned(self) -> TrajectoryDiffusion:
        return self.model

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Put the data on the device and fit the generator, continuing an unfinished fit."""
        if self.real is None:
            self.learner.step = self.step
            self.learner.prepare(dataset, lambda metrics: None)
            self.real = self.learner.real
            self._mix()
        if not self.model.fitted:
            self.model.fit(dataset.transitions, on_progress)

    def _mix(self) -> None:
        """Let the learner sample from both kinds of rows, once there are both."""
        if self.real is not None and self.steps is not None:
            generated = self.learner.stored(self.steps)
            self.learner.real = Mixture(self.real, generated, self.config.generation.real_ratio)

    def next_batch(self) -> Batch:
        """Generate anew when due, then a batch as the learner draws it."""
        self.data_buffer()
        if self.step % self.config.generation.every == 0 and self.config.generation.real_ratio < 1:
            self.generate()
        batch: Batch = self.learner.next_batch()
        return batch

    def generate(self) -> None:
        """Replace the generated rows; the first time without guidance, for there is no policy
        yet."""
        generation = self.config.generation
        guidance = generation.guidance(self.policy) if self.step > 0 else None
        found = self.model.sample(generation.windows, self.generator, guidance=guidance)
        self.steps = found.transitions()
        self._mix()
        self.found = self.describe(self.steps)

    @torch.no_grad()
    def describe(self, steps: Transitions) -> Metrics:
        """Of generated steps: log pi(a|s) of the present policy, and how many end the task."""
        unit = self.policy.scale.to_unit(steps.action)
        return {
            "generated/log_prob": log_prob(self.policy, steps.obs, unit).mean(),
            "generated/terminated": steps.terminated.float().mean(),
            "generated/reward": steps.reward.mean(),
        }

    def update(self, batch: Batch) -> Metrics:
        found, self.found = self.found, {}
        self.learner.step = self.step
        metrics: Metrics = self.learner.update(batch)
        return metrics | found

    def state_dict(self) -> dict[str, Any]:
        steps = self.steps
        state: dict[str, Any] = self.learner.state_dict()
        return state | {
            "model": self.model.state_dict(),
            "generating": self.generator.get_state(),
            "steps": None if steps is None else {name: getattr(steps, name) for name in FIELDS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        self.model.load_state_dict(state["model"])
        self.generator.set_state(state["generating"])
        steps = state["steps"]
        self.steps = None if steps is None else Transitions(**steps).to(self.device)
        self._mix()
