"""What one layer remembers of a token sequence: a row for each position, all of them or the latest ones.

A full attention layer needs every earlier row (keys and values); a sliding one those of its window; a conv
layer as many inputs as its kernel reaches back. Knows nothing of tokens, nor of other layers.

Axes: K key/value heads (1 in a conv layer), S positions, D size of a row in a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]
WriteRows = Callable[[Array, Array], None]

BLOCK = 64  # positions memory is taken in
SPARE = 16  # rows kept beyond what is needed, so that a sequence can be cut back a little without a snapshot


@dataclass(frozen=True)
class RowShape:
    """How rows are made. arrays: 2 for keys and values, 1 for a conv layer's inputs. fp16 halves the memory.

    reach: how many rows before a new one that one needs; None: all.
    """

    heads: int
    size: int
    arrays: int = 2
    reach: int | None = None
    fp16: bool = False

    @property
    def row_bytes(self) -> int:
        """What one position takes."""
        return self.arrays * self.heads * self.size * (2 if self.fp16 else 4)

    @property
    def kept(self) -> int:
        """How many rows before a new one stay, for layers that do not keep all."""
        return (self.reach or 0) + SPARE

    def room_for(self, length: int, most_rows: int) -> int:
        """Return for how many rows memory is taken when a sequence has `length` tokens.

        most_rows: the most that are added at once. A layer with a reach takes more than it keeps, so that
        rows move to the front of the memory once in a while, not at each token.
        """
        room = in_blocks(length)
        if self.reach is None:
            return room
        return min(room, self.kept + max(most_rows, BLOCK, self.reach // 4))


@dataclass(frozen=True)
class Part:
    """A stretch of rows: arrays of (K, S, D), the first row of position `first`."""

    first: int
    arrays: tuple[Array, ...]

    @property
    def size_bytes(self) -> int:
        """Memory of the arrays."""
        return sum(array.nbytes for array in self.arrays)

    def until(self, end: int) -> Part:
        """Return the rows of positions before `end`, as views."""
        return Part(self.first, tuple(array[:, : max(0, end - self.first)] for array in self.arrays))


def write_rows(rows: Array, to: Array) -> None:
    """Write rows, (T, K, D) float32, into a part of an array, (K, T, D) float32 or float16."""
    to[...] = rows.transpose(1, 0, 2)


class Rows:
    """The rows of one layer. How many of them count is the caller's to know. Not thread-safe."""

    def __init__(self, shape: RowShape, write: WriteRows = write_rows) -> None:
        """write: does what write_rows does."""
        self.shape = shape
        self._write = write
        self.first = 0
        dtype = np.float16 if shape.fp16 else np.float32
        self._arrays: list[Array] = [
            np.empty((shape.heads, 0, shape.size), dtype) for _ in range(shape.arrays)
        ]

    @property
    def room(self) -> int:
        """For how many rows there is memory."""
        return int(self._arrays[0].shape[1])

    @property
    def least(self) -> int:
        """The shortest length that the sequence can be cut back to with the rows that are there."""
        return least_length(self.shape, self.first)

    def resize(self, room: int, end: int) -> None:
        """Move to memory for `room` rows, one array at a time so that little is held twice."""
        used = end - self.first
        for index, old in enumerate(self._arrays):
            new = np.empty((self.shape.heads, room, self.shape.size), old.dtype)
            new[:, :used] = old[:, :used]
            self._arrays[index] = new

    def make_room(self, position: int, count: int) -> None:
        """See to it that rows from `position` on fit, at the cost of those that no new row needs."""
        if self.shape.reach is not None and position + count - self.first > self.room:
            first = max(self.first, position - self.shape.kept)
            moved, used = first - self.first, position - first
            for array in self._arrays:
                array[:, :used] = array[:, moved : moved + used]
            self.first = first
        if position + count - self.first > self.room:
            self.resize(in_blocks(position + count - self.first), position)

    def write(self, position: int, rows: Sequence[Array]) -> list[Array]:
        """Write rows (T, K, D), the first of them of `position`; return all of them there are, (K, S, D).

        What is returned are views, valid until rows are next written; the new rows are the last ones.
        """
        count = len(rows[0])
        if position + count - self.first > self.room:
            self.make_room(position, count)
        start = position - self.first
        end = start + count
        for array, new in zip(self._arrays, rows, strict=True):
            self._write(new, array[:, start:end])
        return [array[:, :end] for array in self._arrays]

    def read(self, start: int, end: int) -> Array:
        """Return the first array's rows of positions from `start`, (K, S, D), as a view."""
        return self._arrays[0][:, start - self.first : end - self.first]

    def view(self, end: int) -> Part:
        """Return all rows of positions before `end`, as views."""
        return Part(self.first, tuple(self._arrays)).until(end)

    def copy(self, end: int) -> Part:
        """Return a copy of the rows before `end` that a sequence of that length needs, and SPARE more."""
        start = max(self.first, end - self.shape.kept)
        return Part(
            start, tuple(array[:, start - self.first : end - self.first].copy() for array in self._arrays)
        )

    def put(self, part: Part) -> None:
        """Have these rows, copied, in place of those that are there."""
        self.first = part.first
        count = part.arrays[0].shape[1]
        if count > self.room:
            self.resize(in_blocks(count), part.first)
        for array, new in zip(self._arrays, part.arrays, strict=True):
            array[:, :count] = new


def least_length(shape: RowShape, first: int) -> int:
    """Return the shortest length for which rows from position `first` on are enough."""
    return 0 if shape.reach is None or first == 0 else first + shape.reach


def in_blocks(length: int) -> int:
    """Return a length rounded up to the steps in which memory is taken."""
    return -(-length // BLOCK) * BLOCK
