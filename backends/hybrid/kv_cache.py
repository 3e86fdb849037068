"""What a model remembers of one token sequence, on the CPU, in memory that grows as it is used.

Keys and values of attention layers and the inputs of conv layers, with snapshots of those layers that do not
keep all: a sequence can be cut back to where a snapshot, or what is still there, covers every layer. Knows
nothing of what the tokens mean and nothing of other caches.

Axes: K key/value heads, S positions, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from backends.hybrid.rows import BLOCK as BLOCK
from backends.hybrid.rows import (
    Array,
    Part,
    Rows,
    RowShape,
    WriteRows,
    in_blocks,
    least_length,
    write_rows,
)

TokenIds = npt.NDArray[np.int32]

MOST_SNAPSHOTS = 8


@dataclass(frozen=True)
class _Snapshot:
    """Rows of the layers that do not keep all, as they were at a length. Never written to again."""

    length: int
    least: int  # the shortest length it can be cut back to
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


class KVCache:
    """Rows of every layer for the first `length` tokens of a sequence.

    A run writes the rows of new tokens layer by layer (`append`) and then says that they are there
    (`commit`). What was written and not committed does not count, so a run that fails in between leaves the
    cache as it was. `owner` says whose tokens they are. Not thread-safe.
    """

    def __init__(
        self, shapes: Sequence[RowShape], most_rows: int = BLOCK, write: WriteRows = write_rows
    ) -> None:
        """Make an empty cache. shapes: of each layer. most_rows: of a run. write: see Rows."""
        self.owner = ""
        self._shapes = tuple(shapes)
        self._most_rows = most_rows
        self._write = write
        self._layers = [Rows(shape, write) for shape in shapes]
        self._partial = [rows for rows in self._layers if rows.shape.reach is not None]
        self._snapshots: list[_Snapshot] = []
        self._capacity = 0
        self._token_ids: TokenIds = np.empty(0, np.int32)
        self._length = 0

    @property
    def length(self) -> int:
        """How many tokens are committed."""
        return self._length

    @property
    def token_ids(self) -> TokenIds:
        """The committed tokens: a view, valid until the cache is next written."""
        return self._token_ids[: self._length]

    @property
    def capacity(self) -> int:
        """For how many tokens there is room; `append` makes more where it is needed."""
        return self._capacity

    @property
    def size_bytes(self) -> int:
        """Memory taken for rows and snapshots."""
        return self._rows_bytes(self._capacity) + self._snapshots_bytes

    @property
    def next_capacity(self) -> int:
        """The room to take when it is used up: a quarter more, so that long answers are not copied often."""
        return self._capacity + max(BLOCK, self._capacity // 4)

    @property
    def snapshot_lengths(self) -> list[int]:
        """The lengths at which there are snapshots, rising."""
        return [snapshot.length for snapshot in self._snapshots]

    @property
    def next_snapshot_bytes(self) -> int:
        """Memory that `snapshot` will take; 0 if it need not be called, since every layer keeps all."""
        return sum(min(self._length, rows.shape.kept) * rows.shape.row_bytes for rows in self._partial)

    def bytes_for(self, length: int) -> int:
        """Return what `size_bytes` will be after `reserve(length)`."""
        return self._rows_bytes(max(self._capacity, in_blocks(length))) + self._snapshots_bytes

    def fork_bytes(self, room: int) -> int:
        """Return what `size_bytes` of a fork with this room will be, at most."""
        return self._rows_bytes(in_blocks(room)) + self._snapshots_bytes

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens in all, so that appends up to there need no more memory."""
        if length > self._capacity:
            self._resize(in_blocks(length))

    def append(self, layer: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Write rows (T, K, D) after the committed tokens; return all keys and values there are, (K, S, D).

        What is returned are views of the cache, valid until it is next written; the new rows are the last.
        """
        self._make_room(len(keys))
        all_keys, all_values = self._layers[layer].write(self._length, (keys, values))
        return all_keys, all_values

    def append_inputs(self, layer: int, inputs: Array) -> None:
        """Write a conv layer's inputs, (T, D), after the committed tokens."""
        self._make_room(len(inputs))
        self._layers[layer].write(self._length, (inputs[:, None],))

    def read_inputs(self, layer: int, position: int, out: Array) -> None:
        """Write the conv inputs of the last positions before `position` into out, (S, D).

        Zeros stand for those before the sequence's begin. position: at most what was appended last.
        """
        start = max(0, position - len(out))
        missing = len(out) - (position - start)
        out[:missing] = 0
        out[missing:] = self._layers[layer].read(start, position)[0]

    def commit(self, token_ids: TokenIds) -> None:
        """Count these tokens, whose rows every layer has appended, as part of the sequence."""
        end = self._length + len(token_ids)
        self._token_ids[self._length : end] = token_ids
        self._length = end

    def snapshot(self) -> None:
        """Remember this length as one to come back to, however much is appended."""
        if not self._partial or self.snapshot_lengths[-1:] == [self._length]:
            return
        parts = tuple(rows.copy(self._length) for rows in self._partial)
        self._snapshots.append(_Snapshot(self._length, self._least(parts), parts))
        if len(self._snapshots) > MOST_SNAPSHOTS:
            lengths = [0, *self.snapshot_lengths]
            gaps = [after - before for before, after in pairwise(lengths[:-1])]
            del self._snapshots[gaps.index(min(gaps))]

    def drop_snapshot(self) -> bool:
        """Forget the oldest snapshot; return whether there was one."""
        if self._snapshots:
            del self._snapshots[0]
            return True
        return False

    def resumable(self, length: int) -> int:
        """Return the most of the first `length` tokens that `truncate` and `fork` can keep."""
        return self._source(length)[0]

    def truncate(self, length: int) -> None:
        """Forget the tokens after `resumable(length)`. Memory is kept: more tokens mostly follow."""
        length, snapshot = self._source(length)
        if snapshot is not None:
            for rows, part in zip(self._partial, snapshot.parts, strict=True):
                rows.put(part.until(length))
        elif not length:
            for rows in self._partial:
                rows.first = 0
        self._snapshots = self._snapshots_until(length)
        self._length = length

    def fork(self, length: int, room: int = 0) -> KVCache:
        """Return a cache of its own memory that holds the first `resumable(length)` tokens of this one.

        room: for how many tokens in all, at least `length`, memory is taken at once.
        """
        copy = KVCache(self._shapes, self._most_rows, self._write)
        length, snapshot = self._source(length)
        copy.reserve(max(length, room))
        parts = iter(snapshot.parts if snapshot else ())
        for mine, theirs in zip(self._layers, copy._layers, strict=True):
            if mine.shape.reach is None:
                theirs.put(mine.view(length))
            elif snapshot is not None:
                theirs.put(next(parts).until(length))
            elif length:
                theirs.put(mine.copy(length))
        copy._snapshots = self._snapshots_until(length)
        copy.commit(self._token_ids[:length])
        return copy

    def _source(self, length: int) -> tuple[int, _Snapshot | None]:
        """Return how much of a length can be kept, and the snapshot it takes, None: what is there."""
        length = min(length, self._length)
        if max((rows.least for rows in self._partial), default=0) <= length:
            return length, None
        best, found = 0, None
        for snapshot in self._snapshots:
            until = min(length, snapshot.length)
            if snapshot.least <= until and until > best:
                best, found = until, snapshot
        return best, found

    def _least(self, parts: Sequence[Part]) -> int:
        both = zip(self._partial, parts, strict=True)
        return max(least_length(rows.shape, part.first) for rows, part in both)

    def _snapshots_until(self, length: int) -> list[_Snapshot]:
        """Return the snapshots cut back to a length, those that reach so far."""
        kept = [snapshot for snapshot in self._snapshots if snapshot.length <= length]
        later = [snapshot for snapshot in self._snapshots if snapshot.least <= length < snapshot.length]
        if later and (not kept or kept[-1].length < length):
            parts = tuple(part.until(length) for part in later[0].parts)
            kept.append(_Snapshot(length, later[0].least, parts))
        return kept

    @property
    def _snapshots_bytes(self) -> int:
        return sum(snapshot.size_bytes for snapshot in self._snapshots)

    def _rows_bytes(self, capacity: int) -> int:
        return sum(shape.room_for(capacity, self._most_rows) * shape.row_bytes for shape in self._shapes)

    def _make_room(self, count: int) -> None:
        end = self._length + count
        if end > self._capacity:
            self.reserve(max(end, self.next_capacity))

    def _resize(self, capacity: int) -> None:
        """Take larger memory, layer by layer."""
        for rows in self._layers:
            room = rows.shape.room_for(capacity, self._most_rows)
            if room > rows.room:
                rows.resize(room, self._length)
        self._token_ids = np.concatenate([self.token_ids, np.zeros(capacity - self._length, np.int32)])
        self._capacity = capacity
