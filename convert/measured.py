"""Writes a folder and runs it once, so that its stream is divided by what keeps it within float16.

Knows no file format the model may come from. See measure.py for what is measured and why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from backends.hybrid.meta import Meta
from convert.matrices import Weights
from convert.measure import largest_hidden, residual_scale_for
from convert.model import Model
from convert.writer import Papers, QuantizedVariant, write_folder, write_meta

# Shares of the work: writing, measuring, and writing once more where the stream has to be divided.
_WRITTEN, _MEASURED, _REWRITTEN = 0.45, 0.5, 0.99
# Read by the model once, to see how large its values become: several scripts, code, numbers.
_TEXT = (
    "The capital of France is Paris. 玉山是台灣最高的山，海拔3952公尺。 서울은 대한민국의 수도이다. def "
    "is_prime(n):\n"
    "    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))\n\nHow many letters r are in "
    "strawberry? "
    "Die Antwort lautet: 3.14159 < 9.11 < 9.9 <= 1,000,000!\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
)


def write_measured(
    folder: Path,
    model: Model,
    weights: Weights,
    papers: Papers,
    *,
    tokenizer: Tokenizer,
    bos: int | None,
    quantized: QuantizedVariant | None = None,
) -> None:
    """Write a complete folder into `folder`, which exists and is empty, with what was measured in it.

    weights: gives a weight by its name; asked for all of them once more where the stream has to be divided.
    tokenizer: what papers.tokenizer makes. bos: the token that begins a text, where the model has one.
    quantized: a second variant to write. Raises ConvertError, OSError.
    """

    first, again = _within(papers, 0.0, _WRITTEN), _within(papers, _MEASURED, _REWRITTEN)
    meta = write_folder(folder, model, weights, first, quantized=quantized)
    papers.progress(_WRITTEN, "measuring")
    seen = largest_hidden(folder, _tokens(tokenizer, bos, model, papers.lengths[-1]))
    scale = residual_scale_for(max(seen))
    if scale != 1:
        _empty(folder)
        meta = write_folder(folder, model, weights, again, residual_scale=scale, quantized=quantized)
    write_meta(folder, _with_largest(meta, [value / scale for value in seen]))
    papers.progress(1.0, "written")


def _within(papers: Papers, start: float, end: float) -> Papers:
    """Return the papers with progress that counts from `start` to `end` of the whole, and never goes back."""

    def report(done: float | None, what: str) -> None:
        papers.progress(None if done is None else start + (end - start) * done, what)

    return dataclasses.replace(papers, progress=report)


def _tokens(tokenizer: Tokenizer, bos: int | None, model: Model, most: int) -> list[int]:
    """Return the tokens to measure with, after the one that begins a text, where values are often largest."""
    ids = [] if bos is None else [bos]
    ids += tokenizer.encode(_TEXT, add_special_tokens=False).ids
    most = min(most, model.context_length)
    return [token_id for token_id in ids if 0 <= token_id < model.vocab_size][:most] or [0]


def _with_largest(meta: Meta, largest: Sequence[float]) -> Meta:
    segments = [
        msgspec.structs.replace(segment, max_hidden=round(value, 3))
        for segment, value in zip(meta.segments, largest, strict=True)
    ]
    return msgspec.structs.replace(meta, segments=segments)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
