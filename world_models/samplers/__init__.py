"""Samplers of diffusion models behind one signature; see `base.Sampler`."""

from collections.abc import Callable
from functools import partial

from world_models.samplers.base import Before, Denoiser, Sampler, check_levels, edm_levels
from world_models.samplers.budget_forcing import BudgetForcing, denoiser_of_flow
from world_models.samplers.consistency import (
    Consistency,
    DistillationConfig,
    consistency_function,
    distil,
)
from world_models.samplers.discrete import Process, TauLeaping, learn_few_steps, learn_on_own_path
from world_models.samplers.exponential import DEIS, DPMSolverPP
from world_models.samplers.feynman_kac import FeynmanKac, Particles, systematic
from world_models.samplers.minority import LevelConfig, MinorityGuidance, fit_levels, minority_score
from world_models.samplers.mmd import finetune_by_mmd, mmd_squared, radial_kernel
from world_models.samplers.one_step import DDIM, Churn, Euler, Heun
from world_models.samplers.plan import Choice, Plan, Schedule, SearchConfig, search, uniform_plan
from world_models.samplers.score_distillation import ScoreDistillation
from world_models.samplers.time_shift import TimeShift
from world_models.samplers.tree import DiffusionTree

# By the name that a configuration gives; those that need more than numbers are built in Python.
SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "euler": Euler,
    "heun": Heun,
    "churn": Churn,
    "ddim": DDIM,
    "ddpm": partial(DDIM, eta=1.0),
    "dpm_solver_pp": DPMSolverPP,
    "dpm_solver_pp_3": partial(DPMSolverPP, order=3),
    "deis": DEIS,
    "deis_1": partial(DEIS, degree=1),
    "deis_2": partial(DEIS, degree=2),
}

__all__ = [
    "DDIM",
    "DEIS",
    "SAMPLERS",
    "Before",
    "BudgetForcing",
    "Choice",
    "Churn",
    "Consistency",
    "DPMSolverPP",
    "Denoiser",
    "DiffusionTree",
    "DistillationConfig",
    "Euler",
    "FeynmanKac",
    "Heun",
    "LevelConfig",
    "MinorityGuidance",
    "Particles",
    "Plan",
    "Process",
    "Sampler",
    "Schedule",
    "ScoreDistillation",
    "SearchConfig",
    "TauLeaping",
    "TimeShift",
    "check_levels",
    "consistency_function",
    "denoiser_of_flow",
    "distil",
    "edm_levels",
    "finetune_by_mmd",
    "fit_levels",
    "learn_few_steps",
    "learn_on_own_path",
    "minority_score",
    "mmd_squared",
    "radial_kernel",
    "search",
    "systematic",
    "uniform_plan",
]
