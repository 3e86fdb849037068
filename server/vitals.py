"""What the kernel says of memory, heat and clocks, in one form for all who ask: loads, metrics, doctor."""

from __future__ import annotations

import re

from server.sysroot import Sysroot

_DEVFREQ = "/sys/class/devfreq"
# By the end of a device's name, which begins with its address: fdab0000.npu, fb000000.gpu, dmc.
_DEVICES = {"npu": "npu", "gpu": "gpu", "gpu-panthor": "gpu", "dmc": "ddr"}
_THERMAL = "/sys/class/thermal"
_MEMINFO_LINE = re.compile(r"^(\w+):\s*(\d+) kB$", re.MULTILINE)


def meminfo(sysroot: Sysroot) -> dict[str, int]:
    """Return the lines of /proc/meminfo in bytes, by name: MemTotal, MemAvailable."""
    found = _MEMINFO_LINE.findall(sysroot.text("/proc/meminfo") or "")
    return {name: int(kilobytes) * 1024 for name, kilobytes in found}


def devfreq(sysroot: Sysroot) -> dict[str, str]:
    """Return the directories of the devices that have a clock of their own: of npu, gpu and ddr."""
    found = {}
    for name in sysroot.names(_DEVFREQ):
        device = _DEVICES.get(name.rpartition(".")[2])
        if device is not None:
            found[device] = f"{_DEVFREQ}/{name}"
    return found


def temperatures(sysroot: Sysroot) -> dict[str, float]:
    """Return degrees Celsius by the kernel's name of the sensor; a second one of a name by its number."""
    found: dict[str, float] = {}
    for zone in sysroot.names(_THERMAL):
        millidegrees = sysroot.number(f"{_THERMAL}/{zone}/temp")
        if zone.startswith("thermal_zone") and millidegrees is not None:
            sensor = sysroot.text(f"{_THERMAL}/{zone}/type")
            found[zone if not sensor or sensor in found else sensor] = millidegrees / 1000
    return found
