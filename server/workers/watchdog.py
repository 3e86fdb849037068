"""A timer that fires when nothing has been heard for a while. Cheap to feed: it is moved only when due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SECOND_LOOK = 0.25  # share of the time-out that is waited out after a first look


class Watchdog:
    """Calls `on_silence` once after `timeout_s` without a `feed`.

    It takes a second look before it does: when the whole machine or the server was held up, signs of life may
    have arrived that the loop has not read yet.
    """

    def __init__(self, on_silence: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_silence = on_silence
        self._timeout_s = 0.0
        self._fed_at = 0.0
        self._suspected_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, timeout_s: float) -> None:
        """Watch from now on, with this time-out; replaces an earlier one."""
        self.stop()
        self._timeout_s = timeout_s
        self._fed_at = self._loop.time()
        self._suspected_at = None
        self._timer = self._loop.call_later(timeout_s * (1 - SECOND_LOOK), self._look)

    def feed(self) -> None:
        """Note a sign of life."""
        self._fed_at = self._loop.time()

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = self._loop.time()
        first_look_at = self._fed_at + self._timeout_s * (1 - SECOND_LOOK)
        if self._suspected_at is not None and self._fed_at < self._suspected_at:
            self._timer = None
            self._on_silence()
        elif now >= first_look_at:
            self._suspected_at = now
            self._timer = self._loop.call_later(self._timeout_s * SECOND_LOOK, self._look)
        else:
            self._suspected_at = None
            self._timer = self._loop.call_at(first_look_at, self._look)
