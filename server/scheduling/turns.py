"""Whose turn it is: jobs wait here, and come out when there is a worker, memory and, if need be, the NPU.

The queue knows the order among jobs and clients; what can start at this moment is told to it from here.
Starts nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from server.registry import Entry
from server.scheduling.fair_queue import FairQueue, Fit
from server.scheduling.npu_turn import NpuTurn
from server.scheduling.run import Run
from server.workers.pool import Pool, Room, Slot


class Turns:
    """The waiting jobs. uses_npu: whether a model's worker takes the NPU; asked often."""

    def __init__(
        self, queue: FairQueue[Run], pool: Pool, npu: NpuTurn, *, uses_npu: Callable[[Entry], bool]
    ) -> None:
        self._queue = queue
        self._pool = pool
        self._npu = npu
        self._uses_npu = uses_npu
        self._npu_user: Run | None = None
        self._npu_wanted = False
        self._running: dict[Run, str] = {}  # whose turn it is and who still waits for it, with their clients

    def __iter__(self) -> Iterator[Run]:
        return iter(self._queue)

    def waiting(self, entry: Entry) -> list[Run]:
        """Return the waiting jobs of one model."""
        return [run for run in self._queue if run.job.entry.id == entry.id]

    def push(self, run: Run, *, bounded: bool) -> None:
        """Let a job wait. Raises QueueFull, unless it is not `bounded`."""
        job = run.job
        running = sum(client == job.client for client in self._running.values())
        self._queue.push(
            run, job.client, self._lane(job.entry), user=job.user, running=running, bounded=bounded
        )

    def remove(self, run: Run) -> bool:
        """Take a job out. Returns whether it was waiting."""
        return self._queue.remove(run)

    def next(self) -> Run | None:
        """Return the job whose turn it is, None if none can start now. `done` gives its turn on."""
        while True:
            self._npu_wanted = False
            if (run := self._queue.pop(self._fit, self._hinders)) is not None:
                if self._uses_npu(run.job.entry):
                    self._npu_user = run
                self._running[run] = run.job.client
                return run
            if not (self._npu_wanted and self._npu.request()):
                return None

    def done(self, run: Run) -> None:
        """Note that a job has ended, and with it what it used."""
        self.leave(run)
        if self._npu_user is run:
            self._npu_user = None

    def leave(self, run: Run) -> None:
        """Note that nobody waits for a job any more, though it may take until its next token to end.

        Its client may ask again at once: one that stops an answer to have another is not to be refused.
        """
        self._running.pop(run, None)

    def tell(self) -> None:
        """Tell those who wait how they stand, and give the NPU back if nobody uses it."""
        for run, position in self._queue.positions():
            run.queued(position)
        self.release_npu()

    def release_npu(self) -> None:
        """Give the NPU back if nobody uses it."""
        if self._npu_user is None:
            self._npu.release()

    def _fit(self, run: Run) -> Fit:
        entry = run.job.entry
        slot = self._pool.get(entry)
        if slot is not None and (not slot.idle or self._must_go(slot, entry)):
            return Fit.BLOCKED
        room = None if slot is not None else self._pool.room(entry)
        if room is Room.WAIT:
            return Fit.BLOCKED
        if room is not Room.NEVER and self._uses_npu(entry) and not self._npu_free():
            return Fit.BLOCKED
        # A model that has come not to fit at all is let through too, to be refused with the reason.
        return Fit.READY if room is None else Fit.SWAP

    def _must_go(self, slot: Slot, entry: Entry) -> bool:
        """Whether a job waits for a new worker: models.yaml was changed since this one was loaded.

        Jobs made for the worker as it is, before the change, still go to it first.
        """
        return slot.entry is not entry and self._pool.outdated(slot)

    def _npu_free(self) -> bool:
        if self._npu_user is not None:
            return False
        self._npu_wanted = True
        return self._npu.held

    def _hinders(self, granted: Run, waiting: Run) -> bool:
        runs, waits = granted.job.entry, waiting.job.entry
        if self._uses_npu(runs) and self._uses_npu(waits):
            return True
        if runs.id == waits.id or self._pool.get(waits) is not None:
            return False
        slot = self._pool.get(runs)
        return not (slot is not None and slot.pinned) and not self._pool.fits(waits)

    def _lane(self, entry: Entry) -> str:
        return "npu" if self._uses_npu(entry) else f"cpu {entry.id}"
