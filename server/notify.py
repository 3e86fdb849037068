"""What a service manager is told over the socket it names in NOTIFY_SOCKET: sd_notify's protocol, no more.

Nothing here blocks or fails: a service goes on when nobody listens. Knows no server and no loop.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress


class Notifier:
    """Tells systemd how the service stands; silent where there is no socket to tell it by.

    watchdog_s: within what time WATCHDOG=1 must be told again and again, None where nobody waits for it.
    Owns its socket.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        """Take the socket's path; one that begins with @ is of Linux's abstract name space."""
        self._address = None if address is None else _socket_name(address)
        self.watchdog_s = None if self._address is None else watchdog_s
        self._socket: socket.socket | None = None
        if self._address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Notifier:
        """Return the notifier this process was given, and take the variables away from its children.

        A watchdog that is meant for another process (WATCHDOG_PID) is nobody's here.
        """
        address = environment.pop("NOTIFY_SOCKET", "")
        usec = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", "")
        mine = not pid or pid == str(os.getpid())
        watchdog_s = int(usec) / 1e6 if mine and usec.isdecimal() and int(usec) else None
        return cls(address if address[:1] in ("/", "@") else None, watchdog_s)

    @property
    def listening(self) -> bool:
        """Whether a service manager has named a socket."""
        return self._socket is not None

    def ready(self, status: str) -> None:
        """Tell that the service serves, at first or again after a reload."""
        self._send("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """Tell in a line how the service stands, for `systemctl status`."""
        self._send(f"STATUS={text}")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Tell that the configuration is being read again; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, within_s: float) -> None:
        """Tell that the service ends by itself, and how long that may take at most."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}")

    def close(self) -> None:
        """Tell nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is None or self._address is None:
            return
        text = "\n".join(line.replace("\n", " ") for line in lines)
        with suppress(OSError):  # nobody listens, or not fast enough: the next word may get through
            self._socket.sendto(text.encode(errors="replace"), self._address)


def _socket_name(address: str) -> str:
    return f"\0{address[1:]}" if address.startswith("@") else address
