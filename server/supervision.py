"""The server as its service manager sees it: ready, alive as long as the event loop turns, how it stands.

The watchdog is fed from the loop itself, so that a loop that is stuck is noticed although the process lives.
"""

from __future__ import annotations

import asyncio
import faulthandler
from collections.abc import Callable

from server.notify import Notifier

BEATS_PER_WATCHDOG = 3  # beats in the time in which one must be heard
STATUS_S = 10.0  # between looks at how the server stands, where no watchdog waits


class Supervision:
    """Reports to `notifier`, which it owns. stands: returns how the server stands, in a line.

    Everything happens in the event loop's thread.
    """

    def __init__(self, notifier: Notifier, stands: Callable[[], str]) -> None:
        self._notifier = notifier
        self._stands = stands
        self._told = ""
        self._timer: asyncio.TimerHandle | None = None
        if notifier.watchdog_s is not None:
            # The watchdog ends a stuck process with SIGABRT: the log then shows where it was stuck.
            faulthandler.enable()

    @property
    def supervised(self) -> bool:
        """Whether a service manager listens."""
        return self._notifier.listening

    def ready(self) -> None:
        """Tell that the server serves, at first or again after a reload, and keep telling that it lives."""
        self._told = self._stands()
        self._notifier.ready(self._told)
        if self._timer is None and self.supervised:
            self._beat()

    def reloading(self) -> None:
        """Tell that the configuration is being read again; `ready` ends it."""
        self._notifier.reloading()

    def stopping(self, within_s: float) -> None:
        """Tell that the server ends, within so long at most."""
        self._notifier.stopping(within_s)

    def close(self) -> None:
        """Tell nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._notifier.close()

    def _beat(self) -> None:
        self._notifier.alive()
        if (stands := self._stands()) != self._told:
            self._told = stands
            self._notifier.status(stands)
        watchdog_s = self._notifier.watchdog_s
        pause_s = STATUS_S if watchdog_s is None else watchdog_s / BEATS_PER_WATCHDOG
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._beat)
