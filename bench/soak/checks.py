"""What a client may be told, and what not. Pure: a verdict on a response, and the count of all verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.soak.http import Head

# Codes that a killed worker may cost, and the status each has.
LOST = {"backend_crashed": 500, "backend_timeout": 500, "load_failed": 503}
MAX_RETRY_AFTER_S = 60


class Wrong(Exception):
    """The server did what it must not do."""


@dataclass
class Tally:
    """What all clients have seen. first_s: seconds to the first text of each stream that was read."""

    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    first_s: list[float] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)
    identities: set[str] = field(default_factory=set)
    longest_queue: int = 0
    reloads: int = 0
    kills: Counter[str] = field(default_factory=Counter)

    def one_id(self, identity: str) -> None:
        """Note a response's id. Raises Wrong if another had it."""
        if identity in self.identities:
            raise Wrong(f"two answers have the id {identity}")
        self.identities.add(identity)


def check_error(status: int, headers: Mapping[str, str], body: Any) -> str:
    """Return the code of an error a client got instead of an answer. Raises Wrong for a bad one."""
    try:
        error = body["error"]
        code, message, kind = error["code"], error["message"], error["type"]
    except (KeyError, TypeError) as problem:
        raise Wrong(f"an error of another form, status {status}: {body!r}") from problem
    if set(error) != {"message", "type", "param", "code"} or not (code and message and kind):
        raise Wrong(f"an error of another form, status {status}: {body!r}")
    if code == "server_busy":
        after = headers.get("retry-after", "")
        if status != 503 or not after.isdigit() or not 1 <= int(after) <= MAX_RETRY_AFTER_S:
            raise Wrong(f"server_busy with status {status} and Retry-After {after!r}")
        if "x-should-retry" in headers:
            raise Wrong("server_busy says that trying again does not help")
    elif code in LOST and (status != LOST[code] or headers.get("x-should-retry") != "false"):
        raise Wrong(f"{code} with status {status} and x-should-retry {headers.get('x-should-retry')}")
    return str(code)


def check_id(head: Head, sent: str) -> None:
    """Raise Wrong unless a response has the request's id."""
    if head.headers.get("x-request-id") != sent:
        raise Wrong(f"a response has the id {head.headers.get('x-request-id')} instead of {sent}")


def check_text(text: str, expected: str, *, whole: bool) -> None:
    """Raise Wrong for a text that is not the expected one, or of a broken stream not its beginning."""
    right = text == expected if whole else expected.startswith(text)
    if not right:
        raise Wrong(f"a wrong or mixed answer: {text[:300]!r} instead of {expected[:300]!r}")
