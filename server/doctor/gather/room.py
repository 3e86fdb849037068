"""How much memory, swap and disk there is."""

from __future__ import annotations

import shutil
from pathlib import Path

from server.doctor.facts import Disk, Memory, Swap
from server.sysroot import Sysroot
from server.vitals import meminfo
from server.workers.memory import available_mb


def memory(sysroot: Sysroot, reserve_mb: int) -> Memory:
    """Return the memory of the machine, and where it is written out to."""
    available = available_mb(sysroot.root)
    total = meminfo(sysroot).get("MemTotal", available * 2**20) // 2**20
    return Memory(total, available, reserve_mb, _swaps(sysroot))


def disk(models_dir: Path) -> Disk:
    """Return the room where models are kept, or will be."""
    directory = next(path for path in (models_dir, *models_dir.parents) if path.is_dir())
    return Disk(models_dir, directory, shutil.disk_usage(directory).free // 2**20)


def _swaps(sysroot: Sysroot) -> tuple[Swap, ...]:
    found = []
    for line in (sysroot.text("/proc/swaps") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 4 and fields[2].isdecimal() and fields[3].isdecimal():
            found.append(Swap(fields[0], int(fields[2]) // 1024, int(fields[3]) // 1024))
    return tuple(found)
