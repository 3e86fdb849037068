"""Runs what may block for ever, such as a read from a driver that hangs, in a thread nobody must wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Aside(Generic[T]):
    """Runs one function, once at a time. While a call hangs there is no second one, and no value."""

    def __init__(self, function: Callable[[], T], patience_s: float) -> None:
        self._function = function
        self._patience_s = patience_s
        self._running: asyncio.Future[T] | None = None

    async def __call__(self) -> T | None:
        """Return what the function returns, None if it does not within the time. Raises what it raises."""
        if self._running is not None and not self._running.done():
            return None
        running = self._running = self._start()
        done, _ = await asyncio.wait({running}, timeout=self._patience_s)
        return running.result() if done else None

    def _start(self) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        # One that comes too late is looked at by nobody.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

        def settle(value: T | None, error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)  # type: ignore[arg-type]  # without an error it is the value

        def run() -> None:
            value, failure = None, None
            try:
                value = self._function()
            except BaseException as error:
                failure = error
            with suppress(RuntimeError):  # the loop is closed: the server has stopped
                loop.call_soon_threadsafe(settle, value, failure)

        # A daemon: the end of the process does not wait for it, as it would for a pool's thread.
        threading.Thread(target=run, name="metrics", daemon=True).start()
        return future
