"""Runs a command that is killed by the kernel when the process that asked for it dies, however it dies.

Run as a program, by its path and with `python -I`, so that no folder's modules and no package are needed:
tied.py PARENT COMMAND... The bond outlives the exec of a program that is not set-uid. Linux only; elsewhere
the command simply runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def tied(command: list[str]) -> list[str]:
    """Return the command that runs `command` tied to this process.

    The kernel watches the thread that starts it: start it from one that lives as long as it is needed.
    """
    return [sys.executable, "-I", os.path.abspath(__file__), str(os.getpid()), *command]


def _main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        # int prctl(int option, unsigned long arg2, unsigned long arg3, unsigned long arg4, unsigned long);
        prctl = ctypes.CDLL(None).prctl
        prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # where it is refused, the command is not tied
        if os.getppid() != parent:  # it died before that call
            sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
