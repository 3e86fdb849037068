"""rkserve runtime: what is taken, what is refused and why, and that only whole files get a library's name."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
import yaml

from backends.discovery import RuntimeFinder
from backends.elf import OWN_EXECUTABLE
from server.runtimes import fetch as fetching
from server.runtimes.errors import NotFetched
from server.runtimes.fetch import fetch
from tests.server.cli.command import COMMAND, environment, models_dir, rkserve
from tests.server.runtimes.web import Answer, serving
from tests.standin.rkllm.build import build

MACHINE = platform.machine()
SDK = b"RKLLM SDK (version: 1.3.1 ("


def library(version: str = "1.3.1", pattern: str | None = None) -> bytes:
    return build(version, pattern=pattern).read_bytes()


def of_machine(number: int) -> bytes:
    """The library with the header of another machine: 243 is riscv64, as <elf.h> has it."""
    whole = library()
    return whole[:18] + number.to_bytes(2, "little") + whole[20:]


def rknn() -> bytes:
    """A library whose bytes say what librknnrt's do."""
    return library().replace(SDK, b"librknnrt version: 2.5.0 (x")


def files(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in (home / "runtimes").rglob("*") if path.is_file())


def test_a_file_gets_the_place_of_its_version(tmp_path: Path) -> None:
    source = build("1.3.1")
    (tmp_path / "download").write_bytes(source.read_bytes())
    os.chmod(tmp_path / "download", 0o600)
    done = rkserve("runtime", "install", "download", home=tmp_path)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "runtimes/1.3.1/librkllmrt.so"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert done.stdout == f"librkllmrt 1.3.1 is now at {path}\nsha256 {digest}\n"
    assert "right for minicpm5-2b, kanana-2-3b" in done.stderr
    assert path.read_bytes() == source.read_bytes()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o644, 0o755)
    assert files(tmp_path) == ["runtimes/1.3.1/librkllmrt.so"]
    assert RuntimeFinder([tmp_path / "runtimes"], system=()).choose("rkllm", "==1.3.1").path == path


def test_what_is_there_already_stays(tmp_path: Path) -> None:
    source = build("1.3.1", into=tmp_path)
    assert rkserve("runtime", "install", str(source), home=tmp_path).returncode == 0
    before = (tmp_path / "runtimes/1.3.1/librkllmrt.so").stat()
    again = rkserve("runtime", "install", str(source), "--json", home=tmp_path)
    assert json.loads(again.stdout)["unchanged"] is True
    source.write_bytes(source.read_bytes() + b"\0")
    other = rkserve("runtime", "install", str(source), home=tmp_path)
    assert other.returncode == 1 and "--replace" in other.stderr
    after = (tmp_path / "runtimes/1.3.1/librkllmrt.so").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert rkserve("runtime", "install", str(source), "--replace", home=tmp_path).returncode == 0
    assert (tmp_path / "runtimes/1.3.1/librkllmrt.so").read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lambda: library("1.2.3"), "librkllmrt 1.2.3, and only <1.4,>=1.3 can be used: another one has"),
        (lambda: of_machine(243), f"is for riscv64, and this machine runs {MACHINE}"),
        (lambda: library()[:-100], "it was cut off"),
        (lambda: library(pattern="none"), "names no version"),
        (lambda: OWN_EXECUTABLE.read_bytes(), "names no version"),
        (lambda: b"<!DOCTYPE html><html>", "it is a web page"),
        (lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\n", "Git LFS pointer"),
        (lambda: b"\x1f\x8b\x08", "an archive"),
        (lambda: b"", "it is empty"),
    ],
)  # fmt: skip
def test_what_is_refused_and_why(content: Callable[[], bytes], says: str, tmp_path: Path) -> None:
    (tmp_path / "librkllmrt.so").write_bytes(content())
    done = rkserve("runtime", "install", "librkllmrt.so", home=tmp_path)
    assert done.returncode == 1
    assert says in done.stderr
    assert files(tmp_path) == []


def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "librkllmrt.so").write_bytes(library())
    limited = 'ulimit -f 1; exec "$@"'  # no file may be larger than a block
    done = subprocess.run(
        ["sh", "-c", limited, "sh", *COMMAND, "runtime", "install", "librkllmrt.so"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "is full (File too large); what was written has been removed" in done.stderr
    assert "as the user" not in done.stderr
    assert files(tmp_path) == []


def test_another_than_the_hash_that_was_named(tmp_path: Path) -> None:
    source = build("1.3.1")
    wrong = rkserve("runtime", "install", str(source), "--sha256", "0" * 64, home=tmp_path)
    assert wrong.returncode == 1 and "not 0000" in wrong.stderr
    assert files(tmp_path) == []
    digest = hashlib.sha256(source.read_bytes()).hexdigest().upper()
    assert rkserve("runtime", "install", str(source), "--sha256", digest, home=tmp_path).returncode == 0
    assert rkserve("runtime", "install", str(source), "--sha256", "abc", home=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/good", ""),
        ("/unknown-length", ""),
        ("/moved", ""),
        ("/missing", "its server answers 404"),
        ("/cut", "could not be fetched"),
        ("/huge", "more than 256 MB"),
        ("/page", "it is a web page"),
        ("/loop", "redirected more than 5 times"),
        ("/file", "no http or https address"),
    ],
)
def test_an_address(path: str, says: str, tmp_path: Path) -> None:
    answers = {
        "/good": Answer(library()),
        "/unknown-length": Answer(library(), length=-1),
        "/moved": Answer(status=302, headers={"location": "/good"}),
        "/cut": Answer(library()[:5000], length=len(library())),
        "/huge": Answer(b"x", length=1 << 40),
        "/page": Answer(b"\n<html lang=en>"),
        "/loop": Answer(status=301, headers={"location": "/loop"}),
        "/file": Answer(status=302, headers={"location": "file:///etc/passwd"}),
    }
    with serving(answers) as url:
        done = rkserve("runtime", "install", url + path, home=tmp_path)
    assert done.returncode == (1 if says else 0), done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr
    assert files(tmp_path) == ([] if says else ["runtimes/1.3.1/librkllmrt.so"])


@pytest.mark.parametrize("source", ["ftp://example.org/x.so", "file:///etc/passwd", "http://"])
def test_an_address_of_another_kind(source: str, tmp_path: Path) -> None:
    done = rkserve("runtime", "install", source, home=tmp_path)
    assert done.returncode == 1 and "no http or https address" in done.stderr


def test_from_https_nobody_is_led_to_http() -> None:
    before = httpx2.URL("https://b/x")
    assert fetching._checked("http://a/x", None).host == "a"
    assert fetching._checked("https://a/x", before).host == "a"
    with pytest.raises(NotFetched, match="redirected from https"):
        fetching._checked("http://a/x", before)


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fetching, "LARGEST_BYTES", 10)
    with serving({"/": Answer(b"x" * 11, length=-1)}) as url, (tmp_path / "x").open("wb") as file:
        with pytest.raises(NotFetched, match="no runtime library is so large"):
            fetch(url + "/", file)
        with pytest.raises(NotFetched, match="no runtime library is so large"):
            fetch(str(build("1.3.1")), file)


def test_killed_in_mid_transfer_it_leaves_nothing_that_counts(tmp_path: Path) -> None:
    """What a killed run left is removed by the next one, and only that: another one's is locked."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    running = subprocess.Popen([*COMMAND, "runtime", "install", str(pipe)], env=environment(tmp_path))
    with pipe.open("wb") as file:
        file.write(library()[:70_000])
        file.flush()
        (left,) = files(tmp_path)
        running.send_signal(signal.SIGKILL)
        running.wait(60)
    assert left.endswith(".partial") and files(tmp_path) == [left]
    assert not RuntimeFinder([tmp_path / "runtimes"], system=()).find("rkllm")
    used = tmp_path / "runtimes/.rkserve-runtime-x.partial"
    with used.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert rkserve("runtime", "install", str(build("1.3.1")), home=tmp_path).returncode == 0
    assert files(tmp_path) == ["runtimes/.rkserve-runtime-x.partial", "runtimes/1.3.1/librkllmrt.so"]


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: the writer gets an error in mid-file."""
    command = f"ulimit -f 20; exec {' '.join(COMMAND)} runtime install {build('1.3.1')}"
    done = subprocess.run(
        ["bash", "-c", command], env=environment(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stderr and "Traceback" not in done.stderr
    assert files(tmp_path) == []


def test_another_user_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    """Root installs it, and the service's user reads it."""
    command = f"umask 077; exec {' '.join(COMMAND)} runtime install {build('1.3.1')}"
    done = subprocess.run(
        ["bash", "-c", command], env=environment(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "runtimes/1.3.1/librkllmrt.so"
    modes = [entry.stat().st_mode & 0o777 for entry in (path, path.parent, path.parent.parent)]
    assert modes == [0o644, 0o755, 0o755]


def test_a_directory_of_the_system_is_left_alone(tmp_path: Path) -> None:
    done = rkserve(
        "runtime", "install", str(build("1.3.1")), "--runtime-dirs", "/usr/lib:/usr/local/lib", home=tmp_path
    )
    assert done.returncode == 1 and "directories of the system only" in done.stderr
    second = f"/usr/lib:{tmp_path / 'mine'}"
    done = rkserve("runtime", "install", str(build("1.3.1")), "--runtime-dirs", second, home=tmp_path)
    assert (tmp_path / "mine/1.3.1/librkllmrt.so").is_file(), done.stderr


def test_what_is_no_file(tmp_path: Path) -> None:
    for source, says in (("nothing.so", "No such file"), (".", "is a directory")):
        done = rkserve("runtime", "install", source, home=tmp_path)
        assert done.returncode == 1 and says in done.stderr
        assert files(tmp_path) == []


def test_the_other_library_says_who_takes_it(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(rknn())
    done = rkserve("runtime", "install", "x", home=tmp_path)
    path = tmp_path / "runtimes/2.5.0/librknnrt.so"
    assert done.stdout.startswith(f"librknnrt 2.5.0 is now at {path}\n")
    assert f"sudo ln -sf {path} /usr/lib/librknnrt.so" in done.stderr
    assert "right for wevisone-vl-2b" in done.stderr


def test_a_list_says_which_models_each_is_right_for(tmp_path: Path) -> None:
    empty = rkserve("runtime", "list", home=tmp_path)
    assert empty.returncode == 0 and "rkserve runtime install" in empty.stderr and empty.stdout == ""
    entry = {
        "backend": "rkllm", "file": "m.rkllm", "template": "chatml", "context_length": 2048,
        "memory_mb": 100, "license": {"id": "MIT"},
    }  # fmt: skip
    models = {"old": entry | {"runtime": "==1.3.0"}, "any": entry, "absent": entry}
    (tmp_path / "models.yaml").write_text(yaml.safe_dump({"version": 1, "models": models}))
    for model in ("old", "any"):
        (models_dir(tmp_path) / model).mkdir(parents=True)
        (models_dir(tmp_path) / model / "m.rkllm").touch()
    runtimes = tmp_path / "runtimes"
    for version in ("1.3.0", "1.3.1", "1.2.3"):
        build(version, into=runtimes / version)
    (runtimes / "librknnrt.so").write_bytes(rknn())
    options = ["--models-file", "models.yaml"]
    done = rkserve("runtime", "list", "--json", *options, home=tmp_path)
    found = {row["version"]: row for row in json.loads(done.stdout)}
    assert set(found) == {"1.3.0", "1.3.1", "1.2.3", "2.5.0"}
    assert found["1.3.0"]["used_by"] == ["old"]
    assert found["1.3.1"]["used_by"] == ["any"]
    assert {"any", "old", "absent"} & set(found["1.3.0"]["satisfies"]) == {"any", "old", "absent"}
    assert {"any", "old", "absent"} & set(found["1.3.1"]["satisfies"]) == {"any", "absent"}
    assert found["1.2.3"]["satisfies"] == [] and "1.2.3, not" in found["1.2.3"]["problem"]
    assert found["2.5.0"]["library"] == "librknnrt" and "wevisone-vl-2b" in found["2.5.0"]["satisfies"]
    table = rkserve("runtime", "list", *options, home=tmp_path)
    lines = table.stdout.splitlines()
    assert len(lines) == 5 and lines[0].split()[:2] == ["LIBRARY", "VERSION"]
    assert f"{runtimes / '1.2.3/librkllmrt.so'}: version 1.2.3, not" in table.stderr
