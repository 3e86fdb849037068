"""Finding runtime libraries: real files with ELF headers, versions where the vendor writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backends import discovery
from backends.discovery import NoFittingRuntime, RuntimeFinder, parse_version, read_version
from backends.elf import OWN_EXECUTABLE

SDK = b"\0RKLLM SDK (version: %s (abc1234@2025-11-05T09:00:00))\0"
LOGGED = b"\0rkllm-runtime version: %s, rknpu driver version: \0"
FORMAT = b"\0rkllm-runtime version: %s, rknpu driver version: %s, platform: %s\0"


def elf_header(machine: int | None = None) -> bytes:
    head = bytearray(OWN_EXECUTABLE.read_bytes()[:64])
    if machine is not None:
        head[18:20] = machine.to_bytes(2, "little")
    return bytes(head)


def library(directory: Path, content: bytes, name: str = "librkllmrt.so", machine: int | None = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_bytes(elf_header(machine) + content)
    return path


def finder(*directories: Path) -> RuntimeFinder:
    return RuntimeFinder(directories, system=())


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (SDK % b"1.3.1", "1.3.1"),
        (LOGGED % b"1.3.0", "1.3.0"),
        (LOGGED % b"9.9.9" + SDK % b"1.3.1b1", "1.3.1b1"),
        (FORMAT + SDK % b"1.2.3", "1.2.3"),
        (FORMAT, None),
        (b"version: 1.3.1", None),
    ],
)
def test_the_version_stands_in_the_bytes(tmp_path: Path, content: bytes, version: str | None) -> None:
    assert read_version(library(tmp_path, content), "rkllm") == version


@pytest.mark.parametrize("before", [0, 1, 20, 27, 28, 29, 30, 31, 33, 40, 60, 127, 128, 129])
def test_a_version_across_two_pieces_of_a_file(tmp_path: Path, before: int) -> None:
    path = tmp_path / "librkllmrt.so"
    path.write_bytes(
        b"\0" * (discovery._CHUNK_BYTES - before) + b"RKLLM SDK (version: 1.3.10 (x@2025))" + b"\0" * 9
    )
    assert read_version(path, "rkllm") == "1.3.10"


@pytest.mark.parametrize("length", [1, 2])
def test_a_version_at_the_very_end_of_a_file(tmp_path: Path, length: int) -> None:
    text = b"rkllm-runtime version: 1.3.1"
    path = tmp_path / "librkllmrt.so"
    path.write_bytes(b"\0" * (length * discovery._CHUNK_BYTES - len(text)) + text)
    assert read_version(path, "rkllm") == "1.3.1"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.3.1", "1.3.1"),
        ("v1.3.1", "1.3.1"),
        ("1.2.0b1", "1.2.0b1"),
        ("1.3.1_rc_x", "1.3.1"),
        ("1.3.1.", "1.3.1"),
        ("unknown", "None"),
        ("", "None"),
    ],
)
def test_versions_as_the_vendor_writes_them(text: str, version: str) -> None:
    assert str(parse_version(text)) == version


def test_two_versions_side_by_side_serve_two_models(tmp_path: Path) -> None:
    old = library(tmp_path / "1.3.0", SDK % b"1.3.0")
    new = library(tmp_path / "v1.3.1", SDK % b"1.3.1")
    libraries = finder(tmp_path)
    assert libraries.choose("rkllm", "==1.3.0").path == old
    assert libraries.choose("rkllm", "==1.3.1").path == new
    assert libraries.choose("rkllm", None).path == new
    assert libraries.choose("rkllm", "<1.3.1").path == old


def test_the_first_directory_that_has_one_wins(tmp_path: Path) -> None:
    first = library(tmp_path / "mine", SDK % b"1.3.0")
    second = library(tmp_path / "system", SDK % b"1.3.1")
    libraries = RuntimeFinder([tmp_path / "mine"], system=[tmp_path / "system"])
    assert libraries.choose("rkllm", ">=1.3").path == first
    assert libraries.choose("rkllm", ">1.3.0").path == second


def test_a_release_goes_before_a_later_pre_release(tmp_path: Path) -> None:
    release = library(tmp_path / "1.3.1", SDK % b"1.3.1")
    beta = library(tmp_path / "1.3.2b1", SDK % b"1.3.2b1")
    assert finder(tmp_path).choose("rkllm", ">=1.3").path == release
    assert finder(tmp_path).choose("rkllm", ">1.3.1").path == beta


@pytest.mark.parametrize("version", [b"1.2.3", b"1.3.0b1", b"1.4.0", b"1.4.0b1", b"2.0.0"])
def test_a_version_with_another_layout_is_never_chosen(tmp_path: Path, version: bytes) -> None:
    library(tmp_path, SDK % version)
    with pytest.raises(NoFittingRuntime):
        finder(tmp_path).choose("rkllm", None)
    with pytest.raises(NoFittingRuntime):
        finder(tmp_path).choose("rkllm", f"=={version.decode()}")


def test_the_bytes_count_and_not_the_name_of_the_directory(tmp_path: Path) -> None:
    library(tmp_path / "1.3.1", SDK % b"1.2.3")
    with pytest.raises(NoFittingRuntime):
        finder(tmp_path).choose("rkllm", "==1.3.1")


def test_a_refusal_lists_each_file_with_its_version(tmp_path: Path) -> None:
    old = library(tmp_path / "1.2.3", SDK % b"1.2.3")
    foreign = library(tmp_path / "1.3.1", SDK % b"1.3.1", machine=243)
    nameless = library(tmp_path, b"nothing")
    broken = tmp_path / "1.3.2" / "librkllmrt.so"
    broken.parent.mkdir()
    broken.write_bytes(b"<html>")
    with pytest.raises(NoFittingRuntime) as caught:
        finder(tmp_path).choose("rkllm", "==1.3.1")
    message = str(caught.value)
    assert f"{old}: version 1.2.3, not " in message
    assert f"{foreign}: it is for riscv64" in message
    assert f"{nameless}: its bytes name no version" in message
    assert f"{broken}: no library" in message
    assert "RKSERVE_RUNTIME_DIRS" in message
    assert {item.library.path for item in caught.value.rejected} == {old, foreign, nameless, broken}


def test_a_refusal_without_any_file_names_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(NoFittingRuntime, match=str(tmp_path)):
        finder(tmp_path / "absent", tmp_path).choose("rkllm", None)


def test_one_file_under_two_names_is_listed_once(tmp_path: Path) -> None:
    path = library(tmp_path / "a", SDK % b"1.3.1")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert [found.path for found in finder(tmp_path / "a", tmp_path / "b").find("rkllm")] == [path]


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    path = library(tmp_path, SDK % b"1.3.0")
    libraries = finder(tmp_path)
    assert libraries.choose("rkllm", None).version_text == "1.3.0"
    before = path.stat()
    library(tmp_path, SDK % b"1.3.1")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert libraries.choose("rkllm", None).version_text == "1.3.0"
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert libraries.choose("rkllm", None).version_text == "1.3.1"


def test_the_other_runtime_has_its_own_name_pattern_and_no_abi_of_ours(tmp_path: Path) -> None:
    path = library(tmp_path, b"librknnrt version: 2.3.2 (429f97ae6b@2025-04-09)", name="librknnrt.so")
    assert finder(tmp_path).choose("rknn", ">=2.3").path == path
    with pytest.raises(NoFittingRuntime, match=r"2\.3\.2"):
        finder(tmp_path).choose("rknn", ">=2.5")
