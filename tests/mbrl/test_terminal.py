"""What is printed on a terminal is printed whole."""

from pathlib import Path

import pytest

from mbrl.terminal import terminal


def test_square_brackets_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    terminal(width=80).print("runs/[x]/[/a] in [nan, 1] and [bold]")
    assert capsys.readouterr().out == "runs/[x]/[/a] in [nan, 1] and [bold]\n"
    terminal(error=True, width=80).print("[red]")
    assert capsys.readouterr().err == "[red]\n"


def test_commands_print_on_it_alone() -> None:
    folder = Path(__file__).parents[2] / "experiments"
    made = [file for file in folder.rglob("*.py") if "Console(" in file.read_text()]
    assert not made, f"use mbrl.terminal.terminal in {made}"
