"""Probes of what an abort leaves behind."""

from __future__ import annotations

from backends.probing import Figures, Finding
from backends.rkllm.probes.subject import Subject
from backends.rkllm.run import Ended

_TOKENS = 16


def abort(subject: Subject) -> Finding:
    """Answer a question, abort the answer to it, and answer it again."""
    name = "abort"
    prompt = subject.prompt(subject.texts.chat)
    subject.session.clear_kv_cache()
    before = subject.run(prompt, _TOKENS)
    if len(before.tokens) < 4:
        return Finding(probe=name, outcome="undecided", finding="The answer is too short to be aborted.")
    cut = subject.run(prompt, 4 * _TOKENS, stop_at=2)
    after = subject.run(prompt, _TOKENS)
    if cut.ended is not Ended.STOP:
        return Finding(probe=name, outcome="undecided", finding="The answer ended before the abort came.")
    reused = None if None in (before.prefilled, after.prefilled) else before.prefilled != after.prefilled
    figures: Figures = {
        "tokens_made_until_it_ended": len(cut.tokens),
        "kv_after_abort": cut.kv,
        "perf_after_abort": cut.perf is not None,
        "prompt_prefilled": before.prefilled,
        "prefilled_after_abort": after.prefilled,
    }
    if after.ids == before.ids:
        kept = " The KV cache is used again." if reused else " The KV cache is not used again."
        return Finding(
            probe=name,
            outcome="as assumed",
            finding="After an abort the same prompt gets the same answer."
            + (kept if reused is not None else ""),
            meaning="Answers can be broken off at any time.",
            figures=figures,
        )
    subject.session.clear_kv_cache()
    cleared = subject.run(prompt, _TOKENS)
    helps = cleared.ids == before.ids
    return Finding(
        probe=name,
        outcome="otherwise",
        finding="After an abort the same prompt gets another answer"
        + (", until the KV cache is emptied." if helps else ", even when the KV cache is emptied."),
        meaning="With the key the KV cache is emptied after each answer that is broken off."
        if helps
        else "Only loading the model again would help. Tell us.",
        settings={"rkllm.clear_after_abort": True} if helps else {},
        figures=figures,
    )


def idle_abort(subject: Subject) -> Finding:
    """Abort while nothing runs, as happens when an answer ends at that moment, and run something."""
    prompt = subject.prompt(subject.texts.chat)
    before = subject.run(prompt, _TOKENS)
    status = subject.session.abort()
    after = subject.run(prompt, _TOKENS)
    same = before.ids == after.ids
    return Finding(
        probe="idle_abort",
        outcome="as assumed" if same else "otherwise",
        finding=f"An abort while nothing runs returns {status}, and the next run "
        + (
            "is as any other."
            if same
            else f"makes {len(after.tokens)} tokens instead of {len(before.tokens)}."
        ),
        meaning="An abort may come late."
        if same
        else "An answer that is broken off in its last moment may spoil the next one; that is rare. Tell us.",
        figures={"status": status, "tokens_before": len(before.tokens), "tokens_after": len(after.tokens)},
    )
