"""How much of the machine others used while something was measured: in a crowd a figure means little."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

from bench.processes import cpu_s

_DISTURBING = 0.05


class Bystanders:
    """Sums up, over all measurements, the processor time that was nobody's of ours."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._foreign_s = 0.0

    @contextmanager
    def watched(self, processes: Sequence[psutil.Process]) -> Iterator[None]:
        """Watch while the block runs. `processes` are ours and outlive it; the calling process is added."""
        ours = [psutil.Process(), *processes]
        started, busy, used = time.monotonic(), _busy_s(), cpu_s(ours)
        yield
        self._seconds += time.monotonic() - started
        self._foreign_s += max(0.0, (_busy_s() - busy) - (cpu_s(ours) - used))

    @property
    def share(self) -> float:
        """Processor time of others over the time watched: 1 is one core."""
        return self._foreign_s / self._seconds if self._seconds else 0.0

    @property
    def crowd(self) -> bool:
        """Whether others used so much that figures and ratios prove nothing: spinning threads suffer most."""
        return self.share > _DISTURBING

    def note(self) -> str:
        """Return a line for the report."""
        advice = "; figures marked ? prove nothing, measure again on a quiet machine" if self.crowd else ""
        return f"Others used {self.share:.0%} of one core meanwhile{advice}."


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))
