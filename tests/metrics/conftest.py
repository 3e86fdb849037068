"""A server that has lived a little, on a made-up board, and what its /metrics says then."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx2
import openai
import pytest

from tests.isolation.processes import eventually, server_process, worker_process
from tests.rkllm.board import Board, Server
from tests.server.metrics.boards import rock5c
from tests.server.metrics.exposed import Exposed, parse

MODEL = "small"
REFUSED = "refused"
TOKEN_MS = 5
LOAD_MS = 300
WORDS = " ".join(["word"] * 20)


@dataclass
class Life:
    """What clients of the server got: usages as they were told, and when it was over the text of /metrics."""

    usages: list[openai.types.CompletionUsage] = field(default_factory=list)
    text: str = ""

    @property
    def exposed(self) -> Exposed:
        return parse(self.text)

    def tell(self, usage: openai.types.CompletionUsage | None) -> None:
        assert usage is not None
        self.usages.append(usage)


@pytest.fixture(scope="session")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    board = Board(tmp_path_factory.mktemp("metrics"))
    rock5c(board.sysroot)
    board.add_runtime()
    board.add(MODEL, answers=[WORDS], token_us=1000 * TOKEN_MS, load_ms=LOAD_MS)
    board.add(REFUSED, init_error="driver_too_old")
    life = Life()
    with board.serve() as server:
        live(server, life)
        life.text = httpx2.get(f"{server.url}/metrics").text
        yield life


def live(server: Server, life: Life) -> None:
    """Ask twice the same, then streamed, then what fails; lose the worker, and ask again."""
    for _ in range(2):
        life.tell(server.ask(MODEL, "Hi there").usage)
    with server.client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Stream this"}],
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=3,
    ) as stream:
        life.tell([chunk.usage for chunk in stream][-1])
    with pytest.raises(openai.APIStatusError):
        server.ask(REFUSED)
    worker = worker_process(server_process(server.url))
    os.kill(worker.pid, signal.SIGKILL)
    assert eventually(lambda: not worker.is_running())
    life.tell(server.ask(MODEL, "Back again").usage)
