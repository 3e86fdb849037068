"""Which steps put the service in place and take it away. Pure: looks at nothing, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from server.service.shipped import shipped
from server.service.steps import Link, Remove, Run, Step, Write

UNIT = "rkserve.service"
FREQ_UNIT = "rkserve-freq.service"
UNITS = "/etc/systemd/system"
COMMAND = "/usr/local/bin/rkserve"
CONFIG = "/etc/rkserve"
STATE = "/var/lib/rkserve"
KEYS = f"{CONFIG}/keys"
USER = "rkserve"
_FREQ_SCRIPT = "/usr/local/libexec/rkserve-freq"
_UDEV = "/etc/udev/rules.d/60-rkserve.rules"
_SYSUSERS = "/etc/sysusers.d/rkserve.conf"
_DROP_INS = f"{UNITS}/{UNIT}.d"
_RKNPU = f"{_DROP_INS}/50-rknpu.conf"
_AVAHI = "/etc/avahi/services/rkserve.service"
_SUBSYSTEMS = ("drm", "dma_heap", "misc", "mpp_class")


@dataclass(frozen=True)
class Wanted:
    """What to install. program: the `rkserve` of the environment that is to serve. port: of the service.

    mdns: announce it on the network. freq: the highest frequencies while the machine runs. rknpu: whether the
    kernel has an older driver of the NPU, with a node of its own. booted: whether systemd runs here; where it
    does not (an image that is being made), nothing is started.
    """

    program: str
    port: int
    mdns: bool = False
    freq: bool = False
    rknpu: bool = False
    booted: bool = True


def files_to_install(wanted: Wanted) -> Iterator[Step]:
    """Yield the steps up to where a key can be made: user, directories, settings, units."""
    yield Write(_SYSUSERS, shipped("sysusers.conf"))
    yield Run(("systemd-sysusers", _SYSUSERS))
    yield Write(f"{CONFIG}/rkserve.env", shipped("rkserve.env"), keep=True)
    yield Write(f"{CONFIG}/models.yaml", shipped("models.yaml"), keep=True)
    yield Write(KEYS, "", 0o640, keep=True, group=USER)
    for directory in (STATE, f"{STATE}/models", f"{STATE}/runtimes"):
        yield Run(("install", "-d", "-o", USER, "-g", USER, "-m", "0755", directory))
    yield Write(_UDEV, shipped("60-rkserve.rules"))
    yield Write(_FREQ_SCRIPT, shipped("rkserve-freq"), 0o755)
    yield Write(f"{UNITS}/{FREQ_UNIT}", shipped(FREQ_UNIT))
    yield Write(f"{UNITS}/{UNIT}", shipped(UNIT))
    yield Write(_RKNPU, shipped("rknpu.conf")) if wanted.rknpu else Remove(_RKNPU)
    yield Link(COMMAND, wanted.program)
    if wanted.mdns:
        yield Write(_AVAHI, shipped("avahi.xml").replace("@PORT@", str(wanted.port)))


def steps_to_start(wanted: Wanted) -> Iterator[Step]:
    """Yield the steps that let systemd take it over; the last of them waits until it serves."""
    if wanted.booted:
        yield Run(("systemctl", "daemon-reload"))
        yield Run(("udevadm", "control", "--reload"), may_fail=True)
        for subsystem in _SUBSYSTEMS:
            yield Run(("udevadm", "trigger", f"--subsystem-match={subsystem}"), may_fail=True)
    yield Run(("systemctl", "enable", UNIT))
    if wanted.freq:
        yield Run(("systemctl", "enable", FREQ_UNIT))
    if wanted.booted:
        if wanted.freq:
            yield Run(("systemctl", "restart", FREQ_UNIT))
        yield Run(("systemctl", "reset-failed", UNIT), may_fail=True)
        yield Run(("systemctl", "restart", UNIT))


def steps_to_uninstall(*, purge: bool, booted: bool) -> Iterator[Step]:
    """Yield the steps that take the service away. purge: models, keys, settings and the user, too."""
    now = ("--now",) if booted else ()
    yield Run(("systemctl", "disable", *now, UNIT, FREQ_UNIT), may_fail=True)
    units = (f"{UNITS}/{UNIT}", f"{UNITS}/{FREQ_UNIT}", _RKNPU)
    for path in (*units, _FREQ_SCRIPT, _UDEV, _SYSUSERS, _AVAHI, COMMAND):
        yield Remove(path)
    if booted:
        yield Run(("systemctl", "daemon-reload"))
        yield Run(("systemctl", "reset-failed", UNIT, FREQ_UNIT), may_fail=True)
        yield Run(("udevadm", "control", "--reload"), may_fail=True)
    if purge:
        yield Remove(CONFIG)
        yield Remove(STATE)
        yield Run(("userdel", USER), may_fail=True)
