"""Whether models.yaml can be read, and whether any model is installed."""

from __future__ import annotations

from collections.abc import Iterator

from server.doctor.facts import Facts
from server.doctor.finding import Finding, advice, bad, ok
from server.doctor.see import See


def check(facts: Facts) -> Iterator[Finding]:
    """Say what is wrong with the file, or what is installed."""
    if facts.registry_problem is not None:
        yield bad(facts.registry_problem, "correct the lines that are named", See.MODELS_FILE)
    elif facts.models:
        yield ok(f"installed: {', '.join(model.id for model in facts.models)}")
    else:
        yield advice(
            f"no model is installed in {facts.disk.wanted}",
            "rkserve models, then rkserve pull ID; rkserve pull smollm2-135m for the demo model",
            See.NOT_INSTALLED,
        )
