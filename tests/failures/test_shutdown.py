"""The server is told to stop, or killed, while a real model answers."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.demo_model import MODEL, ROOT
from tests.isolation.processes import eventually, server_process, worker_process
from tests.serving import running_server

STORY = {"role": "user", "content": "Tell me a very long story about a lighthouse."}
GRACE_S = 1
MARGIN_S = 30  # it promises two seconds; a busy machine gets more


@pytest.fixture
def url(demo_folder: Path, tmp_path: Path) -> Iterator[str]:
    with running_server(
        [sys.executable, "-P", "-m", "server.cli", "serve"],
        models_dir=demo_folder.parent,
        cwd=tmp_path,
        environment={
            "PYTHONPATH": str(ROOT),
            "RKSERVE_PRELOAD": MODEL,
            "RKSERVE_SHUTDOWN_GRACE_S": str(GRACE_S),
        },
        ready=True,
    ) as url:
        yield url


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_and_the_client_is_told(url: str, number: signal.Signals) -> None:
    server = server_process(url)
    worker = worker_process(server)
    body = {"model": MODEL, "messages": [STORY], "stream": True, "max_tokens": 4000}
    with httpx2.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        events = [next(line for line in lines if line) for _ in range(5)]
        server.send_signal(number)
        if number == signal.SIGKILL:
            with pytest.raises(httpx2.TransportError):
                list(lines)
        else:
            events += [line for line in lines if line]
            assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "server_busy"
    server.wait(GRACE_S + MARGIN_S)
    assert eventually(lambda: not worker.is_running())
