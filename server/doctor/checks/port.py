"""Whether the server can listen at its port, or does already."""

from __future__ import annotations

from collections.abc import Iterator

from server.doctor.facts import Facts
from server.doctor.finding import Finding, bad, ok
from server.doctor.see import See


def check(facts: Facts) -> Iterator[Finding]:
    """Say who is at the port."""
    net = facts.network
    where = f"{net.host} port {net.port}"
    match net.state:
        case "rkserve":
            yield ok(f"rkserve is running at {where}")
        case "free":
            yield ok(f"{where} is free" if net.port else "any free port is taken (RKSERVE_PORT=0)")
        case "other":
            who = net.holder or "another program"
            yield bad(
                f"{who} listens at {where}, and it is not rkserve",
                f"sudo ss -ltnp 'sport = :{net.port}' shows it; another port: RKSERVE_PORT={net.port + 1}",
                See.PORT,
            )
        case "refused":
            yield bad(
                f"nothing can listen at {where}: {net.refused}",
                "RKSERVE_HOST=0.0.0.0 stands for all addresses there are; ports below 1024 are for root",
                See.PORT,
            )
