"""Whether other devices can reach the server, and whether that is meant to be so."""

from __future__ import annotations

from collections.abc import Iterator

from server.doctor.facts import Facts
from server.doctor.finding import Finding, advice, bad, ok
from server.doctor.see import See


def check(facts: Facts) -> Iterator[Finding]:
    """Look at what the server binds, at keys, and at what answers."""
    net, keys = facts.network, facts.keys
    open_it = "RKSERVE_HOST=0.0.0.0 (or rkserve serve --host 0.0.0.0)"
    if not net.reachable:
        told = f"only this machine can connect (RKSERVE_HOST={net.host})"
        # A board without a screen is there for others; a PC mostly is not.
        if facts.board.rk3588:
            yield advice(told, f"{keys.command}, then {open_it}", See.LAN)
        else:
            yield ok(f"{told}; for others: {keys.command}, then {open_it}")
        return
    if not (keys.names or keys.denied or keys.problems or net.open_lan):
        yield bad(
            f"RKSERVE_HOST={net.host} lets others in, and there is no key: the server refuses to start",
            keys.command,
            See.LAN,
        )
        return
    answering = [url for url, answers in net.urls.items() if answers]
    if net.state == "rkserve" and net.urls and not answering:
        yield advice(
            f"the running server does not answer at {', '.join(net.urls)}: it was started with another host",
            "restart it: sudo systemctl restart rkserve",
            See.LAN,
        )
    elif net.state == "rkserve":
        yield ok(f"answers at {', '.join(answering) or 'this machine only: it has no address in a network'}")
    else:
        yield ok(f"will be reached at {', '.join(net.urls) or 'no address: this machine is in no network'}")
