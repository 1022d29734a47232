"""The peak resident size of a workload of `bench` in a process of its own: run as a script, it
builds one, does its work for some seconds and prints the peak in MB."""

import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.bench.peer_programs import peak, window

LIMIT = 600.0  # seconds after which a process is given up


def peak_of(name: str, seconds: float, quick: bool) -> float:
    """Peak resident size in MB of a new process that does `name` for at least `seconds`."""
    command = [
        sys.executable,
        "-m",
        "experiments.bench.memory",
        name,
        str(seconds),
        str(int(quick)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        raise RuntimeError(f"the workload {name} stopped in its own process: {done.stderr[-500:]}")
    return float(done.stdout.split()[-1])


def main(name: str, seconds: str, quick: str) -> None:
    import torch

    from experiments.bench.workloads import WORKLOADS

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        step, count = WORKLOADS[name].build(bool(int(quick)), Path(folder))  # type: ignore[index]
        window(step, count, float(seconds))
    print(peak())


if __name__ == "__main__":
    main(*sys.argv[1:])
