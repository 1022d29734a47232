"""Diffusion models trained by reward: a denoising step is an action whose density is known, so that
the objective of `mbrl.policy_gradient` takes it as it takes a token or a torque."""

from algorithms.diffusion_rl.chains import Fixed, Moves, log_prob, sample
from algorithms.diffusion_rl.conditioning import conditional_loss, fit_conditional
from algorithms.diffusion_rl.finetuning import DiffusionFinetuning, FinetuningConfig
from algorithms.diffusion_rl.preferences import group_loss
from algorithms.diffusion_rl.rewards import reward_at_states, simulated_return, window_error

__all__ = [
    "DiffusionFinetuning",
    "FinetuningConfig",
    "Fixed",
    "Moves",
    "conditional_loss",
    "fit_conditional",
    "group_loss",
    "log_prob",
    "reward_at_states",
    "sample",
    "simulated_return",
    "window_error",
]
