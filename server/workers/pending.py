"""What is asked of a worker and not answered yet: the load, the run under way, counts. Knows no process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from backends.protocol import Delta, Finished, Prefill
from backends.spec import ModelInfo
from server.errors import ApiError
from server.workers.failure import RunNotBegun

RunEvent = Prefill | Delta | Finished
T = TypeVar("T")


class PendingRun:
    """The run under way: where its events go, and the future that its end settles.

    begun: the worker has given it to its engine, so the worker's death may be its doing. adapter: the
    name of the one it needs, which is loaded before `prefilling` begins.
    """

    __slots__ = ("adapter", "begun", "cancelled", "done", "on_event", "prefilling", "request_id")

    def __init__(
        self,
        request_id: int,
        on_event: Callable[[RunEvent], None],
        done: asyncio.Future[None],
        adapter: str | None = None,
    ) -> None:
        self.request_id = request_id
        self.on_event = on_event
        self.done = done
        self.adapter = adapter
        self.begun = False
        self.prefilling = False
        self.cancelled = False

    @property
    def adapting(self) -> str | None:
        """The adapter that the worker is loading for it, None if it is doing something else."""
        return self.adapter if self.begun and not self.prefilling else None


class Pending:
    """The open requests of one worker, each a future that a reply or the worker's end settles."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.load: asyncio.Future[ModelInfo] = self._loop.create_future()
        self.run: PendingRun | None = None
        self._counts: dict[int, asyncio.Future[int]] = {}
        self._last_id = 0

    def next_id(self) -> int:
        """Return an id for a new request."""
        self._last_id += 1
        return self._last_id

    def new_run(
        self, request_id: int, on_event: Callable[[RunEvent], None], adapter: str | None = None
    ) -> PendingRun:
        """Open a run; there must be none."""
        assert self.run is None, "one run at a time"
        self.run = PendingRun(request_id, on_event, self._loop.create_future(), adapter)
        return self.run

    def run_of(self, request_id: int) -> PendingRun | None:
        """Return the run under way if it has this id: a late word of an earlier one concerns nobody."""
        run = self.run
        return run if run is not None and run.request_id == request_id else None

    def end_run(self, error: ApiError | None) -> PendingRun | None:
        """Settle the run under way and return it, None if there is none."""
        run, self.run = self.run, None
        if run is not None:
            _settle(run.done, None, error)
        return run

    def new_count(self, request_id: int) -> asyncio.Future[int]:
        """Open a count. `forget_count` drops it."""
        future = self._counts[request_id] = self._loop.create_future()
        return future

    def end_count(self, request_id: int, tokens: int, error: ApiError | None = None) -> None:
        """Settle a count, unless it was dropped meanwhile."""
        if (count := self._counts.get(request_id)) is not None:
            _settle(count, tokens, error)

    def forget_count(self, request_id: int) -> None:
        """Drop a count."""
        self._counts.pop(request_id, None)

    def end_load(self, info: ModelInfo) -> None:
        """Settle the load."""
        _settle(self.load, info, None)

    def fail(self, error: ApiError) -> PendingRun | None:
        """Settle all with the error that ends the worker; returns the run that was under way.

        A run that had not begun gets RunNotBegun: it can be made by another worker.
        """
        if not self.load.done():
            self.load.set_exception(error)
            self.load.exception()  # whoever started the load may have stopped waiting for it
        for request_id in self._counts:
            self.end_count(request_id, 0, error)
        if self.run is not None and not self.run.begun:
            return self.end_run(RunNotBegun(error))
        return self.end_run(error)


def _settle(future: asyncio.Future[T], result: T, error: ApiError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
