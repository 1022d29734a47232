"""The verb `evaluate`: evaluate a trained agent in its task."""

import json
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
from mbrl.config import Count, CountOrZero, Settings
from mbrl.errors import CheckpointError, ConfigError
from mbrl.evaluation import START_SEED, evaluate


@dataclass(frozen=True)
class Evaluate(Settings):
    """Evaluate a run folder or checkpoint in its task, from fixed start states."""

    path: tyro.conf.Positional[Path]  # run folder or checkpoint file
    episodes: Count = 100  # start states
    step: str = "last"  # which policy of a run: last, chosen (offline), or a kept one's number
    seed: CountOrZero = START_SEED  # of the start states; by default those of every run
    stochastic: bool = False  # sample actions instead of taking the greedy ones
    task: str | None = None  # instead of the task of the data
    threads: Count = 1  # CPU threads
    out: Path | None = None  # write the returns to this .npz
    json: bool = False  # print one JSON object instead of text
    fqe_steps: CountOrZero = 0  # updates of a fitted Q evaluation of the kept policies; 0: none

    def main(self) -> int:
        if self.fqe_steps > 0:
            return self._offline()
        path = self.path / "checkpoint.pt" if self.path.is_dir() else self.path
        if not path.exists():
            raise CheckpointError(f"no checkpoint at {path}; give a run folder or a checkpoint")
        torch.set_num_threads(self.threads)
        agent = selection.agent_at(self.path, self.step) if self.step != "last" else None
        agent = agent or algorithms.load(path)
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
        if self.out is not None:
            np.savez(self.out, returns=returns, seed=self.seed)
        if self.json:
            low, high = agent.spec.reference_returns or (None, None)
            print(
                json.dumps(
                    {
                        "algorithm": type(agent).__name__, "step": agent.step, "task": name,
                        "mean": mean, "standard_error": error, "returns": returns.tolist(),
                        "score": None if low is None else float(agent.spec.score(mean)),
                    }
                )
            )  # fmt: skip
            return 0
        console = Console()
        console.print(f"{type(agent).__name__} after {agent.step} updates, in {name}")
        console.print(f"return {mean:.2f} (standard error {error:.2f}) over {self.episodes} starts")
        if agent.spec.reference_returns is not None:
            low, high = agent.spec.reference_returns
            score = agent.spec.score(mean)
            console.print(f"score {score:.1f} (0 is a return of {low}, 100 of {high})")
        return 0

    def _offline(self) -> int:
        """Evaluate the kept policies of a run by fitted Q evaluation, and choose one."""
        if not (self.path / "policies").is_dir():
            raise CheckpointError(
                f"{self.path} is no run folder with kept policies; give that of an offline run"
            )
        torch.set_num_threads(self.threads)
        agent = algorithms.load(self.path / "checkpoint.pt")
        dataset = data.load(folders.read_json(self.path / "config.json")["run"]["data"])
        selected = selection.select(self.path, agent, dataset, self.fqe_steps)
        table = grid("update", "value from the data", "TD error", title=str(self.path))
        rows = zip(selected["steps"], selected["values"], selected["td_errors"], strict=True)
        for step, value, error in rows:
            note = " (chosen)" if step == selected["chosen"] else ""
            table.add_row(f"{step}{note}", f"{value:.5g}", f"{error:.3g}")
        Console().print(table)
        print(f"discounted, without an episode limit; {self.fqe_steps} updates, from data alone")
        return 0


def main(arguments: list[str]) -> int:
    return tyro.cli(Evaluate, args=arguments, prog="python -m experiments evaluate").main()
