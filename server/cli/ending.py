"""How a command ends as a process: signals, output that could not be written, exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT


_HELD = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


def hold_signals() -> None:
    """Let what ends a command wait until `Signals` of the program that takes this process's place listens."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


class Signals:
    """Lets a command tidy up when a service manager or a closing terminal ends it, as it does for Ctrl-C."""

    def __init__(self) -> None:
        """Turn SIGTERM and SIGHUP into KeyboardInterrupt, unless they are ignored (nohup) or handled."""
        self.exit_code: int = INTERRUPTED
        self._caught = [
            number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL
        ]
        for number in self._caught:
            signal.signal(number, self._interrupt)

    def release(self) -> None:
        """Let in what `hold_signals` has held. Raises KeyboardInterrupt where something came."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.exit_code = 128 + number
        for other in self._caught:  # both often come at once, and tidying up is not to be cut short
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt


def output_ended() -> bool:
    """Write out what standard output still holds; False, and said why, if that cannot be done."""
    try:
        sys.stdout.flush()
        return True
    except OSError as error:
        # Python flushes again at exit, and would fail with lines of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno != errno.EPIPE:
            from server.cli.console import say

            say(f"what was to be printed is lost: {error.strerror}")
        return False
