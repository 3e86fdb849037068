"""How a worker process is tied to the server: it never outlives it, and only the server decides when it ends.

Knows no messages and no engine. Linux only: a worker that is stopped, or stuck inside a C library, does
not see its socket's end, so the kernel kills it when the server dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
from pathlib import Path

ORPHANED = 3  # exit status of a worker whose server is gone

# Of the kernel's 1000 points for whom to end when memory runs out; what a process takes counts beside it.
OOM_SCORE = 500

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_IOLBF = 1  # <stdio.h> of glibc and musl


def tie_to_server(sock: socket.socket) -> None:
    """Make this process die with the server at the other end of `sock`, and ignore signals meant for it.

    The parent-death signal comes when the thread that started this process ends, so the server starts workers
    from the thread its event loop runs in. SIGTERM is ignored because a service manager may send it to every
    process of the service, while running answers have a grace time that the server keeps.
    """
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    _go_first_when_memory_runs_out()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # it starts with them blocked, or they could end it before
    # int prctl(int option, unsigned long arg2, unsigned long arg3, unsigned long arg4, unsigned long arg5);
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    prctl.restype = ctypes.c_int
    if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        print(f"prctl: {os.strerror(ctypes.get_errno())}: only the socket's end ends this worker", flush=True)
    # The server may have died before that call: then this process has another parent by now. A socket pair
    # remembers the process that made it.
    server_pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if os.getppid() != server_pid:
        os._exit(ORPHANED)


def _go_first_when_memory_runs_out() -> None:
    """Let the kernel end this worker before the server: that costs one answer, not the service.

    What the NPU's driver hands out counts for nobody, so a worker may look smaller than it is.
    """
    with contextlib.suppress(OSError):  # another system, or a kernel that lets nobody do it
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(max(OOM_SCORE, int(score.read_text()))))


def line_buffer_c_stdout() -> None:
    """Let lines that a C library prints leave at once: C buffers stdout in blocks when it is a pipe.

    A library that brings a C library of its own is not reached by this; its backend must flush after loading
    and after each run.
    """
    # int setvbuf(FILE *stream, char *buf, int mode, size_t size);
    libc = ctypes.CDLL(None)
    setvbuf = libc.setvbuf
    setvbuf.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t]
    setvbuf.restype = ctypes.c_int
    setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, 0)
