"""The environment of child processes."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of the library


def child_environment() -> dict[str, str]:
    """Variables for a child process, so that it imports this library and not a folder of the same
    name in its working directory. (PYTHONSAFEPATH is `python -P` for processes that Ray starts.)"""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONSAFEPATH": "1",
    }
