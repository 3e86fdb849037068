"""Finds out readers that have stopped for good on a connection that stays open."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import struct
import termios
from socket import socket

# How long nothing at all of what waits to be sent may get through.
STALLED_S = 60.0

_log = logging.getLogger(__name__)


class StallWatch:
    """Aborts one connection whose peer takes nothing for STALLED_S. Watch only while nobody writes.

    Counted is what the peer has not acknowledged, in our buffer and the system's: a reader that is slow, but
    reads, lets that shrink long before the system takes more from us.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._left = 0

    def begin(self) -> None:
        """Watch from now on, until everything is sent or `end`."""
        self.end()
        if self._transport.get_write_buffer_size():
            self._left = self._unsent()
            self._timer = self._loop.call_later(STALLED_S, self._look)

    def end(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        left, self._left = self._left, self._unsent()
        if self._left < left:
            self.begin()
            return
        _log.info("a client has read nothing for %g s: its connection is closed", STALLED_S)
        self._transport.abort()

    def _unsent(self) -> int:
        waiting = self._transport.get_write_buffer_size()
        tcp: socket | None = self._transport.get_extra_info("socket")
        try:
            # For a socket TIOCOUTQ is SIOCOUTQ: bytes that are not acknowledged.
            queued = fcntl.ioctl(-1 if tcp is None else tcp.fileno(), termios.TIOCOUTQ, bytes(4))
        except (OSError, ValueError):
            return waiting
        return waiting + int(struct.unpack("i", queued)[0])
