"""How much one rendering may make and take. Knows no Jinja: values, sizes and the processor's time.

A value weighs its characters, and some more for each item of a list or a dict, whatever it holds twice
counted twice: what a single operation on it costs goes with that. No value may weigh more than `largest`, all
that are made together no more than `total`, and the thread may not compute longer than `seconds`. The three
grow with what a client sent.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sized, ValuesView
from contextlib import contextmanager

ITEM = 8  # what a value weighs besides its characters: some 60 bytes
LARGEST, LARGEST_OF_INPUT = 2_000_000, 4
TOTAL, TOTAL_OF_INPUT = 16_000_000, 16
SECONDS, SECONDS_OF_INPUT = 3.0, 1e-6
LONGEST_INT_BITS = 4096
DEEPEST = 64  # calls in calls: each takes some 7 of the 1,000 that Python allows

_CHILDREN = (list, tuple, KeysView, ValuesView, ItemsView)


class OverBudget(Exception):
    """A template makes or takes more than it may. The message says what, as in "it makes ..."."""


class Budget:
    """What is left for one rendering, in the thread that makes it. `given`: what the template gets to see."""

    def __init__(self, given: object = ()) -> None:
        self._weights: dict[int, tuple[object, int]] = {}  # the values too: or their ids would be used again
        weight = self.weigh(given)
        self._largest = LARGEST + LARGEST_OF_INPUT * weight
        self._left = TOTAL + TOTAL_OF_INPUT * weight
        self._depth = 0
        self._deadline = time.thread_time() + SECONDS + SECONDS_OF_INPUT * weight

    def weigh(self, value: object) -> int:
        """Return what a value weighs."""
        if isinstance(value, str):
            return ITEM + len(value)
        if not isinstance(value, (*_CHILDREN, Mapping)):
            return ITEM
        if (known := self._weights.get(id(value))) is not None:
            return known[1]
        children: Iterable[object] = value
        if isinstance(value, Mapping):
            children = (*value.keys(), *value.values())
        weight = ITEM + sum(map(self.weigh, children))
        self._weights[id(value)] = (value, weight)
        return weight

    def charge(self, *values: object) -> None:
        """Count values that were made, and one step. Raises OverBudget."""
        for value in values:
            self.allow(self.weigh(value))
            # What a list holds was there before; only its own places are new.
            self._left -= len(value) if isinstance(value, str) else ITEM * _length(value)
        self._left -= ITEM
        if self._left < 0:
            raise OverBudget("it makes too much text, or takes too many steps")
        if time.thread_time() > self._deadline:
            raise OverBudget("it takes too long")

    @contextmanager
    def one_deeper(self) -> Iterator[None]:
        """Count a call as long as it lasts. Raises OverBudget for one in too many others."""
        if self._depth == DEEPEST:
            raise OverBudget(f"it calls itself more than {DEEPEST} deep")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def allow(self, weight: float) -> None:
        """Raise OverBudget if a value of this weight may not be made."""
        if weight > self._largest:
            raise OverBudget("it makes a text or a list that is too large")


def _length(value: object) -> int:
    return len(value) if isinstance(value, Sized) else 1


def allow_int(*values: object) -> None:
    """Raise OverBudget for whole numbers that are too long to compute with."""
    for value in values:
        if isinstance(value, int) and value.bit_length() > LONGEST_INT_BITS:
            raise OverBudget("it computes with numbers that are too long")
