"""Whether the installed models fit into the machine's memory, at all and now."""

from __future__ import annotations

from collections.abc import Iterator

from server.doctor.facts import Facts
from server.doctor.finding import Finding, advice, bad, ok
from server.doctor.see import See


def check(facts: Facts) -> Iterator[Finding]:
    """Compare each model with all memory, the largest that fits with what is free."""
    memory = facts.memory
    fitting = []
    for model in facts.models:
        if model.memory_mb + memory.reserve_mb > memory.total_mb:
            yield bad(
                f"{model.id} takes {model.memory_mb} MB, {memory.reserve_mb} MB are left to everything else, "
                f"and this machine has {memory.total_mb} MB in all",
                "choose a smaller model (rkserve models)",
                See.MEMORY,
            )
        else:
            fitting.append(model)
    largest = max(fitting, key=lambda model: model.memory_mb, default=None)
    if largest is not None and largest.memory_mb + memory.reserve_mb > memory.available_mb:
        running = facts.network.state == "rkserve"
        yield advice(
            f"{memory.available_mb} of {memory.total_mb} MB are free, and {largest.id} takes "
            f"{largest.memory_mb} MB beside a reserve of {memory.reserve_mb} MB"
            + (
                "; the running server may have a model loaded, which it unloads for another"
                if running
                else ""
            ),
            "end other programs (ps -eo rss,args --sort -rss | head), or choose a smaller model",
            See.MEMORY,
        )
    else:
        yield ok(f"{memory.available_mb} of {memory.total_mb} MB are free")
