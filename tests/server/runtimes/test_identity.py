"""What a file is told by its bytes: real libraries from a compiler, for two machines, whole and cut off."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from backends.identity import Identity, identify
from tests.standin.rkllm.build import build

MACHINE = platform.machine()


@pytest.mark.parametrize("version", ["1.3.1", "1.3.0", "1.2.3"])
def test_a_library_whatever_it_is_called(version: str, tmp_path: Path) -> None:
    path = build(version, into=tmp_path).rename(tmp_path / "download(1)")
    assert identify(path) == Identity(MACHINE, "rkllm", version, whole=True)


def test_a_library_that_was_cut_off(tmp_path: Path) -> None:
    path = build("1.3.1", into=tmp_path)
    for size in (path.stat().st_size - 1, path.stat().st_size // 2, 5000):
        path.write_bytes(path.read_bytes()[:size])
        found = identify(path)
        assert (found.machine, found.whole) == (MACHINE, False)


def test_the_other_library(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(
        build("1.3.1").read_bytes().replace(b"RKLLM SDK (version: 1.3.1 (", b"librknnrt version: 2.5.0 (x")
    )
    assert identify(path) == Identity(MACHINE, "rknn", "2.5.0", whole=True)


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html>", b"\x7fELF", b"RKLLM SDK (version: 1.3.1 ("])
def test_what_is_no_library(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "librkllmrt.so"
    path.write_bytes(content)
    assert identify(path) == Identity(None)
