"""What a check has found: fine, a piece of advice, or something that keeps models from being served right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from server.doctor.see import See

Status = Literal["ok", "advice", "bad"]


@dataclass(frozen=True)
class Finding:
    """why: one sentence or two. mend: a command, or what to do; None where nothing needs to be done.

    check is filled in by whoever runs the checks.
    """

    status: Status
    why: str
    mend: str | None = None
    see: See | None = None
    check: str = ""


def ok(why: str) -> Finding:
    """Return that all is well, and what is so."""
    return Finding("ok", why)


def advice(why: str, mend: str, see: See) -> Finding:
    """Return what would be better otherwise."""
    return Finding("advice", why, mend, see)


def bad(why: str, mend: str, see: See) -> Finding:
    """Return what keeps models from being served, or from being served right."""
    return Finding("bad", why, mend, see)
