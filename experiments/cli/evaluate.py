"""The verb `evaluate`: evaluate a trained agent in its task."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

import algorithms
from experiments.cli import _positional as positional
from experiments.reports.grid import grid
from experiments.runs import folders, selection
from experiments.runs.export import training_data
from experiments.runs.training import TrainingRun
from mbrl import tasks
from mbrl.config import Count, CountOrZero, Settings
from mbrl.errors import CheckpointError, ConfigError
from mbrl.evaluation import START_SEED, evaluate
from mbrl.files import require_writable
from mbrl.film import FORMATS, film
from mbrl.sb3 import load_model
from mbrl.tasks import Task
from mbrl.terminal import terminal


@dataclass(frozen=True)
class Evaluate(Settings):
    """Evaluate a run folder or checkpoint in its task, from fixed start states."""

    path: positional.FolderOrFile = None  # run folder or checkpoint file
    episodes: Count = 100  # start states
    step: str = "last"  # which policy of a run: last, chosen (offline), or a kept one's number
    seed: CountOrZero = START_SEED  # of the start states; by default those of every run
    stochastic: bool = False  # sample actions instead of taking the greedy ones
    task: str | None = None  # instead of the task of the data: an id, or mypackage.envs:make_env
    sb3: Path | None = (
        None  # a model of stable-baselines3 instead of a run; only one that you trust
    )
    threads: Count = 1  # CPU threads
    out: Path | None = None  # write the returns to this .npz
    film: Path | None = None  # draw the first episodes into this .gif or .webp
    film_episodes: Count = 1
    json: bool = False  # print one JSON object instead of text
    fqe_steps: CountOrZero = 0  # updates of a fitted Q evaluation of the kept policies; 0: none

    def main(self) -> int:
        self._require_use()
        if self.fqe_steps > 0:
            return self._offline()
        torch.set_num_threads(self.threads)
        agent, title, task = self._sb3() if self.sb3 is not None else self._agent()
        # A variant of the data's task keeps the scale of its scores.
        spec = agent.spec if self.sb3 is None and agent.spec.task == task.spec.task else task.spec
        if spec.max_episode_steps not in (None, task.spec.max_episode_steps):
            spec = dataclasses.replace(spec, reference_returns=None)  # those are of other episodes
        options = {k: v for k, v in task.spec.task_options.items() if k != "threads"}
        name = ",".join([task.spec.task, *(f"{k}={v}" for k, v in options.items())])
        if self.film is not None and set(options) - {"max_episode_steps"}:
            raise ConfigError(
                f"--film draws gymnasium's plain {task.spec.task}, and the task is {name}; leave "
                "it out"
            )
        returns = evaluate(
            agent, task, self.episodes, seed=self.seed, deterministic=not self.stochastic
        )
        mean = float(returns.mean())
        error = float(returns.std(ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else None
        if self.film is not None:
            film(
                agent, task.spec.task, self.film, episodes=self.film_episodes, seed=self.seed,
                deterministic=not self.stochastic,
            )  # fmt: skip
        if self.out is not None:
            np.savez(self.out, returns=returns, seed=self.seed)
        if self.json:
            print(
                json.dumps(
                    {
                        "agent": title,
                        "task": name,
                        "mean": mean,
                        "standard_error": error,
                        "returns": returns.tolist(),
                        "score": None
                        if spec.reference_returns is None
                        else float(spec.score(mean)),
                    }
                )
            )
            return 0
        console = terminal()
        console.print(f"{title}, in {name}")
        about = "unknown from one start" if error is None else f"{error:.2f}"
        console.print(f"return {mean:.2f} (standard error {about}) over {self.episodes} starts")
        if spec.reference_returns is not None:
            low, high = spec.reference_returns
            score = spec.score(mean)
            console.print(f"score {score:.1f} (0 is a return of {low}, 100 of {high})")
        return 0

    def _require_use(self) -> None:
        """Raise `ConfigError` for an option that would have no part in what is asked for, and for
        files that could not be written once all is done."""
        unused: set[str] = {"step"} if self.sb3 is not None else set()
        why = "is for runs, and a model of stable-baselines3 has one policy"
        if self.fqe_steps > 0:
            unused = {f.name for f in dataclasses.fields(self)} - {"path", "threads", "fqe_steps"}
            why = "has no part in --fqe-steps, which chooses among a run's policies from its data"
        for field in dataclasses.fields(self):
            if field.name in unused and getattr(self, field.name) != field.default:
                raise ConfigError(f"--{field.name.replace('_', '-')} {why}; leave it out")
        if self.out is not None and self.out.suffix != ".npz":
            raise ConfigError(f"--out is {self.out}; the name must end with .npz")
        if self.out is not None:
            require_writable(self.out)
        if self.film is not None and self.film.suffix not in FORMATS:
            raise ConfigError(
                f"--film is {self.film}; the name must end with {' or '.join(FORMATS)}"
            )

    def _agent(self) -> tuple[Any, str, Task]:
        """The agent of a run or checkpoint, what it is, and the task to evaluate it in."""
        if self.path is None:
            raise ConfigError("give a run folder or a checkpoint file, or --sb3 FILE with --task")
        path = self.path / "checkpoint.pt" if self.path.is_dir() else self.path
        if not path.exists():
            raise CheckpointError(f"no checkpoint at {path}; give a run folder or a checkpoint")
        agent = (
            algorithms.load(path)
            if self.path.is_file() and self.step == "last"
            else selection.agent_at(self.path, self.step)
        )
        title = f"{type(agent).__name__} after {agent.step} updates"
        if self.task is not None:
            return agent, title, tasks.make(self.task)
        if not tasks.is_task(agent.spec.task):
            raise ConfigError(
                f"the agent's task is {agent.spec.task!r}, which is neither of this library nor "
                "registered with gymnasium; give --task"
            )
        return agent, title, tasks.make_for(agent.spec)

    def _sb3(self) -> tuple[Any, str, Task]:
        """The same of a model of stable-baselines3."""
        if self.path is not None or self.task is None:
            raise ConfigError("--sb3 FILE takes the place of a run, and needs --task")
        assert self.sb3 is not None
        model = load_model(self.sb3)
        title = f"{type(model).__name__} of stable-baselines3"
        return model, f"{title} after {model.num_timesteps} steps", tasks.make(self.task)

    def _offline(self) -> int:
        """Evaluate the kept policies of a run by fitted Q evaluation, and choose one."""
        if self.path is None or not (self.path / "policies").is_dir():
            raise CheckpointError(
                f"{self.path} is no run folder with kept policies; give that of an offline run"
            )
        chosen = self.path / "selection.json"
        if chosen.exists() and "by" in folders.read_json(chosen):
            raise ConfigError(
                f"the policy of {self.path} was chosen by --until-flat, as the one of the highest "
                "value on held-out episodes, and this would choose another: begin a run with "
                "--fqe-steps too, or evaluate --step chosen"
            )
        torch.set_num_threads(self.threads)
        agent = algorithms.load(self.path / "checkpoint.pt")
        dataset = training_data(TrainingRun(self.path))  # without episodes that were held out
        if dataset is None:
            raise CheckpointError(f"{self.path} learned in a task; give the run of logged data")
        selected = selection.select(self.path, agent, dataset, self.fqe_steps)
        table = grid("update", "value from the data", "TD error", title=str(self.path))
        rows = zip(selected["steps"], selected["values"], selected["td_errors"], strict=True)
        for step, value, error in rows:
            note = " (chosen)" if step == selected["chosen"] else ""
            table.add_row(f"{step}{note}", f"{value:.5g}", f"{error:.3g}")
        terminal().print(table)
        print(f"discounted, without an episode limit; {self.fqe_steps} updates, from data alone")
        return 0


def main(arguments: list[str]) -> int:
    return tyro.cli(Evaluate, args=arguments, prog="python -m experiments evaluate").main()
