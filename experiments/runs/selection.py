"""The choice among the kept policies of a run from the logged data alone: by fitted Q evaluation of
all of them at once, or by the value that `--until-flat` asks for."""

import copy
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import algorithms
from algorithms.evaluation.fqe import FQEConfig, evaluate_policies, return_range
from algorithms.evaluation.fqe import select as best
from algorithms.pets import PETS
from experiments.runs import folders
from mbrl import checkpoint
from mbrl import config as configs
from mbrl.callbacks import Evaluator
from mbrl.errors import CheckpointError, ConfigError
from mbrl.progress import Progress
from mbrl.training import Metrics, Trainable
from mbrl.types import Dataset, Spec

TAU = 0.1  # twice the usual rate: values are to settle within few updates


def kept_policies(folder: Path, agent: Trainable) -> tuple[list[int], list[Any]]:
    """Steps and policies of a run folder, in order; `agent` is any agent of that run."""
    steps = sorted(int(file.stem) for file in (folder / "policies").glob("*.pt"))
    policies = []
    for step in steps:
        policy: Any = copy.deepcopy(agent.policy)
        policy.load_state_dict(checkpoint.load(folder / "policies" / f"{step}.pt")["policy"])
        policies.append(policy)
    return steps, policies


@contextmanager
def naming_kept(folder: Path) -> Iterator[None]:
    """Around reading a run's checkpoint: where it cannot be read, the `CheckpointError` also names
    the policies that the run kept."""
    try:
        yield
    except CheckpointError as problem:
        steps = _kept(folder)
        if not steps:
            raise
        raise CheckpointError(
            f"{problem}. The policies of updates {', '.join(map(str, steps))} were kept: export, "
            f"value and evaluate take one of them (--step {steps[-1]}); training can only begin "
            "again, in another folder"
        ) from problem


def agent_at(folder: Path, step: str) -> Any:
    """The agent of a run with the policy of `step`: "last" (its checkpoint), "chosen" (by
    selection.json), or the number of a kept one, which needs no checkpoint that can be read.
    Raises `ConfigError` for any other, and where nothing was chosen."""
    if step == "last":
        with naming_kept(folder):
            return algorithms.load(folder / "checkpoint.pt")
    kept = _kept(folder)
    wanted = step
    if step == "chosen":
        if not (folder / "selection.json").exists():
            raise ConfigError(
                f"nothing was chosen in {folder}: `python -m experiments evaluate "
                f"{shlex.quote(str(folder))} --fqe-steps 2500` chooses among its kept policies"
            )
        wanted = str(folders.read_json(folder / "selection.json")["chosen"])
    if not wanted.isdigit() or int(wanted) not in kept:
        raise ConfigError(
            f"step is {step!r}; {folder} kept the policies of {', '.join(map(str, kept)) or 'none'}"
            "; last and chosen are allowed too"
        )
    policy = checkpoint.load(folder / "policies" / f"{wanted}.pt")["policy"]
    agent = _any_agent(folder)
    agent.policy.load_state_dict(policy)
    agent.step = int(wanted)
    return agent


def _kept(folder: Path) -> list[int]:
    """The steps of the policies that a run kept, in order."""
    return sorted(int(file.stem) for file in (folder / "policies").glob("*.pt"))


def _any_agent(folder: Path) -> Any:
    """The last agent of a run; where its checkpoint cannot be read, a new one of its description,
    which is enough for a policy that the run kept."""
    try:
        return algorithms.load(folder / "checkpoint.pt")
    except CheckpointError:
        described, file = folders.description(folder), folder / "manifest.json"
        if not described or not file.is_file():
            raise
        facts = folders.read_json(file)
        cls, kind = algorithms.ALGORITHMS[facts["algorithm"]["name"]]
        if facts["algorithm"]["version"] != cls.version:
            raise
        config = configs.from_dict(kind, described["config"])
        agent = cls(Spec.from_dict(facts["spec"]), config, seed=facts["seed"])
        if not chooses(agent):
            raise
        return agent


def chooses(agent: Trainable) -> bool:
    """Whether the kept policies of an agent differ. Those of a planner do not."""
    return not isinstance(agent, PETS)


def values_differ(dataset: Dataset, gamma: float = 0.99) -> bool:
    """Whether a policy can be worth more than another by the logged rewards."""
    rows = dataset.transitions
    low, high = return_range(rows.reward, rows.terminated, gamma, rows.duration)
    return low < high


def require_values_differ(dataset: Dataset, gamma: float, instead: str) -> None:
    """Raise `ConfigError` where no policy can be worth more than another by the logged rewards:
    their fitted values would differ by rounding alone. `instead` is the way out."""
    if values_differ(dataset, gamma):
        return
    rows = dataset.transitions
    low, _ = return_range(rows.reward, rows.terminated, gamma, rows.duration)
    ends = "" if low == 0 else " and nothing terminates"
    raise ConfigError(
        f"all rewards of {dataset.provenance.card} are {float(rows.reward[0]):g}{ends}, so that "
        f"every policy is worth the same, {low:.6g}, and fitted Q evaluation would choose by "
        f"rounding; {instead}"
    )


def select(
    folder: Path, agent: Trainable, dataset: Dataset, updates: int, *, quiet: bool = False
) -> dict[str, Any]:
    """Evaluate every kept policy of the run with `updates` updates and write the values and the
    chosen step to `selection.json`. Raises `ConfigError` for an agent that learns no policy, and
    for rewards by which all policies are worth the same."""
    if not chooses(agent):
        raise ConfigError(
            f"{type(agent).__name__} plans and learns no policy, so that its kept policies are all "
            "the same: leave fqe_steps at 0"
        )
    gamma = agent.config.gamma
    require_values_differ(dataset, gamma, "take the last policy (--step last), without --fqe-steps")
    steps, policies = kept_policies(folder, agent)
    bar = Progress(updates)

    def show(metrics: Metrics) -> None:
        if not quiet:
            bar.count("choosing", int(metrics["fqe/update"]), updates)

    config = FQEConfig(steps=updates, gamma=gamma, tau=TAU)
    estimates = evaluate_policies(policies, dataset, config, on_progress=show)
    bar.close()
    result = {
        "updates": updates,
        "steps": steps,
        "values": [float(f"{v:.6g}") for v in estimates.values],
        "td_errors": [float(f"{v:.4g}") for v in estimates.td_errors],
        "chosen": steps[best(estimates.values)],
    }
    folders.write_json(folder / "selection.json", result)
    return result


def select_highest(folder: Path, step: int, evaluator: Evaluator | None) -> dict[str, Any]:
    """Write to `selection.json` that the policy of `step` had the highest value on held-out
    episodes, with what it earns in the task, from the starts of the last evaluation, where there is
    an `evaluator`."""
    result: dict[str, Any] = {"by": "value in a model that ends where the data end", "chosen": step}
    if evaluator is not None:
        agent = agent_at(folder, str(step))
        mean = float(evaluator.returns(agent, evaluator.last_episodes).mean())
        result["return_mean"] = float(f"{mean:.7g}")
        if agent.spec.reference_returns is not None:
            result["score"] = float(agent.spec.score(mean))
    folders.write_json(folder / "selection.json", result)
    return result
