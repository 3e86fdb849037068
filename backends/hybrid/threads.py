"""How many threads compute: one number for the segments and for what lies between them."""

from __future__ import annotations

import os

_DEFAULT_MAX = 4  # the RK3588's fast cores; decode is bound by memory long before


def thread_count(wanted: int | None) -> int:
    """Return how many threads to use: never more than cores, which would only wait for each other."""
    return max(1, min(len(os.sched_getaffinity(0)), wanted or _DEFAULT_MAX))
