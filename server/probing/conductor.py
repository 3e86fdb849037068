"""Runs probes to their end: one that crashes or hangs the library costs itself and no other.

Knows processes and messages, nothing of what the probes try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from backends.probing import Finding, Loaded, Loading, NotLoaded, Plan, Started
from server.probing.process import COMMAND, ProbeProcess, Silent

Say = Callable[[str], None]


@dataclass(frozen=True)
class Limits:
    """Seconds after which a process is taken for hung: without an end of a load, of a probe."""

    load_s: float
    probe_s: float


@dataclass
class Conducted:
    """What came of it. refused: why the model could not be loaded as its entry says, if it could not."""

    findings: list[Finding] = field(default_factory=list)
    details: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    refused: str | None = None


def conduct(plan: Plan, limits: Limits, say: Say, command: Sequence[str] = COMMAND) -> Conducted:
    """Run all probes of a plan, in as many processes as it takes. `say` is told what is under way."""
    result = Conducted()
    left = list(plan.probes)
    while left:
        before = len(left)
        with ProbeProcess(msgspec.structs.replace(plan, probes=list(left)), command) as process:
            _follow(process, left, limits, result, say)
            process.end()
            result.log += process.output()
        if result.refused is not None or len(left) == before:
            break
    refused = result.refused or "The process of the probes ended before it had begun."
    result.findings += [Finding(probe=name, outcome="failed", finding=f"Not run. {refused}") for name in left]
    result.refused = refused if len(left) == len(plan.probes) else None
    return result


def _follow(process: ProbeProcess, left: list[str], limits: Limits, result: Conducted, say: Say) -> None:
    """Take what a process reports until it ends or hangs, and take what is done off `left`."""
    current: str | None = None
    loading = False
    limit_s = limits.load_s
    what = ""
    while True:
        try:
            message = process.receive(limit_s)
        except Silent:
            what = f"gave no sign for {limit_s:.0f} s and was ended"
            break
        if message is None:
            what = process.end()
            break
        match message:
            case Loading(options=options):
                loading, limit_s = True, limits.load_s
                how = ", ".join(f"{key} {value}" for key, value in options.items()) or "as its entry says"
                say(f"loading the model, {how}")
            case Loaded(details=details):
                loading, limit_s = False, limits.probe_s
                result.details = result.details or details
            case NotLoaded(message=why):
                result.refused = why
                return
            case Started(probe=current):
                limit_s = limits.probe_s
                say(f"probing {current}")
            case Finding(probe=name):
                result.findings.append(message)
                left.remove(name)
                current = None
    doing = "loading the model" if loading else "at work"
    if current is not None:
        left.remove(current)
        result.findings.append(
            Finding(
                probe=current,
                outcome="failed",
                finding=f"The library {what} while {doing}.",
                meaning="The other probes ran in a new process. Send us the report.",
            )
        )
    elif left and loading:
        result.refused = f"The library {what} while {doing} as its entry says."
