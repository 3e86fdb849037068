"""A real `rkserve serve` in a process of its own, for tests that talk to it as a client does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2

PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
"""How many times slower than usual the machine may be; an emulated one is very slow."""

START_S = 60 * PATIENCE
STOP_S = 30 * PATIENCE


def free_port() -> int:
    """Return a TCP port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def clean_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without any rkserve setting of the person who runs the tests."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RKSERVE_")}
    return kept | more


@contextmanager
def running_server(
    command: Sequence[str],
    *,
    models_dir: Path,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    ready: bool = False,
) -> Iterator[str]:
    """Run a server until the block ends; yields its URL. Its output is shown if it does not start or stop."""
    port = free_port()
    log = cwd / f"server-{port}.log"
    environment = clean_environment(
        RKSERVE_PORT=str(port),
        RKSERVE_MODELS_DIR=str(models_dir),
        XDG_CONFIG_HOME=str(cwd / "config"),
        **(environment or {}),
    )
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        _wait_until_up(f"{url}/{'ready' if ready else 'health'}", process, log)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the server did not stop:\n{log.read_text(errors='replace')}") from None


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None, f"the server ended:\n{log.read_text(errors='replace')}"
        assert time.monotonic() < deadline, f"the server did not start:\n{log.read_text(errors='replace')}"
        try:
            if httpx2.get(url, timeout=2).status_code == 200:
                return
        except httpx2.TransportError:
            time.sleep(0.05)  # another process starts: there is no event of it to wait for
