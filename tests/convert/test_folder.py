"""A folder appears whole or not at all, whatever ends the run that makes it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from convert.errors import ConvertError
from convert.folder import new_folder
from convert.gguf import convert_gguf
from tests.convert.gguf_files import write_gguf
from tests.convert.reference import read_meta

ROOT = Path(__file__).parents[2]

# Converts argv[1] to argv[2]; after the second segment says so and waits until its input is closed.
STOPPING = """
import sys
from pathlib import Path
from convert.gguf import convert_gguf

def report(done, what):
    if what.startswith("segment 3"):
        print("waiting", flush=True)
        sys.stdin.read()

convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]), progress=report, overwrite="overwrite" in sys.argv)
"""

# Converts argv[1] to argv[2] and prints the message of the ConvertError it must end in.
FAILING = """
import sys
from pathlib import Path
from convert import gguf
from convert.errors import ConvertError

gguf.check_free_space = lambda directory, needed: None  # so that the disk fills up while it is written
try:
    gguf.convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
except ConvertError as error:
    print(error.message)
"""


@contextmanager
def stopped_conversion(source: Path, out: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of a conversion."""
    command = [sys.executable, "-c", STOPPING, str(source), str(out), *arguments]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "waiting\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "little.gguf"
    write_gguf(path)
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_ended_run_leaves_nothing_under_the_name(source: Path, number: signal.Signals) -> None:
    out = source.parent / "out"
    with stopped_conversion(source, out) as process:
        process.send_signal(number)
        assert process.wait(10) != 0
    assert not out.exists()
    if number == signal.SIGINT:
        assert names(source.parent) == ["little.gguf"]
    else:
        assert names(source.parent / ".out.partial")
        (source.parent / ".out.partial" / "left-over").write_bytes(b"x")
    convert_gguf(source, out)
    assert names(source.parent) == ["little.gguf", "out"]
    assert "left-over" not in names(out)
    assert len(read_meta(out).segments) == 3


def test_two_runs_at_the_same_time_do_not_mix(source: Path) -> None:
    out = source.parent / "out"
    with stopped_conversion(source, out) as process:
        with pytest.raises(ConvertError, match="Another process is writing"):
            convert_gguf(source, out)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0
    assert len(read_meta(out).segments) == 3
    assert names(source.parent) == ["little.gguf", "out"]


def test_an_existing_folder_is_refused_before_anything_is_written(source: Path) -> None:
    out = source.parent / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    with pytest.raises(ConvertError, match="already exists"):
        convert_gguf(source, out)
    with pytest.raises(ConvertError, match="is not a hybrid folder"):
        convert_gguf(source, out, overwrite=True)
    assert names(source.parent) == ["little.gguf", "out"]
    assert (out / "mine").read_text() == "mine"


def test_overwriting_keeps_the_old_folder_until_the_new_one_is_whole(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert_gguf(source, out)
    old = (out / "meta2.json").read_bytes()
    (out / "of-the-old-one").touch()
    write_gguf(source, seed=9)
    with stopped_conversion(source, out, "overwrite") as process:
        assert (out / "meta2.json").read_bytes() == old
        process.kill()
        process.wait(10)
    assert (out / "meta2.json").read_bytes() == old
    convert_gguf(source, out, overwrite=True)
    assert (out / "meta2.json").read_bytes() != old
    assert "of-the-old-one" not in names(out)
    assert names(tmp_path) == ["little.gguf", "out"]


def test_overwriting_behind_a_link_replaces_the_folder_not_the_link(source: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    convert_gguf(source, elsewhere / "real")
    (elsewhere / "real" / "of-the-old-one").touch()
    (tmp_path / "out").symlink_to(elsewhere / "real")
    convert_gguf(source, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out").is_symlink()
    assert names(elsewhere) == ["real"]
    assert "of-the-old-one" not in names(elsewhere / "real")


def test_a_link_in_the_place_of_the_working_folder_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    (tmp_path / ".out.partial").symlink_to(victim)
    with pytest.raises(ConvertError), new_folder(tmp_path / "out"):
        pass
    assert names(victim) == ["precious"]


def test_too_little_room_is_noticed_before_anything_is_written(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 50_000_000, 50_000_000))
    with pytest.raises(ConvertError, match=r"6\d MB are needed.*50 MB are free"):
        convert_gguf(source, source.parent / "out")
    assert names(source.parent) == ["little.gguf"]


def can_mount() -> bool:
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(shutil.which("unshare") is None or not can_mount(), reason="may not mount a small disk")
def test_a_disk_that_fills_up_leaves_nothing(source: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size=200k none "$1" && "$2" -c "$3" "$4" "$1/out" && ls -A "$1" && '
        'df --output=used "$1" | tail -n 1'
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", disk, sys.executable, FAILING, source],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    message, used = done.stdout.splitlines()
    assert "is full (No space left on device)" in message and "start again" in message
    assert int(used) == 0


def test_a_file_over_the_limit_leaves_nothing(source: Path, tmp_path: Path) -> None:
    script = 'ulimit -f 50 && exec "$@"'  # in blocks of 512 bytes
    done = subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-c", FAILING, source, tmp_path / "out"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "File too large" in done.stdout
    assert names(tmp_path) == ["little.gguf"]


def test_a_parent_that_is_a_file_is_named(source: Path) -> None:
    with pytest.raises(ConvertError, match=r"little\.gguf"):
        convert_gguf(source, source / "out")


def test_an_error_inside_removes_what_was_written(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "out") as folder:
        (folder / "file").write_text("x")
        raise ZeroDivisionError
    assert names(tmp_path) == []
