"""PROPS' sampling policy against the authors' code: NicholasCorrado/PROPS at d5d91bd,
`props_update` (ppo_discrete.py), which has no divergence in its loss, in float64. Log-probabilities
0.4 normal(170, 12) of the sampling policy, 0.4 normal(171, 12) of the learned one; clip 0.3."""

import pytest
import torch

from algorithms.props import PROPSConfig, sampling_loss
from mbrl.types import Trajectories
from tests.algorithms.beside.inputs import array, digest, normal


def test_sampling_loss() -> None:
    log_prob = torch.as_tensor(0.4 * normal(170, 1, 12)).requires_grad_()
    old = torch.as_tensor(0.4 * normal(171, 1, 12))
    empty = torch.zeros(1, 12, 1)
    ended = torch.zeros(1, 12, dtype=torch.bool)
    steps = Trajectories(empty, empty, old, empty, ended, ended, ~ended, log_probs={"old": old})
    config = PROPSConfig(sampling_clip=0.3, sampling_kl=0.0, stop_kl=1.0)
    loss = sampling_loss(log_prob, steps, torch.zeros_like(old), config)
    (gradient,) = torch.autograd.grad(loss, log_prob)
    got = [loss.item(), digest([array(gradient)])]
    assert got == pytest.approx([1.353890536, -0.1643906511], rel=1e-8)
