"""Whether each entry prompts its model as the template does that came with the model.

The built-in forms leave out on purpose what a template adds of its own, such as a system prompt; so a
difference is a piece of advice, unless the two have no mark in common: then the model sees a foreign form,
and answers garbage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from server.doctor.facts import Facts, Model
from server.doctor.finding import Finding, advice, bad, ok
from server.doctor.see import See

_MARK = re.compile(r"<[^<>\s]{1,40}>|\[/?INST\]|\b(?:User|Assistant):")
_SHOWN = 60


def check(facts: Facts) -> Iterator[Finding]:
    """Compare how the same conversation is written."""
    same, alone = [], []
    for model in facts.models:
        prompt = model.prompt
        if prompt.problem is not None:
            yield bad(
                f"{model.id} is not served: {prompt.problem}", "correct its template key in models.yaml",
                See.TEMPLATE,
            )  # fmt: skip
        elif prompt.ours is None or prompt.own is None:
            alone.append(f"{model.id} ({prompt.form})")
        elif prompt.ours == prompt.own:
            same.append(f"{model.id} ({prompt.form})")
        else:
            yield _differing(model, prompt.ours, prompt.own)
    if same:
        yield ok(f"as the model's own template: {', '.join(same)}")
    if alone:
        yield ok(f"nothing to compare with: {', '.join(alone)}")


def _differing(model: Model, ours: str, own: str) -> Finding:
    marks = set(_MARK.findall(own))
    cure = f"template: model in the entry of {model.id} takes the model's own (docs/models.md)"
    if marks and not marks & set(_MARK.findall(ours)):
        return bad(
            f"{model.id} is prompted as {model.prompt.form}, which has none of the marks of its own template "
            f"({', '.join(sorted(marks)[:4])}): it will answer garbage",
            cure,
            See.TEMPLATE,
        )
    at = next(
        (i for i, (a, b) in enumerate(zip(ours, own, strict=False)) if a != b), min(len(ours), len(own))
    )
    start = max(0, at - 10)
    return advice(
        f"{model.id}: {model.prompt.form} differs from the model's own template, from character {at + 1} on: "
        f"{ours[start : at + _SHOWN]!r}, not {own[start : at + _SHOWN]!r}",
        f"harmless where only a system prompt is added; else {cure}",
        See.TEMPLATE,
    )
