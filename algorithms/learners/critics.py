"""What the critics of all learners share: how they are built, and values of logged and of sampled
actions."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mbrl.networks import EnsembleMLP, ensemble_values
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
