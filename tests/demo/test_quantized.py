"""The demo model in the 4 bits of its file against itself in float32, whose tokens it is led along.

What differs are activations rounded to 8 bits: it may change which token is the likeliest only where two were
nearly so, and may hardly change how likely a text is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from backends.base import Span
from backends.hybrid.executor import Array
from backends.hybrid.folder import read_folder
from backends.hybrid.forward import Forward
from backends.hybrid.kernels import NUMPY, Kernels, best_kernels
from backends.hybrid.native_segments import with_native_segments
from backends.hybrid.ort import OrtExecutor
from backends.tokenizer import PromptTokenizer
from tests.native.conftest import site as site
from tests.oracle import values

TEXT = Path(__file__).resolve().parents[2] / "LICENSE"  # a text that stays as it is
TOKENS = 2000
SURE = 0.5  # a margin that rounding must not overcome
CHUNK = 100  # of the text, each for itself: a model loses itself in a long one it knows by heart


class Rows:
    """A variant of the demo model that gives the logits of all rows of a call."""

    def __init__(self, folder: Path, variant: str, kernels: Kernels) -> None:
        read = read_folder(folder, variant=variant)
        self._executor = with_native_segments(read, OrtExecutor(read, None, lambda done, what: None), kernels)
        self.forward = Forward(read, self._executor, kernels=kernels)
        self._last = self._executor.bind(CHUNK)[-1]

    def chunk(self, token_ids: list[int]) -> Array:
        """The logits of each row of a text of CHUNK tokens, (CHUNK, V)."""
        self.forward.run(np.array(token_ids, np.int32), self.forward.new_cache(), False, every_row=True)
        return np.array(self._last.outputs[0])

    def close(self) -> None:
        self._executor.close()


@pytest.fixture(scope="module", params=["onnxruntime", "native"])
def four_bits(demo_folder: Path, request: pytest.FixtureRequest) -> Iterator[Rows]:
    kernels: Kernels = NUMPY
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "native":
            request.getfixturevalue("site")
            patch.setattr("importlib.metadata.version", lambda name: "0.1.0")
            kernels = best_kernels(2)
            assert kernels is not NUMPY
    rows = Rows(demo_folder, "int4", kernels)
    yield rows
    rows.close()


@pytest.fixture(scope="module")
def floats(demo_folder: Path) -> Iterator[Rows]:
    rows = Rows(demo_folder, "fp32", NUMPY)
    yield rows
    rows.close()


def test_the_likeliest_token_of_answers(four_bits: Rows) -> None:
    """Along transformers' greedy answers, whose margins are known: a token at a time, as answers are made."""
    agreed, seen = 0, 0
    for name, case in values.greedy().items():
        cache = four_bits.forward.new_cache()
        logits = None
        for start in range(0, len(case.prompt_ids), 128):
            part = np.array(case.prompt_ids[start : start + 128], np.int32)
            logits = four_bits.forward.run(part, cache, want_logits=True)
        for step, token_id in enumerate(case.answer_ids[:48]):
            assert logits is not None
            same = int(logits.argmax()) == token_id
            assert same or case.margins[step] < SURE, f"{name}, token {step}"
            agreed, seen = agreed + same, seen + 1
            logits = four_bits.forward.run(np.array([token_id], np.int32), cache, want_logits=True)
    assert agreed >= 0.95 * seen


@pytest.mark.slow
@pytest.mark.parametrize("four_bits", ["onnxruntime"], indirect=True)  # which computes all but single tokens
def test_how_likely_a_text_is(four_bits: Rows, floats: Rows, demo_folder: Path) -> None:
    tokenizer = PromptTokenizer(demo_folder / "tokenizer.json")
    token_ids = tokenizer.encode([Span(TEXT.read_text(), False)])[:TOKENS]
    assert len(token_ids) == TOKENS
    surprise = {"four bits": 0.0, "floats": 0.0}
    agreed = 0
    for start in range(0, TOKENS, CHUNK):
        chunk = token_ids[start : start + CHUNK]
        few, many = four_bits.chunk(chunk), floats.chunk(chunk)
        agreed += int((few.argmax(axis=1) == many.argmax(axis=1)).sum())
        for name, logits in (("four bits", few), ("floats", many)):
            surprise[name] += surprise_of(logits[:-1], chunk[1:])
    count = TOKENS - TOKENS // CHUNK
    ratio = np.exp((surprise["four bits"] - surprise["floats"]) / count)
    print(f"perplexity times {ratio:.4f}, {agreed} of {TOKENS} likeliest tokens the same")
    assert abs(ratio - 1) <= 0.01
    assert agreed >= 0.95 * TOKENS


def surprise_of(logits: Array, token_ids: list[int]) -> float:
    """The sum of -log p of tokens."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    chosen = wide[np.arange(len(token_ids)), token_ids]
    return float((np.log(np.exp(wide).sum(axis=1)) - chosen).sum())
