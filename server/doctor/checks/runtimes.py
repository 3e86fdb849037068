"""Whether each installed model finds a runtime library of a version it was converted for."""

from __future__ import annotations

from collections.abc import Iterator

from server.doctor.facts import Facts
from server.doctor.finding import Finding, advice, bad, ok
from server.doctor.see import See

INSTALL = "rkserve runtime install FILE|URL"
DEMO_MODEL = "smollm2-135m"


def check(facts: Facts) -> Iterator[Finding]:
    """Look at each model, then at what lies there without one."""
    served: dict[str, list[str]] = {}
    for model in facts.models:
        if model.problem is not None and facts.npu_wanted:
            yield bad(model.problem, INSTALL, See.NO_RUNTIME)
        elif model.problem is not None:
            yield advice(
                f"there is no NPU here to run {model.id} on. {model.problem}",
                f"serve it on a board; rkserve pull {DEMO_MODEL} fetches a model that runs here",
                See.NO_BOARD,
            )
        elif model.library is not None:
            served.setdefault(model.library, []).append(model.id)
        if model.encoder and facts.system_librknnrt is None:
            yield advice(
                f"{model.id} has an image encoder, and rknn-toolkit-lite2, which runs it, takes no librknnrt "
                "but /usr/lib/librknnrt.so, which is not there",
                "rkserve runtime install librknnrt.so, then make the link it names",
                See.NO_RUNTIME,
            )
    for library, models in served.items():
        yield ok(f"{library} for {', '.join(models)}")
    if not facts.runtimes and facts.npu_wanted and not any(model.problem for model in facts.models):
        yield advice(
            "no librkllmrt and no librknnrt is there, and every .rkllm model needs one",
            INSTALL,
            See.NO_RUNTIME,
        )
    elif not served and facts.runtimes and not any(model.problem for model in facts.models):
        yield ok(f"{', '.join(facts.runtimes)}; no installed model uses one")
