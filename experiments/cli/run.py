"""The verb `run`: train an algorithm on a dataset, or online in a task."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from algorithms import ALGORITHMS
from experiments.runs import continuation, folders, until_flat
from experiments.runs import training as runs
from experiments.runs import values as run_values
from experiments.settings import (
    DECAYS,
    CollectionSettings,
    RunSettings,
    default_steps,
    from_file,
    preset_config,
)
from mbrl.errors import ConfigError, unknown_name
from mbrl.policy_gradient import RECIPES
from mbrl.records import Evaluations
from mbrl.terminal import terminal

HELP = """usage: python -m experiments run ALGORITHM DATA [options]

ALGORITHM  {algorithms}
DATA       a dataset (`python -m experiments data list`), a file (.npz .hdf5 .csv .parquet), or a
           task id such as Pendulum-v1 to learn online: of this library, of gymnasium, or an entry
           point of your own, mypackage.envs:make_env (options: NAME,max_episode_steps=200)

--after FOLDER lets the agent of a finished run on logged data go on in the task, with its config
and seed: python -m experiments run iql Pendulum-v1 --after runs/iql/pendulum-medium/seed-0
With another algorithm of the soft actor-critics, or after a run in a task, its networks go on.
--logged DATA gives a run in a task logged rows from the start.

--config FILE takes values from a TOML file (tables run and config) or from the config.json of a
run; options on the command line come first.

python -m experiments run ravl pendulum/medium-replay --help lists every option of that run with
the value of its preset. Results are written to runs/ALGORITHM/DATA/seed-N, or to --out. Continue a
run that was stopped with `python -m experiments resume FOLDER`."""


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or any(a.startswith("-") for a in arguments[:2]):
        print(HELP.format(algorithms=", ".join(ALGORITHMS)))
        return 0 if not arguments or "-h" in arguments or "--help" in arguments else 2
    algorithm, data, *options = arguments
    require_algorithm(algorithm, data)
    for name in (f.name for f in dataclasses.fields(CollectionSettings)):
        option = f"--{name.replace('_', '-')}"
        both = (option, f"--collection.{name.replace('_', '-')}")
        if all(value_of(o, options) is not None for o in both):
            raise ConfigError(f"{both[0]} and {both[1]} say the same; give one of them")
    command = run_command(algorithm, data, options)
    folder = command.out or default_folder(command.settings)
    result = runs.start(command.settings, command.config, folder)
    show(result, folder, online=command.settings.online)
    return 0


def require_algorithm(name: str, data: str) -> None:
    """Raise `ConfigError` for a name of no algorithm; that of a recipe gets its command."""
    if name in ALGORITHMS:
        return
    if name in RECIPES:
        raise ConfigError(
            f"{name} is a recipe of policy_gradient; run it with `python -m experiments run "
            f"policy_gradient {data} --recipe {name}`"
        )
    raise unknown_name("algorithm", name, ALGORITHMS)


def run_command(algorithm: str, data: str, options: list[str]) -> Any:
    """Parse the options of one run over its preset: `.settings`, `.config`, `.out`."""
    _, config_class = ALGORITHMS[algorithm]
    flat = tyro.conf.arg(name="")  # --seed, not --settings.seed
    defaults, config = RunSettings(algorithm, data), preset_config(algorithm, data)
    file = value_of("--config", options)
    if file is not None:
        defaults, config = from_file(Path(file), algorithm, data)
    after = value_of("--after", options) or defaults.after
    if after is not None:
        before = runs.TrainingRun(Path(after))
        if file is None:
            defaults = replace(defaults, seed=before.settings.seed)
            config = continuation.config_after(defaults, config, before)
    folder = tyro.conf.arg(help="run folder; None: runs/ALGORITHM/DATA/seed-N")
    values = tyro.conf.arg(
        name="config", help="TOML, or a run's config.json, with values for what no option gives"
    )
    kind = dataclasses.make_dataclass(
        "Run",
        [
            ("settings", Annotated[RunSettings, flat], defaults),
            ("config", Annotated[config_class, flat], config),
            ("out", Annotated[Path | None, folder], None),
            ("file", Annotated[Path | None, values], None),
        ],
        frozen=True,
    )
    kind.__doc__ = f"Train {algorithm} on {data}. Defaults are those of its preset."
    command: Any = tyro.cli(
        kind, args=options, prog=f"python -m experiments run {algorithm} {data}"
    )
    _require_decay(command.settings, options)
    return command


def _require_decay(settings: RunSettings, options: list[str]) -> None:
    """Raise `ConfigError` for a decay of a rate that is given as long as the preset's budget, where
    the run has another: it could not be told from the preset's own, which follows the run's."""
    budget = default_steps(settings.algorithm, settings.data)
    for word in options:
        option = word.partition("=")[0]
        name = option.rpartition(".")[2].lstrip("-").replace("-", "_")
        if name not in DECAYS or settings.steps in (None, budget):
            continue
        if value_of(option, options) == str(budget):
            raise ConfigError(
                f"{option} is {budget}, as long as the preset's budget, and a decay of that length "
                f"follows --steps ({settings.steps}): leave it out for a decay over the whole run, "
                f"or give {budget + 1} for one over more updates"
            )


def value_of(option: str, options: list[str]) -> str | None:
    """What follows `option`, as a word of its own or behind `=`; None where it is not given."""
    for word, following in zip(options, [*options, None][1:], strict=True):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def default_folder(settings: RunSettings) -> Path:
    data = settings.data.replace("/", "-").lstrip(".-")
    return Path("runs") / settings.algorithm / data / f"seed-{settings.seed}"


def _last_values(folder: Path, console: Console) -> None:
    """One line where the values cannot be, or claim too much."""
    values = run_values.last(folder)
    if values is not None and values.sentence:
        colour = "red" if values.level == "impossible" else "yellow"
        console.print(values.sentence, style=colour, soft_wrap=True)


def _chosen(folder: Path, console: Console) -> None:
    """One line on the policy that a choice was made of, where it was evaluated."""
    file = folder / "selection.json"
    choice = folders.read_json(file) if file.exists() else {}
    if "return_mean" in choice:
        score = f", score {choice['score']:.1f}" if "score" in choice else ""
        console.print(
            f"highest value on held-out episodes: update {choice['chosen']}, return "
            f"{choice['return_mean']:.1f}{score} (--step chosen takes that policy)",
            soft_wrap=True,
        )


def show(result: dict[str, Any], folder: Path, *, online: bool = False) -> None:
    """Print the outcome of the training run in `folder`."""
    console = terminal()
    done = f"{result['step']} {'steps' if online else 'updates'} in {result['seconds']:.0f} s"
    console.print(f"{done}; run folder {folder}", soft_wrap=True)
    if "until_flat" in result:
        console.print(until_flat.sentence(result["until_flat"], result["step"]), soft_wrap=True)
    if result["last_return_mean"] is not None:
        returns = Evaluations.load(folder / "evaluations.npz").returns[-1]
        mean, spread = returns.mean(), returns.std()
        text = f"last evaluation: return {mean:.1f} ± {spread:.1f} over {len(returns)} starts"
        score = result["last_score"]
        console.print(text + ("" if score is None else f", score {score:.1f}"))
    _chosen(folder, console)
    _last_values(folder, console)
    if result.get("interrupted_episodes"):
        console.print(
            f"not the run that it would have been without a stop: {result['interrupted_episodes']} "
            "unfinished episodes were given up, since the environment's state cannot be saved"
        )
