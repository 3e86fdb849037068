"""A worker's process: started with a socket, killed with its group, reaped. Knows no messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence

from server.workers.output import WorkerOutput

logger = logging.getLogger(__name__)


def describe_exit(returncode: int) -> str:
    """Say how a process ended."""
    if returncode >= 0:
        return f"exited with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"was killed by {name}" + (
        " (by hand, or by the kernel for want of memory)" if name == "SIGKILL" else ""
    )


_ENVIRONMENT = {
    # Lines printed by Python code before a crash are not to be lost in a buffer.
    "PYTHONUNBUFFERED": "1",
    # onnxruntime 1.32 reports to its maker unless it is told not to: nothing leaves this machine.
    "ORT_DISABLE_TELEMETRY": "1",
    # numpy's OpenBLAS reads this once, when numpy is imported. Its threads spin while they wait: on a machine
    # with anything else to do, attention over 2,000 keys then takes up to 50 times as long as on one thread.
    "OPENBLAS_NUM_THREADS": "1",
}


# Sent to a whole service or terminal, and meant for the server.
_MEANT_FOR_THE_SERVER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Start processes in this state: they begin with these signals blocked, and this one gets them later.

    Until a worker ignores them, while Python starts, they would end it with a trace.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _MEANT_FOR_THE_SERVER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerProcess:
    """A started process, in a session and process group of its own so that a terminal's Ctrl-C spares it.

    `exited` is set to the exit status (negative: a signal) once the process is reaped and its output read;
    by then nothing of its group is left. Not for use outside the loop's thread.
    """

    def __init__(self, process: subprocess.Popen[bytes], output: WorkerOutput) -> None:
        self._process = process
        self.output = output
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self._watch()

    @classmethod
    def spawn(cls, command: Sequence[str], model_id: str) -> tuple[WorkerProcess, socket.socket]:
        """Start `command --fd N`; returns it and the server's end of its socket. Raises OSError.

        Call from the thread the event loop runs in, which outlives the worker: see backends.lifeline.
        """
        ours, theirs = socket.socketpair()
        read_fd = -1
        try:
            with theirs:
                read_fd, write_fd = os.pipe()
                try:
                    with _signals_held_back():
                        process = subprocess.Popen(
                            [*command, "--fd", str(theirs.fileno())],
                            stdin=subprocess.DEVNULL,
                            stdout=write_fd,
                            stderr=write_fd,
                            pass_fds=(theirs.fileno(),),
                            start_new_session=True,
                            env={**os.environ, **_ENVIRONMENT},
                        )
                finally:
                    os.close(write_fd)
        except BaseException:
            ours.close()
            if read_fd >= 0:
                os.close(read_fd)
            raise
        return cls(process, WorkerOutput(read_fd, model_id, process.pid)), ours

    @property
    def pid(self) -> int:
        """The process id, which is also that of its group."""
        return self._process.pid

    def kill(self) -> None:
        """Send SIGKILL to the whole group, unless the process is reaped already."""
        if not self.exited.done():
            self._kill_group()

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except PermissionError as error:
            logger.warning("worker %d cannot be killed: %s", self.pid, error)

    def _watch(self) -> None:
        try:
            pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            self._watch_with_a_thread()  # another system, or an emulator without this call
            return

        def ended() -> None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            self._reap()

        self._loop.add_reader(pidfd, ended)

    def _watch_with_a_thread(self) -> None:
        def wait() -> None:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self._loop.call_soon_threadsafe(self._reap)

        threading.Thread(target=wait, name=f"wait-{self.pid}", daemon=True).start()

    def _reap(self) -> None:
        # The group first: as long as its leader is not reaped, its number can be nobody else's.
        self._kill_group()
        returncode = self._process.wait()
        self.output.close()
        self.exited.set_result(returncode)
