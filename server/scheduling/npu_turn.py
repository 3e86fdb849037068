"""The server's share in the NPU's lock file, asked for without holding up the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from server.scheduling.npu_lock import NpuLock

logger = logging.getLogger(__name__)


class NpuTurn:
    """The machine-wide turn on the NPU; who in the server uses it is for the dispatcher to say.

    on_granted: called when a turn that had to be waited for has come; to be released if nobody wants it now.
    """

    def __init__(self, lock: NpuLock, on_granted: Callable[[], None]) -> None:
        self._lock = lock
        self._on_granted = on_granted
        self._waiting = False
        self._closed = False
        self.held = False

    def request(self) -> bool:
        """Ask for the turn; returns whether it is there at once. Else `on_granted` will say when it is.

        Without a lock file (a read-only system) the turn is granted with a warning: the server's own order
        still holds.
        """
        if self.held:
            return True
        if self._waiting:
            return False
        try:
            self.held = self._lock.try_acquire()
        except OSError as error:
            self._do_without(error)
        if not self.held:
            logger.info("waiting for the NPU: another program holds %s", self._lock.path)
            self._wait()
        return self.held

    def release(self) -> None:
        """Give the turn back, if it is held."""
        if self.held:
            self.held = False
            self._lock.release()

    def close(self) -> None:
        """Give the turn back and take none that still comes."""
        self._closed = True
        self.release()

    def _do_without(self, error: OSError) -> None:
        logger.warning("no lock file for the NPU (%s): do not run bench or doctor beside this server", error)
        self.held = True

    def _wait(self) -> None:
        # A thread that is blocked in flock cannot be called back. So it is a daemon with a lock object of its
        # own, and drops what it gets when nobody wants that any more.
        self._waiting = True
        lock = NpuLock(self._lock.path)
        loop = asyncio.get_running_loop()

        def granted(error: OSError | None) -> None:
            self._waiting = False
            if self._closed:
                lock.release()
                return
            if error is None:
                self._lock, self.held = lock, True
            else:
                self._do_without(error)
            self._on_granted()

        def block() -> None:
            failure = None
            try:
                lock.acquire()
            except OSError as error:
                failure = error
            try:
                loop.call_soon_threadsafe(granted, failure)
            except RuntimeError:  # the loop is closed: the server has stopped
                lock.release()

        threading.Thread(target=block, name="npu-lock", daemon=True).start()
