"""How much memory there is for models."""

from __future__ import annotations

from pathlib import Path

import psutil


def available_mb(sysroot: Path = Path("/")) -> int:
    """Return the memory that programs can still get without swapping, in MB.

    With a `sysroot` other than / that has a proc/meminfo, that one counts instead of this machine's.
    """
    meminfo = sysroot / "proc/meminfo"
    if sysroot != Path("/") and meminfo.is_file():
        for line in meminfo.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) // 1024
    return int(psutil.virtual_memory().available) // 2**20
