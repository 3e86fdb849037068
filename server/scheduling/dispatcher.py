"""Gives jobs to workers: the queue's order, the pool's memory and the NPU's turn brought together.

A job waits in the queue; when its turn comes, one task conducts it: loads the model if need be, makes its
answers, gives everything back. That task is never cancelled. A client that leaves ends its answer by a
message to the worker, and what the job held is free again when the worker says so or is gone.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial

from backends.base import Span
from backends.protocol import Loading
from server.errors import (
    ApiError,
    BackendFailure,
    InternalError,
    ModelNotFound,
    ModelNotInstalled,
    ServerBusy,
)
from server.registry import Entry, Registry
from server.scheduling.fair_queue import FairQueue, Fit, QueueFull
from server.scheduling.npu_lock import NpuLock, default_lock_path
from server.scheduling.npu_turn import NpuTurn
from server.scheduling.run import Job, Run
from server.scheduling.status import ModelStatus
from server.settings import Settings, SettingsError
from server.workers.memory import available_mb
from server.workers.npu import npu_present, uses_npu
from server.workers.pool import Pool, Room, Slot
from server.workers.runtimes import Runtimes

logger = logging.getLogger(__name__)

DEFAULT_WORKER_COMMAND = (sys.executable, "-P", "-m", "backends.worker")

COUNT_S = 10.0  # a count is a courtesy; after this the run itself finds out
REAP_S = 5.0  # for killed processes to be gone, which only a driver that hangs delays
FIRST_GUESS_S = 10.0  # of how long a job takes, before one has been seen
MAX_RETRY_AFTER_S = 60
_PRELOAD = "(preload)"  # whom the queue counts the server's own jobs for; no client's name has parentheses


class Dispatcher:
    """Takes jobs and returns runs. Everything happens in the event loop's thread.

    runtimes: where the libraries are that models need; by default in the places the settings name. npu_lock
    and available (MB of memory that programs can get) are for tests; by default this machine's.
    Raises SettingsError for an id in `preload` that no entry has.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        worker_command: Sequence[str] = DEFAULT_WORKER_COMMAND,
        *,
        runtimes: Runtimes | None = None,
        npu_lock: NpuLock | None = None,
        available: Callable[[], int] | None = None,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._preloaded = _resolve_preload(settings, registry)
        self._queue: FairQueue[Run] = FairQueue(settings.queue_size, settings.queue_per_client)
        self._pool = Pool(
            settings,
            worker_command,
            runtimes or Runtimes(settings),
            pinned=[entry.id for entry in self._preloaded],
            on_gone=self._slot_gone,
            on_loading=self._loading,
            available=available or partial(available_mb, settings.sysroot),
        )
        self._npu_present = npu_present(settings.sysroot)
        self._npu = NpuTurn(
            npu_lock or NpuLock(default_lock_path(settings.sysroot)), on_granted=self._schedule
        )
        self._npu_user: Run | None = None
        self._npu_wanted = False
        self._active: dict[Run, Slot] = {}
        self._conducting: set[asyncio.Task[None]] = set()
        self._preloading: set[asyncio.Task[None]] = set()
        self._problems: dict[str, str] = {}
        self._mean_job_s = FIRST_GUESS_S
        self._stopping = False

    async def start(self) -> None:
        """Begin to load the preloaded models, one after another, in the background."""
        if self._preloaded:
            self._preload(*self._preloaded)

    async def stop(self) -> None:
        """Refuse new jobs, let running answers end in the grace time, cut the rest, end every worker."""
        self._stopping = True
        for task in self._preloading:
            task.cancel()
        for run in self._queue:
            self._queue.remove(run)
            run.fail(self._stopped("The server is stopping."))
        self._pool.close(self._stopped("The server is stopping."))
        if not await self._settled(self._settings.shutdown_grace_s):
            cut = self._stopped("The server is stopping and has cut this answer short.")
            for run in self._active:
                run.fail(cut)
            self._pool.kill(cut)
            if not await self._settled(REAP_S):
                logger.error("workers do not end although they were killed: a driver hangs")
        self._npu.close()

    def submit(self, job: Job) -> Run:
        """Let a job wait for its turn.

        Raises ServerBusy, ModelNotInstalled, RuntimeVersionMismatch, InsufficientMemory.
        """
        return self._submit(job, bounded=True)

    async def count(self, entry: Entry, prompt: list[Span]) -> int | None:
        """Return a prompt's length in tokens, None if no loaded worker can say in good time. Loads nothing.

        Raises ContextLengthExceeded if the prompt is hopeless, and what else the worker says of it.
        """
        slot = self._pool.get(entry)
        if slot is None or slot.client is None or not slot.loaded:
            return None
        try:
            async with asyncio.timeout(COUNT_S):
                return await slot.client.count(prompt)
        except (BackendFailure, TimeoutError):
            return None

    @property
    def ready(self) -> bool:
        """Whether every preloaded model is loaded."""
        slots = [self._pool.get(entry) for entry in self._preloaded]
        return all(slot is not None and slot.loaded for slot in slots)

    def status(self) -> list[ModelStatus]:
        """Return the state of every model of the registry."""
        waiting: dict[str, int] = {}
        for run in self._queue:
            waiting[run.job.entry.id] = waiting.get(run.job.entry.id, 0) + 1
        pinned = {entry.id for entry in self._preloaded}
        return [
            self._status_of(entry, entry.id in pinned, waiting.get(entry.id, 0))
            for entry in self._registry.entries.values()
        ]

    def _status_of(self, entry: Entry, pinned: bool, waiting: int) -> ModelStatus:
        slot = self._pool.get(entry)
        client = None if slot is None else slot.client
        info = client.info if client is not None and slot is not None and slot.loaded else None
        return ModelStatus(
            id=entry.id,
            pinned=pinned,
            loaded=info is not None,
            loading=slot is not None and not slot.loaded and not slot.ending,
            running=client is not None and client.busy,
            waiting=waiting,
            info=info,
            warnings=() if info is None else tuple(info.warnings),
            error=self._problems.get(entry.id),
        )

    def _submit(self, job: Job, *, bounded: bool) -> Run:
        if self._stopping:
            raise self._stopped("The server is stopping.")
        entry = job.entry
        if self._pool.get(entry) is None:
            if not entry.installed(self._settings.models_dir):
                raise ModelNotInstalled(
                    f"{entry.id} is known but not installed. Install it with: rkserve pull {entry.id}",
                    param="model",
                )
            self._pool.check_runtime(entry)
            if self._pool.room(entry) is Room.NEVER:
                raise self._pool.refusal(entry)
        run = Run(job, self._leave)
        try:
            self._queue.push(run, job.client, self._lane(entry), bounded=bounded)
        except QueueFull as full:
            retry_after_s = self._retry_after_s()
            whose = "you have" if full.of_client else "there are"
            raise ServerBusy(
                f"The queue is full: {whose} {full.limit} requests waiting. Try again in {retry_after_s} s.",
                retry_after_s,
            ) from full
        self._schedule()
        return run

    def _leave(self, run: Run) -> None:
        if self._queue.remove(run):
            self._schedule()
        elif (slot := self._active.get(run)) is not None and slot.client is not None:
            slot.client.cancel()

    # whose turn it is

    def _schedule(self) -> None:
        """Start whatever can start now, and tell those who wait how they stand."""
        if not self._stopping:
            while True:
                self._npu_wanted = False
                if (run := self._queue.pop(self._fit, self._hinders)) is not None:
                    self._begin(run)
                elif not (self._npu_wanted and self._npu.request()):
                    break
            for run, position in self._queue.positions():
                run.queued(position)
        if self._npu_user is None:
            self._npu.release()

    def _fit(self, run: Run) -> Fit:
        entry = run.job.entry
        slot = self._pool.get(entry)
        if slot is not None and not slot.idle:
            return Fit.BLOCKED
        room = None if slot is not None else self._pool.room(entry)
        if room is Room.WAIT:
            return Fit.BLOCKED
        if room is not Room.NEVER and self._uses_npu(entry) and not self._npu_free():
            return Fit.BLOCKED
        # A model that has come not to fit at all is let through too, to be refused with the reason.
        return Fit.READY if room is None else Fit.SWAP

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

    def _uses_npu(self, entry: Entry) -> bool:
        return uses_npu(entry, self._npu_present)

    def _lane(self, entry: Entry) -> str:
        return "npu" if self._uses_npu(entry) else f"cpu {entry.id}"

    # a job's turn

    def _begin(self, run: Run) -> None:
        entry = run.job.entry
        slot = self._pool.get(entry)
        if fresh := slot is None:
            if self._pool.room(entry) is Room.NEVER:
                run.fail(self._pool.refusal(entry))
                return
            slot = self._pool.open(entry)
        else:
            self._pool.take(slot)
        self._active[run] = slot
        if self._uses_npu(entry):
            self._npu_user = run
        # In a context of its own: it may start a worker that outlives this request and serves others, and
        # what is logged of that worker must not bear this request's id.
        task = asyncio.get_running_loop().create_task(
            self._conduct(run, slot, fresh), name=f"run {entry.id}", context=Context()
        )
        self._conducting.add(task)
        task.add_done_callback(self._conducting.discard)

    async def _conduct(self, run: Run, slot: Slot, fresh: bool) -> None:
        try:
            if fresh and run.left:
                return  # gone before the load began: it would be for nobody
            if not fresh or await self._loaded(run, slot):
                await self._answer(run, slot)
        except Exception:
            logger.exception("a fault in conducting a job for %s", slot.entry.id)
            run.fail(InternalError("The server made a mistake; its log says more."))
        finally:
            if slot.ending and slot.client is not None:
                await slot.client.gone  # until then it may still use the NPU and its memory
            del self._active[run]
            if self._npu_user is run:
                self._npu_user = None
            self._pool.release(slot)
            self._schedule()

    async def _loaded(self, run: Run, slot: Slot) -> bool:
        entry = slot.entry
        try:
            await self._pool.load(slot)
        except ApiError as error:
            # Those who wait for this load get the same answer: each would try it again, a minute each.
            if not self._stopping:
                self._problems[entry.id] = error.message
                logger.error("loading %s failed: %s", entry.id, error.message)
            run.fail(error)
            for other in self._queue:
                if other.job.entry.id == entry.id:
                    self._queue.remove(other)
                    other.fail(error)
            return False
        self._problems.pop(entry.id, None)
        self._schedule()  # another model's load may begin now
        return True

    async def _answer(self, run: Run, slot: Slot) -> None:
        assert slot.client is not None
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            for index, params in enumerate(run.job.work):
                if run.left:
                    break
                await slot.client.generate(params, partial(run.push, index))
        except ApiError as error:
            run.fail(error)
        run.finish()
        if run.job.work:
            self._mean_job_s += 0.2 * (loop.time() - begun - self._mean_job_s)

    # what happens to workers

    def _loading(self, model_id: str, message: Loading) -> None:
        for run in (*self._active, *self._queue):
            if run.job.entry.id == model_id:
                run.push(0, message)

    def _slot_gone(self, slot: Slot) -> None:
        client = slot.client
        if client is not None and isinstance(client.failure, BackendFailure):
            self._problems[slot.entry.id] = client.failure.message
        # A pinned model comes back, unless it dies before it has made a single answer: that would be a loop.
        if not self._stopping and slot.pinned and client is not None and client.runs_finished:
            self._preload(slot.entry)
        self._schedule()

    def _preload(self, *entries: Entry) -> None:
        task = asyncio.get_running_loop().create_task(self._preload_in_turn(*entries), name="preload")
        self._preloading.add(task)
        task.add_done_callback(self._preloading.discard)

    async def _preload_in_turn(self, *entries: Entry) -> None:
        for entry in entries:
            try:
                async with self._submit(Job(entry, _PRELOAD, ()), bounded=False) as run:
                    async for _ in run:
                        pass
            except ApiError as error:
                self._problems[entry.id] = error.message
                logger.error("%s is not preloaded: %s", entry.id, error.message)

    async def _settled(self, timeout_s: float) -> bool:
        """Wait until no job is conducted and no worker is left. Returns whether that came about in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while pending := [*self._conducting, *self._preloading, *self._pool.going()]:
            left = deadline - loop.time()
            if left <= 0:
                return False
            await asyncio.wait(pending, timeout=left)
        return True

    def _stopped(self, message: str) -> ServerBusy:
        return ServerBusy(f"{message} Try again when it is back.", self._retry_after_s())

    def _retry_after_s(self) -> int:
        """Estimate when there will be a place in the queue: when the next waiting job has its turn."""
        return max(1, min(MAX_RETRY_AFTER_S, math.ceil(self._mean_job_s)))


def _resolve_preload(settings: Settings, registry: Registry) -> list[Entry]:
    entries: dict[str, Entry] = {}
    for name in settings.preload:
        try:
            entry = registry.resolve(name)
        except ModelNotFound as error:
            raise SettingsError([f"RKSERVE_PRELOAD: {error.message}"]) from error
        entries[entry.id] = entry
    return list(entries.values())
