"""Text from tokens against the bytes they stand for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from backends.hybrid.detokenize import TextDecoder
from backends.vocabulary import UnsupportedTokenizer, Vocabulary
from tests.backends.test_tokenizer import sentence_piece
from tests.tiny import tiny_tokenizer

TINY = Tokenizer.from_str(tiny_tokenizer())
VOCABULARY = Vocabulary(json.loads(tiny_tokenizer()))
PIECES = Vocabulary(json.loads(sentence_piece()))


def byte_token(vocabulary: Vocabulary, byte: int) -> int:
    return next(
        token_id for token_id in range(len(vocabulary)) if vocabulary.bytes_of(token_id) == bytes([byte])
    )


def pushed(token_ids: list[int], vocabulary: Vocabulary = VOCABULARY) -> list[str]:
    decoder = TextDecoder(vocabulary)
    return [*(decoder.push(token_id) for token_id in token_ids), decoder.flush()]


def test_every_byte_has_its_token() -> None:
    singles = {VOCABULARY.bytes_of(token_id) for token_id in range(len(VOCABULARY))}
    assert {bytes([byte]) for byte in range(256)} <= singles


@given(st.text(max_size=30))
def test_encoded_text_comes_back(text: str) -> None:
    token_ids = TINY.encode(text, add_special_tokens=False).ids
    if not any(VOCABULARY.is_special(token_id) for token_id in token_ids):
        assert "".join(pushed(token_ids)) == text


@given(st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=30))
def test_any_tokens_make_the_text_of_their_bytes(token_ids: list[int]) -> None:
    data = b"".join(
        VOCABULARY.bytes_of(token_id) for token_id in token_ids if not VOCABULARY.is_special(token_id)
    )
    assert "".join(pushed(token_ids)) == data.decode("utf-8", errors="replace")


def test_a_character_comes_whole_with_its_last_token() -> None:
    tokens = [byte_token(VOCABULARY, byte) for byte in "界🙂".encode()]
    assert pushed(tokens) == ["", "", "界", "", "", "", "🙂", ""]


def test_bytes_that_are_no_character_are_replaced() -> None:
    stray, half = byte_token(VOCABULARY, 0x95), byte_token(VOCABULARY, 0xE7)
    letter = byte_token(VOCABULARY, ord("a"))
    assert pushed([stray, letter]) == ["\ufffd", "a", ""]
    assert pushed([half, letter]) == ["", "\ufffda", ""]
    assert pushed([letter, half]) == ["a", "", "\ufffd"]


def test_control_tokens_are_not_shown_and_other_added_tokens_are() -> None:
    think = VOCABULARY.id_of("<think>")
    assert think is not None
    assert pushed([1, think, 2, 9999]) == ["", "<think>", "", "", ""]


def test_sentence_pieces() -> None:
    ids = [PIECES.id_of(piece) for piece in ("<s>", "▁hello", "▁w", "<0xE7>", "<0x95>", "<0x8C>")]
    assert pushed([token_id for token_id in ids if token_id is not None], PIECES) == [
        "", " hello", " w", "", "", "界", "",
    ]  # fmt: skip


def test_what_can_be_shown_of_a_token() -> None:
    assert VOCABULARY.shown(byte_token(VOCABULARY, 0x95)) == ("\ufffd", b"\x95")
    assert VOCABULARY.shown(1) == ("<|im_start|>", b"<|im_start|>")


def test_an_unknown_decoder_is_refused() -> None:
    document = json.loads(tiny_tokenizer()) | {"decoder": {"type": "WordPiece"}}
    with pytest.raises(UnsupportedTokenizer, match="WordPiece"):
        Vocabulary(document)
