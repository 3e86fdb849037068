"""Every name of a pre-tokenizer cuts text where llama.cpp cuts it."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from convert.gguf_metadata import Metadata
from convert.gguf_tokenizer import PRE_TOKENIZERS, build_tokenizer
from tests.oracle.pre_tokenizers import NAMES, texts, values, vocabulary


def test_all_names_were_tried() -> None:
    assert sorted(NAMES) == sorted(PRE_TOKENIZERS)


@pytest.mark.parametrize("name", NAMES)
def test_the_ids_are_llama_cpp_s(name: str) -> None:
    tokens, merges = vocabulary()
    metadata = Metadata(
        {
            "general.architecture": "llama",
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": name,
            "tokenizer.ggml.tokens": list(tokens),
            "tokenizer.ggml.token_type": [3, 3, *[1] * (len(tokens) - 2)],
            "tokenizer.ggml.merges": list(merges),
            "tokenizer.ggml.bos_token_id": 0,
        }
    )
    tokenizer = Tokenizer.from_str(build_tokenizer(metadata))
    for text, expected in zip(texts(), values()[name], strict=True):
        assert tokenizer.encode(text, add_special_tokens=False).ids == expected, repr(text)


def test_the_rules_differ_in_these_texts() -> None:
    """gpt-2, refact, qwen2, llama-bpe (which takes whole words), dbrx, minicpm5."""
    assert len({str(ids) for ids in values().values()}) == 6
