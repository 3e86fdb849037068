"""What a board says of itself below /sys and /proc: load, frequencies, temperatures, memory.

Only reads files, each of which may be absent or for root alone; then its value is missing, never made up. The
devfreq file `load` of the NPU is not read: kernels have been seen where it always says 100 %.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from server.sysroot import Sysroot
from server.vitals import devfreq, meminfo, temperatures

# The first that can be read counts. The first is for root alone; some kernels have the second instead.
_NPU_LOAD = ("/sys/kernel/debug/rknpu/load", "/proc/rknpu/load")
_CORE_LOAD = re.compile(r"(?:Core(\d+)|NPU load):\s*(\d+)%")
_ALL_CORES = "all"  # where the driver tells of one core, or of all together

_CPU_POLICIES = "/sys/devices/system/cpu/cpufreq"


@dataclass(frozen=True)
class Board:
    """One look. npu_load: share, 0 to 1, by core. frequencies: hertz, by device. temperatures: degrees
    Celsius, by sensor. memory_total, memory_available: bytes, None where they are not told.
    """

    npu_load: Mapping[str, float] = field(default_factory=dict)
    frequencies: Mapping[str, float] = field(default_factory=dict)
    temperatures: Mapping[str, float] = field(default_factory=dict)
    memory_total: int | None = None
    memory_available: int | None = None


def read_board(root: Path) -> Board:
    """Read everything that is there. Blocks; a driver that hangs may block it for ever. Raises nothing.

    root: of the machine, / or a recorded one.
    """
    sysroot = Sysroot(root)
    memory = meminfo(sysroot)
    return Board(
        npu_load=_npu_load(sysroot),
        frequencies={**dict(_devices(sysroot)), **dict(_cpus(sysroot))},
        temperatures=temperatures(sysroot),
        memory_total=memory.get("MemTotal"),
        memory_available=memory.get("MemAvailable"),
    )


def _npu_load(sysroot: Sysroot) -> dict[str, float]:
    for place in _NPU_LOAD:
        text = sysroot.text(place)
        if text is not None:
            return {core or _ALL_CORES: int(percent) / 100 for core, percent in _CORE_LOAD.findall(text)}
    return {}


def _devices(sysroot: Sysroot) -> Iterator[tuple[str, float]]:
    for device, directory in devfreq(sysroot).items():
        hertz = sysroot.number(f"{directory}/cur_freq")
        if hertz is not None:
            yield device, hertz


def _cpus(sysroot: Sysroot) -> Iterator[tuple[str, float]]:
    """Yield the frequency of each group of cores by the number of its first: cpu0, cpu4, cpu6."""
    for policy in sysroot.names(_CPU_POLICIES):
        kilohertz = sysroot.number(f"{_CPU_POLICIES}/{policy}/scaling_cur_freq")
        if policy.startswith("policy") and kilohertz is not None:
            yield f"cpu{policy.removeprefix('policy')}", kilohertz * 1000
