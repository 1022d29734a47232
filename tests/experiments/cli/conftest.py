"""Fixtures of the tests of verbs."""

from pathlib import Path

import pytest

from experiments.__main__ import main
from tests.conftest import shorten_episodes


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two short RAVL runs that differ in their seed, and one of BC."""
    home = tmp_path_factory.mktemp("runs")
    small = ["--learner.hidden", "8", "8", "--learner.critics", "3", "--imagination.starts", "32"]
    small += ["--imagination.truth", "1", "--imagination.every", "10"]
    small += ["--imagination.diagnose", "10", "--model.hidden", "16", "--model.max-epochs", "5"]
    small += ["--model.min-epochs", "1"]
    common = ["--steps", "40", "--log-every", "5", "--final-episodes", "2", "--eval-episodes", "2"]
    with pytest.MonkeyPatch.context() as patch:
        shorten_episodes(patch)
        for seed in ("0", "1"):
            out = ["--out", str(home / f"ravl-{seed}"), "--seed", seed]
            assert main(["run", "ravl", "pendulum/medium", *common, *small, *out]) == 0
        assert main(["run", "bc", "pendulum/medium", *common, "--out", str(home / "bc")]) == 0
    return [home / "ravl-0", home / "ravl-1", home / "bc"]
