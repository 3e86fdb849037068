"""The loaded models: which there are, which make room for which, and when an idle one goes.

A slot is a model's place in memory, from the decision to load it until its process is gone. All decisions are
taken at once, without waiting, so that none is taken twice; carrying them out is `load`. Knows no queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto

from backends.discovery import RuntimeLibrary
from backends.protocol import Loading
from backends.spec import ModelInfo, ModelSpec
from server.errors import ApiError, InsufficientMemory
from server.registry import Entry, model_spec
from server.registry.last_load import keep_last_load
from server.settings import Settings
from server.templates import Templates
from server.workers.client import WorkerClient
from server.workers.fixed_prompt import fixed_prompt
from server.workers.runtimes import Runtimes
from server.workers.timeouts import Timeouts

logger = logging.getLogger(__name__)


STOPPING = "the server is stopping"  # why a worker was ended, in the log


class Room(Enum):
    """Whether a model that is not loaded fits: now, after idle ones went, after busy ones went, or never."""

    FREE = auto()
    EVICT = auto()
    WAIT = auto()
    NEVER = auto()


class Slot:
    """A model's place. `client` is its worker, None before there is one."""

    def __init__(self, entry: Entry, pinned: bool) -> None:
        self.entry = entry
        self.pinned = pinned
        self.client: WorkerClient | None = None
        self.taken = True  # by the job it is loaded for
        self.idle_since = 0.0
        self.idle_timer: asyncio.TimerHandle | None = None

    @property
    def loaded(self) -> bool:
        """Whether its worker has loaded the model and will go on."""
        return self.client is not None and self.client.info is not None and not self.client.ending

    @property
    def ending(self) -> bool:
        """Whether its worker is being ended or has died: its memory comes back soon."""
        return self.client is not None and self.client.ending

    @property
    def idle(self) -> bool:
        """Whether it is loaded and no job has it."""
        return self.loaded and not self.taken


class Pool:
    """All slots, by model id. One load at a time: two would compete for disk and for memory not yet taken.

    runtimes: where the libraries are that models need. on_gone: called when a slot is no more. on_loading:
    called with a model's id and how far its load is. available: returns the memory that programs can get, MB;
    raises OSError. current: returns the entry that models.yaml has for an id now.
    """

    def __init__(
        self,
        settings: Settings,
        worker_command: Sequence[str],
        runtimes: Runtimes,
        pinned: Iterable[str],
        on_gone: Callable[[Slot], None],
        on_loading: Callable[[str, Loading], None],
        available: Callable[[], int],
        current: Callable[[str], Entry | None],
    ) -> None:
        self._settings = settings
        self._command = tuple(worker_command)
        self._pinned = frozenset(pinned)
        self._on_gone = on_gone
        self._on_loading = on_loading
        self._available = available
        self._current = current
        self._available_mb = available()
        self._runtimes = runtimes
        self._slots: dict[str, Slot] = {}
        self._closing: ApiError | None = None

    @property
    def closed(self) -> ApiError | None:
        """The error `close` was called with, None before."""
        return self._closing

    @property
    def slots(self) -> list[Slot]:
        """All slots there are."""
        return list(self._slots.values())

    def get(self, entry: Entry) -> Slot | None:
        """Return a model's slot, None if it has none."""
        return self._slots.get(entry.id)

    def pin(self, ids: Iterable[str]) -> None:
        """Let these models stay once they are loaded, and no others."""
        self._pinned = frozenset(ids)
        for slot in self._slots.values():
            slot.pinned = slot.entry.id in self._pinned

    def outdated(self, slot: Slot) -> bool:
        """Whether the entry a slot was opened with is no longer the one in models.yaml."""
        return self._current(slot.entry.id) is not slot.entry

    def unload_outdated(self) -> None:
        """Let idle models go whose entries have changed or gone; the next request loads them anew."""
        for slot in self.slots:
            if slot.idle and self.outdated(slot):
                assert slot.client is not None
                logger.info("unloading %s: its entry in models.yaml is no longer the same", slot.entry.id)
                _stop_timer(slot)
                slot.client.unload()

    def fits(self, entry: Entry) -> bool:
        """Return whether there is memory for a model without unloading another."""
        return entry.memory_mb <= self._free_mb()

    def room(self, entry: Entry) -> Room:
        """Return whether a model without a slot can be loaded."""
        lacking = entry.memory_mb - self._free_mb()
        if lacking <= 0:
            return Room.WAIT if self._loading() else Room.FREE
        movable = [slot for slot in self._slots.values() if not slot.pinned or slot.ending]
        if lacking > _memory_mb(movable):
            return Room.NEVER
        soon = [slot for slot in movable if slot.idle or slot.ending]
        if self._loading() or lacking > _memory_mb(soon):
            return Room.WAIT
        return Room.EVICT

    def refusal(self, entry: Entry) -> InsufficientMemory:
        """Return the error for a model that does not fit, with the numbers."""
        free_mb, reserve_mb = self._free_mb(), self._settings.memory_reserve_mb
        loaded = ", ".join(
            f"{slot.entry.id} ({slot.entry.memory_mb} MB{', pinned' if slot.pinned else ''})"
            for slot in self._slots.values()
            if slot.entry.id != entry.id
        )
        return InsufficientMemory(
            f"{entry.id} needs {entry.memory_mb} MB and {max(free_mb, 0)} MB can be had: "
            f"{free_mb + reserve_mb} MB are available, "
            f"and RKSERVE_MEMORY_RESERVE_MB keeps {reserve_mb} of them free. "
            f"Loaded: {loaded or 'no other model'}. "
            "Stop other programs, unpin a model (RKSERVE_PRELOAD) or choose a smaller one."
        )

    def check_runtime(self, entry: Entry) -> None:
        """Raise RuntimeVersionMismatch for a model that needs a runtime library which is not there."""
        self._runtimes.choose(entry)

    def open(self, entry: Entry) -> Slot:
        """Give a model a slot, taken, and begin to unload idle ones if it needs their memory. Then `load`.

        It gets the entry of now, where that of a job which has waited is outdated: else each such job would
        cost a load of its own.
        """
        entry = self._current(entry.id) or entry
        lacking = entry.memory_mb - self._free_mb()
        lacking -= _memory_mb(slot for slot in self._slots.values() if slot.ending)
        while lacking > 0 and (victim := self._least_recently_used()) is not None:
            lacking -= victim.entry.memory_mb
            self._evict(victim, entry)
        slot = self._slots[entry.id] = Slot(entry, entry.id in self._pinned)
        return slot

    async def load(self, slot: Slot) -> WorkerClient:
        """Load the model of an opened slot. Raises ApiError; `release` takes the slot away then.

        Not to be cancelled as a task: the worker belongs to the slot from its start on.
        """
        await self._make_room(slot)
        self._check_open()
        entry = slot.entry
        library = self._runtimes.choose(entry)
        client = slot.client = await WorkerClient.start(
            self._command,
            self._spec(entry, library),
            Timeouts.of(self._settings, entry),
            lambda message: self._on_loading(entry.id, message),
        )
        client.gone.add_done_callback(lambda _: self._client_gone(slot))
        if self._closing is not None:
            client.stop(self._closing, STOPPING)
        info = await client.loaded()
        logger.info("loaded %s on %s, pid %d", entry.id, info.runtime, client.pid)
        for warning in info.warnings:
            logger.warning("%s: %s", entry.id, warning)
        if info.details:
            self._keep(entry, info)
        return client

    def _spec(self, entry: Entry, library: RuntimeLibrary | None) -> ModelSpec:
        """Return what the worker is told. The fixed prompt is rendered anew: a template may have changed."""
        path = None if library is None else library.path
        if entry.backend == "hybrid" or not entry.rkllm.prompt_cache:
            return model_spec(entry, self._settings, path)
        beginning = fixed_prompt(entry, Templates(self._settings.models_dir))
        return model_spec(entry, self._settings, path, beginning)

    def take(self, slot: Slot) -> None:
        """Reserve an idle slot for a job."""
        slot.taken = True
        _stop_timer(slot)

    def release(self, slot: Slot) -> None:
        """Give a slot back after a job; an idle model goes after a while, unless it is pinned.

        A slot that stayed without a model goes at once.
        """
        slot.taken = False
        loop = asyncio.get_running_loop()
        slot.idle_since = loop.time()
        if slot.client is None or slot.client.gone.done():
            self._remove(slot)
        elif self._closing is not None:
            slot.client.unload()
        elif slot.loaded and not slot.pinned and self._settings.idle_unload_s > 0:
            slot.idle_timer = loop.call_later(self._settings.idle_unload_s, self._unload_idle, slot)

    def close(self, error: ApiError) -> None:
        """Load nothing more: loads under way end with `error`, idle workers are told to exit."""
        self._closing = error
        for slot in self.slots:
            if slot.client is None:
                continue
            if slot.idle:
                slot.client.unload()
            elif not slot.loaded and not slot.ending:
                slot.client.stop(error, STOPPING)

    def kill(self, error: ApiError) -> None:
        """End every worker now; runs under way end with `error`."""
        for slot in self.slots:
            if slot.client is not None:
                slot.client.stop(error, STOPPING)

    def going(self) -> list[asyncio.Future[None]]:
        """Return a future for each worker, done when it is gone."""
        return [slot.client.gone for slot in self._slots.values() if slot.client is not None]

    def _keep(self, entry: Entry, info: ModelInfo) -> None:
        details = ", ".join(f"{key} {value}" for key, value in info.details.items())
        logger.info("%s: %s", entry.id, details)
        try:
            keep_last_load(entry, self._settings.models_dir, info)
        except OSError as error:  # a model directory that only another user may write to
            logger.warning("cannot keep what %s says of itself: %s", entry.id, error)

    async def _make_room(self, slot: Slot) -> None:
        # Measured again: what a worker gives back is known only when it is gone.
        while slot.entry.memory_mb > self._free_mb():
            self._check_open()
            if going := [
                other.client.gone for other in self._slots.values() if other.ending and other.client
            ]:
                await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
            elif (victim := self._least_recently_used()) is not None:
                self._evict(victim, slot.entry)
            else:
                raise self.refusal(slot.entry)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise self._closing

    def _free_mb(self) -> int:
        try:
            self._available_mb = self._available()
        except OSError as error:  # no descriptor left to read it with: the last figure must do
            logger.warning("cannot see how much memory there is: %s", error)
        return self._available_mb - self._settings.memory_reserve_mb

    def _loading(self) -> bool:
        return any(not slot.loaded and not slot.ending for slot in self._slots.values())

    def _least_recently_used(self) -> Slot | None:
        idle = [slot for slot in self._slots.values() if slot.idle and not slot.pinned]
        return min(idle, key=lambda slot: slot.idle_since, default=None)

    def _evict(self, victim: Slot, newcomer: Entry) -> None:
        logger.info("unloading %s to make room for %s", victim.entry.id, newcomer.id)
        _stop_timer(victim)
        assert victim.client is not None
        victim.client.unload()

    def _unload_idle(self, slot: Slot) -> None:
        slot.idle_timer = None
        assert slot.client is not None
        logger.info("unloading %s, idle for %g s", slot.entry.id, self._settings.idle_unload_s)
        slot.client.unload()

    def _client_gone(self, slot: Slot) -> None:
        if not slot.taken:  # else the job that has it gives it back, after it has dealt with the failure
            self._remove(slot)

    def _remove(self, slot: Slot) -> None:
        _stop_timer(slot)
        # Both ways here may be taken for one slot; by then another may have its place.
        if self._slots.get(slot.entry.id) is slot:
            del self._slots[slot.entry.id]
            self._on_gone(slot)


def _memory_mb(slots: Iterable[Slot]) -> int:
    return sum(slot.entry.memory_mb for slot in slots)


def _stop_timer(slot: Slot) -> None:
    if slot.idle_timer is not None:
        slot.idle_timer.cancel()
        slot.idle_timer = None
