"""What an agent's own critics say of its greedy policy, for whichever learner has critics."""

from typing import Any

import torch
from torch import Tensor

from algorithms.learners.critics import q_values, state_values
from mbrl.networks import EnsembleMLP
from mbrl.training import chosen_action, is_stateful


@torch.no_grad()
def critic_values(agent: Any, obs: Tensor, mask: Tensor | None = None) -> Tensor | None:
    """The least of the critics' Q(s, pi(s)), or V(s), [B] at raw `obs` [B, S], in the task's units
    of reward, for actions that `mask` [B, n] allows where there is one; None where the agent has no
    critics of states alone, or they are about no reward (`in_rewards` of the learner). A learner
    with `policy_values` says itself."""
    learner, policy = getattr(agent, "learner", None), agent.policy
    if not getattr(learner, "in_rewards", True):
        return None
    if learner is not None and hasattr(learner, "policy_values"):
        own: Tensor = learner.policy_values(obs.to(next(policy.parameters()).device).float())
        return own
    critic = getattr(learner, "critic", None) or getattr(policy, "critic", None)
    if not isinstance(critic, EnsembleMLP) or is_stateful(policy):
        return None
    obs = obs.to(next(policy.parameters()).device).float()
    action = chosen_action(policy, obs, None, deterministic=True, mask=mask)
    if not agent.spec.discrete:
        action = policy.scale.to_unit(action)
    # Some critics standardise their inputs themselves.
    seen = policy.normaliser(obs) if critic.normaliser is None else obs
    if critic.in_dim == agent.spec.obs_dim and not agent.spec.discrete:
        values = state_values(critic, seen).min(0).values
    else:
        values = q_values(critic, seen, action).min(0).values
    scale: float = getattr(learner, "reward_scale", getattr(agent.source, "reward_scale", 1.0))
    return values / scale
