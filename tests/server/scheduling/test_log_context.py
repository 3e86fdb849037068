"""What is logged of a worker bears no client's request id: the worker outlives who started it."""

from __future__ import annotations

import logging
from pathlib import Path

from server.logs import REQUEST_ID
from tests.server.workers.harness import harness


class Ids(logging.Handler):
    """Keeps the request id under which each record was made."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(REQUEST_ID.get())


async def test_a_worker_s_lines_are_nobody_s(tmp_path: Path) -> None:
    handler, logger = Ids(), logging.getLogger("server.workers")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    token = REQUEST_ID.set("alice")
    try:
        async with harness(tmp_path) as h:
            await h.answer("a", "say:3 pid")
    finally:
        REQUEST_ID.reset(token)
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert len(handler.seen) > 3
    assert set(handler.seen) == {""}
