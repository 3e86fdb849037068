"""The one edge where facts are read: files of the system, models, the port. Changes nothing."""

from __future__ import annotations

import platform
from pathlib import Path

from backends.discovery import FILE_NAMES, RuntimeFinder
from server.doctor.facts import Facts
from server.doctor.gather.board import board, driver
from server.doctor.gather.clocks import clocks, heat
from server.doctor.gather.models import models
from server.doctor.gather.network import keys, network
from server.doctor.gather.people import accounts, nodes
from server.doctor.gather.room import disk, memory
from server.doctor.gather.service import service
from server.registry import Registry
from server.settings import SERVICE_ENV_FILE, Settings
from server.sysroot import Sysroot

LIBGOMP = "libgomp.so.1"
SYSTEM_LIBRKNNRT = "/usr/lib/librknnrt.so"
_LIBRARY_DIRS = ("/usr/lib", "/lib", "/usr/lib64", "/usr/local/lib")


def gather(settings: Settings, registry: Registry, registry_problem: str | None = None) -> Facts:
    """Return the facts. Takes as long as reading the libraries and asking the port: a second or two."""
    sysroot = Sysroot(settings.sysroot)
    unit, groups = service(sysroot, SERVICE_ENV_FILE)
    people = accounts(sysroot, unit, groups)
    machine, found_driver = board(sysroot, platform.machine()), driver(sysroot)
    finder = RuntimeFinder(settings.runtime_dirs, system=())
    return Facts(
        board=machine,
        driver=found_driver,
        people=tuple(account.person for account in people),
        nodes=tuple(nodes(sysroot, people)),
        libgomp=_libgomp(sysroot),
        runtimes=tuple(
            f"{FILE_NAMES[kind].removesuffix('.so')} {library.version_text or 'of an unknown version'}"
            for kind in FILE_NAMES
            for library in finder.find(kind)
        ),
        system_librknnrt=SYSTEM_LIBRKNNRT if sysroot.exists(SYSTEM_LIBRKNNRT) else None,
        models=tuple(models(settings, registry)),
        memory=memory(sysroot, settings.memory_reserve_mb),
        disk=disk(settings.models_dir),
        clocks=tuple(clocks(sysroot)),
        heat=heat(sysroot),
        network=network(settings),
        keys=keys(settings),
        service=unit,
        registry_problem=registry_problem,
    )


def _libgomp(sysroot: Sysroot) -> str | None:
    for directory in _LIBRARY_DIRS:
        for path in (directory, *(str(Path(directory, name)) for name in sysroot.names(directory)
                                  if name.endswith("-linux-gnu"))):  # fmt: skip
            if sysroot.exists(f"{path}/{LIBGOMP}"):
                return f"{path}/{LIBGOMP}"
    return None
