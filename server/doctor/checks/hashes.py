"""What is known of the models' bytes. A right size says nothing: there are such files with wrong bytes."""

from __future__ import annotations

from collections.abc import Iterator

from server.doctor.facts import Facts
from server.doctor.finding import Finding, advice, bad, ok
from server.doctor.see import See


def check(facts: Facts) -> Iterator[Finding]:
    """Sort the models by what their records say."""
    whole: list[str] = []
    unread: list[str] = []
    untold: list[str] = []
    small: list[str] = []
    for model in facts.models:
        if model.hash.damaged is not None:
            yield bad(
                f"{model.id}: {model.hash.damaged}",
                f"rkserve verify {model.id} names what is damaged; then as is said above",
                See.DAMAGED,
            )
        elif model.hash.checked is not None:
            whole.append(f"{model.id} ({model.hash.checked})")
        elif not model.npu:
            small.append(model.id)
        else:
            (unread if model.hash.known else untold).append(model.id)
    if whole:
        yield ok(f"found whole: {', '.join(whole)}")
    if unread:
        yield advice(
            f"never read as a whole and compared with its hash: {', '.join(unread)}",
            f"rkserve verify{f' {unread[0]}' if len(unread) == 1 else ''} (takes as long as reading does)",
            See.DAMAGED,
        )
    if untold:
        yield advice(
            f"nobody has told which hash the file should have: {', '.join(untold)}",
            "compare what sha256sum says with the page it came from, and note it in its entry: sha256: ...",
            See.DAMAGED,
        )
    if small:
        yield ok(f"small files are compared at each load, large ones were not yet: {', '.join(small)}")
