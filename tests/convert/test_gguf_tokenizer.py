"""The tokenizer built from a vocabulary: pieces, merges, control tokens, all worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer

from convert.errors import ConvertError
from convert.gguf_metadata import Metadata
from convert.gguf_tokenizer import build_tokenizer
from tests.convert.gguf_files import gguf_config, metadata, vocabulary

TOKENS = vocabulary()[0]


def tokenizer(pre: str = "smollm", **keys: Any) -> Tokenizer:
    values = {**metadata(gguf_config()), "general.architecture": "llama", "tokenizer.ggml.pre": pre}
    values |= {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return Tokenizer.from_str(build_tokenizer(Metadata(values)))


def pieces(found: Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[str]:
    return [TOKENS[token_id] for token_id in found.encode(text, add_special_tokens=add_special_tokens).ids]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello world", ["hello", "Ġworld"]),
        ("hell world", ["hell", "Ġworld"]),
        ("help", ["he", "l", "p"]),
        ("é", ["Ã", "©"]),
        ("\n", ["Ċ"]),
        ("a  b", ["a", "Ġ", "Ġ", "b"]),  # the last blank belongs to the word, so two of them never meet
        ("a   b", ["a", "ĠĠ", "Ġ", "b"]),
    ],
)
@pytest.mark.parametrize(
    "pre", ["gpt-2", "llama-bpe", "qwen2", "smollm", "dbrx", "lfm2", "minicpm5", "refact"]
)
def test_text_is_cut_into_pieces_and_merged(pre: str, text: str, expected: list[str]) -> None:
    assert pieces(tokenizer(pre), text) == expected


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["12", "12"]),  # one piece: both pairs merge
        ("llama-bpe", ["12", "1", "2"]),  # pieces of three: 121, 2
        ("qwen2", ["1", "2", "1", "2"]),
        ("smollm", ["1", "2", "1", "2"]),
        ("refact", ["1", "2", "1", "2"]),
        ("dbrx", ["12", "1", "2"]),
        ("lfm2", ["12", "1", "2"]),
        ("minicpm5", ["12", "1", "2"]),
    ],
)
def test_digits_are_grouped_as_the_name_says(pre: str, expected: list[str]) -> None:
    assert pieces(tokenizer(pre), "1212") == expected


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["Ġ", "ĊĠ"]),
        ("llama-bpe", ["Ġ", "Ċ", "Ġ"]),
    ],
)
def test_line_ends_end_a_piece_in_llama_bpe(pre: str, expected: list[str]) -> None:
    tokens, _, merges = vocabulary()
    # "ĊĠ" takes the place of the end-of-text token's neighbour in a vocabulary with one more merge.
    found = tokenizer(
        pre,
        tokens=[*tokens, "ĊĠ"],
        token_type=[*vocabulary()[1], 1],
        merges=[*merges, "Ċ Ġ"],
    )
    names = [*tokens, "ĊĠ"]
    assert [names[token_id] for token_id in found.encode(" \n ", add_special_tokens=False).ids] == expected


def test_digits_are_cut_off_first_in_minicpm5() -> None:
    assert pieces(tokenizer("minicpm5"), "a  1") == ["a", "ĠĠ", "1"]
    assert pieces(tokenizer("llama-bpe"), "a  1") == ["a", "Ġ", "Ġ", "1"]


@pytest.mark.parametrize(
    ("pre", "whole"),
    [("llama-bpe", True), ("lfm2", True), ("minicpm5", True), ("gpt-2", False), ("dbrx", False)],
)
def test_some_take_a_whole_word_before_any_merge(pre: str, whole: bool) -> None:
    tokens, types, merges = vocabulary()
    with_word = {"tokens": [*tokens, "zap"], "token_type": [*types, 1], "merges": merges}
    found = tokenizer(pre, **with_word).encode("zap", add_special_tokens=False).ids
    assert found == ([len(tokens)] if whole else [tokens.index(letter) for letter in "zap"])


def test_control_tokens_are_special_and_user_defined_ones_are_not() -> None:
    found = tokenizer()
    assert pieces(found, "<|im_start|>hello<think>") == ["<|im_start|>", "hello", "<think>"]
    assert found.decode([1, TOKENS.index("hello"), len(TOKENS) - 1]) == "hello<think>"
    found.encode_special_tokens = True
    assert pieces(found, "<|im_end|>")[0] == "<"
    assert pieces(found, "<think>") == ["<think>"]


def test_all_bytes_come_back() -> None:
    found = tokenizer()
    text = "".join(chr(code) for code in range(1, 0x250)) + "日本語 🙂\u200d"
    assert found.decode(found.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_ids_are_those_of_the_file() -> None:
    assert tokenizer().get_vocab() == {token: index for index, token in enumerate(TOKENS)}


@pytest.mark.parametrize(
    ("pre", "add_bos", "expected"),
    [
        ("smollm", False, ["hello"]),
        ("smollm", True, ["<|im_start|>", "hello"]),
        ("llama-bpe", None, ["<|im_start|>", "hello"]),  # llama.cpp's defaults for these names
        ("lfm2", None, ["<|im_start|>", "hello"]),
        ("minicpm5", None, ["hello"]),
        ("dbrx", None, ["hello"]),
    ],
)
def test_begin_of_sequence_is_added_where_the_file_asks(
    pre: str, add_bos: bool | None, expected: list[str]
) -> None:
    found = tokenizer(pre, add_bos_token=add_bos)
    assert pieces(found, "hello", add_special_tokens=True) == expected
    assert pieces(found, "hello") == ["hello"]


def test_a_begin_of_sequence_token_may_hold_a_blank() -> None:
    tokens = [*TOKENS[:1], "<|begin of text|>", *TOKENS[2:]]
    ids = tokenizer(tokens=tokens, add_bos_token=True).encode("hello").ids
    assert ids == [1, TOKENS.index("hello")]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "t5"}, "'t5'.*'llama', and 'gpt2' with .*llama-bpe.*smollm.*convert hf"),
        ({"model": "llama"}, "lacks tokens for single bytes.*convert hf"),
        ({"pre": "tekken"}, "'tekken'"),
        ({"pre": None}, "None"),
        ({"tokens": ["a"] * len(TOKENS)}, "'a' more than once"),
        ({"token_type": [1]}, "1 items"),
        ({"merges": ["q q"]}, "'q q'"),
        ({"merges": ["hello"]}, "'hello'"),
        ({"add_bos_token": True, "bos_token_id": 10_000}, "bos_token_id is 10000"),
    ],
)
def test_what_is_not_supported_or_not_whole_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConvertError, match=message):
        tokenizer(**keys)
