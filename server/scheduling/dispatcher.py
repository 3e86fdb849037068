"""Gives jobs to workers: where routes and the service meet the queue, the pool and the NPU's turn.

A job waits in `turns`; when its turn comes the `conductor` takes it through load and answers. What is said
of the models' state is put together here.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from backends.base import Span
from backends.protocol import Loading
from server.errors import BackendFailure, ServerBusy
from server.registry import Entry, Registry
from server.registry.installing import not_installed
from server.scheduling.conductor import Conductor
from server.scheduling.fair_queue import FairQueue, QueueFull
from server.scheduling.npu_lock import NpuLock, default_lock_path
from server.scheduling.npu_turn import NpuTurn
from server.scheduling.observer import Observer
from server.scheduling.preload import Preloader, entries_to_preload
from server.scheduling.run import Job, Run
from server.scheduling.status import Figures, ModelStatus
from server.scheduling.turns import Turns
from server.settings import Settings
from server.store.soundness import check_known
from server.workers.memory import available_mb
from server.workers.pool import Pool, Room, Slot
from server.workers.runtimes import Runtimes

logger = logging.getLogger(__name__)

DEFAULT_WORKER_COMMAND = (sys.executable, "-P", "-m", "backends.worker")

COUNT_S = 10.0  # a count is a courtesy; after this the run itself finds out
REAP_S = 5.0  # for killed processes to be gone, which only a driver that hangs delays
MAX_RETRY_AFTER_S = 60


class Dispatcher:
    """Takes jobs and returns runs. Everything happens in the event loop's thread.

    runtimes: where the libraries are that models need; by default in the places the settings name. observer:
    is told what happens. npu_lock and available (MB of memory that programs can get) are for tests; by
    default this machine's.
    Raises SettingsError for an id in `preload` that no entry has.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        worker_command: Sequence[str] = DEFAULT_WORKER_COMMAND,
        *,
        runtimes: Runtimes | None = None,
        observer: Observer | None = None,
        npu_lock: NpuLock | None = None,
        available: Callable[[], int] | None = None,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._observer = observer or Observer()
        self._problems: dict[str, str] = {}
        self._preloader = Preloader(
            entries_to_preload(settings, registry), partial(self._submit, bounded=False), self._problems
        )
        runtimes = runtimes or Runtimes(settings)
        self._pool = Pool(
            settings,
            worker_command,
            runtimes,
            pinned=[entry.id for entry in self._preloader.entries],
            on_gone=self._slot_gone,
            on_loading=self._loading,
            available=available or partial(available_mb, settings.sysroot),
            current=lambda name: registry.entries.get(name),
        )
        self._npu = NpuTurn(
            npu_lock or NpuLock(default_lock_path(settings.sysroot)), on_granted=self._schedule
        )
        self._turns = Turns(
            FairQueue(settings.queue_size, settings.queue_per_client),
            self._pool,
            self._npu,
            uses_npu=runtimes.uses_npu,
        )
        self._conductor = Conductor(
            self._pool, self._turns, self._problems, on_change=self._schedule, observer=self._observer
        )
        self._stopping = False

    async def start(self) -> None:
        """Begin to load the preloaded models, one after another, in the background."""
        self._preloader.start()

    async def stop(self) -> None:
        """Refuse new jobs, let running answers end in the grace time, cut the rest, end every worker."""
        self._stopping = True
        self._preloader.stop()
        for run in self._turns:
            self._turns.remove(run)
            run.fail(self._stopped("The server is stopping."))
        self._pool.close(self._stopped("The server is stopping."))
        if not await self._settled(self._settings.shutdown_grace_s):
            cut = self._stopped("The server is stopping and has cut this answer short.")
            for run in self._conductor.active:
                run.fail(cut)
            self._pool.kill(cut)
            if not await self._settled(REAP_S):
                logger.error("workers do not end although they were killed: a driver hangs")
        self._npu.close()

    def check_preload(self, registry: Registry) -> None:
        """Raise SettingsError if a model to preload is not in this registry."""
        entries_to_preload(self._settings, registry)

    def renewed(self, changed: Collection[str]) -> None:
        """Take note that the registry has other entries now: `changed`, by id.

        Answers under way go on; idle workers of changed entries end, and preloaded ones are loaded again.
        """
        self._preloader.entries = tuple(entries_to_preload(self._settings, self._registry))
        self._pool.pin(entry.id for entry in self._preloader.entries)
        for name in changed:
            self._problems.pop(name, None)
        self._schedule()
        for entry in self._preloader.entries:
            if self._pool.get(entry) is None and not self._preloader.to_come(entry) and entry.id in changed:
                self._preloader.again(entry)

    def submit(self, job: Job) -> Run:
        """Let a job wait for its turn.

        Raises ServerBusy, ModelNotInstalled, ModelCorrupt, RuntimeVersionMismatch, InsufficientMemory.
        """
        return self._submit(job, bounded=True)

    async def count(self, entry: Entry, prompt: list[Span]) -> int | None:
        """Return a prompt's length in tokens, None if no loaded worker can say in good time. Loads nothing.

        Raises ContextLengthExceeded if the prompt is hopeless, and what else the worker says of it.
        """
        slot = self._pool.get(self._registry.host(entry))
        if slot is None or slot.client is None or not slot.loaded:
            return None
        try:
            async with asyncio.timeout(COUNT_S):
                return await slot.client.count(prompt)
        except (BackendFailure, TimeoutError):
            return None

    def unready(self) -> dict[str, str | None]:
        """Return the preloaded models that are not loaded, by id, with why that is for good, if it is.

        For good: until somebody does something about it. None: the model is being loaded or waits for that.
        """
        unready: dict[str, str | None] = {}
        for entry in self._preloader.entries:
            state = self.status_of(entry)
            if state.loaded:
                continue
            slot = self._pool.get(entry)
            going = slot is not None and slot.ending  # what comes next is decided when it is gone
            if going or state.loading or state.waiting or self._preloader.to_come(entry):
                unready[entry.id] = None
            else:
                unready[entry.id] = state.error or f"{entry.id} has ended; the next request loads it again."
        return unready

    def status_of(self, entry: Entry) -> ModelStatus:
        """Return the state of one model; of an adapter, that of its base and what is wrong with itself."""
        host = self._registry.host(entry)
        slot = self._pool.get(host)
        client = None if slot is None else slot.client
        return ModelStatus(
            id=entry.id,
            loading=slot is not None and not slot.loaded and not slot.ending,
            waiting=len(self._turns.waiting(host)),
            info=client.info if client is not None and slot is not None and slot.loaded else None,
            error=self._problems.get(host.id),
            adapter_error=None if host is entry else self._problems.get(entry.id),
        )

    def figures(self) -> Figures:
        """Return how the queue and the models stand."""
        clients = [(slot.entry, slot.client) for slot in self._pool.slots if slot.client is not None]
        runtimes = {
            entry.id: (entry.backend, client.info.runtime)
            for entry, client in clients
            if client.info is not None and not client.ending
        }
        installed = self._registry.installed()
        none = dict.fromkeys((entry.id for entry in installed), 0)
        return Figures(
            waiting=none | Counter(run.job.model for run in self._turns if run.job.work),
            running=none | Counter(run.job.model for run in self._conductor.active if run.job.work),
            loaded={e.id: e.id in runtimes for e in installed if self._registry.host(e) is e},
            runtimes=runtimes,
            workers={entry.id: client.pid for entry, client in clients},
        )

    def _submit(self, job: Job, *, bounded: bool) -> Run:
        if self._stopping:
            raise self._stopped("The server is stopping.")
        entry = self._registry.host(job.entry)
        job = replace(job, entry=entry, asked=None if job.entry is entry else job.entry)
        if self._pool.get(entry) is None:
            if not entry.installed(self._settings.models_dir):
                raise not_installed(entry)
            for needed in dict.fromkeys((entry, job.asked or entry)):
                check_known(needed, self._settings.models_dir)
            self._pool.check_runtime(entry)
            if self._pool.room(entry) is Room.NEVER:
                raise self._pool.refusal(entry)
        run = Run(job, self._leave)
        try:
            self._turns.push(run, bounded=bounded)
        except QueueFull as full:
            retry_after_s = self._retry_after_s()
            full_of = (
                f"you have {full.limit} requests waiting or under way"
                if full.of_client
                else f"there are {full.limit} requests waiting"
            )
            raise ServerBusy(
                f"The queue is full: {full_of}. Try again in {retry_after_s} s.", retry_after_s
            ) from full
        self._schedule()
        return run

    def _leave(self, run: Run) -> None:
        if self._turns.remove(run):
            self._schedule()
        else:
            self._turns.leave(run)
            self._conductor.cancel(run)

    def _schedule(self) -> None:
        """Start whatever can start now, and tell those who wait how they stand."""
        if self._stopping:
            self._turns.release_npu()
            return
        while (run := self._turns.next()) is not None:
            self._conductor.begin(run)
        self._pool.unload_outdated()
        self._turns.tell()

    # what happens to workers

    def _loading(self, model_id: str, message: Loading) -> None:
        for run in (*self._conductor.active, *self._turns):
            if run.job.entry.id == model_id:
                run.push(0, message)

    def _slot_gone(self, slot: Slot) -> None:
        client = slot.client
        if client is not None and isinstance(client.failure, BackendFailure):
            if client.info is not None:  # else its load failed, which is told of there
                self._observer.lost(slot.entry.id, client.failure.code)
            self._problems[client.lost_to_adapter or slot.entry.id] = client.failure.reason
        # A pinned model comes back, unless it dies before it has made a single answer: that would be a loop.
        entry = self._registry.entries.get(slot.entry.id)
        comes_back = client is not None and (client.runs_finished or entry is not slot.entry)
        if not self._stopping and slot.pinned and comes_back and entry is not None:
            self._preloader.again(entry)
        self._schedule()

    async def _settled(self, timeout_s: float) -> bool:
        """Wait until no job is conducted and no worker is left. Returns whether that came about in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while pending := [*self._conductor.tasks, *self._preloader.tasks, *self._pool.going()]:
            left = deadline - loop.time()
            if left <= 0:
                return False
            await asyncio.wait(pending, timeout=left)
        return True

    def _stopped(self, message: str) -> ServerBusy:
        return ServerBusy(f"{message} Try again when it is back.", self._retry_after_s())

    def _retry_after_s(self) -> int:
        """Estimate when there will be a place in the queue: when the next waiting job has its turn."""
        return max(1, min(MAX_RETRY_AFTER_S, math.ceil(self._conductor.mean_job_s)))
