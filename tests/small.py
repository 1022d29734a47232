"""Settings that make one training step of each algorithm cheap, and which data suits it."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from algorithms import ALGORITHMS
from mbrl.types import Dataset, Spec

T = TypeVar("T")

LEARNER = {"hidden": [16, 16], "batch_size": 16, "critics": 3}
SHAPED = {"hidden": [16, 16], "batch_size": 16}
MODEL = {
    "members": 3,
    "elites": 2,
    "hidden": [16],
    "weight_decay": [1e-5],
    "batch_size": 64,
    "min_epochs": 2,
    "max_epochs": 6,
}
MODEL_BASED = {
    "learner": LEARNER,
    "model": MODEL,
    "imagination": {"starts": 32, "every": 10, "retain": 2, "rollout": {"horizon": 3}},
}
ONLINE = {
    "warmup": 20,
    "refit_every": 10,
    "refit_epochs": 2,
    "capacity": 200,
    "updates_per_step": 2,
    "horizons": [1, 3],
    "growth": [10, 40],
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bc": {"hidden": [16]},
    "td3_bc": {"hidden": [16]},
    "rebrac": {"hidden": [16, 16], "batch_size": 32},
    "a2pr": {"hidden": [16], "critic_hidden": [16], "vae_hidden": [16]},
    "iql": {"hidden": [16]},
    "odice": {"hidden": [16], "policy_hidden": [16]},
    "f_dvl": {"hidden": [16], "uniform_actions": True},
    "recoil": {"hidden": [16], "batch_size": 32, "expert_episodes": 1},
    "awac": {"hidden": [16]},
    "crr": {"hidden": [16], "samples": 3},
    "cql": {"learner": LEARNER, "samples": 3, "threshold": 1.0},
    "sac": {"learner": LEARNER, "capacity": 500, "warmup": 20},
    "stac": {"learner": SHAPED, "capacity": 700, "warmup": 20},
    "ggd_sac": {"learner": SHAPED, "capacity": 700, "warmup": 20},
    "sac_n": {"learner": LEARNER},
    "edac": {"learner": LEARNER | {"eta": 1.0}},
    "wsrl": {"learner": LEARNER, "samples": 3, "capacity": 500, "frozen": 3, "updates_per_step": 2},
    "rlpd": {"learner": LEARNER | {"policy_every": 2}, "capacity": 500, "updates_per_step": 2},
    "ro2o": {"learner": LEARNER, "smooth": {"perturbations": 2}},
    "famo2o": {"hidden": [16]},
    "cdsa": {"hidden": [16], "td3_bc": {"hidden": [16]}},
    "ebt": {"hidden": [16], "max_steps": 4},
    "generative_bc": {"hidden": [16], "flow": {"steps": 3}},
    "fql": {"hidden": [16], "flow": {"steps": 3}},
    "idql": {"hidden": [16], "diffusion": {"steps": 3}, "candidates": 4},
    "expo": {
        "hidden": [16],
        "flow": {"steps": 3},
        "candidates": 3,
        "edited": 2,
        "critics": 3,
        "batch_size": 16,
    },
    "gcbc": {"hidden": [16], "batch_size": 32},
    "gcivl": {"hidden": [16], "batch_size": 32},
    "gciql": {"hidden": [16], "batch_size": 32},
    "contrastive_rl": {"hidden": [16], "batch_size": 32, "latent": 8},
    "hiql": {"hidden": [16], "batch_size": 32, "subgoal_steps": 5},
    "smore": {"hidden": [16], "batch_size": 32},
    "saw": {"hidden": [16], "batch_size": 32, "subgoal_steps": 5},
    "hecrl": {
        "hidden": [16],
        "batch_size": 32,
        "subgoal_steps": 5,
        "width": 8,
        "levels": 1,
        "candidates": 4,
        "diffusion": {"steps": 3},
        "held_steps": 3,
    },
    "mopo": MODEL_BASED,
    "morel": MODEL_BASED | {"threshold": 1.0},
    "combo": MODEL_BASED | {"samples": 3},
    "rambo": MODEL_BASED
    | {
        "adversary": {"every": 10, "steps": 4, "batch_size": 16},
        "cloning": {"epochs": 2, "batch_size": 64},
    },
    "mobile": MODEL_BASED | {"samples": 3},
    "pets": {
        "planner": {"horizon": 3, "population": 8, "iterations": 2, "particles": 2},
        "model": MODEL,
        "online": {"warmup": 20, "refit_every": 10, "refit_epochs": 2, "capacity": 200},
        "termination": "never",
    },
    "shac": {
        "hidden": [16],
        "critic_hidden": [16],
        "batch_size": 16,
        "horizon": 3,
        "critic_updates": 2,
        "cloning": 3,
        "critics_first": 2,
        "model": MODEL
        | {"layer_norm": True, "target": "residual", "reward": "reached", "reward_updates": 20},
        "online": {"warmup": 20, "refit_every": 10, "refit_epochs": 2, "capacity": 200},
        "termination": "never",
    },
    "mbpo": MODEL_BASED | {"online": ONLINE},
    "lift": MODEL_BASED | {"online": ONLINE},
    "coplanner": MODEL_BASED | {"online": ONLINE, "foresight": {"candidates": 3, "horizon": 2}},
    "ravl": MODEL_BASED | {"learner": LEARNER | {"eta": 1.0}},
    "neubay": {
        "learner": {
            "memory": {"width": 16, "layers": 1, "states": 8},
            "hidden": [16],
            "critics": 3,
            "tape": 64,
        },
        "model": MODEL | {"layer_norm": True, "activation": "leaky_relu", "target": "standardised"},
        "rollouts": {"parallel": 4, "capacity": 5000, "cap": 20},
    },
    "pgd": {
        "td3_bc": {"hidden": [16]},
        "generation": {"windows": 16, "every": 10},
        "model": {
            "length": 4,
            "stride": 2,
            "width": 8,
            "levels": 2,
            "updates": 20,
            "batch_size": 8,
            "sampler": "heun",
            "steps": 4,
        },
    },
    "policy_gradient": {"hidden": [16], "envs": 4, "group": 2, "minibatches": 2, "epochs": 2},
    "props": {"hidden": [16], "envs": 4, "group": 2, "minibatches": 2, "epochs": 2},
    "discrete_cql": {"hidden": [16], "critics": 2},
    "discrete_iql": {"hidden": [16]},
    "discrete_sac_n": {"hidden": [16], "critics": 3},
}


# Between them they have every source and kind of policy; the others differ in their losses, which
# tests of their own and those of saving and of going on cover for each.
REPRESENTATIVE = (
    "bc", "td3_bc", "iql", "cql", "sac", "edac", "cdsa", "wsrl", "famo2o", "generative_bc", "expo",
    "gcbc", "hiql", "smore", "mbpo", "morel", "neubay", "pgd", "pets", "shac", "policy_gradient",
    "discrete_cql",
)  # fmt: skip


def others_long(names: Iterable[str], beside: Iterable[str] = ()) -> list[Any]:
    """The names as parameters of a test, those outside `REPRESENTATIVE`, or `beside` it, marked as
    long."""
    short = set(REPRESENTATIVE) - set(beside)
    return [n if n in short else pytest.param(n, marks=pytest.mark.long) for n in names]


OFFLINE = [name for name, (cls, _) in ALGORITHMS.items() if cls.learns_offline]


def takes(algorithm: str, kind: str) -> bool:
    """Whether an algorithm takes "continuous" or "discrete" actions."""
    return kind in ALGORITHMS[algorithm][0].action_kinds


def suited(algorithm: str, continuous: T, discrete: T) -> T:
    """The one of two things that suits the algorithm; `continuous` where both do. A dataset, or the
    spec of one, has goals where the algorithm needs them."""
    if not takes(algorithm, "continuous"):
        return discrete
    return with_goals(continuous) if ALGORITHMS[algorithm][0].needs_goals else continuous


def with_goals(thing: T) -> T:
    """A dataset or a spec whose last entry of an observation stands for a goal of the first; other
    things as they are."""
    if isinstance(thing, Dataset):
        return replace(thing, spec=with_goals(thing.spec))
    if isinstance(thing, Spec):
        return replace(thing, goal=(thing.obs_dim - 1,), achieved=(0,))
    return thing
