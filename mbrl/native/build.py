"""The compiled part of the library: built by the machine's C++ compiler at first use, kept in
`~/.longreach/native`, and left out where there is no compiler."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

from filelock import FileLock

SOURCES = Path(__file__).parent
HOME = Path("~/.longreach/native")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-std=c++17", "-shared", "-fPIC", "-w")
# Of g++ alone. Copies of loops without their conditions take version 14 five times as long to build
# and make nothing faster. For Zen processors up to the third it would round a multiplication in
# chains of sums, as in the last rows of a product alone, so that a row's result would depend on how
# many are beside it.
GNU = ("-fno-unswitch-loops", "--param=avoid-fma-max-bits=0")
# Of g++ for x86, which refuses it for others: wide vectors of processors that have them.
GNU_X86 = "-mprefer-vector-width=512"
SWITCH = "LONGREACH_NATIVE"  # 0: keep to PyTorch
COMPILE_LIMIT = 300.0  # seconds


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled library, or None: `LONGREACH_NATIVE` is 0, there is no C++ compiler, or it
    fails (said once)."""
    if os.environ.get(SWITCH, "1") == "0":
        return None
    compiler = next(
        (c for c in (os.environ.get("CXX"), "g++", "clang++", "c++") if available(c)), None
    )
    if compiler is None:
        return None
    try:
        return ctypes.CDLL(str(built(compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", "") or str(error)
        warnings.warn(
            f"{compiler} could not build the fast updates, so that PyTorch does them (slower, same "
            f"results within rounding); {SWITCH}=0 keeps to that without a try: {output[-500:]}",
            stacklevel=2,
        )
        return None


def available(compiler: str | None) -> bool:
    return compiler is not None and shutil.which(compiler) is not None


def built(compiler: str) -> Path:
    """The library file for this source, compiler and processor, compiled unless it is there."""
    sources = sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")])
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    flags = flags_of(version.stdout, platform.machine())
    parts = [*(p.read_text() for p in sources), version.stdout, " ".join(flags), processor()]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = HOME.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{digest}.so"
    with FileLock(folder / f"{digest}.lock"):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                made = Path(scratch) / "library.so"
                files = [str(p) for p in sources if p.suffix == ".cpp"]
                subprocess.run(
                    [compiler, *flags, *files, "-o", str(made)],
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=COMPILE_LIMIT,
                )
                made.replace(target)
    return target


def flags_of(version: str, machine: str) -> tuple[str, ...]:
    """The options of a compiler that answers `version` on such a machine."""
    if "clang" in version:
        return FLAGS
    return (*FLAGS, *GNU, *([GNU_X86] if machine in ("x86_64", "AMD64", "i686") else []))


def processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    kinds = ("flags", "Features", "model name", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))
