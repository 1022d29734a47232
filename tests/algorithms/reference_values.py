"""Slow forms of formulas that more than one test file compares with."""

import math
from typing import Any

import numpy as np
import torch
from scipy import special, stats

from mbrl.buffer import Batch


def slow_value(critic: Any, n: int, obs: torch.Tensor, action: Any) -> float:
    """Q_n of one observation and one action in [-1, 1]."""
    x = torch.cat([obs, torch.as_tensor(action, dtype=torch.float32)])
    return float(critic.member(x[None], n).detach())


def slow_soft_maximum(learner: Any, batch: Batch, n: int, b: int, samples: int) -> float:
    """log sum_k exp(Q_n(s_b, a_k) - log mu(a_k)), an action after the other: `samples` uniform
    ones, then pairs of the policy's at the observation and at the next one, from the batch's draws
    behind the learner's two."""
    assert batch.noise is not None
    noise, terms = batch.noise.double(), []
    for k in range(3 * samples):
        if k < samples:
            action = 2 * stats.norm.cdf(noise[2 + k, b].numpy()) - 1
            density = -math.log(2.0) * len(action)
        else:
            source = batch.obs if (k - samples) % 2 == 0 else batch.next_obs
            mean, log_std = learner.actor.distribution(source[b])
            mean, std = mean.detach().double().numpy(), log_std.detach().exp().numpy()
            pre = mean + std * noise[2 + k, b].numpy()
            action = np.tanh(pre)
            logs = stats.norm.logpdf(pre, mean, std) - np.log(1 - action**2)
            density = float(logs.sum())
        terms.append(slow_value(learner.critic, n, batch.obs[b], action) - density)
    return float(special.logsumexp(terms))
