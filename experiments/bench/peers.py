"""Other libraries at the same work, each in a process of its own (`peer_programs.py`) that is
measured in turn with this library."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from experiments.bench import peer_programs

PeerName = Literal[
    "stable-baselines3", "d3rlpy", "mbrl-lib", "JAX", "SBX", "transformers", "torch.func.vmap"
]
INSTALL_LIMIT = 600.0  # seconds after which a peer's installation is given up


@dataclass(frozen=True)
class Peer:
    """A library and what its environment needs; `packages` None: it is in this environment."""

    module: str
    pin: str
    packages: tuple[str, ...] | None
    workloads: tuple[str, ...]
    torch: bool = True  # whether it runs on PyTorch


SAC_WORKLOADS = ("sac", "sac_small", "online_sac", "online_sac_small")

PEERS: dict[PeerName, Peer] = {
    "stable-baselines3": Peer("stable_baselines3", "stable-baselines3", None, SAC_WORKLOADS),
    "d3rlpy": Peer(
        "d3rlpy",
        "d3rlpy==2.8.1",
        (
            "numpy",
            "gymnasium",
            "gym",
            "structlog",
            "h5py",
            "dataclasses_json",
            "tqdm",
            "scikit-learn",
            "colorama",
            "click",
            "typing_extensions",
        ),
        ("td3_bc", "sac_n"),
    ),
    "mbrl-lib": Peer(
        "mbrl",
        "mbrl==0.2.0",
        ("numpy", "hydra-core", "termcolor", "gymnasium", "tqdm"),
        ("model_fit", "rollout_single", "pets_plan"),
    ),
}

PEERS["JAX"] = Peer(
    "jax",
    "jax==0.10.2",
    ("jaxlib==0.10.2", "optax==0.2.8", "numpy", "absl-py", "ml_dtypes", "opt_einsum", "scipy"),
    (
        "sac_small",
        "edac_small",
        "cql_small",
        "td3_bc_small",
        "rebrac_small",
        "sac",
        "td3_bc",
        "sac_n",
        "edac",
        "model_fit",
        "recurrent",
    ),
    torch=False,
)
PEERS["SBX"] = Peer(
    "sbx",
    "sbx-rl==0.28.0",
    (
        "stable_baselines3==2.9.2",
        "jax==0.10.2",
        "jaxlib==0.10.2",
        "flax",
        "optax==0.2.8",
        "tfp-nightly",
        "tqdm",
        "rich",
    ),
    SAC_WORKLOADS,
)
# The same members as one stack for `torch.func.vmap`, in this environment.
PEERS["transformers"] = Peer(
    "transformers",
    "transformers",
    None,
    ("language_sample", "language_train", "language_update"),
)
PEERS["torch.func.vmap"] = Peer("torch", "torch", None, ("ensemble_128",))


class PeerError(Exception):
    """A peer cannot run here; the text says why."""


def environment(name: str, home: Path) -> Path:
    """The interpreter of an environment with the peer in it, made at first use."""
    peer = PEERS[cast(PeerName, name)]
    if peer.packages is None:
        return Path(sys.executable)
    folder = home / name
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    began = time.monotonic()
    venv.create(folder, with_pip=True, clear=True)
    # torch first and alone: as a dependency of the peer it would come with gigabytes of CUDA.
    first = [["torch==2.13.0"]] if peer.torch else []
    for packages in (*first, ["--no-deps", peer.pin], list(peer.packages)):
        left = INSTALL_LIMIT - (time.monotonic() - began)
        command = [str(python), "-m", "pip", "install", "-q", *packages]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=max(1, left))
        except subprocess.TimeoutExpired:
            raise PeerError(f"not installed within {INSTALL_LIMIT:.0f} s") from None
        if done.returncode:
            raise PeerError(f"pip failed: {_last_line(done.stderr)}")
    check = [str(python), "-c", f"import {peer.module}"]
    done = subprocess.run(check, capture_output=True, text=True)
    if done.returncode:
        raise PeerError(f"does not import: {_last_line(done.stderr)}")
    (folder / "ready").touch()
    return python


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


class Running:
    """A peer's workload in its process."""

    def __init__(self, name: str, workload: str, home: Path) -> None:
        python, module = environment(name, home), PEERS[cast(PeerName, name)].module
        variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        # A file, as a pipe that nobody reads could fill up; it is gone when this object is.
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            # -I: mbrl-lib is called mbrl, too
            [str(python), "-I", peer_programs.__file__, name, workload, module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, **dict.fromkeys(variables, "1")},
        )
        self.version: str = self._answer()["version"]

    def rate(self, seconds: float) -> float:
        return float(self._asked(str(seconds))["rate"])

    def peak(self) -> float:
        """The peak resident size of the process until now, in MB."""
        return float(self._asked(peer_programs.PEAK)["peak"])

    def _asked(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the missing answer tells
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            self.process.wait()
            self.errors.seek(0)
            raise PeerError(f"stopped: {_last_line(self.errors.read())}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.process.communicate(timeout=30)
