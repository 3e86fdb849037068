"""What systemd has of rkserve: the unit, whom it runs as, and whether its settings may be read here."""

from __future__ import annotations

from pathlib import Path

from server.doctor.facts import Service
from server.service.plan import FREQ_UNIT, UNIT
from server.sysroot import Sysroot

_DIRECTORIES = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system",
                "/usr/lib/systemd/system", "/lib/systemd/system")  # fmt: skip


def service(sysroot: Sysroot, env_file: Path) -> tuple[Service, tuple[str, ...]]:
    """Return the service, and the groups its unit names beside the user's own."""
    unit = _unit(sysroot, UNIT)
    keys = {} if unit is None else _keys(sysroot, unit)
    users, groups = keys.get("User", []), keys.get("SupplementaryGroups", []) + keys.get("Group", [])
    denied = sysroot.denied(str(env_file))
    return (
        Service(
            unit=unit,
            user=(users[-1] if users else "root") if unit is not None else None,
            clocks_unit=_unit(sysroot, FREQ_UNIT) is not None,
            env_file=str(env_file) if denied or sysroot.exists(str(env_file)) else None,
            env_denied=denied,
        ),
        tuple(group for line in groups for group in line.split()),
    )


def _unit(sysroot: Sysroot, name: str) -> str | None:
    paths = (f"{directory}/{name}" for directory in _DIRECTORIES)
    return next((path for path in paths if sysroot.exists(path)), None)


def _keys(sysroot: Sysroot, unit: str) -> dict[str, list[str]]:
    """Return the values of each key of a unit and of its drop-ins, in order; sections are not told apart."""
    drop_ins = [
        f"{directory}/{UNIT}.d/{name}"
        for directory in reversed(_DIRECTORIES)
        for name in sysroot.names(f"{directory}/{UNIT}.d")
        if name.endswith(".conf")
    ]
    found: dict[str, list[str]] = {}
    for file in (unit, *drop_ins):
        for line in (sysroot.text(file) or "").splitlines():
            key, equals, value = line.partition("=")
            if equals and not line.lstrip().startswith(("#", ";")):
                found.setdefault(key.strip(), []).append(value.strip())
    return found
