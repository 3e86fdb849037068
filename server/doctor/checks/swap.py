"""Whether memory is written out to a disk, which makes answers stall and wears cards out."""

from __future__ import annotations

from collections.abc import Iterator

from server.doctor.facts import Facts, Swap
from server.doctor.finding import Finding, advice, ok
from server.doctor.see import See

MUCH_MB = 256


def check(facts: Facts) -> Iterator[Finding]:
    """Look at what is swapped out now, apart from what is only compressed in memory (zram)."""
    swaps = facts.memory.swaps
    on_disk = [swap for swap in swaps if "zram" not in swap.path]
    used = sum(swap.used_mb for swap in on_disk)
    if used >= MUCH_MB:
        yield advice(
            f"{used} MB are written out to {', '.join(swap.path for swap in on_disk)}: answers stall while "
            "they are read back, and models read from there are slow",
            "end other programs or choose a smaller model, then empty it: sudo swapoff -a && sudo swapon -a",
            See.SLOW,
        )
    elif swaps:
        yield ok(", ".join(map(_described, swaps)))
    else:
        yield ok("there is none, which is fine: what models take is in use all the time")


def _described(swap: Swap) -> str:
    return f"{swap.path}, {swap.used_mb} of {swap.size_mb} MB used"
