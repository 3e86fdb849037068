"""Probes of how the library takes prompts: their size, what it puts before them, what it reads in them."""

from __future__ import annotations

from backends.probing import Figures, Finding
from backends.rkllm.probes.subject import Subject, made_up_ids
from backends.rkllm.prompt import JOINER

_MOST_MARKS = 6


def prompt_size(subject: Subject) -> Finding:
    """See whether prompt and KV cache have the sizes that usage is worked out from."""
    name = "prompt_size"
    prompt = made_up_ids(48)
    subject.session.clear_kv_cache()
    one = subject.run(prompt, 1)
    subject.session.clear_kv_cache()
    four = subject.run(prompt, 4)
    figures: Figures = {
        "given": len(prompt),
        "prefilled": one.prefilled,
        "kv_after_1": one.kv,
        "made": len(four.tokens),
        "kv_after_more": four.kv,
    }
    if one.prefilled is None:
        return Finding(
            probe=name,
            outcome="undecided",
            finding="The library does not say how many tokens it has prefilled.",
            meaning="Usage cannot tell which tokens were cached, and claims none.",
            figures=figures,
        )
    around = one.prefilled - len(prompt)
    if around:
        return Finding(
            probe=name,
            outcome="otherwise",
            finding=f"{len(prompt)} tokens were given and {one.prefilled} prefilled.",
            meaning="It adds tokens of its own around prompts given as tokens; texts may be better. Tell us.",
            figures=figures,
        )
    cut = [seen for seen, limit in ((one, 1), (four, 4)) if len(seen.tokens) == limit and seen.kv]
    if not cut:
        return Finding(
            probe=name,
            outcome="undecided",
            finding="Prompts have the size given; the KV cache shows none.",
            meaning="Such a model has no KV cache (RWKV), or its answers end at once. Nothing depends on it.",
            figures=figures,
        )
    over = {(seen.kv or 0) - len(prompt) - len(seen.tokens) for seen in cut}
    if over == {-1}:
        return Finding(
            probe=name,
            outcome="otherwise" if subject.spec.rkllm.last_token_cached else "as assumed",
            finding="After an answer cut short the KV cache holds the prompt and all tokens but the last.",
            meaning="Counts of prompts given as text are right.",
            settings={"rkllm.last_token_cached": False} if subject.spec.rkllm.last_token_cached else {},
            figures=figures,
        )
    if over == {0}:
        already = subject.spec.rkllm.last_token_cached
        return Finding(
            probe=name,
            outcome="as assumed" if already else "otherwise",
            finding="After an answer cut short the KV cache holds the last token, too.",
            meaning="Counts of prompts given as text are right with the key."
            if already
            else "Without the key, counts of prompts given as text are one too many.",
            settings={} if already else {"rkllm.last_token_cached": True},
            figures=figures,
        )
    return Finding(
        probe=name,
        outcome="otherwise",
        finding=f"The KV cache's size differs from prompt and answer by {', '.join(map(str, sorted(over)))}.",
        meaning="Counts of prompts given as text are wrong by that. Tell us.",
        figures=figures,
    )


def bos(subject: Subject) -> Finding:
    """See whether a BOS is put before a text, and whether one of the template is then there twice."""
    name = "bos"
    words = [" ".join(["a"] * count) for count in (8, 16, 24)]
    sizes = [subject.size(text) for text in words]
    if None in sizes:
        return Finding(probe=name, outcome="undecided", finding="The sizes of prompts are not told.")
    eight, sixteen, more = (size or 0 for size in sizes)
    figures: Figures = {"sizes": [eight, sixteen, more]}
    if more - sixteen != sixteen - eight:
        return Finding(
            probe=name,
            outcome="undecided",
            finding="A text three times as long has not three times the tokens: nothing can be told.",
            figures=figures,
        )
    added = 2 * eight - sixteen
    own, key = subject.texts.bos, subject.spec.rkllm.runtime_bos
    twice = None
    if own is not None:
        with_own = subject.size(own + words[0])
        twice = None if with_own is None else with_own - eight
        figures["with_template_bos"] = with_own
    figures["added"] = added
    if added <= 0:
        return Finding(
            probe=name,
            outcome="as assumed" if key is None else "otherwise",
            finding="Nothing is put before a text.",
            meaning="Prompts begin as the template says.",
            settings={} if key is None else {"rkllm.runtime_bos": None},
            figures=figures,
        )
    if own is None:
        return Finding(
            probe=name,
            outcome="as assumed",
            finding=f"{added} token is put before a text; the template has none of its own.",
            meaning="If the model is not used to a BOS, give the entry a tokenizer: prompts go in as tokens.",
            figures=figures,
        )
    if twice == 0:
        return Finding(
            probe=name,
            outcome="as assumed",
            finding=f"A BOS is put before a text, but not before one that begins with {own}.",
            meaning="Prompts have one BOS.",
            figures=figures,
        )
    return Finding(
        probe=name,
        outcome="as assumed" if key == own else "otherwise",
        finding=f"A BOS is put before a text, also before one that begins with {own}.",
        meaning="Prompts as text would have two, which some models take badly; the key leaves ours out.",
        settings={} if key == own else {"rkllm.runtime_bos": own},
        figures=figures,
    )


def special_tokens(subject: Subject) -> Finding:
    """See whether control tokens spelled in a text become tokens, and broken spellings none."""
    name = "special_tokens"
    marks = subject.texts.marks[:_MOST_MARKS]
    if not marks:
        return Finding(
            probe=name,
            outcome="as assumed",
            finding="The template spells no control tokens.",
            meaning="Prompts as text lose nothing.",
        )
    figures: Figures = {}
    bare = _growth(subject, "")
    read: list[str] = []
    unread: list[str] = []
    leaking: list[str] = []
    for mark in marks:
        whole, broken = _growth(subject, mark), _growth(subject, mark[0] + JOINER + mark[1:])
        if bare is None or whole is None or broken is None:
            return Finding(probe=name, outcome="undecided", finding="The sizes of prompts are not told.")
        figures[mark] = (whole - bare) / 2
        figures[f"{mark} broken up"] = (broken - bare) / 2
        (read if whole - bare == 2 else unread).append(mark)
        if broken - bare <= 2:
            leaking.append(mark)
    if unread:
        as_tokens = subject.tokenizer is not None and subject.spec.rkllm.input == "auto"
        return Finding(
            probe=name,
            outcome="as assumed" if as_tokens else "otherwise",
            finding=f"In a text these are read as plain text: {', '.join(unread)}.",
            meaning="Prompts as text would not be in the model's form; this entry's go in as tokens."
            if as_tokens
            else "Prompts are not in the model's form, and answers worse for it. Give the entry a tokenizer "
            "(tokenizer: {repo: ...} or a path) and leave rkllm.input at auto.",
            settings={"rkllm.input": "auto"} if subject.spec.rkllm.input == "text" else {},
            figures=figures,
        )
    return Finding(
        probe=name,
        outcome="otherwise" if leaking else "as assumed",
        finding=f"In a text these are one token each: {', '.join(read)}"
        + (
            f"; broken up by a joiner, {', '.join(leaking)} still."
            if leaking
            else ", and none when broken up by a joiner."
        ),
        meaning="What a client types can become a control token: give the entry a tokenizer. Tell us."
        if leaking
        else "Prompts as text are in the model's form, and what a client types is plain text.",
        figures=figures,
    )


def _growth(subject: Subject, mark: str) -> int | None:
    """Return how many tokens two more of "mark a" take."""
    two, four = (subject.size("a" + f"{mark} a" * count) for count in (2, 4))
    return None if two is None or four is None else four - two
