"""What board this is, and which driver of the NPU its kernel has."""

from __future__ import annotations

import re

from server.doctor.facts import Board, Driver
from server.sysroot import Sysroot
from server.workers.npu import npu_present

VERSION_FILES = ("/sys/module/rknpu/version", "/sys/kernel/debug/rknpu/version", "/proc/rknpu/version")
_VERSION = re.compile(r"\d+(\.\d+)+")
_MAINLINE = ("/sys/module/rocket", "/dev/accel/accel0")


def board(sysroot: Sysroot, machine: str) -> Board:
    """Return what the machine says of itself. machine: as `uname -m` says."""
    compatible = (sysroot.text("/proc/device-tree/compatible") or "").split("\0")
    return Board(machine, tuple(filter(None, compatible)), sysroot.text("/proc/device-tree/model"))


def driver(sysroot: Sysroot) -> Driver:
    """Return what there is of the NPU's driver. One of its files is for root only."""
    found = {}
    for file in VERSION_FILES:
        if (match := _VERSION.search(sysroot.text(file) or "")) is not None:
            found[file] = match[0]
    return Driver(
        versions=found,
        denied=tuple(file for file in VERSION_FILES if sysroot.denied(file)),
        present=bool(found) or npu_present(sysroot.root),
        mainline=any(sysroot.exists(mark) for mark in _MAINLINE),
    )
