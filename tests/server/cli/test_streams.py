"""The server with standard streams that are closed, full or unread: it serves, and its end is a success."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.cli.command import COMMAND, environment
from tests.serving import START_S, STOP_S, free_port

CLOSE = """
import os, sys
for number in sys.argv[1].split(","):
    os.close(int(number))
os.execv(sys.argv[2], sys.argv[2:])
"""


def up(process: subprocess.Popen[Any], port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None, "the server ended"
        assert time.monotonic() < deadline, "the server did not start"
        try:
            assert httpx2.get(f"http://127.0.0.1:{port}/health", timeout=10).status_code == 200
            return
        except httpx2.TransportError:
            time.sleep(0.05)  # another process starts: there is no event of it to wait for


def served(
    home: Path, before: tuple[str, ...] = (), then: Callable[[int], None] | None = None, **options: Any
) -> int:
    """Run a server with these streams, ask it, end it; return its exit code."""
    port = free_port()
    command = [*before, *COMMAND, "serve", "--port", str(port)]
    process = subprocess.Popen(command, cwd=home, env=environment(home, **options.pop("env", {})), **options)
    try:
        up(process, port)
        if then is not None:
            then(port)
        process.send_signal(signal.SIGTERM)
        return process.wait(STOP_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_disk(tmp_path: Path, stream: str, form: str) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | {
            stream: full
        }
        assert served(tmp_path, env={"RKSERVE_LOG_FORMAT": form}, **streams) == 0


@pytest.mark.parametrize("closed", ["0,1,2", "2", "1"])
def test_streams_that_are_closed(tmp_path: Path, closed: str) -> None:
    before = (sys.executable, "-c", CLOSE, closed)
    assert served(tmp_path, before, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_reader_who_pauses(tmp_path: Path, form: str) -> None:
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    lines: list[str] = []

    def ask(port: int) -> None:
        with httpx2.Client(timeout=60) as client:
            for _ in range(200):
                assert client.get(f"http://127.0.0.1:{port}/health").status_code == 200
        os.close(write)
        os.set_blocking(read, False)

    (tmp_path / "runtimes").mkdir()  # else that it is missing is a line, too
    try:
        code = served(
            tmp_path,
            then=ask,
            stdout=subprocess.DEVNULL,
            stderr=write,
            env={"RKSERVE_LOG_FORMAT": form},
        )
        assert code == 0
        lines = (
            os.read(read, 2**20).decode().splitlines()[1:-1]
        )  # the first is the command's, the last is cut
    finally:
        os.close(read)
    assert len(lines) > 10
    assert all(json.loads(line)["level"] == "info" if form == "json" else " INFO " in line for line in lines)


@pytest.mark.parametrize("files", [8, 12, 20])
def test_too_few_open_files_are_said(tmp_path: Path, files: int) -> None:
    ended = subprocess.run(
        [*COMMAND, "serve", "--port", "0"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=START_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
    )
    assert ended.returncode == 1
    assert f"only {files} files open" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", [("models",), ("--version",), ("nonsense",)])
def test_a_command_whose_output_is_refused_fails_by_its_own_code(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        ended = subprocess.run(
            [*COMMAND, *command],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=full,
            stderr=full,
            timeout=60,
        )
    assert ended.returncode == (2 if command == ("nonsense",) else 1)
