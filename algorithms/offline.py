"""The bases of the algorithm classes: `Offline` holds the data buffer, batches and state,
`SoftOffline` adds the soft actor-critic learner. Beside them what critics share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic
from mbrl import agent as shared
from mbrl.buffer import Batch, Buffer
from mbrl.errors import ConfigError
from mbrl.networks import EnsembleMLP, Normaliser, adam, ensemble_values
from mbrl.training import Metrics
from mbrl.types import Dataset, Spec, Transitions


class Offline(ABC):
    """An algorithm that learns from logged data. A class built on it sets `policy`, `modules` and
    `optimisers`, and defines `update`."""

    version: int
    action_kinds: tuple[str, ...] = ("continuous",)  # what it takes; the other is "discrete"
    learns_offline = True  # whether it learns from logged data
    spec: Spec
    config: Any
    device: torch.device
    seed: int
    step: int
    generator: torch.Generator
    real: Buffer | None
    policy: Any
    modules: dict[str, nn.Module]
    optimisers: dict[str, torch.optim.Optimizer]

    act, predict, fit, save = shared.act, shared.predict, shared.fit, shared.save
    explored = shared.explored

    def setup(self, spec: Spec, config: Any, device: str, seed: int) -> torch.Generator:
        """Set the shared attributes; returns the generator for initial weights. Raises
        `ConfigError` for a task whose actions the algorithm cannot take."""
        require_actions(spec, type(self))
        self.spec, self.config, self.seed, self.step = spec, config, seed, 0
        self.device = shared.resolve_device(device)
        initial, self.generator = shared.generators(seed, self.device)
        self.real = None
        self.reward_scale = 1.0  # of stored rows
        return initial

    def own(self, rate: float, learned: Mapping[str, nn.Module], **targets: nn.Module) -> None:
        """Keep networks under their names: `learned` ones get an Adam of `rate` each."""
        self.modules = {**learned, **targets}
        self.optimisers = {name: adam(m.parameters(), rate) for name, m in learned.items()}

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Put the dataset on the device and, at the first call, fit the observation normaliser.
        Raises `ConfigError` where rewards cannot be normalised."""
        if self.real is not None:
            return
        if getattr(self.config, "normalise_rewards", False):
            self.reward_scale = return_scale(dataset.transitions)
        self.real = self.stored(dataset.transitions)
        if self.step == 0 and getattr(self.config, "normalise_obs", False):
            for module in self.modules.values():
                normaliser = getattr(module, "normaliser", None)
                if isinstance(normaliser, Normaliser):
                    normaliser.fit(dataset.transitions.obs.to(self.device), eps=1e-3)

    def stored(self, data: Transitions) -> Buffer:
        """A buffer on the device that holds exactly `data`, rewards times `reward_scale`."""
        buffer = Buffer(self.spec, len(data), self.config.gamma, self.device)
        buffer.append(replace(data, reward=data.reward * self.reward_scale))
        return buffer

    def data_buffer(self) -> Buffer:
        if self.real is None:
            raise ConfigError(
                f"{type(self).__name__} has no data yet; call fit(dataset, steps) or "
                "prepare(dataset)"
            )
        return self.real

    def next_batch(self) -> Batch:
        """A uniform batch of real rows."""
        return self.data_buffer().sample(self.config.batch_size, self.generator)

    @abstractmethod
    def update(self, batch: Batch) -> Metrics:
        """One step of everything that is learned."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "modules": {k: v.state_dict() for k, v in self.modules.items()},
            "optimisers": {k: v.state_dict() for k, v in self.optimisers.items()},
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, module in self.modules.items():
            module.load_state_dict(state["modules"][name])
        for name, optimiser in self.optimisers.items():
            optimiser.load_state_dict(state["optimisers"][name])
        self.generator.set_state(state["generator"])

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> Self:
        """Read an agent that `save` or a run's checkpoint wrote."""
        return shared.load(cls, path, device)


@dataclass(frozen=True)
class SoftConfig:
    """The settings of an algorithm that owns a soft actor-critic learner."""

    learner: LearnerConfig = field(default_factory=LearnerConfig)

    @property
    def gamma(self) -> float:
        return self.learner.gamma


class SoftOffline(Offline):
    """A soft actor-critic learner on logged data alone."""

    def __init__(self, spec: Spec, config: SoftConfig, device: str, seed: int) -> None:
        initial = self.setup(spec, config, device, seed)
        self.learner = SoftActorCritic(spec, config.learner, self.device, initial)
        self.modules, self.optimisers = self.learner.modules, self.learner.optimisers
        self.policy = self.learner.actor

    def next_batch(self) -> Batch:
        """A uniform batch of real rows with its random draws."""
        batch = self.data_buffer().sample(self.config.learner.batch_size, self.generator)
        return self.learner.draw(batch, self.generator)

    def update(self, batch: Batch) -> Metrics:
        return self.learner.update(batch)


def return_scale(data: Transitions) -> float:
    """1000 over the range of the episodes' returns: what IQL's authors multiply the rewards of
    D4RL's locomotion by. Raises `ConfigError` where all returns are the same."""
    returns = data.returns()
    width = float(returns.max() - returns.min())
    if width == 0:
        raise ConfigError(
            f"all {len(returns)} episodes of the data have the return {float(returns[0]):g}, whose "
            "range rewards cannot be normalised by; set normalise_rewards to False"
        )
    return 1000.0 / width


def require_actions(spec: Spec, algorithm: type[Offline]) -> None:
    """Raise `ConfigError` unless `algorithm` takes actions of the task's kind."""
    from algorithms import ALGORITHMS  # the table imports this module

    kind = "discrete" if spec.discrete else "continuous"
    if kind in algorithm.action_kinds:
        return
    able = [name for name, (cls, _) in ALGORITHMS.items() if kind in cls.action_kinds]
    raise ConfigError(
        f"{algorithm.__name__} needs {algorithm.action_kinds[0]} actions and those of task "
        f"{spec.task!r} are {kind}; algorithms that take them: {', '.join(able)}"
    )


def critics(
    spec: Spec,
    members: int,
    hidden: Sequence[int],
    generator: torch.Generator,
    *,
    layer_norm: bool = False,
) -> EnsembleMLP:
    """Q(s, a) with one output or, for discrete actions, Q(s) with one output an action."""
    width = spec.obs_dim if spec.discrete else spec.obs_dim + spec.action_dim
    outputs = spec.num_actions or 1
    return EnsembleMLP(members, width, hidden, outputs, layer_norm=layer_norm, generator=generator)


def q_values(critic: EnsembleMLP, obs: Tensor, action: Tensor) -> Tensor:
    """Q_n(s, a) [N, B] at `obs` [B, S] and `action` [B, A], or int64 [B] where `critic` has one
    output an action."""
    if critic.out_dim > 1:
        return chosen(critic(obs), action)
    x = torch.cat([obs, action], -1)
    return critic(x)[..., 0] if critic.layer_norm else ensemble_values(critic, x)[0]


def sampled_q_values(critic: EnsembleMLP, obs: Tensor, actions: Tensor) -> Tensor:
    """Q_n(s, a_k) [N, K, B] of K actions a state, `actions` [K, B, A], in one call."""
    samples, batch = actions.shape[:2]
    repeated = obs.expand(samples, *obs.shape).flatten(0, 1)
    return q_values(critic, repeated, actions.flatten(0, 1)).unflatten(1, (samples, batch))


def chosen(q: Tensor, action: Tensor) -> Tensor:
    """The entries [N, B] of `q` [N, B, actions] at int64 `action` [B]."""
    return q.gather(-1, action.expand(len(q), -1)[..., None])[..., 0]
