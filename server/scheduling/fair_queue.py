"""Who is next. Pure: no clock, no loop, no worker; what is loaded and busy is asked of the caller.

Jobs wait in lanes: a lane is what can do one of them at a time (the NPU, or one model on the CPU). In a lane
clients take turns, and each client's jobs keep their order. One thing overrides this: a job that can start at
once goes before one that first needs a swap of models, since a swap takes a minute. Nobody is passed over in
this way more than MAX_PASSES times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from enum import Enum, auto
from typing import Generic, TypeVar

MAX_PASSES = 4

T = TypeVar("T", bound=Hashable)


class Fit(Enum):
    """How a waiting job stands: READY to run, to be had by a SWAP of models, or BLOCKED by something busy."""

    READY = auto()
    SWAP = auto()
    BLOCKED = auto()


class QueueFull(Exception):
    """There is no place. `limit` is the bound that was reached; `of_client`: it is the client's own."""

    def __init__(self, limit: int, of_client: bool) -> None:
        super().__init__(f"limit of {limit}{' per client' if of_client else ''}")
        self.limit = limit
        self.of_client = of_client


class _Waiting(Generic[T]):
    __slots__ = ("client", "item", "lane", "number", "passes")

    def __init__(self, item: T, client: str, lane: str, number: int) -> None:
        self.item = item
        self.client = client
        self.lane = lane
        self.number = number
        self.passes = 0


class _Lane(Generic[T]):
    """The jobs of one lane by client, the clients in the order of their turns."""

    def __init__(self) -> None:
        self._clients: dict[str, deque[_Waiting[T]]] = {}

    def __bool__(self) -> bool:
        return bool(self._clients)

    def add(self, waiting: _Waiting[T]) -> None:
        self._clients.setdefault(waiting.client, deque()).append(waiting)

    def remove(self, waiting: _Waiting[T], *, turn_taken: bool) -> None:
        jobs = self._clients[waiting.client]
        jobs.remove(waiting)
        if not jobs or turn_taken:
            del self._clients[waiting.client]
        if jobs and turn_taken:
            self._clients[waiting.client] = jobs

    def order(self) -> Iterator[_Waiting[T]]:
        turns = list(self._clients.values())
        depth = 0
        while turns:
            yield from (jobs[depth] for jobs in turns)
            depth += 1
            turns = [jobs for jobs in turns if len(jobs) > depth]


class FairQueue(Generic[T]):
    """Waiting jobs, at most `size`, and at most `per_client` of one client (0: no such bound)."""

    def __init__(self, size: int, per_client: int = 0) -> None:
        self._size = size
        self._per_client = per_client
        self._waiting: dict[T, _Waiting[T]] = {}
        self._lanes: dict[str, _Lane[T]] = {}
        self._count: dict[str, int] = {}
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, item: T) -> bool:
        return item in self._waiting

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._waiting))

    def push(self, item: T, client: str, lane: str, *, bounded: bool = True) -> None:
        """Let a job wait. Raises QueueFull; `bounded` False: the server's own jobs, which are not refused."""
        count = self._count.get(client, 0)
        if bounded and len(self._waiting) >= self._size:
            raise QueueFull(self._size, of_client=False)
        if bounded and 0 < self._per_client <= count:
            raise QueueFull(self._per_client, of_client=True)
        waiting = _Waiting(item, client, lane, self._pushed)
        self._pushed += 1
        self._count[client] = count + 1
        self._waiting[item] = waiting
        self._lanes.setdefault(lane, _Lane()).add(waiting)

    def remove(self, item: T) -> bool:
        """Take a job out without giving it its turn. Returns whether it was there."""
        waiting = self._waiting.get(item)
        if waiting is None:
            return False
        self._take(waiting, turn_taken=False)
        return True

    def pop(self, fit: Callable[[T], Fit], hinders: Callable[[T, T], bool]) -> T | None:
        """Return the job whose turn it is, None if none can start now.

        `fit(job)` says how a job stands. `hinders(granted, waiting)`: whether `waiting` could not start, or
        not get its swap, while `granted` runs; jobs that do not hinder one another do not pass one another.
        """
        order = self._order()
        starved: list[_Waiting[T]] = []
        swap: int | None = None
        for index, waiting in enumerate(order):
            exhausted = waiting.passes >= MAX_PASSES
            held = any(hinders(waiting.item, other.item) for other in starved)
            standing = Fit.BLOCKED if held else fit(waiting.item)
            if standing is Fit.READY or (standing is Fit.SWAP and exhausted):
                return self._grant(order, index, hinders)
            if standing is Fit.SWAP and swap is None:
                swap = index
            elif exhausted:
                starved.append(waiting)
        return None if swap is None else self._grant(order, swap, hinders)

    def positions(self) -> Iterator[tuple[T, int]]:
        """Yield each job and how many go before it in its lane, as things stand."""
        for lane in self._lanes.values():
            for position, waiting in enumerate(lane.order()):
                yield waiting.item, position

    def _order(self) -> list[_Waiting[T]]:
        # Lanes are merged by arrival: it matters only where two of them want the same memory.
        orders = [deque(lane.order()) for lane in self._lanes.values()]
        merged: list[_Waiting[T]] = []
        while orders := [order for order in orders if order]:
            merged.append(min(orders, key=lambda order: order[0].number).popleft())
        return merged

    def _grant(self, order: list[_Waiting[T]], index: int, hinders: Callable[[T, T], bool]) -> T:
        granted = order[index]
        for passed in order[:index]:
            if hinders(granted.item, passed.item):
                passed.passes += 1
        self._take(granted, turn_taken=True)
        return granted.item

    def _take(self, waiting: _Waiting[T], *, turn_taken: bool) -> None:
        del self._waiting[waiting.item]
        self._count[waiting.client] -= 1
        if not self._count[waiting.client]:
            del self._count[waiting.client]
        lane = self._lanes[waiting.lane]
        lane.remove(waiting, turn_taken=turn_taken)
        if not lane:
            del self._lanes[waiting.lane]
