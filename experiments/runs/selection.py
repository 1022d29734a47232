"""The choice among the kept policies of a run from the logged data alone, by fitted Q evaluation of
all of them at once."""

import copy
from pathlib import Path
from typing import Any

import algorithms
from algorithms.evaluation.fqe import FQEConfig, evaluate_policies
from algorithms.evaluation.fqe import select as best
from algorithms.pets import PETS
from experiments.runs import folders
from mbrl import checkpoint
from mbrl.errors import ConfigError
from mbrl.progress import Progress
from mbrl.training import Metrics, Trainable
from mbrl.types import Dataset

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


def agent_at(folder: Path, step: str) -> Any:
    """The agent of a run with the policy of `step`: "last" (its checkpoint), "chosen" (by
    selection.json), or the number of a kept one. Raises `ConfigError` for any other, and where
    nothing was chosen."""
    agent: Any = algorithms.load(folder / "checkpoint.pt")
    if step == "last":
        return agent
    kept = sorted(int(file.stem) for file in (folder / "policies").glob("*.pt"))
    wanted = step
    if step == "chosen":
        if not (folder / "selection.json").exists():
            raise ConfigError(
                f"nothing was chosen in {folder}: `python -m experiments evaluate {folder} "
                "--fqe-steps 2500` chooses among its kept policies"
            )
        wanted = str(folders.read_json(folder / "selection.json")["chosen"])
    if not wanted.isdigit() or int(wanted) not in kept:
        raise ConfigError(
            f"step is {step!r}; {folder} kept the policies of {', '.join(map(str, kept)) or 'none'}"
            "; last and chosen are allowed too"
        )
    policy = checkpoint.load(folder / "policies" / f"{wanted}.pt")["policy"]
    agent.policy.load_state_dict(policy)
    agent.step = int(wanted)
    return agent


def chooses(agent: Trainable) -> bool:
    """Whether the kept policies of an agent differ. Those of a planner do not."""
    return not isinstance(agent, PETS)


def select(
    folder: Path, agent: Trainable, dataset: Dataset, updates: int, *, quiet: bool = False
) -> dict[str, Any]:
    """Evaluate every kept policy of the run with `updates` updates and write the values and the
    chosen step to `selection.json`. Raises `ConfigError` for an agent that learns no policy."""
    if not chooses(agent):
        raise ConfigError(
            f"{type(agent).__name__} plans and learns no policy, so that its kept policies are all "
            "the same: leave fqe_steps at 0"
        )
    steps, policies = kept_policies(folder, agent)
    gamma = agent.config.gamma
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
