"""A probe of logits: whether choosing from them token by token gives what the library itself generates."""

from __future__ import annotations

import ctypes
import time
from array import array
from typing import Any

from backends.engine import Cancellation
from backends.probing import Finding
from backends.rkllm.enums import RKLLMInferMode
from backends.rkllm.probes.subject import Subject, made_up_ids

_STEPS = 6


def stepwise_logits(subject: Subject) -> Finding:
    """Generate some tokens, then choose the same ones from GET_LOGITS."""
    name = "stepwise_logits"
    tokenizer = subject.tokenizer
    prompt = made_up_ids(32) if tokenizer is None else tokenizer.encode(subject.texts.chat)
    subject.session.clear_kv_cache()
    made = subject.run(prompt, _STEPS).ids
    if len(made) < 2:
        return Finding(
            probe=name,
            outcome="undecided",
            finding=f"The model generated {len(made)} tokens to compare with.",
        )
    chosen: list[int] = []
    prefilled: list[int] = []
    began = time.perf_counter()
    for step in range(len(made)):
        row = _LastRow()
        ids = [*prompt, *made[:step]]
        perf = subject.session.states(ids, RKLLMInferMode.GET_LOGITS, row.take, Cancellation()).perf
        chosen.append(row.best)
        prefilled.append(0 if perf is None else perf.prefill_tokens)
    took_ms = 1000 * (time.perf_counter() - began) / len(made)
    agree = chosen == made
    told = 0 not in prefilled
    cheap = told and max(prefilled[1:]) <= 2
    computed = "one new token" if cheap else "the whole prompt" if told else "an unknown share"
    cost = f"{took_ms:.0f} ms a step, {computed} computed in each"
    return Finding(
        probe=name,
        outcome="as assumed" if agree else "otherwise",
        finding=(
            f"They choose the {len(made)} tokens that generation made ({cost})."
            if agree
            else f"They choose other tokens than generation, from step {_first_difference(chosen, made)} on."
        ),
        meaning="Constrained decoding could be built on them. Tell us."
        if agree and cheap
        else "They are too slow to decode with: structured answers stay best effort."
        if agree
        else "They are no base for constrained decoding: structured answers stay best effort.",
        figures={
            "generated": made,
            "chosen": chosen,
            "prefilled": prefilled,
            "ms_per_step": round(took_ms, 1),
        },
    )


class _LastRow:
    """Keeps the id of the best logit of the last row it is shown. -1: shown none."""

    def __init__(self) -> None:
        self.best = -1

    def take(self, result: Any) -> None:
        """Take a result; called within a callback, outside of which its pointers are not valid."""
        logits = result.logits
        if not logits.logits or logits.num_tokens < 1:
            return
        size_bytes = 4 * logits.vocab_size
        address = ctypes.cast(logits.logits, ctypes.c_void_p).value or 0
        row = array("f", ctypes.string_at(address + (logits.num_tokens - 1) * size_bytes, size_bytes))
        self.best = row.index(max(row))


def _first_difference(one: list[int], other: list[int]) -> int:
    return next(index for index, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
