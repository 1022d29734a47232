"""The command line: `python -m experiments VERB ...`; every verb has its own `--help`."""

import importlib
import sys
from collections.abc import Callable

from mbrl.callbacks import Interrupted
from mbrl.errors import CheckpointError, ConfigError, DataError, DivergenceError, unknown_name

# verb -> (module with `main(arguments) -> exit status`, what it does)
VERBS: dict[str, tuple[str, str]] = {
    "quickstart": ("quickstart", "train RAVL, EDAC and MBPO on a shipped dataset and compare them"),
    "run": ("train", "train an algorithm on a dataset, or online in a task"),
    "resume": ("train", "continue a run from its checkpoint"),
    "evaluate": ("evaluate", "evaluate a run or checkpoint in the real task"),
    "report": ("report", "write a page about a run: scores, losses, reach and values"),
    "plot": ("report", "draw curves of several runs"),
    "data": ("data", "list, describe, check, download or import datasets"),
    "collect": ("collect", "record the local datasets anew from behaviour policies"),
    "model": ("model", "fit a world model, or inspect how good one is"),
    "list": ("listing", "the algorithms, tasks and datasets there are"),
    "explain": ("explain", "print the formula of a policy-gradient recipe"),
    "table": ("table", "run the missing cells of a table and print it"),
    "sweep": ("sweep", "train every combination of algorithms, datasets, seeds and settings"),
    "search": ("search", "search settings with Optuna, by an offline score"),
    "crosscheck": ("crosscheck", "compare SAC with the one of stable-baselines3"),
    "language": ("language", "train language models on text tasks by any recipe"),
    "bench": ("bench", "measure speed beside the machine's matrix-product rate and peers"),
}


def usage() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {text}" for verb, (_, text) in VERBS.items()]
    return "\n".join(
        [
            "usage: python -m experiments VERB [options]",
            "",
            *lines,
            "",
            "python -m experiments VERB --help explains one of them. For example:",
            "  python -m experiments run ravl pendulum/medium-replay --seed 1",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    verb, rest = arguments[0], arguments[1:]
    try:
        if verb not in VERBS:
            raise unknown_name("command", verb, VERBS)
        module = importlib.import_module(f"experiments.{VERBS[verb][0]}")
        command: Callable[[list[str]], int] = getattr(module, f"{verb}_main")
        return command(rest)
    except (ConfigError, DataError, CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except DivergenceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except Interrupted as stopped:
        print(str(stopped), file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
