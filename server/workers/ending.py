"""How a worker ends, in words: for the log, and for those who waited for it. Knows no message."""

from __future__ import annotations

import logging

from server.errors import ApiError, BackendCrashed, LoadFailed
from server.workers.failure import with_output
from server.workers.process import WorkerProcess, describe_exit

logger = logging.getLogger(__name__)


class Ending:
    """One worker's end.

    begun: it will run nothing more: it is being unloaded, killed, or dead. failure: why it ended, None while
    it lives and where it was unloaded or ended by somebody's wish.
    """

    def __init__(self, process: WorkerProcess, model_id: str) -> None:
        self.begun = False
        self.failure: ApiError | None = None
        self.killed = False
        self._process = process
        self._model_id = model_id
        self._unloading = False
        self._why = ""

    def unload(self) -> None:
        """Note that it was told to exit."""
        self.begun = self._unloading = True

    def kill(self, error: ApiError, why: str) -> None:
        """Kill the process; `why` is for the log, as in "was ended: <why>"."""
        self.begun = True
        if not self.killed:
            self.killed, self._why = True, why
        self.failure = self.failure or error
        self._process.kill()

    def fail(self, error: ApiError) -> None:
        """Note why it ends. The first reason counts."""
        self.begun = True
        if not self._unloading:
            self.failure = self.failure or error

    def reason(self, what: str) -> str:
        """Say what the worker did that ended it."""
        return f"The worker of {self._model_id} {what}; the next request starts a new one."

    def death(self, what: str) -> str:
        """Say what the worker did that ended it, with its last lines of output."""
        return with_output(self.reason(what), self._process.output.tail())

    def exit_error(self, *, loading: bool, during: str = "") -> ApiError:
        """Return the error for a process that has exited by itself. during: as in " while it ..."."""
        how = describe_exit(self._process.exited.result()) + during
        if loading:
            return LoadFailed(self.death(f"{how} while it loaded the model"))
        return BackendCrashed(self.death(how), reason=self.reason(how))

    def log_exit(self) -> None:
        """Log how the process ended, once it has: as an error only where nobody wanted it to."""
        returncode = self._process.exited.result()
        who = (self._model_id, self._process.pid)
        if self.killed:
            logger.info("the worker of %s, pid %d, was ended: %s", *who, self._why)
        elif self.begun and returncode == 0:
            logger.info("the worker of %s, pid %d, %s", *who, describe_exit(returncode))
        else:
            logger.error("the worker of %s, pid %d, %s", *who, describe_exit(returncode))
