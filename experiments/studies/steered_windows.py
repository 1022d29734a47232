"""Search at sampling time for windows that earn much, by samplers that are given the same number of
network evaluations."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from algorithms.diffusion_rl import Fixed, reward_at_states, simulated_return, window_error
from algorithms.diffusion_rl.chains import pinned
from algorithms.diffusion_rl.rewards import nearest_state
from algorithms.pets import CrossEntropyPlanner, PlannerConfig
from experiments.reports import figures
from experiments.runs.study import place
from experiments.studies import Outcome, conditional_windows, prerequisites
from experiments.studies.conditional_windows import ConditionalWindows
from mbrl import config as configs
from mbrl.config import Count, NonNegative, Positive, Range
from mbrl.errors import ConfigError
from world_models import PolicyGuidance
from world_models.guidance import reward_guided
from world_models.samplers import (
    DDIM,
    Before,
    BudgetForcing,
    Denoiser,
    DiffusionTree,
    FeynmanKac,
    Sampler,
    ScoreDistillation,
    edm_levels,
)
from world_models.trajectory_diffusion import precondition
from world_models.true_dynamics import TrueDynamics

VERSION = 1
Method = Literal[
    "best_of", "policy", "guided", "feynman_kac", "forcing", "tree", "distillation", "consistency"
]
DEFAULTS: dict[str, Any] = (
    prerequisites.DEFAULTS
    | conditional_windows.DEFAULTS
    | {
        "algorithm": "td3_bc",  # whose policy guides (policy alone)
        "method": "best_of",
        "reward": "states",  # what is looked for: `rewards`
        "tilt": 0.3,  # weight of that reward where it moves samples
        "weight": 1.0,  # of the policy's guidance
        "denoising": 10,  # steps of the samplers
        "sigma_max": 5.0,  # first level
        "exploration": 1.0,  # weight of the tree's confidence bound, in deviations of the reward
        "starts": 64,  # of which a window is looked for
    }
)
BUDGETS = (30, 100, 300, 1000)  # evaluations of the network for one start
NEEDS_GRADIENT = ("guided", "feynman_kac", "distillation", "consistency")


class Search(NamedTuple):
    """What a method is given: the denoiser of one start, the reward [B] of windows [B, L, F], the
    levels, the settings, and the evaluations that it may take."""

    denoise: Denoiser
    reward: Callable[[Tensor], Tensor]
    sigmas: list[float]
    settings: dict[str, Any]
    budget: int

    @property
    def chains(self) -> int:
        """Chains of one evaluation a step that the budget has."""
        return max(1, self.budget // (len(self.sigmas) - 1))


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """From every start, a window of the method's, the one of highest reward where it makes several,
    for each of the budgets.

    `return` is what the task pays for its actions from the start, `expected` what the reward that
    was looked for says of it, `error` the mean square error of its next observations in deviations
    of the data, `evaluations` what one start took. `planned` is the return of a cross-entropy
    search over actions in the task itself, which knows what no model does, `single` that of one
    window that nothing chose. The values are those at the largest budget.
    """
    check(settings)
    windows = conditional_windows.conditional_windows(
        settings, seed, place(folder, "model"), settings["starts"]
    )
    policy = None
    if settings["method"] == "policy":
        chosen = prerequisites.config(settings)
        policy = prerequisites.agent(settings, chosen, seed, place(folder, "run")).policy
    task, tokens = windows.task, windows.generator.tokens
    curves: dict[str, list[float]] = {"budget": [float(b) for b in BUDGETS]}
    for budget in BUDGETS:
        plans, taken = searched(windows, policy, settings, budget, seed)
        numbers = {
            "return": simulated_return(tokens, plans, task).mean(),
            "expected": rewards(windows, settings)(plans).mean(),
            "error": window_error(tokens, plans, task).nanmean(),
            "evaluations": torch.tensor(taken),
        }
        for name, value in numbers.items():
            curves.setdefault(name, []).append(float(f"{float(value):.5g}"))
    values = {name: column[-1] for name, column in curves.items() if name != "budget"}
    values["planned"] = planned(windows, seed)
    plain = settings | {"method": "best_of", "reward": "window"}
    single, _ = searched(windows, None, plain, settings["denoising"], seed)
    values["single"] = float(simulated_return(tokens, single, task).mean())
    return Outcome(values, curves)


def needs(settings: dict[str, Any], seed: int, home: Path) -> dict[str, Path]:
    check(settings)
    model = prerequisites.shared_fit(settings, prerequisites.windows_config(settings), seed, home)
    if settings["method"] != "policy":
        return {"model": model}
    chosen = prerequisites.config(settings)
    return {"model": model, "run": prerequisites.shared_run(settings, chosen, seed, home)}


def check(settings: dict[str, Any]) -> None:
    """Raise `ConfigError` for impossible settings."""
    ranges = conditional_windows.RANGES | {
        "method": Method,
        "reward": Literal["window", "states", "task"],
        "tilt": Positive,
        "weight": NonNegative,
        "denoising": Annotated[int, Range(int, "[2, 1000]")],
        "sigma_max": Positive,
        "exploration": NonNegative,
        "starts": Count,
    }
    configs.check(settings, ranges)
    if settings["reward"] == "task" and settings["method"] in NEEDS_GRADIENT:
        allowed = [m for m in get_args(Method) if m not in NEEDS_GRADIENT]
        raise ConfigError(
            f'method "{settings["method"]}" follows the slope of the reward, which "task" does not '
            f'give; take reward = "states" or a method of {", ".join(allowed)}'
        )


def rewards(windows: ConditionalWindows, settings: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    """What is looked for, [B] of standardised windows [B, L, F]: the sum of the rewards that all
    tokens but the last have (window), that the task pays at their states (states), or that it pays
    for the actions from the start (task)."""
    tokens = windows.generator.tokens
    if settings["reward"] == "task":
        return lambda made: simulated_return(tokens, made, windows.task)
    if settings["reward"] == "states":
        return lambda made: reward_at_states(tokens, made, windows.task)
    return lambda made: tokens.rewards(made)[:, :-1].sum(1)


@torch.no_grad()
def searched(
    windows: ConditionalWindows,
    policy: Any,
    settings: dict[str, Any],
    budget: int,
    seed: int,
) -> tuple[Tensor, float]:
    """A window [L, F] for every start, stacked, and the mean of the evaluations that one took."""
    reward, generator = rewards(windows, settings), torch.Generator().manual_seed(seed)
    sigmas = edm_levels(settings["denoising"], sigma_max=settings["sigma_max"], sigma_min=0.02)
    plans, taken = [], 0
    # Samples of the methods that know no other sample are made for all starts at once.
    apart = settings["method"] in ("feynman_kac", "forcing", "tree")
    for judge in windows.judge.values.split(1 if apart else len(windows.judge.values)):

        def denoise(x: Tensor, sigma: Tensor, judge: Tensor = judge) -> Tensor:
            nonlocal taken
            taken += len(x)
            own = Fixed(windows.judge.mask, judge.repeat_interleave(len(x) // len(judge), 0))
            return pinned(precondition(windows.network, pinned(x, own), sigma), own)

        search = Search(denoise, reward, sigmas, settings, budget)
        sampler, count, guided, before = SEARCHES[settings["method"]](search, windows, policy)
        own = judge.repeat_interleave(count, 0)
        noise = sigmas[0] * torch.randn(own.shape, generator=generator)
        made = sampler(guided, noise, sigmas, generator, before=before)
        made = pinned(made, Fixed(windows.judge.mask, own))
        best = reward(made).view(len(judge), count).argmax(1)
        plans.append(made.unflatten(0, (len(judge), count))[torch.arange(len(judge)), best])
    return torch.cat(plans), taken / len(windows.judge.values)


# The methods: a sampler, how many samples of a start are asked of it, the denoiser it is given, and
# what moves samples before its steps.
Steering = tuple[Sampler, int, Denoiser, Before | None]


def best_of(s: Search, windows: ConditionalWindows, policy: Any) -> Steering:
    return DDIM(eta=1.0), s.chains, s.denoise, None


def by_policy(s: Search, windows: ConditionalWindows, policy: Any) -> Steering:
    guidance = PolicyGuidance(policy, s.settings["weight"])
    return DDIM(eta=1.0), s.chains, *guidance.attach(windows.generator.tokens, s.denoise)


def guided(s: Search, windows: ConditionalWindows, policy: Any) -> Steering:
    return DDIM(eta=1.0), s.chains, reward_guided(s.denoise, s.reward, s.settings["tilt"]), None


def feynman_kac(s: Search, windows: ConditionalWindows, policy: Any) -> Steering:
    return FeynmanKac(reward=s.reward, tilt=s.settings["tilt"]), s.chains, s.denoise, None


def forcing(s: Search, windows: ConditionalWindows, policy: Any) -> Steering:
    quota = max(1, (s.budget - 1) // (len(s.sigmas) - 2))
    return BudgetForcing(s.reward, quota), 1, s.denoise, None


def tree(s: Search, windows: ConditionalWindows, policy: Any) -> Steering:
    grown = DiffusionTree(
        s.reward,
        tilt=s.settings["tilt"],
        iterations=s.budget,
        search=True,
        exploration=s.settings["exploration"] / s.settings["tilt"],
        budget=s.budget,
    )
    return grown, 1, s.denoise, None


def distillation(s: Search, windows: ConditionalWindows, policy: Any) -> Steering:
    own = reward_guided(s.denoise, s.reward, s.settings["tilt"])
    return ScoreDistillation(consistent=False, updates=s.budget), 1, own, None


def consistency(s: Search, windows: ConditionalWindows, policy: Any) -> Steering:
    own = reward_guided(s.denoise, s.reward, s.settings["tilt"])
    return ScoreDistillation(updates=max(1, s.budget // 2)), 1, own, None


SEARCHES = {
    "best_of": best_of,
    "policy": by_policy,
    "guided": guided,
    "feynman_kac": feynman_kac,
    "forcing": forcing,
    "tree": tree,
    "distillation": distillation,
    "consistency": consistency,
}


@torch.no_grad()
def planned(windows: ConditionalWindows, seed: int) -> float:
    """The mean return of the plans that a cross-entropy search in the task itself finds."""
    task, tokens = windows.task, windows.generator.tokens
    obs = tokens.observations(windows.judge.values)[:, 0]
    obs = task.observe(nearest_state(task, obs)[0]).to(obs)
    horizon = windows.judge.values.shape[1] - 1
    config = PlannerConfig(horizon, population=500, iterations=10, particles=1)
    planner = CrossEntropyPlanner(task.spec, TrueDynamics(task), config, seed)
    first, rest = planner.step(obs, None, None)
    actions = torch.cat([first[:, None], planner.scale.to_task(rest[:, :-1])], 1)
    made = windows.judge.values.clone()
    unit = tokens.scale.to_unit(actions).clamp(-tokens.action_bound, tokens.action_bound)
    raw = tokens.restored(made)
    raw[:, :-1, tokens.actions] = torch.atanh(unit)
    return float(simulated_return(tokens, tokens.normaliser(raw), task).mean())


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Returns, and what was expected, against the evaluations that a start took."""
    files = []
    for name, title in (("return", "return of the actions"), ("expected", "reward looked for")):
        panels = figures.by_label(rows, figures.column("evaluations"), figures.column(name))
        if panels:
            files.append(folder / f"steered-{name}{suffix}.png")
            figures.curves(panels, "evaluations a start", title, files[-1])
    return files
