"""The backend on the demo model: answers as text, counts of tokens, and what a second turn computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from backends.base import FinishReason, GenerateParams, Sampling, Span, TokenLogprob, Usage
from backends.engine import Backend, Cancellation
from backends.hybrid.backend import load
from backends.hybrid.detokenize import TextDecoder
from backends.spec import HybridOptions, ModelSpec
from backends.tokenizer import PromptTokenizer
from tests.oracle import values


@dataclass
class Collected:
    """A sink that keeps what it is given."""

    pieces: list[str] = field(default_factory=list)
    tokens: int = 0
    prefilled: list[tuple[int, int]] = field(default_factory=list)

    def prefill(self, done: int, total: int) -> None:
        self.prefilled.append((done, total))

    def delta(self, text: str, tokens: int, logprobs: list[TokenLogprob] | None) -> None:
        self.pieces.append(text)
        self.tokens += tokens

    def warn(self, message: str) -> None:
        raise AssertionError(message)


@pytest.fixture(scope="module")
def backend(demo_folder: Path) -> Iterator[Backend]:
    spec = ModelSpec(
        model_id="demo",
        backend="hybrid",
        path=str(demo_folder),
        context_length=2048,
        max_tokens=256,
        eos=["<|im_end|>"],
        hybrid=HybridOptions(variant="fp32"),  # whose answers transformers gives, too
    )
    loaded = load(spec, lambda done, what: None)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def tokenizer(demo_folder: Path) -> PromptTokenizer:
    return PromptTokenizer(demo_folder / "tokenizer.json")


def answer(backend: Backend, case: values.Case, max_tokens: int) -> tuple[Collected, FinishReason, Usage]:
    sink = Collected()
    params = GenerateParams(
        prompt=[Span(text, control) for text, control in case.spans],
        sampling=Sampling(temperature=0),
        max_tokens=max_tokens,
    )
    return sink, *backend.generate(params, sink, Cancellation())


def text_of(tokenizer: PromptTokenizer, token_ids: list[int]) -> str:
    decoder = TextDecoder(tokenizer.vocabulary)
    return "".join([decoder.push(token_id) for token_id in token_ids] + [decoder.flush()])


@pytest.mark.parametrize("name", ["chinese", "one_token"])
def test_the_answer_as_text(backend: Backend, tokenizer: PromptTokenizer, name: str) -> None:
    case = values.greedy()[name]
    sink, reason, usage = answer(backend, case, 48)
    assert "".join(sink.pieces) == text_of(tokenizer, case.answer_ids[:48])
    assert reason == "length"
    assert usage.prompt_tokens == len(case.prompt_ids)
    assert usage.completion_tokens == sink.tokens == 48


def test_a_second_turn_computes_what_is_new(backend: Backend, tokenizer: PromptTokenizer) -> None:
    first, second = values.greedy()["english"], values.greedy()["second_turn"]
    answer(backend, first, len(first.answer_ids))
    sink, _, usage = answer(backend, second, 24)
    assert "".join(sink.pieces) == text_of(tokenizer, second.answer_ids[:24])
    # The answer's last token was given out and never run.
    held = np.array([*first.prompt_ids, *first.answer_ids[:-1]])
    common = min(len(held), len(second.prompt_ids))
    differ = np.flatnonzero(held[:common] != np.array(second.prompt_ids[:common]))
    known = int(differ[0]) if len(differ) else common
    assert known >= len(first.prompt_ids)
    assert usage.cached_tokens == known
    assert sink.prefilled[0] == (0, len(second.prompt_ids) - known)


def test_the_same_prompt_again_computes_its_last_token(backend: Backend) -> None:
    case = values.greedy()["code"]
    once, _, before = answer(backend, case, 4)
    again, _, after = answer(backend, case, 4)
    assert before.cached_tokens < len(case.prompt_ids) - 1
    assert after.cached_tokens == len(case.prompt_ids) - 1
    assert again.pieces == once.pieces
