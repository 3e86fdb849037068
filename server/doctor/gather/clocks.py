"""How fast NPU, CPU and memory run, who decides it, and how hot the board is."""

from __future__ import annotations

from server.doctor.facts import Clock, Heat
from server.sysroot import Sysroot
from server.vitals import devfreq, temperatures

_DEVICES = {"npu": "NPU", "ddr": "memory"}  # the GPU does nothing for models
_CPUFREQ = "/sys/devices/system/cpu/cpufreq"
_THERMAL = "/sys/class/thermal"
_SLOWING = ("cpufreq", "devfreq")  # kinds of cooling that take speed; a fan takes none


def clocks(sysroot: Sysroot) -> list[Clock]:
    """Return the clocks that have a governor, the NPU's first."""
    found = []
    devices = devfreq(sysroot)
    for device, name in _DEVICES.items():
        directory = devices.get(device, "")
        if directory and (governor := sysroot.text(f"{directory}/governor")) is not None:
            steps = (sysroot.text(f"{directory}/available_frequencies") or "").split()
            most = max((int(step) for step in steps if step.isdecimal()), default=None)
            most = sysroot.number(f"{directory}/max_freq") if most is None else most
            now = sysroot.number(f"{directory}/cur_freq")
            found.append(Clock(name, f"{directory}/governor", governor, _mhz(now, 6), _mhz(most, 6)))
    for policy in sysroot.names(_CPUFREQ):
        directory = f"{_CPUFREQ}/{policy}"
        if (governor := sysroot.text(f"{directory}/scaling_governor")) is not None:
            cores = (sysroot.text(f"{directory}/related_cpus") or policy.removeprefix("policy")).split()
            name = f"CPU {cores[0]}" + (f" to {cores[-1]}" if len(cores) > 1 else "")
            now = sysroot.number(f"{directory}/scaling_cur_freq")
            most = sysroot.number(f"{directory}/cpuinfo_max_freq")
            found.append(Clock(name, f"{directory}/scaling_governor", governor, _mhz(now, 3), _mhz(most, 3)))
    return found


def heat(sysroot: Sysroot) -> Heat:
    """Return the temperatures, and what is slowed down because of them."""
    slowed = []
    for name in sysroot.names(_THERMAL):
        kind = sysroot.text(f"{_THERMAL}/{name}/type") or name
        if name.startswith("cooling_device") and any(word in kind for word in _SLOWING):
            slowed += [kind] if (sysroot.number(f"{_THERMAL}/{name}/cur_state") or 0) > 0 else []
    return Heat(temperatures(sysroot), tuple(slowed))


def _mhz(value: int | None, digits: int) -> int | None:
    return None if value is None else round(value / 10**digits)
