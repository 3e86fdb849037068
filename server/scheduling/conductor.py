"""Conducts jobs whose turn has come: load the model if need be, make the answers, give everything back.

A task a job, which is never cancelled: a client that leaves ends its answer by a message to the worker, and
what the job held is free again when the worker says so or is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextvars import Context
from functools import partial

from server.errors import ApiError, InternalError, LoadFailed
from server.scheduling.observer import Observer
from server.scheduling.run import Run
from server.scheduling.turns import Turns
from server.workers.failure import RunNotBegun
from server.workers.pool import Pool, Room, Slot

logger = logging.getLogger(__name__)

FIRST_GUESS_S = 10.0  # of how long a job takes, before one has been seen
MOST_WORKERS = 3  # a job is given to, where each ended before it began


class Conductor:
    """The jobs under way. mean_job_s: how long one takes, the latest counting most.

    problems: why the last load of a model or an adapter failed, by id; written here. on_change:
    called when something that others may wait for is free or loaded. observer: is told what happens.
    """

    def __init__(
        self,
        pool: Pool,
        turns: Turns,
        problems: dict[str, str],
        on_change: Callable[[], None],
        observer: Observer,
    ) -> None:
        self.mean_job_s = FIRST_GUESS_S
        self._pool = pool
        self._turns = turns
        self._problems = problems
        self._on_change = on_change
        self._observer = observer
        self._slots: dict[Run, Slot] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._not_begun: dict[Run, int] = {}

    @property
    def active(self) -> list[Run]:
        """The jobs under way."""
        return list(self._slots)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What still runs for them, and ends by itself when they do."""
        return list(self._tasks)

    def begin(self, run: Run) -> None:
        """Conduct a job whose turn it is."""
        entry = run.job.entry
        if run.job.work and run not in self._not_begun:
            self._observer.waited(run.job.model, time.monotonic() - run.submitted)
        slot = self._pool.get(entry)
        if fresh := slot is None:
            if self._pool.room(entry) is Room.NEVER:
                self._turns.done(run)
                run.fail(self._pool.refusal(entry))
                return
            slot = self._pool.open(entry)
        else:
            self._pool.take(slot)
        self._slots[run] = slot
        # In a context of its own: it may start a worker that outlives this request and serves others, and
        # what is logged of that worker must not bear this request's id.
        task = asyncio.get_running_loop().create_task(
            self._conduct(run, slot, fresh), name=f"run {entry.id}", context=Context()
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, run: Run) -> None:
        """End a job's answer, if it is under way, at its next token."""
        if (slot := self._slots.get(run)) is not None and slot.client is not None:
            slot.client.cancel()

    async def _conduct(self, run: Run, slot: Slot, fresh: bool) -> None:
        again = False
        try:
            if fresh and run.left:
                return  # gone before the load began: it would be for nobody
            if not fresh or await self._loaded(run, slot):
                again = not await self._answered(run, slot)
        except Exception:
            logger.exception("a fault in conducting a job for %s", slot.entry.id)
            run.fail(InternalError("The server made a mistake; its log says more."))
        finally:
            if slot.ending and slot.client is not None:
                await slot.client.gone  # until then it may still use the NPU and its memory
            del self._slots[run]
            self._turns.done(run)
            self._pool.release(slot)
            if again:
                self._wait_again(run)
            else:
                self._not_begun.pop(run, None)
            self._on_change()

    async def _loaded(self, run: Run, slot: Slot) -> bool:
        entry = slot.entry
        begun = time.monotonic()
        try:
            await self._pool.load(slot)
        except ApiError as error:
            # Those who wait for this load get the same answer: each would try it again, a minute each.
            if self._pool.closed is None:
                self._observer.load_failed(entry.id, error.code)
                self._problems[entry.id] = error.message
                logger.error("loading %s failed: %s", entry.id, error.message)
            run.fail(error)
            for other in self._turns.waiting(entry):
                self._turns.remove(other)
                other.fail(error)
            return False
        self._observer.loaded(entry.id, time.monotonic() - begun)
        if self._problems.pop(entry.id, None) is not None:
            logger.info("%s is there again", entry.id)
        self._on_change()  # another model's load may begin now
        return True

    async def _answered(self, run: Run, slot: Slot) -> bool:
        """Make the answers that are not made yet. Returns False if it takes another worker to go on."""
        assert slot.client is not None
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            for index in range(run.answers, len(run.job.work)):
                if run.left:
                    break
                on_event = self._observer.answering(run.job.model, run.submitted, partial(run.push, index))
                await slot.client.generate(run.job.work[index], on_event)
                if run.job.asked is not None and run.answers > index:
                    self._problems.pop(run.job.asked.id, None)
        except RunNotBegun as failure:
            if self._may_wait_again(run):
                return False
            run.fail(self._pool.closed or failure.cause)
        except ApiError as error:
            if run.job.asked is not None and isinstance(error, LoadFailed):
                self._problems[run.job.asked.id] = error.message
            run.fail(error)
        run.finish()
        if run.job.work:
            self.mean_job_s += 0.2 * (loop.time() - begun - self.mean_job_s)
        return True

    def _may_wait_again(self, run: Run) -> bool:
        tried = self._not_begun[run] = self._not_begun.get(run, 0) + 1
        return tried < MOST_WORKERS and not run.left and self._pool.closed is None

    def _wait_again(self, run: Run) -> None:
        # The server may have begun to stop, or the client have left, while the worker ended.
        if self._pool.closed is not None:
            run.fail(self._pool.closed)
        if self._pool.closed is None and not run.left:
            logger.info("a request for %s waits for a new worker: its own ended first", run.job.entry.id)
            self._turns.push(run, bounded=False)
        else:
            self._not_begun.pop(run, None)
