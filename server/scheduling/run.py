"""A job and the run that answers it, as the one who asked sees them. Knows no worker and no queue.

The dispatcher pushes events in; one reader takes them out. The buffer has no bound of its own: an answer's
length bounds it, and a reader that is slow must not hold up the NPU for others.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from backends.base import EmbedParams, GenerateParams
from backends.protocol import Delta, Finished, Loading, Prefill
from server.errors import ApiError
from server.registry import Entry


@dataclass(frozen=True)
class Job:
    """What is asked of a model: an answer for each of `params`, made one after another under one turn.

    client: whom the queue counts it for. user: whom among those behind it, "" for nobody in particular.
    embed: vectors that are asked for instead. asked: the adapter that was asked for, where `entry` is
    the base whose worker runs it.
    """

    entry: Entry
    client: str
    params: tuple[GenerateParams, ...] = ()
    user: str = ""
    embed: EmbedParams | None = None
    asked: Entry | None = None

    @property
    def model(self) -> str:
        """The id that was asked for."""
        return (self.asked or self.entry).id

    @property
    def work(self) -> tuple[GenerateParams | EmbedParams, ...]:
        """What a worker is given, in order; an event's index counts in it."""
        return self.params if self.embed is None else (*self.params, self.embed)


@dataclass(frozen=True)
class Queued:
    """The job waits; `position` others go before it for the same worker or NPU (0: it is next)."""

    position: int


Event = Queued | Loading | Prefill | Delta | Finished
Status = Queued | Loading | Prefill


class Run:
    """A submitted job: an async context manager that iterates over (index into the job's work, event).

    Leaving the context, by whatever way, cancels the work wherever it is. The iteration ends after the last
    Finished and raises an ApiError if the job fails, after the events that came before. One reader at a time.

    submitted: when it was made, of time.monotonic().
    """

    def __init__(self, job: Job, leave: Callable[[Run], None]) -> None:
        self.job = job
        self.submitted = time.monotonic()
        self._leave = leave
        self._events: deque[tuple[int, Event]] = deque()
        self._error: ApiError | None = None
        self._complete = False
        self._answers = 0
        self._left = False
        self._position: int | None = None
        self._wake: asyncio.Future[None] | None = None

    @property
    def left(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._left

    @property
    def answers(self) -> int:
        """How many of the answers are finished."""
        return self._answers

    @property
    def ended(self) -> bool:
        """Whether no event will follow those already pushed."""
        return self._complete or self._error is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._left:
            self._left = True
            self._events.clear()
            self._leave(self)

    def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        return self

    async def __anext__(self) -> tuple[int, Event]:
        # Events that are there are handed over without a trip through the event loop.
        events = self._events
        while not events:
            if self._error is not None:
                raise self._error
            if self._complete or self._left:
                raise StopAsyncIteration
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        return events.popleft()

    def push(self, index: int, event: Event) -> None:
        """Add an event; the dispatcher's side. Of reports of state in a row only the latest is kept."""
        if self._left:
            return
        if type(event) is not Delta:
            if isinstance(event, Finished):
                self._answers = index + 1
                self._complete = self._answers == len(self.job.work)
            elif self._events and isinstance(self._events[-1][1], Status):
                self._events.pop()
        self._events.append((index, event))
        if self._wake is not None:
            self._awake()

    def queued(self, position: int) -> None:
        """Report the place in the queue, if it is another than before; the dispatcher's side."""
        if position != self._position:
            self._position = position
            self.push(0, Queued(position))

    def fail(self, error: ApiError) -> None:
        """End the run with an error, unless it has ended; the dispatcher's side."""
        if not self.ended:
            self._error = error
            self._awake()

    def finish(self) -> None:
        """End the run without an error, whether or not it had answers to make; the dispatcher's side."""
        self._complete = True
        self._awake()

    def _awake(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)
