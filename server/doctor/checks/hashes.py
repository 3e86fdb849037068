"""What is known of the models' bytes. A right size says nothing: there are such files with wrong bytes."""

from __future__ import annotations

from collections.abc import Iterator

from server.doctor.facts import Facts
from server.doctor.finding import Finding, advice, bad, ok
from server.doctor.see import See


def check(facts: Facts) -> Iterator[Finding]:
    """Sort the models by what their records say."""
    unknown = []
    whole = []
    for model in facts.models:
        if model.hash.damaged is not None:
            yield bad(
                f"{model.id} is damaged: {model.hash.damaged}",
                f"fetch it again: rkserve pull {model.id}",
                See.DAMAGED,
            )
        elif model.hash.checked is not None:
            whole.append(f"{model.id} ({model.hash.checked})")
        else:
            unknown.append(model)
    if whole:
        yield ok(f"found whole: {', '.join(whole)}")
    npu = [model.id for model in unknown if model.npu]
    if npu:
        yield advice(
            f"never compared with a hash: {', '.join(npu)}",
            "compare sha256sum of the file with the one its page shows",
            See.DAMAGED,
        )
    elif unknown:
        yield ok(
            f"small files are compared at each load, large ones never were: "
            f"{', '.join(model.id for model in unknown)}"
        )
