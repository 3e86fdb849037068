"""Whether the file of API keys is in order, and whether a network is open to everybody."""

from __future__ import annotations

from collections.abc import Iterator

from server.doctor.facts import Facts
from server.doctor.finding import Finding, advice, bad, ok
from server.doctor.see import See


def check(facts: Facts) -> Iterator[Finding]:
    """Count the keys, and say what follows of none."""
    keys, net = facts.keys, facts.network
    if keys.denied:
        yield advice(f"this user may not read {keys.path}", "sudo rkserve doctor", See.KEYS)
    elif keys.problems:
        for problem in keys.problems:
            yield bad(
                f"{keys.path}: {problem}", "correct the file, or move it away and make new keys", See.KEYS
            )
    elif keys.names:
        yield ok(f"{keys.names} in {keys.path}")
    elif net.reachable and net.open_lan:
        yield advice(
            "there is none, and RKSERVE_OPEN_LAN lets everybody in who reaches this machine",
            keys.command,
            See.KEYS,
        )
    elif keys.wanted:
        yield bad(f"{keys.path} holds none, so nobody is let in", keys.command, See.KEYS)
    else:
        yield ok("none, and none is needed while only this machine can connect")
