"""The checks, in the order of the table: what everything else stands on comes first.

Each is a pure function of the facts, in a file of its own. One that yields nothing was not asked on this
machine: a PC has no devices of an NPU to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from server.doctor.checks import (
    board,
    clocks,
    devices,
    disk,
    driver,
    forms,
    hashes,
    heat,
    keys,
    lan,
    libgomp,
    memory,
    port,
    registry,
    runtimes,
    settings,
    swap,
)
from server.doctor.facts import Facts
from server.doctor.finding import Finding

Check = Callable[[Facts], Iterator[Finding]]

CHECKS: Mapping[str, Check] = {
    "board": board.check,
    "NPU driver": driver.check,
    "NPU devices": devices.check,
    "runtime libraries": runtimes.check,
    "libgomp": libgomp.check,
    "memory": memory.check,
    "swap": swap.check,
    "disk": disk.check,
    "frequencies": clocks.check,
    "temperature": heat.check,
    "models.yaml": registry.check,
    "model files": hashes.check,
    "prompt forms": forms.check,
    "settings": settings.check,
    "port": port.check,
    "network": lan.check,
    "API keys": keys.check,
}


def run(facts: Facts) -> tuple[list[Finding], list[str]]:
    """Return what the checks find, and the names of those that had nothing to look at here."""
    findings: list[Finding] = []
    silent = []
    for name, check in CHECKS.items():
        found = [replace(finding, check=name) for finding in check(facts)]
        findings += found
        if not found:
            silent.append(name)
    return findings, silent
