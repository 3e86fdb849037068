"""Notices that the terminal was closed where no SIGHUP tells of it.

The kernel sends SIGHUP to the leader of the terminal's session alone. A shell passes it on to its jobs; make,
or a script, that leads the session itself does not, and waits for its children for ever.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Callable
from contextlib import ExitStack


def has_terminal() -> bool:
    """Return whether this process has a terminal whose end SIGHUP would tell of."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def watch_terminal(loop: asyncio.AbstractEventLoop, closed: Callable[[], None]) -> ExitStack:
    """Call `closed` once when the terminal is gone, if nobody else will say so. Close the result to stop.

    Not for a job of a shell, which may be meant to outlive its terminal, nor where SIGHUP is ignored.
    """
    watching = ExitStack()
    terminal = next((fd for fd in (0, 1, 2) if os.isatty(fd)), None)
    leader = os.getsid(0)
    if (
        terminal is None
        or not hasattr(select, "epoll")
        or leader == os.getpid()
        or leader != os.getpgrp()
        or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    ):
        return watching
    hangup = watching.enter_context(select.epoll())
    hangup.register(terminal, 0)  # no event but those that are always reported: a hang-up, an error

    def on_hangup() -> None:
        loop.remove_reader(hangup.fileno())
        closed()

    loop.add_reader(hangup.fileno(), on_hangup)
    watching.callback(loop.remove_reader, hangup.fileno())
    return watching
