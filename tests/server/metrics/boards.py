"""Trees below SYSROOT as boards have them, for tests of what is read there."""

from __future__ import annotations

from pathlib import Path

# As the vendor's kernels print it, two spaces before one digit included.
NPU_LOAD = "NPU load:  Core0: 74%, Core1:  0%, Core2: 100%,\n"
ZONES = ("soc-thermal", "bigcore0-thermal", "npu-thermal")


def rock5c(sysroot: Path) -> Path:
    """Write what a ROCK 5C shows to root; return the directory."""
    write(sysroot / "sys/kernel/debug/rknpu/load", NPU_LOAD)
    write(sysroot / "sys/class/devfreq/fdab0000.npu/cur_freq", "1000000000\n")
    write(sysroot / "sys/class/devfreq/fb000000.gpu/cur_freq", "300000000\n")
    write(sysroot / "sys/class/devfreq/dmc/cur_freq", "2112000000\n")
    for policy, kilohertz in {0: 1800000, 4: 2352000, 6: 2304000}.items():
        write(sysroot / f"sys/devices/system/cpu/cpufreq/policy{policy}/scaling_cur_freq", f"{kilohertz}\n")
    for number, zone in enumerate(ZONES):
        directory = sysroot / f"sys/class/thermal/thermal_zone{number}"
        write(directory / "type", f"{zone}\n")
        write(directory / "temp", f"{45307 + 1000 * number}\n")
    write(sysroot / "sys/class/thermal/cooling_device0/type", "npu\n")
    write(
        sysroot / "proc/meminfo",
        "MemTotal:        8134248 kB\nMemFree:          100000 kB\nMemAvailable:    4194304 kB\n",
    )
    return sysroot


def write(path: Path, text: str) -> None:
    """Write a file and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
