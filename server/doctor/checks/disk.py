"""Whether there is room for models where they are kept."""

from __future__ import annotations

from collections.abc import Iterator

from server.doctor.facts import Facts
from server.doctor.finding import Finding, advice, bad, ok
from server.doctor.see import See

LEAST_MB = 100  # records, prompt caches and logs must be written
MODEL_MB = 4096  # the largest of the packaged models has about so much


def check(facts: Facts) -> Iterator[Finding]:
    """Compare what is free with what a model takes."""
    disk = facts.disk
    where = f"{disk.free_mb} MB are free in {disk.directory}"
    if disk.wanted != disk.directory:
        where += f" (for {disk.wanted}, which is not there yet)"
    cure = f"rkserve models shows what each takes; RKSERVE_MODELS_DIR (now {disk.wanted}) moves them"
    if disk.free_mb < LEAST_MB:
        yield bad(f"only {where}", cure, See.DISK)
    elif disk.free_mb < MODEL_MB and (facts.npu_wanted or not facts.models):
        yield advice(f"{where}, and a model takes up to {MODEL_MB} MB", cure, See.DISK)
    else:
        yield ok(where)
