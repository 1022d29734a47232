"""What the critics of all learners share: how they are built, values of logged and of sampled
actions, and a step of regression."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mbrl.buffer import Batch
from mbrl.native.actor_critic import critic_steps
from mbrl.networks import EnsembleMLP, Normaliser, descend, ensemble_values
from mbrl.training import Metrics
from mbrl.types import Spec


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
    values = q_values(critic, repeated, actions.flatten(0, 1))
    return values.view(-1, samples, batch)


def chosen(q: Tensor, action: Tensor) -> Tensor:
    """The entries [N, B] of `q` [N, B, actions] at int64 `action` [B]."""
    return q.gather(-1, action.expand(len(q), -1)[..., None])[..., 0]


def value_critics(
    spec: Spec, members: int, hidden: Sequence[int], generator: torch.Generator
) -> EnsembleMLP:
    """V(s), standardising the observation once its normaliser is fitted."""
    critic = EnsembleMLP(members, spec.obs_dim, hidden, 1, generator=generator)
    critic.standardise(spec.obs_dim)
    return critic


def state_values(critic: EnsembleMLP, obs: Tensor) -> Tensor:
    """V_n(s) [N, B] at `obs` [B, S], differentiable in both."""
    return critic(obs)[..., 0]


class CriticRegression:
    """Steps of `critic` on `scale` times the sum over members of the mean squared error of logged
    actions' values, in compiled code where it can be; `normaliser` standardises observations."""

    def __init__(
        self,
        spec: Spec,
        critic: EnsembleMLP,
        optimiser: torch.optim.Optimizer,
        normaliser: Normaliser,
        scale: float = 1.0,
    ) -> None:
        self.critic, self.optimiser = critic, optimiser
        self.normaliser, self.scale = normaliser, scale
        self.compiled = critic_steps(spec, critic, optimiser, inputs=normaliser, scale=scale)

    def ready(self, batch: Batch) -> bool:
        """Whether the step is compiled code's."""
        return self.compiled is not None and self.compiled.ready(batch)

    def step(self, batch: Batch, target: Tensor) -> Metrics:
        """One step towards `target` [B], or [N, B] with a row for each member."""
        if self.compiled is not None and target.ndim == 1 and self.ready(batch):
            loss, mean, *_ = self.compiled.step(batch, target)
            return {"critic/loss": loss, "critic/q_mean": mean}
        q = q_values(self.critic, self.normaliser(batch.obs), batch.action)
        error = (q - target).square().mean(1).sum() * self.scale
        descend(self.optimiser, error)
        return {"critic/loss": error.detach(), "critic/q_mean": q.detach().mean()}
