"""The demo model's tokenizer against llama.cpp's vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.base import Span
from backends.hybrid.detokenize import TextDecoder
from backends.tokenizer import PromptTokenizer
from tests.oracle import strings, values

# Characters this model's vocabulary has no token for; llama.cpp, too, leaves them out.
ABSENT = dict.fromkeys(b"\x04\x06\x13\x14\x16\x1d")


@pytest.fixture(scope="module")
def tokenizer(demo_folder: Path) -> PromptTokenizer:
    return PromptTokenizer(demo_folder / "tokenizer.json")


def plain(tokenizer: PromptTokenizer, text: str) -> list[int]:
    return tokenizer.encode([Span(text, False)])


def shown(tokenizer: PromptTokenizer, token_ids: list[int]) -> str:
    decoder = TextDecoder(tokenizer.vocabulary)
    return "".join([decoder.push(token_id) for token_id in token_ids] + [decoder.flush()])


def test_random_strings_have_the_ids_of_llama_cpp(tokenizer: PromptTokenizer) -> None:
    texts = strings.Strings().take(strings.RANDOM_STRINGS)
    different = [
        (text, ids, expected)
        for text, expected in zip(texts, values.tokens().random_ids, strict=True)
        if (ids := plain(tokenizer, text)) != expected
    ]
    assert different == []


def test_random_strings_come_back_unchanged(tokenizer: PromptTokenizer) -> None:
    texts = strings.Strings().take(strings.RANDOM_STRINGS)
    lost = [text for text in texts if shown(tokenizer, plain(tokenizer, text)) != text.translate(ABSENT)]
    assert lost == []
    assert sum(text == text.translate(ABSENT) for text in texts) > 4800


@pytest.mark.parametrize(("text", "expected"), values.tokens().chosen, ids=range(50))
def test_chosen_strings(tokenizer: PromptTokenizer, text: str, expected: list[int]) -> None:
    ids = plain(tokenizer, text)
    assert ids == expected
    assert shown(tokenizer, ids) == text


@pytest.mark.parametrize(("token", "expected"), values.tokens().control_tokens)
def test_control_tokens_that_a_user_spells_are_text(
    tokenizer: PromptTokenizer, token: str, expected: list[int]
) -> None:
    ids = plain(tokenizer, token)
    assert ids == expected
    assert shown(tokenizer, ids) == token


def test_control_tokens_of_the_template_are_tokens(tokenizer: PromptTokenizer) -> None:
    """Their ids are their places in the list: the file begins with them."""
    controls = [token for token, _ in values.tokens().control_tokens]
    assert len(controls) == 17
    assert [tokenizer.encode([Span(token, True)]) for token in controls] == [[i] for i in range(17)]


@pytest.mark.parametrize(("spans", "expected"), values.tokens().chats)
def test_a_chat_has_the_ids_of_its_whole_text(
    tokenizer: PromptTokenizer, spans: values.Spans, expected: list[int]
) -> None:
    assert tokenizer.encode([Span(text, control) for text, control in spans]) == expected


@pytest.mark.parametrize(("spans", "expected"), values.tokens().spelled)
def test_a_chat_in_which_a_user_spells_control_tokens(
    tokenizer: PromptTokenizer, spans: values.Spans, expected: list[int]
) -> None:
    assert tokenizer.encode([Span(text, control) for text, control in spans]) == expected


@pytest.mark.parametrize("name", values.greedy())
def test_the_prompts_of_the_oracle(tokenizer: PromptTokenizer, name: str) -> None:
    case = values.greedy()[name]
    assert tokenizer.encode([Span(text, control) for text, control in case.spans]) == case.prompt_ids
