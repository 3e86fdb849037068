"""Makes the text of /metrics: looks at everything once, off the loop, and writes it down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from server.metrics.aside import Aside
from server.metrics.board import Board, read_board
from server.metrics.readings import Readings
from server.scheduling.status import Figures

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
# How long a look at the board may take; a driver that hangs takes for ever.
PATIENCE_S = 2.0


class Exposition:
    """One scrape at a time. figures: returns how the queue and the models stand, in the loop's thread."""

    def __init__(
        self, registry: CollectorRegistry, figures: Callable[[], Figures], queue_limit: int, sysroot: Path
    ) -> None:
        self._registry = registry
        self._figures = figures
        self._queue_limit = queue_limit
        self._board: Aside[Board] = Aside(lambda: read_board(sysroot), PATIENCE_S)
        self._turn = asyncio.Lock()

    async def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        async with self._turn:
            board = await self._board()
            figures = self._figures()
            return await asyncio.to_thread(self._write, figures, board)

    def _write(self, figures: Figures, board: Board | None) -> bytes:
        readings = Readings(figures, self._queue_limit, board, _memory(figures.workers))
        return generate_latest(_Together(self._registry, readings))


class _Together(Collector):
    """Several collectors as one, without the times of creation, which would be half of all lines."""

    def __init__(self, *collectors: Collector) -> None:
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        for collector in self._collectors:
            for metric in collector.collect():
                metric.samples = [one for one in metric.samples if not one.name.endswith("_created")]
                yield metric


def _memory(workers: Mapping[str, int]) -> dict[str, int]:
    """Return the resident memory of the processes, bytes, by model."""
    found: dict[str, int] = {}
    for model, pid in workers.items():
        with suppress(psutil.Error):  # it has just ended
            found[model] = psutil.Process(pid).memory_info().rss
    return found
