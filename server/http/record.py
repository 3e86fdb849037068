"""What layers and routes note of one request, for whoever counts requests when it has ended."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

_SCOPE_KEY = "rkserve.record"

UNKNOWN_MODEL = "unknown"
OTHER_PATH = "other"
OK = "ok"
CLIENT_GONE = "client_gone"


@dataclass
class Record:
    """model: the id of the entry that was asked for, UNKNOWN_MODEL for no entry's, "" where none was read.

    code: that of the error the client got, "" while all is well.
    """

    model: str = ""
    code: str = ""


def record_of(scope: Scope) -> Record:
    """Return a request's record; one that nobody has looked at yet is empty."""
    record: Record = scope.setdefault(_SCOPE_KEY, Record())
    return record


def path_of(scope: Scope) -> str:
    """Return the path of the route that a request was given to, as the route spells it."""
    route = scope.get("route")
    path: str = getattr(route, "path_format", OTHER_PATH)
    return path
