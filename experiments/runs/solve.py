"""From a dataset to one policy: a small portfolio of algorithms trained on part of the episodes,
the one chosen whose lead over the logged policy is surest on the rest."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from algorithms import ALGORITHMS
from algorithms.evaluation.halted import Halted, halted_values, lead
from algorithms.evaluation.valuation import Valuation, ValuationConfig, own_gamma, value_policies
from experiments.runs import folders, pool
from experiments.runs import training as runs
from experiments.runs.halting import can_imagine, ends_of, has_task
from experiments.runs.sources import facts, require_same
from experiments.settings import RunSettings, build_config, merge, preset
from mbrl.config import Count, CountOrZero, Positive, Settings, Share
from mbrl.data.split import hold_out
from mbrl.errors import ConfigError
from mbrl.training import Metrics
from mbrl.types import Dataset

CONTINUOUS = ("bc", "iql", "td3_bc", "edac", "shac")
DISCRETE = ("bc", "discrete_iql", "discrete_cql", "discrete_sac_n")
PROBE = 60  # updates that are timed
OVERHEAD = 0.6  # share of the budget that goes into updates; the rest values and evaluates
CONFIDENCE = 0.9  # of two-sided intervals of a lead
STEPS = (500, 50_000)  # least and most updates of a run
NEGLIGIBLE = 0.2  # deviations of logged returns: less is no lead (Cohen: below a small effect)
SHARE = {"shac": 0.2}  # of the others' updates, as one imagines windows and has eight of critics


@dataclass(frozen=True)
class SolveSettings(Settings):
    """How much is trained, and on what."""

    budget: Positive = 10.0  # minutes, about
    steps: Count | None = None  # updates of each algorithm instead; the same on every machine
    holdout: Share = 0.2  # share of the episodes that choose and value, and teach nothing
    seed: CountOrZero = 0
    workers: Count = 2  # runs side by side, one thread each
    device: str = "cpu"  # where they train: cpu or cuda
    task: str | None = None  # the task that a file belongs to, where there is one
    algorithms: tuple[str, ...] = ()  # the portfolio; none: the usual one for the actions

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.holdout == 0:
            raise ConfigError("holdout is 0; choosing needs episodes that taught nothing: 0.2 say")


def portfolio(settings: SolveSettings, dataset: Dataset) -> dict[str, dict[str, Any]]:
    """The algorithms for the dataset, each with the config values that it needs there."""
    usual: tuple[str, ...] = DISCRETE if dataset.spec.discrete else CONTINUOUS
    if not can_imagine(dataset):
        usual = tuple(name for name in usual if name != "shac")
    return {name: _ends(name, dataset) for name in settings.algorithms or usual}


def _ends(name: str, dataset: Dataset) -> dict[str, Any]:
    """Config values of an algorithm that say where its imagined episodes end, of a log that belongs
    to no task: also at the length of the longest logged one where nothing else limits them. None
    where it imagines nothing, or where nothing says it."""
    if has_task(dataset.spec) or not can_imagine(dataset):
        return {}
    values: dict[str, Any] = {}
    choice = "never" if ends_of(dataset) is None else "learned"
    for setting, part in vars(build_config(name, {})).items():
        if setting == "termination":
            values[setting] = choice
        elif hasattr(part, "termination"):
            values[setting] = {"termination": choice}
            if dataset.spec.max_episode_steps is None and getattr(part, "cap", 1) is None:
                spans = dataset.transitions.episodes()
                values[setting]["cap"] = max(end - begin for begin, end in spans)
    return values


def plan_steps(
    settings: SolveSettings,
    data: str,
    dataset: Dataset,
    chosen: dict[str, dict[str, Any]],
    out: Path,
) -> dict[str, int]:
    """Updates of each algorithm: equal shares of the budget's time, from a short timing, or those
    of the run that an earlier call left in `out`."""
    if settings.steps is not None:
        return {name: updates_of(name, settings.steps) for name in chosen}
    seconds = 60.0 * settings.budget * OVERHEAD * settings.workers / len(chosen)
    steps = {}
    for name, values in chosen.items():
        if described := folders.description(out / name):
            steps[name] = int(described["run"]["steps"])
            continue
        # An update of SHAC is about five of EDAC, and half of its time goes into its model.
        timed, share = ("edac", 0.1) if name == "shac" else (name, 1.0)
        agent = _agent(timed, data, dataset, {} if timed != name else values, settings.device)
        agent.fit(dataset, 5, callbacks=[])
        began = time.monotonic()
        agent.fit(dataset, PROBE, callbacks=[])
        next(agent.policy.parameters()).sum().item()  # waits for a GPU
        rate = PROBE / (time.monotonic() - began)
        steps[name] = int(min(max(share * seconds * rate, STEPS[0]), STEPS[1]))
    return steps


def updates_of(name: str, steps: int) -> int:
    """Updates of an algorithm that cost about what `steps` of the others do."""
    return max(1, round(SHARE.get(name, 1.0) * steps))


def values_for(name: str, updates: int, values: dict[str, Any]) -> dict[str, Any]:
    """Config values of an algorithm for so many `updates`, with `values` over them: of SHAC's a
    quarter clones and a twentieth lets the critics begin, so that most improve the policy however
    few there are."""
    own = {"cloning": updates // 4, "critics_first": updates // 20} if name == "shac" else {}
    return merge(own, values)


def _agent(name: str, data: str, dataset: Dataset, values: dict[str, Any], device: str) -> Any:
    cls, _ = ALGORITHMS[name]
    return cls(dataset.spec, _config(name, data, values), device=device, seed=0)


def _config(name: str, data: str, values: dict[str, Any]) -> Any:
    return build_config(name, merge(preset(name, data)["config"], values))


def train_portfolio(
    settings: SolveSettings,
    data: str,
    chosen: dict[str, dict[str, Any]],
    steps: dict[str, int],
    out: Path,
    train: Dataset,
) -> tuple[dict[str, Path], dict[str, str]]:
    """Run folders of the portfolio, finished on the episodes `train` of `data`, and why the others
    failed. Raises `ConfigError` where all did, and where `out` has runs of another call."""
    places = {}
    for name, values in chosen.items():
        run = RunSettings(
            name, data, task=settings.task, steps=steps[name], holdout=settings.holdout,
            seed=settings.seed, eval_every=0, tensorboard=False, device=settings.device,
        )  # fmt: skip
        places[name] = out / name
        own = values_for(name, steps[name], values)
        _require_own(places[name], run, train, timed=settings.steps is None)
        runs.ensure(run, _config(name, data, own), places[name])
    failed = pool.run_all(list(places.values()), settings.workers, "portfolio")
    done = {name: folder for name, folder in places.items() if folder not in failed}
    if not done:
        raise ConfigError(f"every run failed; the first one: {next(iter(failed.values()))}")
    return done, {name: failed[folder] for name, folder in places.items() if folder in failed}


def _require_own(folder: Path, run: RunSettings, train: Dataset, *, timed: bool) -> None:
    """Raise `ConfigError` where `folder` has the run of another call: on other data, or with other
    settings. Updates that were `timed` differ from call to call."""
    described = folders.description(folder)
    if not described:
        return
    names = ("task", "holdout", "seed", *(() if timed else ("steps",)))
    known = {name: described["run"][name] for name in names}
    if other := [name for name in names if known[name] != getattr(run, name)]:
        now = ", ".join(f"{name} {known[name]}, not {getattr(run, name)}" for name in other)
        raise ConfigError(f"{folder} holds a run with {now}; give another folder with --out")
    if (folder / "manifest.json").is_file():
        require_same(folder, facts(train))


@dataclass(frozen=True)
class Choice:
    """`name` of the policy chosen, the `valuations` of all, and what decided: `halted` values,
    empty where the bounds of fitted Q evaluation decided, because no credible world model can be
    fitted or it does not tell the policies apart."""

    name: str
    valuations: dict[str, Valuation]
    halted: dict[str, Halted]
    base: str  # whom a policy must surely beat to be chosen
    small: float = 0.0  # a lead of less is none

    def lead(self, name: str) -> tuple[float, float, float]:
        """Of `name` over the base in the halting model, with its interval."""
        return lead(self.halted[name], self.halted[self.base], CONFIDENCE)


def choose(
    agents: dict[str, Any],
    train: Dataset,
    held: Dataset,
    config: ValuationConfig,
    on_progress: Callable[[str, Metrics], None] | None = None,
) -> Choice:
    """The agent whose policy leads cloning by the largest lower bound in a model, fitted to
    `train`, that ends where the data end; cloning where none leads it surely and by more than
    `NEGLIGIBLE` deviations of what the logged windows earned. Where no model can be fitted, cloning
    does not end as often in it as the log did, or all leads in it are negligible, the one with the
    largest believed lower bound of fitted Q evaluation."""
    first = next(iter(agents.values()))
    settings = ValuationConfig(**{**asdict(config), "gamma": own_gamma(first), "dice_steps": 0})
    policies = [agent.policy for agent in agents.values()]
    each = value_policies(policies, held, settings, on_progress=on_progress)
    valuations = dict(zip(agents, each, strict=True))
    base = "bc" if "bc" in agents else next(iter(agents))
    if held.spec.discrete or not can_imagine(train):
        return Choice(best(valuations), valuations, {}, base)
    values = halted_values(policies, train, held, ends_of(train))
    small = NEGLIGIBLE * values.spread
    choice = Choice(base, valuations, dict(zip(agents, values.each, strict=True)), base, small)
    credible = values.credible(list(agents).index(base))
    if not credible or (len(agents) > 1 and not differ(choice)):
        return Choice(best(valuations), valuations, {}, base)
    return replace(choice, name=surest(choice))


def differ(choice: Choice) -> bool:
    """Whether any policy differs from the base by more than a negligible lead, either way."""
    leads = [choice.lead(name)[0] for name in choice.halted if name != choice.base]
    return any(abs(lead) > choice.small for lead in leads)


def surest(choice: Choice) -> str:
    """Of the names whose lead over the base is more than negligible the one with the largest lower
    bound, if that is above zero; else the base."""
    leads = {name: choice.lead(name) for name in choice.halted if name != choice.base}
    bounds = {name: low for name, (mean, low, _) in leads.items() if mean > choice.small}
    leader = max(bounds, key=lambda name: bounds[name], default=choice.base)
    return leader if bounds.get(leader, 0.0) > 0.0 else choice.base


def best(valuations: dict[str, Valuation]) -> str:
    """The name with the largest believed lower bound; "bc", or the first, without any."""
    bounds = {
        name: v.estimates[0].difference_low
        for name, v in valuations.items()
        if v.estimates[0].believed
    }
    if not bounds:
        return "bc" if "bc" in valuations else next(iter(valuations))
    return max(bounds, key=lambda name: bounds[name])


def write_choice(out: Path, choice: Choice, steps: Any, failed: dict[str, str]) -> None:
    rows: dict[str, dict[str, Any]] = {}
    for name, valuation in choice.valuations.items():
        rows[name] = {k: v for k, v in asdict(valuation.estimates[0]).items() if k != "method"}
        rows[name]["outside"] = valuation.support.outside
        if choice.halted:
            own = choice.halted[name]
            rows[name]["halted"] = [float(own.value.mean()), *choice.lead(name)]
            rows[name]["inside"] = own.inside
    content = {"chosen": choice.name, "base": choice.base, "steps": steps, "portfolio": rows}
    content["failed"] = failed
    folders.write_json(out / "solve.json", content)


def split(settings: SolveSettings, dataset: Dataset) -> tuple[Dataset, Dataset]:
    """The episodes that teach, and those that choose. Raises `ConfigError` where only one would
    choose, as intervals are over episodes."""
    torch.set_num_threads(1)
    train, held = hold_out(dataset, settings.holdout)
    if len(held.transitions.episodes()) < 2:
        total = len(dataset.transitions.episodes())
        raise ConfigError(
            f"holdout is {settings.holdout:g}, one of {total} episodes; choosing needs two at "
            f"least: --holdout {min(2.0 / total + 0.005, 0.9):.2f}"
        )
    return train, held


def order(choice: Choice) -> Sequence[str]:
    """Names, the surest first: by the lower bound of the lead in the halting model, or of fitted Q
    evaluation, where those that are not believed come last."""

    def key(name: str) -> tuple[bool, float]:
        if choice.halted:
            return name == choice.name, choice.lead(name)[1]
        fitted = choice.valuations[name].estimates[0]
        return fitted.believed, fitted.difference_low

    return sorted(choice.valuations, key=key, reverse=True)
