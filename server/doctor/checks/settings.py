"""Whether a person sees the settings that the service has."""

from __future__ import annotations

from collections.abc import Iterator

from server.doctor.facts import Facts
from server.doctor.finding import Finding, advice, ok
from server.doctor.see import See


def check(facts: Facts) -> Iterator[Finding]:
    """Look at the service's environment file, where there is one."""
    service = facts.service
    if service.env_denied:
        yield advice(
            f"this user may not read the service's settings, {service.env_file}, so what is said here is "
            "true of this user's own server, not of the service",
            "sudo rkserve doctor",
            See.SETTINGS,
        )
    elif service.env_file is not None:
        yield ok(f"the service's, from {service.env_file}")
    elif service.unit is not None:
        yield ok(f"the service ({service.unit}) has no environment file; its unit may set some")
