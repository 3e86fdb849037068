"""Who is next. Pure: no clock, no loop, no worker; what is loaded and busy is asked of the caller.

Jobs wait in lanes: a lane is what can do one of them at a time (the NPU, or one model on the CPU). In a lane
clients take turns, within a client's turns its users do, and each user's jobs keep their order. One thing
overrides this: a job that can start at once goes before one that first needs a swap of models, since a swap
takes a minute. Nobody is passed over in this way more than MAX_PASSES times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from enum import Enum, auto
from typing import Generic, TypeVar

MAX_PASSES = 4

T = TypeVar("T", bound=Hashable)
Turn = TypeVar("Turn")
Jobs = TypeVar("Jobs", bound=Collection[object])


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
    __slots__ = ("client", "item", "lane", "number", "passes", "user")

    def __init__(self, item: T, client: str, user: str, lane: str, number: int) -> None:
        self.item = item
        self.client = client
        self.user = user
        self.lane = lane
        self.number = number
        self.passes = 0


class _Lane(Generic[T]):
    """The jobs of one lane by client and user, both in the order of their turns."""

    def __init__(self) -> None:
        self._clients: dict[str, dict[str, deque[_Waiting[T]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._clients)

    def add(self, waiting: _Waiting[T]) -> None:
        users = self._clients.setdefault(waiting.client, {})
        users.setdefault(waiting.user, deque()).append(waiting)

    def remove(self, waiting: _Waiting[T], *, turn_taken: bool) -> None:
        users = self._clients[waiting.client]
        users[waiting.user].remove(waiting)
        _after_turn(users, waiting.user, turn_taken)
        _after_turn(self._clients, waiting.client, turn_taken)

    def order(self) -> Iterator[_Waiting[T]]:
        return _round_robin(_round_robin(users.values()) for users in self._clients.values())


def _after_turn(turns: dict[str, Jobs], name: str, turn_taken: bool) -> None:
    """Take out a name that has no jobs left; move one that had its turn to the end."""
    if turn_taken or not turns[name]:
        jobs = turns.pop(name)
        if jobs:
            turns[name] = jobs


def _round_robin(queues: Iterable[Iterable[Turn]]) -> Iterator[Turn]:
    """Yield the first of each queue, then the second of each, and so on."""
    turns = [iter(queue) for queue in queues]
    while turns:
        going = []
        for turn in turns:
            for item in turn:
                yield item
                going.append(turn)
                break
        turns = going


class FairQueue(Generic[T]):
    """Waiting jobs, at most `size`, and at most `per_client` of one client (0: no such bound), those of its
    jobs that run already included.
    """

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

    def push(
        self, item: T, client: str, lane: str, *, user: str = "", running: int = 0, bounded: bool = True
    ) -> None:
        """Let a job wait. Raises QueueFull; `bounded` False: the server's own jobs, which are not refused.

        user: whom among those behind one client it is for. It decides the order within the client's turns
        alone, since anybody can make up users. running: how many of the client's jobs run.
        """
        count = self._count.get(client, 0)
        if bounded and len(self._waiting) >= self._size:
            raise QueueFull(self._size, of_client=False)
        if bounded and 0 < self._per_client <= count + running:
            raise QueueFull(self._per_client, of_client=True)
        waiting = _Waiting(item, client, user, lane, self._pushed)
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
