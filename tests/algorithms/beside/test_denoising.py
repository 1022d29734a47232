"""Training of denoisers by reward against the authors' code.

DDPO: kvablack/ddpo-pytorch at 1958463, `ddim_step_with_logprob` (diffusers_patch/
ddim_with_logprob.py) with diffusers 0.42.1's linear schedule in ten steps from steps 801, 501 and
201, and the loss of scripts/train.py (lines 539 to 551) with clips 1e-3 and 5, in float64. Its
samples are ours times alpha, so its log-densities are lower by log alpha, which is added here.
Denoiser of `tests/world_models/beside/denoiser.py`, eta 0.7, x = sigma normal(110, 3, 5, 8) +
normal(111, ...), reached 0.3 sigma' normal(112, ...) + x sigma' / sigma or by noise
normal(113, ...); log-probabilities 1e-3 normal(114, 12) before and 1e-3 normal(115, 12) now,
advantages 4 normal(116, 12).

BranchGRPO: Fredreic1849/BranchGRPO at 19fbb9f, `compute_node_rewards_from_leaves` and
`compute_hierarchical_advantages_by_depth` (fastvideo/train_branchgrpo_flux.py), for two trees of
four depths that split before the first and the third, with rewards normal(120, 4), normal(121, 4).
"""

import pytest
import torch

from algorithms.diffusion_rl.branches import node_advantages
from algorithms.diffusion_rl.chains import Moves, density, distribution
from algorithms.diffusion_rl.finetuning import FinetuningConfig
from algorithms.language.adapters import loss
from tests.algorithms.beside.inputs import array, digest
from tests.world_models.beside.denoiser import SHAPE, denoise, draws

NOW = [25.945424350122337, 3.461922846252032, 0.7279166627697242]
THEN = [12.110893895896034, 2.051380093426625, 0.3456967397064995]


def moves() -> Moves:
    now, then = (torch.tensor(level, dtype=torch.float64) for level in (NOW, THEN))
    here, there = now[:, None, None], then[:, None, None]
    x = here * draws(110, *SHAPE) + draws(111, *SHAPE)
    reached = 0.3 * there * draws(112, *SHAPE) + x * there / here
    return Moves(x, reached, now, then, now, now, torch.ones_like(x[0]))


def test_density_of_a_step() -> None:
    made = moves()
    mean, spread = distribution(denoise, made, 0.7)
    got = density(made.reached, mean, spread, made.free)
    assert got.tolist() == pytest.approx([-3.119051862, -1.268536749, -2.401648302], rel=1e-6)
    reached = mean + spread[:, None, None] * draws(113, *SHAPE)
    assert digest([array(reached)]) == pytest.approx(127.8544188, rel=1e-6)
    got = density(reached, mean, spread, made.free)
    assert got.tolist() == pytest.approx([-3.767078871, -1.390708718, 0.1130573475], rel=1e-6)


def test_clipped_loss() -> None:
    old, now, advantage = 1e-3 * draws(114, 12), 1e-3 * draws(115, 12), 4 * draws(116, 12)
    now.requires_grad_()
    config = FinetuningConfig(clip=1e-3, clamp=5.0)
    clamped = advantage.clamp(-config.clamp, config.clamp)[:, None]
    ones = torch.ones_like(clamped)
    value, _ = loss(config.recipe, now[:, None], clamped, ones, old=old[:, None])
    (gradient,) = torch.autograd.grad(value, now)
    got = [value.item(), digest([array(gradient)])]
    assert got == pytest.approx([0.03054050598, 0.2057117823], rel=1e-6)


def test_advantages_of_nodes() -> None:
    reward = torch.stack([draws(120, 4), draws(121, 4)])
    late = [
        [-0.70289032, 1.346695764, 0.170597489, -0.8144029325],
        [0.2938501666, -0.2992399273, 1.19099049, -1.18560073],
    ]
    early = [[0.7071067608, -0.7071067608], [-0.7071034815, 0.7071034815]]
    for got, expected in zip(
        node_advantages(reward, [1, 2, 2, 4, 4]),
        [[[0.0], [0.0]], early, early, late, late],
        strict=True,
    ):
        assert torch.allclose(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-8)
