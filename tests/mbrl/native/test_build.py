"""Where the compiled library comes from, and what happens where it cannot be built."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mbrl.native import build


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home of its own, and sources that are soon compiled: the real ones are, where any other
    test uses the library."""
    monkeypatch.setattr(build, "HOME", tmp_path / "native")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "sources")
    (tmp_path / "sources").mkdir()
    for name in ("one", "two"):
        source = f'extern "C" long {name}() {{ return 1; }}'
        (tmp_path / "sources" / f"{name}.cpp").write_text(source)
    monkeypatch.delenv(build.SWITCH, raising=False)
    build.library.cache_clear()
    yield
    build.library.cache_clear()


def test_it_is_built_once_and_found_again(tmp_path: Path) -> None:
    if not any(build.available(c) for c in ("g++", "clang++", "c++")):
        pytest.skip("no C++ compiler")
    library = build.library()
    assert library is not None and library.one() == library.two() == 1
    (made,) = (tmp_path / "native").glob("*.so")
    written = made.stat().st_mtime_ns
    build.library.cache_clear()
    assert build.library() is not None
    assert [p.stat().st_mtime_ns for p in (tmp_path / "native").glob("*.so")] == [written]
    (tmp_path / "sources" / "one.cpp").write_text('extern "C" long one() { return 2; }')
    build.library.cache_clear()
    changed = build.library()
    assert changed is not None and changed.one() == 2


def test_a_switch_keeps_to_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.SWITCH, "0")
    assert build.library() is None
    assert not (tmp_path / "native").exists()


def test_no_compiler_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert build.library() is None


def test_a_compiler_that_fails_is_said_and_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.write_text('#!/bin/sh\ntest "$1" = --version && exit 0\necho no such flag >&2; exit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.warns(UserWarning, match="no such flag"):
        assert build.library() is None


@pytest.mark.parametrize(
    ("version", "machine", "wide", "gnu"),
    [
        ("g++ (Debian 12.2.0-14) 12.2.0", "x86_64", True, True),
        ("g++ (Debian 12.2.0-14) 12.2.0", "aarch64", False, True),
        ("Apple clang version 16.0.0", "arm64", False, False),
        ("Debian clang version 14.0.6", "x86_64", False, False),
    ],
)
def test_a_compiler_gets_the_options_that_it_knows(
    version: str, machine: str, wide: bool, gnu: bool
) -> None:
    flags = build.flags_of(version, machine)
    assert (build.GNU_X86 in flags) == wide
    assert set(build.GNU) <= set(flags) if gnu else not set(build.GNU) & set(flags)
