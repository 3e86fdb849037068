"""Machines as trees of /sys, /proc, /dev and /etc: a ROCK 5C in several states, and a PC.

Written down from what is known of such a board (paths, versions, the vendor's frequencies), not copied from
one. Device nodes are plain files with owner, group and mode, which only root can give them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

UIDS = {"root": 0, "rock": 1000, "rkserve": 996}
GIDS = {"root": 0, "video": 44, "render": 105, "rock": 1000, "rkserve": 996}
PASSWD = (
    "root:x:0:0:root:/root:/bin/bash\nrock:x:1000:1000::/home/rock:/bin/bash\nrkserve:x:996:996::/:/bin/false"
)
GROUP = "root:x:0:\nvideo:x:44:rock,rkserve\nrender:x:105:rock,rkserve\nrock:x:1000:\nrkserve:x:996:"
UNIT = "[Service]\nType=notify\nUser=rkserve\nSupplementaryGroups=video render\n"
DEBUG = "sys/kernel/debug/rknpu/version"
MODULE = "sys/module/rknpu/version"
NPU = "sys/class/devfreq/fdab0000.npu"
DDR = "sys/class/devfreq/dmc"
CPU = "sys/devices/system/cpu/cpufreq"
THERMAL = "sys/class/thermal"


@dataclass(frozen=True)
class Machine:
    """files: by path, what stands in them. nodes: mode, owner and group of the device nodes, by path."""

    files: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, tuple[int, str, str]] = field(default_factory=dict)

    def changed(self, files: Mapping[str, str | None]) -> Machine:
        """Return one with other files (None: without it, and without all below it)."""
        kept = dict(self.files)
        for path, text in files.items():
            if text is None:
                kept = {name: old for name, old in kept.items() if not name.startswith(path)}
            else:
                kept[path] = text
        return replace(self, files=kept)

    def with_nodes(self, nodes: Mapping[str, tuple[int, str, str]]) -> Machine:
        """Return one with these device nodes and no others."""
        return replace(self, nodes=dict(nodes))

    def write(self, root: Path) -> Path:
        """Write the tree and return where it is."""
        for path, text in self.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        for path, (mode, owner, group) in self.nodes.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).touch()
            if os.geteuid() == 0:
                os.chown(root / path, UIDS[owner], GIDS[group])
            (root / path).chmod(mode)
        return root


NODES = {
    "dev/dri/renderD128": (0o660, "root", "render"),
    "dev/dri/renderD129": (0o660, "root", "render"),
    "dev/dma_heap/system": (0o660, "root", "video"),
    "dev/dma_heap/cma": (0o660, "root", "video"),
}

ROCK_5C = Machine(
    files={
        "proc/device-tree/model": "Radxa ROCK 5C\0",
        "proc/device-tree/compatible": "radxa,rock-5c\0rockchip,rk3588s\0",
        "proc/meminfo": "MemTotal:        8129432 kB\nMemFree:  5000000 kB\nMemAvailable:    7340032 kB\n",
        "proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition 4064716 0 100\n",
        MODULE: "0.9.8\n",
        DEBUG: "RKNPU driver: v0.9.8\n",
        f"{NPU}/cur_freq": "1000000000\n",
        f"{NPU}/available_frequencies": "300000000 400000000 500000000 600000000 700000000 800000000 "
        "900000000 1000000000\n",
        f"{NPU}/governor": "userspace\n",
        f"{DDR}/cur_freq": "2112000000\n",
        f"{DDR}/available_frequencies": "528000000 1068000000 1560000000 2112000000\n",
        f"{DDR}/governor": "userspace\n",
        **{
            f"{CPU}/policy{first}/{name}": text
            for first, cores, khz in ((0, "0 1 2 3", 1800000), (4, "4 5", 2352000), (6, "6 7", 2352000))
            for name, text in (
                ("related_cpus", f"{cores}\n"),
                ("scaling_cur_freq", f"{khz}\n"),
                ("cpuinfo_max_freq", f"{khz}\n"),
                ("scaling_governor", "userspace\n"),
            )
        },
        f"{THERMAL}/thermal_zone0/type": "soc-thermal\n",
        f"{THERMAL}/thermal_zone0/temp": "46230\n",
        f"{THERMAL}/thermal_zone6/type": "npu-thermal\n",
        f"{THERMAL}/thermal_zone6/temp": "47153\n",
        f"{THERMAL}/cooling_device0/type": "thermal-cpufreq-0\n",
        f"{THERMAL}/cooling_device0/cur_state": "0\n",
        f"{THERMAL}/cooling_device4/type": "pwm-fan\n",
        f"{THERMAL}/cooling_device4/cur_state": "2\n",
        "sys/class/drm/renderD128/device/uevent": "DRIVER=mali\nOF_NAME=gpu\n",
        "sys/class/drm/renderD129/device/uevent": "DRIVER=RKNPU\nOF_NAME=npu\n",
        "usr/lib/aarch64-linux-gnu/libgomp.so.1": "",
        "etc/passwd": PASSWD,
        "etc/group": GROUP,
        "etc/systemd/system/rkserve.service": UNIT,
    },
    nodes=NODES,
)
OLD_DRIVER = ROCK_5C.changed({MODULE: "0.9.6\n", DEBUG: "RKNPU driver: v0.9.6\n"})
NO_DRIVER = ROCK_5C.changed(
    {"sys/module/rknpu": None, "sys/kernel/debug/rknpu": None, NPU: None, "sys/module/rocket/uevent": ""}
).with_nodes({"dev/accel/accel0": (0o660, "root", "render")})
CLOSED = ROCK_5C.changed({"etc/group": GROUP.replace("105:rock,rkserve", "105:rock")}).changed(
    {"etc/systemd/system/rkserve.service": UNIT.replace(" render", "")}
)
ROOT_ONLY = ROCK_5C.with_nodes({path: (0o600, "root", "root") for path in NODES})
HOT = ROCK_5C.changed(
    {
        f"{THERMAL}/thermal_zone6/temp": "96923\n",
        f"{THERMAL}/cooling_device0/cur_state": "3\n",
        f"{CPU}/policy4/scaling_cur_freq": "1200000\n",
    }
)
AS_BOUGHT = ROCK_5C.changed(
    {
        f"{NPU}/governor": "rknpu_ondemand\n",
        f"{NPU}/cur_freq": "300000000\n",
        f"{DDR}/governor": "dmc_ondemand\n",
        f"{DDR}/cur_freq": "528000000\n",
        **{f"{CPU}/policy{first}/scaling_governor": "ondemand\n" for first in (0, 4, 6)},
    }
)
PC = Machine(
    files={
        "proc/meminfo": "MemTotal:  16000000 kB\nMemAvailable: 12000000 kB\n",
        f"{THERMAL}/thermal_zone0/type": "x86_pkg_temp\n",
        f"{THERMAL}/thermal_zone0/temp": "97000\n",
        f"{CPU}/policy0/scaling_governor": "powersave\n",
        "etc/passwd": PASSWD,
        "etc/group": GROUP,
    },
    nodes={"dev/dri/renderD128": (0o600, "root", "root")},
)
