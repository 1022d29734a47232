"""The scripts in examples/ run, from an empty folder, with a budget of seconds."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
ELSEWHERE = {"make_log", "run_onnx"}  # behaviour/test_own_data.py, experiments/cli/test_export.py
SHORT = {
    "compare": (["pendulum/medium", "iql", "bc", "--steps", "20", "--seeds", "2"], "bc less iql: "),
    "own_environment": (["40"], "action at 12 degrees: "),
    "own_algorithm": (["40"], "score "),
}


def test_every_script_is_run() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == ELSEWHERE | set(SHORT)


@pytest.mark.parametrize("name", SHORT)
def test_script(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, printed = SHORT[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert printed in capsys.readouterr().out
