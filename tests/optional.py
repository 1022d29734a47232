"""Packages that not everybody has, for files of tests that need them."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


class Late:
    """A module that is imported when something in it is first asked for: some take seconds, and
    every process that collects the tests would pay for them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


def needed(name: str) -> Any:
    """The module; where there is none, the file that asks is skipped."""
    if find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    return Late(name)
