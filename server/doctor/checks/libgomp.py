"""Whether the library that librkllmrt needs beside itself is there."""

from __future__ import annotations

from collections.abc import Iterator

from server.doctor.facts import Facts
from server.doctor.finding import Finding, bad, ok
from server.doctor.see import See


def check(facts: Facts) -> Iterator[Finding]:
    """Ask for it where .rkllm models can run."""
    if facts.libgomp is not None:
        yield ok(facts.libgomp)
    elif facts.npu_wanted:
        yield bad(
            "libgomp.so.1 is not there, and librkllmrt cannot be loaded without it",
            "sudo apt install libgomp1",
            See.LIBGOMP,
        )
