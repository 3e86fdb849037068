"""What a board says of itself below /sys and /proc: load, frequencies, temperatures, memory.

Only reads files, each of which may be absent or for root alone; then its value is missing, never made up. The
devfreq file `load` of the NPU is not read: kernels have been seen where it always says 100 %.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# The first that can be read counts. The first is for root alone; some kernels have the second instead.
_NPU_LOAD = ("sys/kernel/debug/rknpu/load", "proc/rknpu/load")
_CORE_LOAD = re.compile(r"(?:Core(\d+)|NPU load):\s*(\d+)%")
_ALL_CORES = "all"  # where the driver tells of one core, or of all together

_DEVFREQ = "sys/class/devfreq"
# By the end of a device's name, which begins with its address.
_DEVICES = {"npu": "npu", "gpu": "gpu", "gpu-panthor": "gpu", "dmc": "ddr"}
_CPU_POLICIES = "sys/devices/system/cpu/cpufreq"
_THERMAL = "sys/class/thermal"


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


def read_board(sysroot: Path) -> Board:
    """Read everything that is there. Blocks; a driver that hangs may block it for ever. Raises nothing."""
    memory = _memory(sysroot)
    return Board(
        npu_load=_npu_load(sysroot),
        frequencies={**dict(_devfreq(sysroot)), **dict(_cpu_frequencies(sysroot))},
        temperatures=_temperatures(sysroot),
        memory_total=memory.get("MemTotal"),
        memory_available=memory.get("MemAvailable"),
    )


def _npu_load(sysroot: Path) -> dict[str, float]:
    for place in _NPU_LOAD:
        text = _text(sysroot / place)
        if text is not None:
            return {core or _ALL_CORES: int(percent) / 100 for core, percent in _CORE_LOAD.findall(text)}
    return {}


def _devfreq(sysroot: Path) -> Iterator[tuple[str, float]]:
    """Yield frequencies of devices: fdab0000.npu, fb000000.gpu, dmc."""
    for directory in _entries(sysroot / _DEVFREQ):
        device = _DEVICES.get(directory.name.rpartition(".")[2])
        hertz = _number(directory / "cur_freq")
        if device is not None and hertz is not None:
            yield device, hertz


def _cpu_frequencies(sysroot: Path) -> Iterator[tuple[str, float]]:
    """Yield the frequency of each group of cores by the number of its first: cpu0, cpu4, cpu6."""
    for directory in _entries(sysroot / _CPU_POLICIES):
        kilohertz = _number(directory / "scaling_cur_freq")
        if directory.name.startswith("policy") and kilohertz is not None:
            yield f"cpu{directory.name.removeprefix('policy')}", kilohertz * 1000


def _temperatures(sysroot: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for directory in _entries(sysroot / _THERMAL):
        if not directory.name.startswith("thermal_zone"):
            continue
        sensor, millidegrees = _text(directory / "type"), _number(directory / "temp")
        if sensor is not None and millidegrees is not None:
            name = sensor.strip()
            found[directory.name if not name or name in found else name] = millidegrees / 1000
    return found


def _memory(sysroot: Path) -> dict[str, int]:
    """Return the lines of meminfo in bytes, by name."""
    found = re.findall(r"^(\w+):\s*(\d+) kB$", _text(sysroot / "proc/meminfo") or "", re.MULTILINE)
    return {name: int(kilobytes) * 1024 for name, kilobytes in found}


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _number(path: Path) -> float | None:
    try:
        return float(int(_text(path) or ""))
    except ValueError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
