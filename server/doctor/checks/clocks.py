"""Whether NPU, CPU and memory run at full speed. Said, never changed: heat and noise are the owner's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from server.doctor.facts import Clock, Facts
from server.doctor.finding import Finding, advice, ok
from server.doctor.see import See

_FIXED = ("performance", "userspace")
_NEAR = 0.95
_POLICY = re.compile(r"/policy\d+/")


def check(facts: Facts) -> Iterator[Finding]:
    """Sort the clocks into those that are fixed at the top and the others."""
    if not facts.npu_wanted or not facts.clocks:
        return
    slow = [clock for clock in facts.clocks if not _full(clock)]
    if not slow:
        yield ok(", ".join(f"{clock.name} {_speed(clock)}" for clock in facts.clocks))
        return
    yield advice(
        "not fixed at full speed, so answers begin later and come slower than in rkserve models: "
        + "; ".join(f"{clock.name} {_speed(clock)}, governor {clock.governor}" for clock in slow),
        _mend(slow, facts.service.clocks_unit),
        See.SLOW,
    )


def _full(clock: Clock) -> bool:
    if clock.governor not in _FIXED:
        return False
    if clock.mhz is None or clock.most_mhz is None:
        return clock.governor == "performance"
    return clock.mhz >= _NEAR * clock.most_mhz


def _speed(clock: Clock) -> str:
    if clock.mhz is None:
        return "at an unknown speed"
    return f"{clock.mhz}" + ("" if clock.most_mhz is None else f" of {clock.most_mhz}") + " MHz"


def _mend(slow: Sequence[Clock], unit: bool) -> str:
    if unit:
        return "sudo systemctl enable --now rkserve-freq"
    files = dict.fromkeys(_POLICY.sub("/policy*/", clock.file) for clock in slow)
    return f"echo performance | sudo tee {' '.join(files)} (until the next boot)"
