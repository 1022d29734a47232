"""How the settings of a run choose prompts: which scheduler with which settings, what it may know
of the prompts, and what cannot go together."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from algorithms.language import domains, measures
from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.prompts import prompt_features
from algorithms.language.tasks import text_task
from algorithms.language.tasks.base import Problem
from algorithms.language.tasks.joint import APART
from algorithms.language.value_model import PolicyValue
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe, recipe
from mbrl.policy_gradient.axes.credit import Bootstrapped, Credit
from mbrl.policy_gradient.axes.gate import Discriminative
from mbrl.policy_gradient.axes.modulation import Elsewhere
from mbrl.policy_gradient.axes.selection import Balanced
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.schedulers import SCHEDULERS, Pool
from mbrl.policy_gradient.schedulers.curricula import Horizon
from mbrl.policy_gradient.schedulers.settings import settings as written

TEMPLATES = (  # around a prompt; the first one is the prompt alone
    "{}",
    "solve {}",
    "task: {}",
    "q: {} a:",
    "please {}",
    "[{}]",
    "{} go",
    "what comes after {}",
)


def settings(config: Any) -> Any:
    """The settings of the run's scheduler."""
    return written(config.scheduler, config.scheduler_settings)


def value_of(config: Any) -> PolicyValue | None:
    """The value model of the run's scheduler. Raises `ConfigError` where its file is of another
    task."""
    if config.value is None:
        return None
    value = PolicyValue.load(config.value)
    if value.config.task != config.task:
        raise ConfigError(
            f"value is {config.value}, which is of the task {value.config.task}, and the run is of "
            f"{config.task}; make one by `language fit-value --task {config.task}`"
        )
    return value


def fulfilled(config: Any) -> tuple[Requirement, ...]:
    """Requirements of recipes that the scheduler fulfils."""
    entry = SCHEDULERS.get(config.scheduler)  # an unknown one is refused by `settings`
    return () if entry is None else entry.make.fulfils


def fitted(objective: Recipe, config: Any) -> Recipe:
    """The recipe with the run's discount where a critic of tokens bootstraps, with the task's
    longest answer where lengths are measured by it, and beside its scheduler: where Reinforce-Ada's
    sampler keeps a balanced group, it does not choose again."""
    terms = tuple(
        dataclasses.replace(term, credit=discounted(term.credit, config.gamma))
        for term in objective.terms
    )
    changes = tuple(
        dataclasses.replace(m, credit=discounted(m.credit, config.gamma))
        if isinstance(m, Elsewhere)
        else m
        for m in objective.modulation
    )
    objective = dataclasses.replace(objective, terms=terms, modulation=changes)
    if isinstance(objective.gate, Discriminative):  # whose lengths are shares of the longest answer
        task = text_task(config.task)
        usual = config.turn_tokens or task.turn_length
        stages = [domains.stage(text, task, config.stage_tokens) for text in config.stages]
        longest = task.max_turns * max([s.turn_tokens or usual for s in stages], default=usual)
        gate = dataclasses.replace(objective.gate, longest=float(longest))
        objective = dataclasses.replace(objective, gate=gate)
    if Requirement.BOTH_KINDS not in fulfilled(config):
        return objective
    left = tuple(s for s in objective.selection if not isinstance(s, Balanced))
    return dataclasses.replace(objective, selection=left)


def discounted(credit: Credit, gamma: float) -> Credit:
    if isinstance(credit, Bootstrapped):
        return dataclasses.replace(credit, gamma=gamma)
    return credit


def simple(config: Any) -> bool:
    """Whether a round is whole conversations about the next problems, which workers can have."""
    changed = config.starts_share or config.prune_at or config.pivots or config.horizon
    mixed = Requirement.EARLIER_DATA in recipe(config.recipe).requirements
    return config.scheduler == "uniform" and config.templates == 1 and not (changed or mixed)


def check_plain(config: Any, who: str, fix: str) -> None:
    """Raises `ConfigError` unless rounds are whole conversations about the next problems, which
    `who` needs: what to change, or the `fix`."""
    if not simple(config) or config.stages:
        raise ConfigError(
            f"{who} have whole conversations about the next problems; for another scheduler than "
            "uniform, templates, horizon, starts_share, prune_at, pivots, stages or a recipe that "
            f"mixes in earlier ones {fix}"
        )
    for kind in measures.kinds(recipe(config.recipe)):
        if kind.changes_sampling or kind.problems is not LanguageMeasure.problems:
            raise ConfigError(
                f"recipe {config.recipe} changes how conversations are held or what they are about "
                f"({kind.__name__}), which {who} do not know; {fix}"
            )


def check(config: Any, objective: Recipe) -> None:
    """Raises `ConfigError` for settings of rounds that cannot be."""
    settings(config)
    if config.drop_equal:
        check_plain(config, "rounds without equal groups", "leave drop_equal off")
    if config.templates > len(TEMPLATES):
        raise ConfigError(
            f"templates is {config.templates}, there are {len(TEMPLATES)}; give no more"
        )
    if config.horizon:
        Horizon(config.horizon, config.horizon_every)
    check_starts(config)
    if config.value is not None and config.scheduler not in ("v0", "v_half_scheduler"):
        raise ConfigError(
            f"value is {config.value} and the scheduler {config.scheduler}; a value model is for "
            "v0 and v_half_scheduler"
        )
    task, kinds = text_task(config.task), measures.kinds(objective)
    own = any(kind.roll_out is not LanguageMeasure.roll_out for kind in kinds)
    if config.group == 1 and config.scheduler == "uniform" and objective.compares and not own:
        raise ConfigError(
            f"recipe {objective.name} compares conversations about one problem, and group is 1: "
            "nothing would be learned; set group to 2 or more"
        )
    kinds_of_round = {
        "scheduler": config.scheduler != "uniform",
        "starts_share": config.starts_share > 0,
        "prune_at": config.prune_at > 0,
        "pivots": config.pivots > 0,
        f"recipe {objective.name}": Requirement.EARLIER_DATA in objective.requirements,
    }
    chosen = [name for name, on in kinds_of_round.items() if on]
    if len(chosen) > 1:
        raise ConfigError(
            f"{' and '.join(chosen)} are each another kind of round; choose one of them"
        )
    if own and not simple(config):
        raise ConfigError(
            f"recipe {objective.name} has rounds of its own, of conversations that branch or of "
            "single tokens; leave scheduler, templates, horizon, starts_share, prune_at and pivots "
            "as they are"
        )
    if "scheduler" in chosen:
        check_scheduler(config, objective)
    if ("starts_share" in chosen or "pivots" in chosen) and kinds:
        raise ConfigError(
            f"recipe {objective.name} measures whole conversations; {chosen[0]} begins in the "
            "middle of them: leave it at 0, or take a recipe of log-probs and rewards alone"
        )
    if config.pivots and (config.horizon or config.templates > 1):
        raise ConfigError(
            "pivots begins in the middle of demonstrated conversations, which have no other words "
            "around their prompts and no horizon; leave templates at 1 and horizon empty"
        )
    if task.max_turns < 2 and (config.starts_share or config.horizon):
        raise ConfigError(
            f"{config.task} has one turn; starts_share and horizon are for tasks of more turns"
        )


def check_starts(config: Any) -> None:
    if config.starts_steps > 1 or (config.starts_steps and not config.starts_share):
        raise ConfigError(
            f"starts_steps is {config.starts_steps} and starts_share {config.starts_share}; "
            "starts_steps is 0 or 1, and 1 is for starts_share above 0"
        )


def check_scheduler(config: Any, objective: Recipe) -> None:
    if config.pool < 1:
        raise ConfigError(
            f"the scheduler {config.scheduler} chooses among problems that come again; give pool "
            "the number of problems, or take the scheduler uniform"
        )
    if config.scheduler == "v0" and config.value is None:
        raise ConfigError(
            "the scheduler v0 reads a value model, and value is None; make one by `python -m "
            f"experiments language fit-value --task {config.task} --out FILE`, and give its file"
        )
    lacking = set(SCHEDULERS[config.scheduler].make.reads) - set(text_task(config.task).signals)
    if lacking:
        raise ConfigError(
            f"the scheduler {config.scheduler} reads {' and '.join(sorted(lacking))}, and replies "
            f"of {config.task} have none; a task that has them: calculator"
        )
    if any(kind.problems is not LanguageMeasure.problems for kind in measures.kinds(objective)):
        raise ConfigError(
            f"recipe {objective.name} chooses the problems of a round itself; take the scheduler "
            "uniform"
        )


def pool_of(problems: Sequence[Problem]) -> Pool:
    """What a scheduler may know of `problems`. Features are the shares of characters, of pairs of
    characters (hashed) and the level, each of length 1. Each task of a joint one is a family, of
    those that occur: one generator of problems, an environment of SCALER, whose difficulty it
    follows. Levels are ranks of those that occur in a family."""
    known = sorted({p.level for p in problems})
    parts = sorted({level // APART for level in known})
    ranks = {level: sum(x // APART == level // APART and x < level for x in known)
             for level in known}  # fmt: skip
    levels = torch.tensor([ranks[p.level] for p in problems])
    families = torch.tensor([parts.index(p.level // APART) for p in problems])
    places = torch.tensor([known.index(p.level) for p in problems])
    features = torch.stack([prompt_features(p.prompt) for p in problems])
    features = torch.cat([features, torch.eye(len(known))[places]], 1)
    return Pool(len(problems), features, levels, families)
