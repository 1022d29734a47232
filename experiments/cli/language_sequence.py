"""The verb `language sequence`: recipes one after the other, each from the model before."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from algorithms.language.evaluation import SEED, answers
from algorithms.language.sampling.rollouts import Rollouts
from experiments.reports.grid import grid
from experiments.runs import language as language_run
from experiments.runs import language_start
from mbrl import config as configs
from mbrl.errors import ConfigError
from mbrl.policy_gradient import recipe as find_recipe
from mbrl.terminal import terminal

STAGE = re.compile(r"([a-z][a-z0-9_]*):([1-9][0-9]*)")
USAGE = """usage: python -m experiments language sequence RECIPE:ROUNDS RECIPE:ROUNDS ... [options]

Trains by each recipe for its rounds, from the model of the one before; options are those of
`run RECIPE`, but for --steps and --recipe. Stages that are done are left as they are, one that was
stopped goes on; with other options than theirs it is refused. For example, SCoRe with two attempts:

  python -m experiments language sequence score_first_stage:100 score:200 --task kernels --horizon 2

writes to runs/language/kernels/score_first_stage-score/seed-0/1-score_first_stage and so on, and
prints what first and second attempts earn after each stage, over the same conversations: one that
is over after its first attempt counts with that."""


def main(
    arguments: list[str],
    run: Callable[[list[str]], int],
    settings: Callable[[list[str]], tuple[Any, Any]],
) -> int:
    """The verb with its arguments; `run` is the verb `run`, `settings` what it sets. Raises
    `ConfigError` for folders of stages that had other options."""
    stages = [a for a in arguments if STAGE.fullmatch(a)]
    if not stages or arguments[: len(stages)] != stages:
        print(USAGE)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    options = arguments[len(stages) :]
    refused = [o for o in options if o.split("=")[0] in ("--steps", "--recipe")]
    if refused:
        raise ConfigError(f"{refused[0]} is given by the stages, such as grpo:100; leave it out")
    named = [find_recipe(stage.split(":")[0]).name for stage in stages]
    options, out = without(options, "--out")
    options, start = without(options, "--start")
    task = value_of(options, "--task") or "addition"
    seed = value_of(options, "--seed") or "0"
    base = Path(out or Path("runs") / "language" / task / "-".join(named) / f"seed-{seed}")
    todo = []
    for number, (name, stage) in enumerate(zip(named, stages, strict=True), start=1):
        folder, rounds = base / f"{number}-{name}", stage.split(":")[1]
        begin = [] if start is None else ["--start", str(start)]
        todo.append((folder, [name, *options, "--steps", rounds, *begin]))
        if (folder / "config.json").exists():
            if number > 1 and not (todo[-2][0] / "config.json").exists():
                raise ConfigError(
                    f"{folder} began with the model of {start}, which is not there; remove it, or "
                    "give another folder with --out"
                )
            require_same(folder, *settings(todo[-1][1]))
        start = str(folder)
    for folder, given in todo:
        if not (folder / "config.json").exists():
            run([*given, "--out", str(folder)])
        elif not (folder / "result.json").exists():
            language_run.LanguageRun(folder).finish(quiet=False)
        show_attempts(folder)
    return 0


def require_same(folder: Path, settings: Any, config: Any) -> None:
    """Raise `ConfigError` where the run in `folder` has other settings or another config, and
    `CheckpointError` where the model that it began with has changed."""
    known, now = (
        configs.flatten(configs.to_dict(own) | configs.to_dict(other))
        for own, other in (language_run.read_settings(folder), (settings, config))
    )
    for values in (known, now):
        values["start"] = values["start"] and str(Path(values["start"]).resolve())
    if apart := [name for name in now if now[name] != known[name]]:
        options = (f"--{n.replace('_', '-')} {known[n]}, not {now[n]}" for n in apart)
        changed = " and ".join(options)
        raise ConfigError(
            f"{folder} is a stage with {changed}; give the options that it had, another folder "
            "with --out, or remove it and those after it"
        )
    language_start.require_same(folder, settings, config)


def without(options: list[str], name: str) -> tuple[list[str], str | None]:
    """The options but `name`, and its value."""
    value, kept, skip = value_of(options, name), list[str](), False
    for option in options:
        if skip:
            skip = False
        elif option == name:
            skip = True
        elif not option.startswith(f"{name}="):
            kept.append(option)
    return kept, value


def value_of(options: list[str], name: str) -> str | None:
    """What the option `name` is given as, "name value" or "name=value"; None if it is not."""
    for i, option in enumerate(options):
        if option == name and i + 1 < len(options):
            return options[i + 1]
        if option.startswith(f"{name}="):
            return option.partition("=")[2]
    return None


def attempts(parts: list[Rollouts]) -> list[float]:
    """The mean reward of first, second, ... turns over all conversations; one that was over before
    counts with its last, as it needed no further one."""
    rewards = [[reply.reward for reply in replies] for part in parts for replies in part.replies]
    most = max(map(len, rewards))
    return [sum(own[min(k, len(own) - 1)] for own in rewards) / len(rewards) for k in range(most)]


@torch.no_grad()
def show_attempts(folder: Path) -> None:
    """Print what the turns of new problems earn, where the task has several."""
    settings, config = language_run.read_settings(folder)
    agent = language_run.load(folder)
    if agent.task.max_turns == 1:
        return
    table = grid("level", "first", "second", "gain", title=f"{folder}: reward of attempts")
    for level in agent.levels:
        counts: dict[str, Any] = {
            "problems": settings.final_problems,
            "samples": settings.final_samples,
            "turn_tokens": config.turn_tokens,
        }
        parts = answers(agent.model, agent.codec, agent.task, level, seed=SEED, **counts)
        first, *later = attempts(parts)
        second = later[0] if later else first  # all were over
        table.add_row(str(level), f"{first:.4f}", f"{second:.4f}", f"{second - first:+.4f}")
    terminal().print(table)
