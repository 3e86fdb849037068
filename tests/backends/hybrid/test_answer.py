"""What leaves for a client, when, and with which tokens."""

from __future__ import annotations

import json

from backends.base import TokenLogprob
from backends.hybrid.answer import Answer
from backends.text import SILENT_TOKENS
from backends.vocabulary import Vocabulary
from tests.tiny import tiny_tokenizer

VOCABULARY = Vocabulary(json.loads(tiny_tokenizer()))


class Recorder:
    """A sink that keeps (text, tokens, marks), the marks being the texts of the logprobs."""

    def __init__(self) -> None:
        self.deltas: list[tuple[str, int, str | None]] = []

    def prefill(self, done: int, total: int) -> None:
        raise AssertionError("an answer reports no prefill")

    def delta(self, text: str, tokens: int, logprobs: list[TokenLogprob] | None) -> None:
        marks = None if logprobs is None else "".join(entry.text for entry in logprobs)
        self.deltas.append((text, tokens, marks))

    def warn(self, message: str) -> None:
        raise AssertionError(message)


def tokens_of(text: str) -> list[int]:
    """One token a byte."""
    singles = {VOCABULARY.bytes_of(token_id): token_id for token_id in range(len(VOCABULARY))}
    return [singles[bytes([byte])] for byte in text.encode()]


def answer(
    token_ids: list[int], stops: list[str] | None = None, logprobs: bool = True
) -> tuple[list[tuple[str, int, str | None]], bool]:
    sink = Recorder()
    tested = Answer(VOCABULARY, stops or [], sink, logprobs=logprobs)
    for index, token_id in enumerate(token_ids):
        entry = TokenLogprob(str(index), b"", 0.0, []) if logprobs else None
        if tested.push(token_id, entry):
            return sink.deltas, True
    tested.finish()
    return sink.deltas, False


def test_each_token_leaves_at_once() -> None:
    assert answer(tokens_of("ab")) == ([("a", 1, "0"), ("b", 1, "1")], False)
    assert answer(tokens_of("ab"), logprobs=False) == ([("a", 1, None), ("b", 1, None)], False)


def test_tokens_without_text_still_show_that_the_run_goes_on() -> None:
    control = next(token.id for token in VOCABULARY.added if token.special)
    silent = [control] * (2 * SILENT_TOKENS + 5)
    assert answer(silent, logprobs=False) == ([("", 0, None)] * 2, False)
    # What is held back by a stop sequence that may come is silent too, and all of it comes in the end.
    held = "x" * (SILENT_TOKENS + 1)
    deltas, _ = answer(tokens_of(held), stops=[held + "y"], logprobs=False)
    assert deltas == [("", 0, None), (held, len(held), None)]


def test_text_is_sign_enough() -> None:
    text = "x" * (3 * SILENT_TOKENS)
    assert answer(tokens_of(text), logprobs=False) == ([("x", 1, None)] * len(text), False)


def test_a_character_leaves_whole_with_all_its_tokens() -> None:
    assert answer(tokens_of("a界")) == ([("a", 1, "0"), ("界", 3, "123")], False)


def test_an_unfinished_character_leaves_at_the_end() -> None:
    assert answer(tokens_of("a界")[:-1]) == ([("a", 1, "0"), ("\ufffd", 2, "12")], False)


def test_a_stop_string_and_its_tokens_stay_behind() -> None:
    assert answer(tokens_of("aXYb"), ["XY"]) == ([("a", 1, "0")], True)


def test_harmless_text_leaves_with_its_tokens_as_soon_as_that_is_known() -> None:
    assert answer(tokens_of("aXXYb"), ["XXZ"]) == ([("a", 1, "0"), ("XXY", 3, "123"), ("b", 1, "4")], False)
    assert answer(tokens_of("aXXXZ"), ["XXZ"]) == ([("a", 1, "0"), ("X", 1, "1")], True)
    assert answer(tokens_of("aX"), ["XXZ"]) == ([("a", 1, "0"), ("X", 1, "1")], False)


def test_a_token_goes_with_the_beginning_of_its_text() -> None:
    hello = VOCABULARY.id_of("Ġhello")
    assert hello is not None
    assert answer([hello, *tokens_of("ab")], ["loa"]) == ([(" hel", 1, "0")], True)
    assert answer([hello, *tokens_of("xb")], ["loa"]) == (
        [(" hel", 1, "0"), ("lox", 1, "1"), ("b", 1, "2")],
        False,
    )
    assert answer([hello], ["loa"]) == ([(" hel", 1, "0"), ("lo", 0, "")], False)


def test_control_tokens_have_no_text_but_their_logprobs_travel() -> None:
    assert answer([1, *tokens_of("a"), 1]) == ([("a", 2, "01"), ("", 1, "2")], False)
    assert answer([1, *tokens_of("a"), 1], logprobs=False) == ([("a", 2, None)], False)


def test_an_answer_of_nothing_sends_nothing() -> None:
    assert answer([]) == ([], False)
    assert answer(tokens_of("XY"), ["XY"]) == ([], True)
