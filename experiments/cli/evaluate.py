"""The verb `evaluate`: fresh evaluation of a trained agent in its real task."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from rich.console import Console

import algorithms
from experiments.reports.grid import grid
from experiments.runs import folders, selection
from mbrl import data, tasks
from mbrl.errors import CheckpointError, ConfigError
from mbrl.evaluation import START_SEED, evaluate


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a run folder or checkpoint in the real task, from fixed start states."""

    path: tyro.conf.Positional[Path]  # run folder or checkpoint file
    episodes: int = 100  # start states
    seed: int = START_SEED  # which start states; the default is that of every run
    stochastic: bool = False  # sample actions instead of taking the greedy ones
    task: str | None = None  # another task than the one of the data's card
    threads: int = 1  # CPU threads
    out: Path | None = None  # write the returns to this .npz
    fqe_steps: int = 0  # instead: value the run's kept policies from its data, with so many updates

    def main(self) -> int:
        if self.fqe_steps > 0:
            return self._offline()
        path = self.path / "checkpoint.pt" if self.path.is_dir() else self.path
        if not path.exists():
            raise CheckpointError(f"no checkpoint at {path}; give a run folder or a checkpoint")
        torch.set_num_threads(self.threads)
        agent = algorithms.load(path)
        name = self.task or agent.spec.task
        if name not in tasks.TASKS:
            raise ConfigError(
                f"the agent's task is {name!r}, which this library does not have; give --task"
            )
        task = tasks.make_for(agent.spec) if self.task is None else tasks.make(name)
        mine = (task.spec.obs_dim, task.spec.action_dim, task.spec.num_actions)
        if mine != (agent.spec.obs_dim, agent.spec.action_dim, agent.spec.num_actions):
            raise ConfigError(
                f"task {name!r} does not have the observations of {agent.spec.task!r}"
            )
        returns = evaluate(
            agent, task, self.episodes, seed=self.seed, deterministic=not self.stochastic
        )
        mean = float(returns.mean())
        error = float(returns.std(ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else 0.0
        console = Console()
        console.print(f"{type(agent).__name__} after {agent.step} updates, in {name}")
        console.print(f"return {mean:.2f} (standard error {error:.2f}) over {self.episodes} starts")
        if agent.spec.reference_returns is not None:
            low, high = agent.spec.reference_returns
            score = agent.spec.score(mean)
            console.print(f"score {score:.1f} (0 is a return of {low}, 100 of {high})")
        if self.out is not None:
            np.savez(self.out, returns=returns, seed=self.seed)
        return 0

    def _offline(self) -> int:
        """Fitted Q evaluation of the policies that a run kept, and the choice among them."""
        if not (self.path / "policies").is_dir():
            raise CheckpointError(
                f"{self.path} is no run folder with kept policies; give that of an offline run"
            )
        torch.set_num_threads(self.threads)
        agent = algorithms.load(self.path / "checkpoint.pt")
        dataset = data.load(folders.read_json(self.path / "config.json")["run"]["data"])
        found = selection.select(self.path, agent, dataset, self.fqe_steps)
        table = grid("update", "value from the data", "TD error", title=str(self.path))
        rows = zip(found["steps"], found["values"], found["td_errors"], strict=True)
        for step, value, error in rows:
            mark = " (chosen)" if step == found["chosen"] else ""
            table.add_row(f"{step}{mark}", f"{value:.5g}", f"{error:.3g}")
        Console().print(table)
        print(f"discounted, without an episode limit; {self.fqe_steps} updates, no task was used")
        return 0


def main(arguments: list[str]) -> int:
    return tyro.cli(Evaluate, args=arguments, prog="python -m experiments evaluate").main()
