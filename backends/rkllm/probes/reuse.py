"""Probes of the KV cache's use across runs: a longer prompt after a shorter one, and an edited one."""

from __future__ import annotations

from backends.probing import Figures, Finding, Value
from backends.rkllm.probes.subject import Prompt, Subject, made_up_ids, sentences

_SHARED = 96


def prefix_reuse(subject: Subject) -> Finding:
    """Run a prompt and then a longer one that begins with it, as tokens and as text."""
    name = "prefix_reuse"
    begin = made_up_ids(_SHARED)
    tokens = _reused(subject, begin, [*begin, *made_up_ids(32, seed=2)])
    told = sentences(10)
    text = _reused(subject, told, f"{told} {sentences(3, 'window')}")
    figures: Figures = {
        "tokens_shared": tokens[0],
        "tokens_reused": tokens[1],
        "text_shared": text[0],
        "text_reused": text[1],
    }
    by_tokens, by_text = _whole(*tokens), _whole(*text)
    if by_tokens is None and by_text is None:
        return Finding(
            probe=name,
            outcome="undecided",
            finding="The library does not say how many tokens it has prefilled.",
            figures=figures,
        )
    as_text = subject.tokenizer is None or subject.spec.rkllm.input == "text"
    ours, other = (by_text, by_tokens) if as_text else (by_tokens, by_text)
    form, other_form = ("text", "tokens") if as_text else ("tokens", "text")
    if ours:
        return Finding(
            probe=name,
            outcome="as assumed",
            finding=f"Of a prompt given as {form} only what is new is computed"
            + ("." if other else f"; of one given as {other_form} everything."),
            meaning="A chat's next turn starts quickly.",
            figures=figures,
        )
    if other and as_text and subject.tokenizer is not None:
        settings: dict[str, Value] = {"rkllm.input": "auto"}
    elif other and not as_text:
        settings = {"rkllm.input": "text"}
    else:
        settings = {}
    return Finding(
        probe=name,
        outcome="otherwise",
        finding=f"A prompt given as {form} is computed from its start each time"
        + (f"; one given as {other_form} is not." if other else f", and one given as {other_form}, too."),
        meaning="Each turn of a chat takes as long as the whole chat"
        + (
            " unless the key is set."
            if settings
            else "; a tokenizer in the entry helps."
            if other
            else "; with this model nothing helps."
        ),
        settings=settings,
        figures=figures,
    )


def reuse_after_edit(subject: Subject) -> Finding:
    """Run a prompt and then one that leaves it in its middle."""
    name = "reuse_after_edit"
    begin = made_up_ids(_SHARED)
    edited = [*begin[: _SHARED // 2], *made_up_ids(_SHARED // 2, seed=3)]
    subject.session.clear_kv_cache()
    subject.run(begin, 1)
    prefilled = subject.run(edited, 1).prefilled
    if prefilled is None:
        return Finding(probe=name, outcome="undecided", finding="The library does not say what it prefilled.")
    reused = _SHARED - prefilled
    kept = reused >= _SHARED // 2 - 1
    return Finding(
        probe=name,
        outcome="as assumed" if kept else "otherwise",
        finding=f"Of {_SHARED // 2} tokens that two prompts share, {max(0, reused)} are used again.",
        meaning="After an edit, or a thought that the template drops, only what follows is computed."
        if kept
        else "After an edit, or a thought that the template drops, the chat is computed from its start.",
        figures={"shared": _SHARED // 2, "reused": reused},
    )


def _reused(subject: Subject, shorter: Prompt, longer: Prompt) -> tuple[int | None, int | None]:
    """Return how many tokens two prompts share, and how many of the longer one were not computed."""
    whole = subject.size(longer)
    shared = subject.size(shorter)
    prefilled = subject.run(longer, 1).prefilled
    return shared, None if whole is None or prefilled is None else whole - prefilled


def _whole(shared: int | None, reused: int | None) -> bool | None:
    """Say whether all that is shared was used again, but for a token at the seam."""
    return None if shared is None or reused is None else reused >= shared - 2
