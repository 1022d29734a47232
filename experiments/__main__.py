"""The command line: `python -m experiments VERB ...`; every verb has its own `--help`."""

import errno
import importlib
import os
import sys
from collections.abc import Callable

import longreach  # noqa: F401  refuses a foreign `mbrl`

# verb -> what it does; its module in `experiments.cli` has `main(arguments) -> exit status`
VERBS = {
    "quickstart": "train RAVL, EDAC and MBPO on a shipped dataset and compare them",
    "solve": "from a dataset to a chosen, valued policy, in one command",
    "run": "train an algorithm on a dataset, or online in a task",
    "resume": "continue a run from its checkpoint",
    "evaluate": "evaluate a run or checkpoint in the real task",
    "value": "value a run's policy from logged episodes: may it act?",
    "export": "write a run's policy as ONNX, with a card: to act without this library",
    "report": "write a page about a run: scores, losses, reach and values",
    "plot": "draw curves of several runs",
    "data": "list, describe, check, replay, download, import or export datasets",
    "collect": "record the local datasets again from behaviour policies",
    "model": "fit a world model, or measure how accurate one is",
    "list": "list the algorithms, tasks, datasets and recipes",
    "explain": "print the formula of a policy-gradient recipe",
    "table": "run the missing cells of a table and print it",
    "sweep": "train every combination of algorithms, datasets, seeds and settings",
    "search": "search hyperparameters with Optuna, by an offline score",
    "crosscheck": "compare SAC with the one of stable-baselines3",
    "language": "train language models on text tasks by any recipe",
    "bench": "measure speed beside the machine's matrix-product rate and peers",
    "gpu": "measure a GPU: updates as CUDA graphs, published sizes, long runs",
}


def usage() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {text}" for verb, text in VERBS.items()]
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
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(usage())
            status = 0
        else:
            status = verb(arguments[0])(arguments[1:])
        sys.stdout.flush()  # here, where a closed pipe is met quietly
        return status
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # of `... | head`, which has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        code = exit_status(error)
        if code is None:
            raise
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        mend = "; make room, and give the command again, or resume" if full else ""
        print(f"error: {error}{mend}" if code < 128 else error, file=sys.stderr)
        return code


def verb(name: str) -> Callable[[list[str]], int]:
    """The function of a verb. Only the chosen verb's module is imported."""
    if name not in VERBS:
        from mbrl.errors import unknown_name

        raise unknown_name("command", name, VERBS)
    command: Callable[[list[str]], int] = importlib.import_module(f"experiments.cli.{name}").main
    return command


def exit_status(error: Exception) -> int | None:
    """The exit status for an error that is printed without a traceback; None for any other
    error."""
    from mbrl.callbacks import Interrupted
    from mbrl.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        DivergenceError,
        TaskError,
    )

    if isinstance(error, ConfigError | DataError | CheckpointError):
        return 2
    if isinstance(error, OSError):  # a full disk, a folder that cannot be written, ...
        return 1
    if isinstance(error, DivergenceError | TaskError):
        return 3
    return 130 if isinstance(error, Interrupted) else None


if __name__ == "__main__":
    sys.exit(main())
