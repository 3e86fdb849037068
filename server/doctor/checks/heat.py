"""Whether the board is so hot that it is slowed down."""

from __future__ import annotations

from collections.abc import Iterator

from server.doctor.facts import Facts
from server.doctor.finding import Finding, advice, bad, ok
from server.doctor.see import See

WARM, HOT = 75.0, 85.0  # degrees Celsius; an RK3588 begins to slow down between the two

_MEND = "give it a heat sink with a fan and room for air; then look again under load: rkserve doctor"


def check(facts: Facts) -> Iterator[Finding]:
    """Look at the hottest place, and at what the kernel slows down."""
    heat = facts.heat
    if not facts.npu_wanted or not heat.celsius:
        return
    zone = max(heat.celsius, key=lambda name: heat.celsius[name])
    top = heat.celsius[zone]
    told = f"{top:.0f} °C at the hottest place ({zone})"
    if heat.slowed:
        told += f", and the kernel slows down {', '.join(heat.slowed)}"
    if top >= HOT:
        yield bad(told, _MEND, See.HOT)
    elif top >= WARM or heat.slowed:
        yield advice(told, _MEND, See.HOT)
    else:
        yield ok(told)
