"""The image's health check against servers that answer, do not answer, and still load."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.serving import clean_environment, free_port

CHECK = Path(__file__).parents[2] / "docker" / "healthcheck.py"


@contextmanager
def server(status: int, host: str = "127.0.0.1") -> Iterator[int]:
    """A server that answers /health with this status and everything else as one that loads a model."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 503)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer((host, 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield http.server_port
        http.shutdown()
        thread.join()


def check(port: int, host: str = "0.0.0.0") -> subprocess.CompletedProcess[str]:
    environment = clean_environment(RKSERVE_PORT=str(port), RKSERVE_HOST=host)
    return subprocess.run(
        [sys.executable, "-I", str(CHECK)], env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost", ""])
def test_a_server_that_serves_is_healthy_also_while_it_loads(host: str) -> None:
    with server(200) as port:
        assert check(port, host).returncode == 0


def test_what_is_wrong_is_said() -> None:
    with server(500) as port:
        failed = check(port)
    assert (failed.returncode, failed.stderr) == (1, "/health answers 500\n")
    port = free_port()
    failed = check(port)
    assert failed.returncode == 1
    assert f"no answer on port {port}: " in failed.stderr
    assert os.linesep == failed.stderr[-1]
