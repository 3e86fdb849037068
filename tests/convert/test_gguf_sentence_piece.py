"""The tokenizer built from pieces with scores: what llama.cpp makes of the same vocabulary, and by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer

from convert.errors import ConvertError
from convert.gguf_metadata import Metadata
from convert.gguf_tokenizer import build_tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# By falling score, as SentencePiece lists what it has merged; letters come last, as they are never merged.
MERGED = ["▁t", "he", "▁the", "ab", "bc", "abc", "▁a", "lo", "hel", "hello", "llo", "▁he"]
LETTERS = list("▁thelobacds")
USER = ["\n", "\n\n", "\n\n\n", "  ", "   ", "<h1>"]


def keys(**changes: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *USER, *MERGED, *LETTERS]
    types = [2, 3, 3] + [6] * 256 + [4] * len(USER) + [1] * (len(MERGED) + len(LETTERS))
    scores = [0.0] * 259 + [-1000.0] * len(USER) + [-float(i) for i in range(len(MERGED) + len(LETTERS))]
    values = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "token_type": types,
        "scores": scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_space_prefix": False,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items() if value is not None}


def tokenizer(**changes: Any) -> Tokenizer:
    return Tokenizer.from_str(build_tokenizer(Metadata({"general.architecture": "llama"} | keys(**changes))))


def pieces(text: str, **changes: Any) -> list[str]:
    found = tokenizer(**changes)
    tokens: list[str] = found.encode(text, add_special_tokens=False).tokens
    return tokens


# Ids that llama.cpp gives with these keys, without and with a blank in front (and without USER's blanks).
LLAMA_CPP = {
    "hello the abc": [274, 267, 277, 270],
    "  the\n\n\n\nabc": [262, 278, 266, 261, 259, 270],
    "helo  the    d<h1>abcabc": [266, 272, 262, 278, 266, 263, 277, 286, 264, 270, 270],
    "abbc": [268, 269],
    "thé世\n": [278, 279, 198, 172, 231, 187, 153, 259],
    "helllo": [273, 275],
    "ababc": [268, 270],
    " a b": [271, 277, 283],
}
LLAMA_CPP_PREFIXED = {
    "hello the abc": [273, 270, 263, 273, 266],
    "  the\n\n\n\nabc": [273, 273, 263, 13, 13, 13, 13, 266],
    "helo  the    d<h1>abcabc": [272, 268, 273, 263, 273, 273, 273, 273, 282, 259, 273, 266, 266],
    "abbc": [273, 264, 265],
    "thé世\n": [261, 275, 198, 172, 231, 187, 153, 13],
    "helllo": [273, 269, 271],
    "ababc": [273, 264, 266],
    " a b": [273, 267, 273, 279],
}


@pytest.mark.parametrize("text", LLAMA_CPP)
def test_the_ids_are_llama_cpp_s(text: str) -> None:
    assert tokenizer().encode(text, add_special_tokens=False).ids == LLAMA_CPP[text]


@pytest.mark.parametrize("text", LLAMA_CPP_PREFIXED)
def test_the_ids_are_llama_cpp_s_with_a_blank_in_front(text: str) -> None:
    found = tokenizer(**prefixed()).encode(text, add_special_tokens=False).ids
    assert found == LLAMA_CPP_PREFIXED[text]


def prefixed() -> dict[str, Any]:
    """The keys with a blank in front, and with two tokens of the user that hold no blanks."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, "<h1>", "<|x|>", *MERGED, *LETTERS]
    count = len(MERGED) + len(LETTERS)
    return {
        "tokens": tokens,
        "token_type": [2, 3, 3] + [6] * 256 + [4, 4] + [1] * count,
        "scores": [0.0] * 261 + [-float(i) for i in range(count)],
        "add_space_prefix": True,
    }


def test_a_run_is_the_longest_token_and_the_rest() -> None:
    assert pieces("\n" * 8) == ["\n\n\n", "\n\n\n", "\n\n"]
    assert pieces("a" + " " * 5 + "b") == ["a", "▁▁▁", "▁▁", "b"]


def test_all_text_comes_back() -> None:
    for changes in ({}, prefixed()):
        found = tokenizer(**changes)
        text = "the  abc\n\n世界 🙂\x07 é <h1>"
        ids = found.encode(text, add_special_tokens=False).ids
        assert found.decode(ids, skip_special_tokens=False) == text


def test_text_never_merges_to_a_control_token() -> None:
    tokens = [*keys()["tokenizer.ggml.tokens"], "<", "/", ">", "</"]
    types = [*keys()["tokenizer.ggml.token_type"], 1, 1, 1, 1]
    scores = [*keys()["tokenizer.ggml.scores"], -90.0, -91.0, -92.0, -89.0]
    found = tokenizer(tokens=tokens, token_type=types, scores=scores)
    found.encode_special_tokens = True
    ids = found.encode("</s>", add_special_tokens=False).ids
    assert [found.id_to_token(token_id) for token_id in ids] == ["</", "s", ">"]


def test_the_text_begins_with_bos_where_the_file_does_not_say_otherwise() -> None:
    assert tokenizer().encode("abc").tokens == ["<s>", "abc"]
    assert tokenizer(add_bos_token=False).encode("abc").tokens == ["abc"]


ALL = keys()
LIST = {key.rsplit(".", 1)[1]: value for key, value in ALL.items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "scores must be an array"),
        ({"scores": [0.0]}, "scores has 1 items"),
        ({"scores": [-1.0] * len(LIST["tokens"])}, "Several tokens have the score -1.0"),
        ({"token_type": [2, 3, 3, 1, *LIST["token_type"][4:]]}, "lacks tokens for single bytes"),
        ({"tokens": [*LIST["tokens"][:-1], "▁xyz"]}, "'▁xyz' holds a character"),
        ({"token_type": [*LIST["token_type"][:265], 5, *LIST["token_type"][266:]]}, "'▁t' and does not use"),
        ({"tokens": [*LIST["tokens"][:264], "a  b", *LIST["tokens"][265:]]}, "takes 'a  b' whole"),
        ({"tokens": [*LIST["tokens"][:-1], "▁▁"]}, "write blanks"),
        ({"add_space_prefix": None}, r"takes '\\n' whole"),
    ],
)
def test_what_cannot_be_exact_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConvertError, match=message) as caught:
        tokenizer(**changes)
    assert "convert hf" in caught.value.message or "Fetch" in caught.value.message
