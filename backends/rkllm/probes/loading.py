"""Probes that load the model in another way than the entry says."""

from __future__ import annotations

from backends.base import BackendError
from backends.probing import Figures, Finding
from backends.rkllm.probes.subject import Subject, made_up_ids

_THOUGHT_TOKENS = 256
_CONTEXT = 256
_RESERVES = (16, 12, 8, 6, 5, 4, 3, 2, 1, 0)


def skip_special_token(subject: Subject) -> Finding:
    """Let the model think with the option on and off, and look for the marks around the thought."""
    name = "skip_special_token"
    marks = subject.texts.think_marks
    key = subject.spec.rkllm.skip_special_token
    prompt = subject.prompt(subject.texts.thinking or subject.texts.chat)
    shown: dict[bool, list[str]] = {}
    for skip in (False, True):
        subject.load(skip_special_token=skip)
        text = subject.run(prompt, _THOUGHT_TOKENS).text
        shown[skip] = [mark for mark in marks or () if mark in text]
    figures: Figures = {"marks_without": " ".join(shown[False]), "marks_with": " ".join(shown[True])}
    if marks is None:
        return Finding(
            probe=name,
            outcome="as assumed",
            finding="The model has no thought to mark.",
            meaning="The key changes nothing that is known of.",
            figures=figures,
        )
    if not shown[False] and not shown[True]:
        return Finding(
            probe=name,
            outcome="undecided",
            finding=f"The model wrote neither {marks[0]} nor {marks[1]} in {_THOUGHT_TOKENS} tokens.",
            meaning="It may not have thought, or thought for longer; ask it something in rkserve chat.",
            figures=figures,
        )
    if shown[False] and shown[True]:
        return Finding(
            probe=name,
            outcome="as assumed",
            finding="The marks around the thought come either way.",
            meaning="Thought and answer can be told apart.",
            figures=figures,
        )
    best = not shown[False]
    return Finding(
        probe=name,
        outcome="as assumed" if key == best else "otherwise",
        finding=f"The marks around the thought come only with skip_special_token {str(best).lower()}.",
        meaning="Thought and answer can be told apart"
        + ("." if key == best else " with the key; without it the thought is part of the answer."),
        settings={} if key == best else {"rkllm.skip_special_token": best},
        figures=figures,
    )


def base_domain_id(subject: Subject) -> Finding:
    """Load the model in another domain of the NPU's memory and run it there."""
    name = "base_domain_id"
    own = subject.spec.rkllm.base_domain_id
    other = 1 if own == 0 else 0
    prompt = subject.prompt(subject.texts.chat)
    subject.load()
    before = subject.run(prompt, 8)
    try:
        subject.load(base_domain_id=other)
        after = subject.run(prompt, 8)
    except BackendError as error:
        return Finding(
            probe=name,
            outcome="otherwise",
            finding=f"In domain {other} the model does not run: {error.message}",
            meaning=f"Leave base_domain_id at {own}; two models together must fit one domain.",
            figures={"domain": other},
        )
    same = before.ids == after.ids
    return Finding(
        probe=name,
        outcome="as assumed" if same else "otherwise",
        finding=f"In domain {other} the model runs, too, and answers "
        + ("the same." if same else "something else."),
        meaning=f"A second model that finds no NPU memory may find some with base_domain_id: {other}."
        if same
        else f"Leave base_domain_id at {own}. Tell us.",
        figures={"domain": other},
    )


def context_reserve(subject: Subject) -> Finding:
    """Load the model with a small context and find the longest prompt that it takes."""
    name = "context_reserve"
    key = subject.spec.rkllm.context_reserve
    subject.load(context_length=_CONTEXT, max_tokens=8)
    least, refusal = None, ""
    for reserve in _RESERVES:
        try:
            subject.run(made_up_ids(_CONTEXT - reserve), 1)
        except BackendError as error:
            if error.code != "context_length_exceeded":
                raise
            refusal = error.message
            break
        least = reserve
    if least is None:
        return Finding(
            probe=name,
            outcome="otherwise",
            finding=f"With a context of {_CONTEXT} a prompt of {_CONTEXT - _RESERVES[0]} tokens is refused: "
            f"{refusal}",
            meaning=f"It keeps more than {_RESERVES[0]} tokens for itself: long chats may fail. Tell us.",
            figures={"context": _CONTEXT},
        )
    return Finding(
        probe=name,
        outcome="as assumed" if least <= key else "otherwise",
        finding=f"With a context of {_CONTEXT} prompts of up to {_CONTEXT - least} tokens are taken.",
        meaning=f"rkserve leaves {key} free, which suffices."
        if least <= key
        else f"rkserve leaves {key} free, which is too few: the longest prompts would fail without the key.",
        settings={} if least <= key else {"rkllm.context_reserve": least},
        figures={"context": _CONTEXT, "longest_prompt": _CONTEXT - least},
    )
