"""How much memory there is for models."""

from __future__ import annotations

from pathlib import Path

import psutil

from server.sysroot import Sysroot
from server.vitals import meminfo


def available_mb(sysroot: Path = Path("/")) -> int:
    """Return the memory that programs can still get without swapping, in MB.

    With a `sysroot` other than / that has a proc/meminfo, that one counts instead of this machine's.
    """
    told = None if sysroot == Path("/") else meminfo(Sysroot(sysroot)).get("MemAvailable")
    return int(psutil.virtual_memory().available if told is None else told) // 2**20
